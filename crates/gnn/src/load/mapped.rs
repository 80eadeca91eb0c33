//! Our own layout: one safetensors file whose tensors are used where they lie. Opening a graph of
//! many gigabytes reads no features, and several processes share one copy in memory.

use std::collections::BTreeMap;
use std::path::Path;

use bytemuck::Pod;
use hither_data::safetensors::{Entry, Writer};
use hither_data::{Array, Checkpoint, Dtype, Tensor};

use super::{bad, name_of};
use crate::{Dataset, Error, Features, Graph, Labels, Metric, Names, Split};

/// By convention; files are recognised by what they hold.
pub const EXTENSION: &str = ".graph.safetensors";
const FORMAT: &str = "hither-graph";
const VERSION: &str = "1";

/// The size of features that are still to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    Dense { dim: usize },
    Sparse { dim: usize, entries: usize, with_values: bool },
}

/// Writes a dataset in our own layout. The file appears under its name when it is whole.
pub fn write(dataset: &Dataset, path: &Path) -> Result<(), Error> {
    dataset.check()?;
    let shape = match &dataset.features {
        Features::Dense { dim, .. } => Shape::Dense { dim: *dim },
        Features::Sparse { indices, values, dim, .. } => {
            Shape::Sparse { dim: *dim, entries: indices.len(), with_values: values.is_some() }
        }
    };
    let mut out = begin(path, dataset, shape)?;
    match &dataset.features {
        Features::Dense { values, .. } => out.write(bytemuck::cast_slice(values))?,
        Features::Sparse { offsets, indices, values, .. } => {
            out.write(bytemuck::cast_slice(offsets))?;
            out.write(bytemuck::cast_slice(indices))?;
            if let Some(values) = values {
                out.write(bytemuck::cast_slice(values))?;
            }
        }
    }
    Ok(out.finish()?)
}

/// Writes everything but the features, which come last so that they can be made while they are
/// written.
pub(crate) fn begin(path: &Path, dataset: &Dataset, shape: Shape) -> Result<Writer, Error> {
    let Dataset { graph, labels, split, .. } = dataset;
    let nodes = graph.nodes();
    let names = [
        ("node_names", "node_name_ends", &dataset.node_names),
        ("class_names", "class_name_ends", &dataset.class_names),
    ];
    let names =
        || names.iter().filter_map(|(text, ends, names)| Some((text, ends, names.as_ref()?)));
    let mut entries = vec![
        Entry::new("offsets", Dtype::U64, &[nodes + 1]),
        Entry::new("neighbours", Dtype::U32, &[graph.targets().len()]),
        match labels {
            Labels::Classes { .. } => Entry::new("labels", Dtype::U32, &[nodes]),
            Labels::Tasks { count, .. } => Entry::new("labels", Dtype::U8, &[nodes, *count]),
        },
        Entry::new("train", Dtype::U32, &[split.train.len()]),
        Entry::new("valid", Dtype::U32, &[split.valid.len()]),
        Entry::new("test", Dtype::U32, &[split.test.len()]),
    ];
    for (text, ends, names) in names() {
        entries.push(Entry::new(*text, Dtype::U8, &[names.text().len()]));
        entries.push(Entry::new(*ends, Dtype::U64, &[names.len()]));
    }
    let dim = match shape {
        Shape::Dense { dim } => {
            entries.push(Entry::new("features", Dtype::F32, &[nodes, dim]));
            dim
        }
        Shape::Sparse { dim, entries: count, with_values } => {
            entries.push(Entry::new("feature_offsets", Dtype::U64, &[nodes + 1]));
            entries.push(Entry::new("feature_indices", Dtype::U32, &[count]));
            if with_values {
                entries.push(Entry::new("feature_values", Dtype::F32, &[count]));
            }
            dim
        }
    };
    let metadata = [
        ("format", FORMAT.to_string()),
        ("version", VERSION.to_string()),
        ("name", dataset.name.clone()),
        ("classes", labels.count().to_string()),
        ("metric", dataset.metric.name().to_string()),
        ("feature_dim", dim.to_string()),
    ];
    let metadata = metadata.map(|(key, value)| (key.to_string(), value)).into();
    let mut out = Writer::create(path, &entries, &metadata)?;
    out.write(bytemuck::cast_slice(graph.offsets()))?;
    out.write(bytemuck::cast_slice(graph.targets()))?;
    match labels {
        Labels::Classes { of, .. } => out.write(bytemuck::cast_slice(of))?,
        Labels::Tasks { of, .. } => out.write(of)?,
    }
    for set in [&split.train, &split.valid, &split.test] {
        out.write(bytemuck::cast_slice(set))?;
    }
    for (_, _, names) in names() {
        out.write(names.text())?;
        out.write(bytemuck::cast_slice(names.ends()))?;
    }
    Ok(out)
}

pub fn read(path: &Path) -> Result<Dataset, Error> {
    let file = File { path, checkpoint: Checkpoint::open(path)? };
    let (format, version) = (file.said("format")?, file.said("version")?);
    if (format, version) != (FORMAT, VERSION) {
        let problem = format!("its format is {format} {version}; expected {FORMAT} {VERSION}");
        return Err(bad(path, problem));
    }
    let graph = Graph::from_arrays(file.array("offsets")?, file.array("neighbours")?)
        .map_err(|problem| bad(path, problem))?;
    let set = |name: &str| Ok::<_, Error>(file.array::<u32>(name)?.to_vec());
    let split = Split { train: set("train")?, valid: set("valid")?, test: set("test")? };
    let metric = file.said("metric")?;
    let metric = [Metric::Accuracy, Metric::RocAuc, Metric::F1Micro]
        .into_iter()
        .find(|known| known.name() == metric)
        .ok_or_else(|| bad(path, format!("its metric `{metric}` is unknown")))?;
    let name = file.checkpoint.metadata.get("name").cloned().unwrap_or_else(|| name_of(path));
    let dataset = Dataset::new(name, graph, file.features()?, file.labels()?, split, metric);
    Ok(Dataset {
        node_names: file.names("node_names", "node_name_ends")?,
        class_names: file.names("class_names", "class_name_ends")?,
        ..dataset
    })
}

/// Whether a file's metadata say that it is one of ours.
pub fn fits(metadata: &BTreeMap<String, String>) -> bool {
    metadata.get("format").is_some_and(|format| format == FORMAT)
}

struct File<'a> {
    path: &'a Path,
    checkpoint: Checkpoint,
}

impl File<'_> {
    fn said(&self, key: &str) -> Result<&str, Error> {
        let value = self.checkpoint.metadata.get(key).map(String::as_str);
        value.ok_or_else(|| {
            bad(self.path, format!("its metadata have no `{key}`, so Hither did not write it"))
        })
    }

    fn count(&self, key: &str) -> Result<usize, Error> {
        let value = self.said(key)?;
        value
            .parse()
            .map_err(|_| bad(self.path, format!("its `{key}` is {value}; expected a number")))
    }

    fn tensor(&self, name: &str) -> Result<&Tensor, Error> {
        let tensor = self.checkpoint.tensors.get(name);
        tensor.ok_or_else(|| bad(self.path, format!("tensor `{name}` is missing")))
    }

    fn array<T: Element>(&self, name: &str) -> Result<Array<T>, Error> {
        let tensor = self.tensor(name)?;
        let problem = |problem: String| bad(self.path, format!("tensor `{name}` {problem}"));
        if tensor.dtype != T::DTYPE {
            return Err(problem(format!("is {}; expected {}", tensor.dtype, T::DTYPE)));
        }
        let mapped = Array::map(tensor.bytes.clone());
        mapped.ok_or_else(|| problem("is not aligned in the file; write the file again".into()))
    }

    fn features(&self) -> Result<Features, Error> {
        let dim = self.count("feature_dim")?;
        if self.checkpoint.tensors.contains_key("features") {
            let shape = &self.tensor("features")?.shape;
            if shape.len() != 2 || shape[1] != dim {
                let problem = format!("tensor `features` is {shape:?}; expected [nodes, {dim}]");
                return Err(bad(self.path, problem));
            }
            return Ok(Features::Dense { values: self.array("features")?, dim });
        }
        let has_values = self.checkpoint.tensors.contains_key("feature_values");
        Ok(Features::Sparse {
            offsets: self.array("feature_offsets")?,
            indices: self.array("feature_indices")?,
            values: has_values.then(|| self.array("feature_values")).transpose()?,
            dim,
        })
    }

    fn names(&self, text: &str, ends: &str) -> Result<Option<Names>, Error> {
        if !self.checkpoint.tensors.contains_key(text) {
            return Ok(None);
        }
        let names = Names::from_arrays(self.array(text)?, self.array(ends)?);
        names.map(Some).map_err(|problem| bad(self.path, format!("tensor `{ends}`: {problem}")))
    }

    fn labels(&self) -> Result<Labels, Error> {
        let count = self.count("classes")?;
        let tensor = self.tensor("labels")?;
        if tensor.dtype == Dtype::U32 {
            return Ok(Labels::Classes { of: self.array("labels")?, count });
        }
        if tensor.shape.get(1) != Some(&count) {
            let shape = &tensor.shape;
            let problem = format!("tensor `labels` is {shape:?}; expected [nodes, {count}]");
            return Err(bad(self.path, problem));
        }
        Ok(Labels::Tasks { of: self.array("labels")?, count })
    }
}

/// Types that tensors are used as.
trait Element: Pod {
    const DTYPE: Dtype;
}

impl Element for u64 {
    const DTYPE: Dtype = Dtype::U64;
}
impl Element for u32 {
    const DTYPE: Dtype = Dtype::U32;
}
impl Element for u8 {
    const DTYPE: Dtype = Dtype::U8;
}
impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}
