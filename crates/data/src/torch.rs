//! Checkpoints of `torch.save`: a zip archive of one pickle and a file for each storage. Stored
//! uncompressed, the storages are ranges of the mapped archive. No code of the file is run.

mod archive;
mod rebuild;

use std::collections::BTreeMap;
use std::path::Path;

use crate::map::Bytes;
use crate::pickle::{Node, NodeId, Pickle, Value, numpy};
use crate::{Checkpoint, Dtype, Error, Tensor};
use archive::Archive;
use rebuild::Rebuild;

/// Far deeper than people nest dictionaries.
const DEPTH_MAX: usize = 64;
/// Tensors, numbers and texts of one file.
const VALUES_MAX: usize = 1 << 18;
/// A dotted name, or a text that is kept.
const TEXT_MAX: usize = 1000;
/// Upper bound on all NumPy arrays of one file, which are copied: many names may share one array.
const ARRAYS_MAX: usize = 1 << 30;

pub fn read(path: &Path, bytes: &Bytes) -> Result<Checkpoint, Error> {
    let archive = Archive::open(path, bytes)?;
    let pickled = archive.file("data.pkl")?;
    let pickle = Pickle::read(&pickled, allow)
        .map_err(|source| Error::Pickle { path: path.into(), source })?;
    let mut flat = Flat {
        rebuild: Rebuild::new(&archive, &pickle),
        path,
        pickle: &pickle,
        values: 0,
        arrays: 0,
        tensors: BTreeMap::new(),
        metadata: BTreeMap::new(),
        order: Vec::new(),
    };
    match pickle.root {
        Value::Node(id) if is_lone_tensor(pickle.node(id)) => {
            flat.walk(pickle.root, "0".into(), 0)?; // A lone tensor, as a list of one.
        }
        root => flat.walk(root, String::new(), 0)?,
    }
    let Flat { tensors, metadata, order, .. } = flat;
    Ok(Checkpoint { path: path.into(), tensors, metadata, order: Some(order) })
}

const STORAGES: [(&str, Dtype); 10] = [
    ("FloatStorage", Dtype::F32),
    ("HalfStorage", Dtype::F16),
    ("BFloat16Storage", Dtype::Bf16),
    ("DoubleStorage", Dtype::F64),
    ("LongStorage", Dtype::I64),
    ("IntStorage", Dtype::I32),
    ("ShortStorage", Dtype::I16),
    ("CharStorage", Dtype::I8),
    ("ByteStorage", Dtype::U8),
    ("BoolStorage", Dtype::Bool),
];

/// Types of elements are named in some checkpoints; they are read and mean nothing to us.
const ELEMENTS: [&str; 10] = [
    "float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool",
];

/// Classes of PyTorch Geometric that only hold values: their attributes are read as a dictionary.
fn is_record(callee: (&str, &str)) -> bool {
    matches!(
        callee,
        ("torch_geometric.data.data", "Data") | ("torch_geometric.data.storage", "GlobalStorage")
    )
}

fn is_lone_tensor(node: &Node<'_>) -> bool {
    matches!(node, Node::Call { callee, .. } if !is_record(*callee))
}

/// The names that are understood, and what to do about others.
fn allow(module: &str, name: &str) -> Result<(), &'static str> {
    match (module, name) {
        ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_parameter")
        | ("collections", "OrderedDict")
        | ("torch", "Size" | "device")
        | ("numpy", "dtype")
        | ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar")
        | ("_codecs", "encode") => Ok(()),
        (module, name) if is_record((module, name)) => Ok(()),
        ("torch_geometric.data.data", "DataEdgeAttr" | "DataTensorAttr") => Ok(()),
        ("torch_geometric.data.hetero_data", _) => {
            Err("heterogeneous graphs are not read: save `data.to_homogeneous()`")
        }
        ("torch_sparse.tensor", _) => {
            Err("save `edge_index` instead of `adj_t`, without the transform ToSparseTensor")
        }
        (module, _) if module.starts_with("torch_geometric.") => {
            Err("save one torch_geometric.data.Data of plain tensors, or `data.to_dict()`")
        }
        ("numpy", "ndarray")
        | ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct")
        | ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => Ok(()),
        ("torch", "QUInt8Storage" | "QInt8Storage" | "QInt32Storage" | "QUInt4x2Storage")
        | ("torch._utils", "_rebuild_qtensor") => {
            Err("quantised tensors are not read: save `tensor.dequantize()`, and quantise here")
        }
        ("torch", _) if STORAGES.iter().any(|(storage, _)| *storage == name) => Ok(()),
        ("torch", _) if ELEMENTS.contains(&name) => Ok(()),
        ("torch._utils", "_rebuild_sparse_tensor") => Err("save `tensor.to_dense()`"),
        ("torch._utils", _) | ("torch", _) | ("torch.storage", _) => {
            Err("save plain tensors of ordinary types")
        }
        _ if module.contains("shard") || module.contains("distributed") => {
            Err("gather the tensors into one process before saving")
        }
        _ => Err("save `model.state_dict()` instead of the whole model"),
    }
}

/// Turns nested dictionaries and lists into names with dots.
struct Flat<'a> {
    path: &'a Path,
    pickle: &'a Pickle<'a>,
    rebuild: Rebuild<'a>,
    values: usize,
    /// Bytes of NumPy arrays so far.
    arrays: usize,
    tensors: BTreeMap<String, Tensor>,
    metadata: BTreeMap<String, String>,
    order: Vec<String>,
}

impl<'a> Flat<'a> {
    fn walk(&mut self, value: Value<'a>, name: String, depth: usize) -> Result<(), Error> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(Error::TooManyValues { path: self.path.into(), limit: VALUES_MAX });
        }
        // Lists may contain themselves.
        if depth > DEPTH_MAX {
            return Err(Error::TooDeep { path: self.path.into(), limit: DEPTH_MAX });
        }
        if name.len() > TEXT_MAX {
            let name: String = name.chars().take(80).collect();
            return Err(self.bad(format!("the name `{name}…` is longer than {TEXT_MAX} bytes")));
        }
        let pickle = self.pickle;
        match value {
            Value::Node(id) => match pickle.node(id) {
                Node::List(items) | Node::Tuple(items) => {
                    for (index, item) in items.iter().enumerate() {
                        self.walk(*item, join(&name, &index.to_string()), depth + 1)?;
                    }
                    Ok(())
                }
                Node::Dict(pairs) => {
                    for (key, value) in pairs {
                        let key = self.key(*key, &name)?;
                        self.walk(*value, join(&name, &key), depth + 1)?;
                    }
                    Ok(())
                }
                Node::Call { callee, state, .. } if is_record(*callee) => {
                    self.record(*state, name, depth)
                }
                Node::Call { .. } => self.call(id, name),
                Node::Persistent(_) => {
                    Err(self.bad(format!("`{name}` is a bare storage; save a tensor")))
                }
            },
            Value::Bool(truth) => self.say(name, truth.to_string()),
            Value::Int(number) => self.say(name, number.to_string()),
            Value::Float(number) => self.say(name, number.to_string()),
            Value::Str(text) => {
                let shown: String = text.chars().take(TEXT_MAX).collect();
                let cut = if shown.len() < text.len() { "…" } else { "" };
                self.say(name, shown + cut)
            }
            Value::None | Value::Bytes(_) | Value::Global(..) => Ok(()),
        }
    }

    /// The attributes of an object, but for the reference to the object that holds it.
    fn record(
        &mut self,
        state: Option<Value<'a>>,
        name: String,
        depth: usize,
    ) -> Result<(), Error> {
        let Some(Value::Node(id)) = state else { return Ok(()) };
        let Node::Dict(attributes) = self.pickle.node(id) else {
            return Err(self.bad(format!("the attributes of `{name}` are no dictionary")));
        };
        for (key, value) in attributes {
            let key = self.key(*key, &name)?;
            if key != "_parent" {
                self.walk(*value, join(&name, &key), depth + 1)?;
            }
        }
        Ok(())
    }

    fn call(&mut self, id: NodeId, name: String) -> Result<(), Error> {
        if let Some(text) = self.rebuild.scalar(id) {
            return self.say(name, text);
        }
        let tensor = match numpy::tensor(self.pickle, Value::Node(id)) {
            Ok(array) => {
                self.arrays += array.bytes.len();
                if self.arrays > ARRAYS_MAX {
                    let problem = "its NumPy arrays take more than 1 GiB; save tensors".into();
                    return Err(self.bad(problem));
                }
                array
            }
            Err(_) => self.rebuild.tensor(id, &name)?,
        };
        self.check_new(&name)?;
        self.order.push(name.clone());
        self.tensors.insert(name, tensor);
        Ok(())
    }

    fn key(&self, key: Value<'_>, within: &str) -> Result<String, Error> {
        match key {
            Value::Str(text) => Ok(text.into()),
            Value::Int(number) => Ok(number.to_string()),
            _ => Err(self.bad(format!(
                "the dictionary `{within}` has a key that is neither text nor an integer"
            ))),
        }
    }

    fn say(&mut self, name: String, text: String) -> Result<(), Error> {
        self.check_new(&name)?;
        self.metadata.insert(name, text);
        Ok(())
    }

    fn check_new(&self, name: &str) -> Result<(), Error> {
        if self.tensors.contains_key(name) || self.metadata.contains_key(name) {
            return Err(Error::DuplicateName { path: self.path.into(), name: name.into() });
        }
        Ok(())
    }

    fn bad(&self, problem: String) -> Error {
        Error::Archive { path: self.path.into(), problem }
    }
}

fn join(outer: &str, inner: &str) -> String {
    if outer.is_empty() { inner.into() } else { format!("{outer}.{inner}") }
}
