//! Checkpoints of PyTorch. `torch.save` writes a zip archive of one pickle and a file per storage;
//! stored uncompressed, the storages are ranges of the mapped archive. [`legacy`] reads the format
//! before PyTorch 1.6, [`distributed`] reads `torch.distributed.checkpoint`. No code of a file is run.

mod archive;
pub(crate) mod distributed;
pub(crate) mod legacy;
mod rebuild;

use std::collections::BTreeMap;
use std::path::Path;

use crate::map::Bytes;
use crate::pickle::{Call, Node, Pickle, Value, numpy};
use crate::{Checkpoint, Dtype, Error, Tensor};
use archive::Archive;
use rebuild::Rebuild;

/// Upper bound on nesting; lists that contain themselves reach it.
const DEPTH_MAX: usize = 64;
/// Upper bound on the tensors, numbers and texts of one file.
const VALUES_MAX: usize = 1 << 18;
/// Upper bound on the bytes of a dotted name; longer texts are cut.
const TEXT_MAX: usize = 1000;
/// Upper bound on all NumPy arrays of one file, which are copied: many names may share one array.
const ARRAYS_MAX: usize = 1 << 30;

pub fn read(path: &Path, bytes: &Bytes) -> Result<Checkpoint, Error> {
    let archive = Archive::open(path, bytes)?;
    let pickled = archive.file("data.pkl")?;
    let pickle = Pickle::read(&pickled, allow)
        .map_err(|source| Error::Pickle { path: path.into(), source })?;
    flatten(path, &pickle, &|key| archive.file(&format!("data/{key}")))
}

/// Finds the bytes of a storage by its key.
type Storages<'s> = dyn Fn(&str) -> Result<Bytes, Error> + 's;

/// All tensors and single values of a pickled object, by dotted names.
fn flatten(path: &Path, pickle: &Pickle<'_>, storages: &Storages<'_>) -> Result<Checkpoint, Error> {
    let mut flat = Flat {
        rebuild: Rebuild::new(path, pickle, storages),
        path,
        pickle,
        values: 0,
        arrays: 0,
        tensors: BTreeMap::new(),
        metadata: BTreeMap::new(),
        order: Vec::new(),
    };
    // A lone tensor is named as the member of a list of one.
    let lone = pickle.call(pickle.root).is_some_and(|call| !is_record(call.callee));
    flat.walk(pickle.root, if lone { "0".into() } else { String::new() }, 0)?;
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

/// Types of elements as values, which some checkpoints hold beside the tensors.
const ELEMENTS: [&str; 10] = [
    "float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool",
];

/// Objects whose attributes are read as a dictionary: the settings that people save beside their
/// weights, and the graphs of PyTorch Geometric.
fn is_record(class: (&str, &str)) -> bool {
    matches!(
        class,
        ("argparse", "Namespace")
            | ("types", "SimpleNamespace")
            | ("torch_geometric.data.data", "Data")
            | ("torch_geometric.data.storage", "GlobalStorage")
    )
}

/// Objects that stand beside the weights and are skipped.
fn is_inert((module, name): (&str, &str)) -> bool {
    matches!(module, "datetime" | "pathlib" | "pathlib._local")
        || matches!(
            (module, name),
            ("collections", "Counter") | ("torch.serialization", "_get_layout")
        )
        || matches!(module, "builtins" | "__builtin__")
            && matches!(name, "set" | "frozenset" | "dict" | "list" | "tuple" | "int" | "float")
}

/// TorchRec's int4 and int2 tables: a wrapper around a tensor of bytes.
fn is_packed_bytes(class: (&str, &str)) -> bool {
    matches!(class, ("torchrec.tensor_types", "UInt4Tensor" | "UInt2Tensor"))
}

/// The names that are understood, and what to do about others.
fn allow(module: &str, name: &str) -> Result<(), &'static str> {
    match (module, name) {
        class if is_record(class) || is_inert(class) || is_packed_bytes(class) => Ok(()),
        ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_parameter")
        | ("torch._utils", "_rebuild_parameter_with_state" | "_rebuild_wrapper_subclass")
        | ("torch._tensor", "_rebuild_from_type_v2")
        | ("collections", "OrderedDict" | "defaultdict")
        | ("copy_reg" | "copyreg", "_reconstructor")
        | ("builtins" | "__builtin__", "object")
        | ("torch", "Size" | "device")
        | ("numpy", "dtype")
        | ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar")
        | ("_codecs", "encode") => Ok(()),
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
            Err("save `tensor.dequantize()`, and quantise the model with `hither model quantise`")
        }
        ("torch", _) if STORAGES.iter().any(|(storage, _)| *storage == name) => Ok(()),
        ("torch", _) if ELEMENTS.contains(&name) => Ok(()),
        ("torch._utils", "_rebuild_sparse_tensor") => Err("save `tensor.to_dense()`"),
        ("torch._utils", _) | ("torch", _) | ("torch.storage", _) => {
            Err("save plain tensors of ordinary types")
        }
        _ if module.contains("shard") || module.contains("distributed") => {
            Err("save with torch.distributed.checkpoint, or gather the tensors into one process")
        }
        _ => Err("save only the weights: torch.save(model.state_dict(), \"weights.pt\")"),
    }
}

/// Turns nested dictionaries and lists into names with dots.
struct Flat<'f, 'a> {
    path: &'f Path,
    pickle: &'f Pickle<'a>,
    rebuild: Rebuild<'f, 'a>,
    values: usize,
    /// Bytes of NumPy arrays so far.
    arrays: usize,
    tensors: BTreeMap<String, Tensor>,
    metadata: BTreeMap<String, String>,
    order: Vec<String>,
}

impl<'a> Flat<'_, 'a> {
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
                Node::Call { .. } => self.call(value, name, depth),
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

    fn call(&mut self, value: Value<'a>, name: String, depth: usize) -> Result<(), Error> {
        if let Some(Call { callee, arguments, state }) = self.pickle.call(value) {
            // What makes an object may stand between: `_reconstructor(class, object, None)`.
            let class = match (callee, arguments) {
                ((_, "_reconstructor"), [Value::Global(module, class), ..]) => (*module, *class),
                _ => callee,
            };
            if is_record(class) {
                return self.record(state, name, depth);
            }
            if is_inert(class) {
                return Ok(());
            }
        }
        if let Some(text) = self.rebuild.scalar(value) {
            return self.say(name, text);
        }
        let tensor = match numpy::tensor(self.pickle, value) {
            Ok(array) => {
                self.arrays += array.bytes.len();
                if self.arrays > ARRAYS_MAX {
                    let problem = "its NumPy arrays take more than 1 GiB; save tensors".into();
                    return Err(self.bad(problem));
                }
                array
            }
            Err(_) => self.rebuild.tensor(value, &name)?,
        };
        self.check_new(&name)?;
        self.order.push(name.clone());
        self.tensors.insert(name, tensor);
        Ok(())
    }

    /// The attributes of an object, but for the reference to the object that holds it.
    fn record(
        &mut self,
        state: Option<Value<'a>>,
        name: String,
        depth: usize,
    ) -> Result<(), Error> {
        let Some(state) = state else { return Ok(()) };
        let Some(attributes) = self.pickle.pairs(state) else {
            return Err(self.bad(format!("the attributes of `{name}` are not a dictionary")));
        };
        for (key, value) in attributes {
            let key = self.key(*key, &name)?;
            if key != "_parent" {
                self.walk(*value, join(&name, &key), depth + 1)?;
            }
        }
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
