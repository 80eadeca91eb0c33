//! Our own layout: one safetensors file whose tensors are used where they lie. Opening a graph of
//! many gigabytes reads no features, and several processes share one copy in memory.

use std::collections::BTreeMap;
use std::path::Path;

use hither_data::safetensors::{Entry, Writer};
use hither_data::{Array, Dtype};

use super::name_of;
use super::tensors::TensorFile;
use crate::{Dataset, Error, Features, Graph, Labels, Metric, Names, Split};

/// By convention; files are recognised by what they hold.
pub const EXTENSION: &str = ".graph.safetensors";
const FORMAT: &str = "hither-graph";
const VERSION: &str = "1";
/// Of files whose edges have weights, so that programs that do not know of them refuse such files.
const VERSION_WEIGHTED: &str = "2";

/// The size of features that are still to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FeatureShape {
    Dense { dim: usize },
    Sparse { dim: usize, entries: usize, with_values: bool },
}

impl FeatureShape {
    pub(crate) fn of_features(features: &Features) -> Self {
        match features {
            Features::Dense { dim, .. } => Self::Dense { dim: *dim },
            Features::Sparse { indices, values, dim, .. } => {
                Self::Sparse { dim: *dim, entries: indices.len(), with_values: values.is_some() }
            }
        }
    }
}

/// Writes a dataset in our own layout. The file appears under its name when it is whole.
pub fn write(dataset: &Dataset, path: &Path) -> Result<(), Error> {
    if dataset.links.is_some() {
        return Err(Error::Dataset {
            name: dataset.name.clone(),
            problem:
                "user–item graphs are not written in this layout; train on the files themselves"
                    .into(),
        });
    }
    dataset.check()?;
    let mut out = begin(path, dataset, FeatureShape::of_features(&dataset.features))?;
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
pub(crate) fn begin(path: &Path, dataset: &Dataset, shape: FeatureShape) -> Result<Writer, Error> {
    let Dataset { graph, labels, split, .. } = dataset;
    let (entries, metadata) = contents(dataset, shape, dataset.original.is_some());
    let mut out = Writer::create(path, &entries, &metadata)?;
    out.write(bytemuck::cast_slice(graph.offsets()))?;
    out.write(bytemuck::cast_slice(graph.targets()))?;
    if let Some(weights) = graph.weights() {
        out.write(bytemuck::cast_slice(weights))?;
    }
    match labels {
        Labels::Classes { of, .. } => out.write(bytemuck::cast_slice(of))?,
        Labels::Tasks { of, .. } => out.write(of)?,
    }
    for set in [&split.train, &split.valid, &split.test] {
        out.write(bytemuck::cast_slice(set))?;
    }
    for names in [&dataset.node_names, &dataset.class_names].into_iter().flatten() {
        out.write(names.text())?;
        out.write(bytemuck::cast_slice(names.ends()))?;
    }
    if let Some(original) = &dataset.original {
        out.write(bytemuck::cast_slice(original))?;
    }
    Ok(out)
}

/// The tensors of a file in their order, and its metadata. Neither depends on the order of nodes.
pub(crate) fn contents(
    dataset: &Dataset,
    shape: FeatureShape,
    is_renumbered: bool,
) -> (Vec<Entry>, BTreeMap<String, String>) {
    let Dataset { graph, labels, split, .. } = dataset;
    let nodes = graph.nodes();
    let mut entries = vec![
        Entry::new("offsets", Dtype::U64, &[nodes + 1]),
        Entry::new("neighbours", Dtype::U32, &[graph.targets().len()]),
    ];
    if graph.weights().is_some() {
        entries.push(Entry::new("weights", Dtype::F32, &[graph.targets().len()]));
    }
    entries.extend([
        match labels {
            Labels::Classes { .. } => Entry::new("labels", Dtype::U32, &[nodes]),
            Labels::Tasks { count, .. } => Entry::new("labels", Dtype::U8, &[nodes, *count]),
        },
        Entry::new("train", Dtype::U32, &[split.train.len()]),
        Entry::new("valid", Dtype::U32, &[split.valid.len()]),
        Entry::new("test", Dtype::U32, &[split.test.len()]),
    ]);
    for (text, ends, names) in [
        ("node_names", "node_name_ends", &dataset.node_names),
        ("class_names", "class_name_ends", &dataset.class_names),
    ] {
        if let Some(names) = names {
            entries.push(Entry::new(text, Dtype::U8, &[names.text().len()]));
            entries.push(Entry::new(ends, Dtype::U64, &[names.len()]));
        }
    }
    if is_renumbered {
        entries.push(Entry::new("original", Dtype::U32, &[nodes]));
    }
    let dim = match shape {
        FeatureShape::Dense { dim } => {
            entries.push(Entry::new("features", Dtype::F32, &[nodes, dim]));
            dim
        }
        FeatureShape::Sparse { dim, entries: count, with_values } => {
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
        (
            "version",
            (if graph.weights().is_some() { VERSION_WEIGHTED } else { VERSION }).to_string(),
        ),
        ("name", dataset.name.clone()),
        ("classes", labels.count().to_string()),
        ("metric", dataset.metric.name().to_string()),
        ("feature_dim", dim.to_string()),
    ];
    (entries, metadata.map(|(key, value)| (key.to_string(), value)).into())
}

pub fn read(path: &Path) -> Result<Dataset, Error> {
    GraphFile::open(path)?.dataset()
}

/// Whether a file's metadata say that it is one of ours.
pub fn fits(metadata: &BTreeMap<String, String>) -> bool {
    metadata.get("format").is_some_and(|format| format == FORMAT)
}

/// A file of this layout. Opening it reads only its header.
pub(crate) struct GraphFile(pub TensorFile);

impl GraphFile {
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self(TensorFile::open(path, FORMAT, &[VERSION, VERSION_WEIGHTED])?))
    }

    pub fn dataset(&self) -> Result<Dataset, Error> {
        let Self(file) = self;
        let original = self.original()?;
        let (offsets, neighbours) = (file.array("offsets")?, file.array("neighbours")?);
        let graph = match original {
            Some(_) => Graph::from_renumbered(offsets, neighbours),
            None => Graph::from_arrays(offsets, neighbours),
        };
        let graph = graph.map_err(|problem| file.bad(problem))?;
        let graph = match file.has("weights") {
            true => graph
                .with_weights_array(file.array("weights")?)
                .map_err(|problem| file.bad(problem))?,
            false => graph,
        };
        let set = |name: &str| Ok::<_, Error>(file.array::<u32>(name)?.to_vec());
        let split = Split { train: set("train")?, valid: set("valid")?, test: set("test")? };
        let (features, labels) = (self.features()?, self.labels()?);
        let dataset = Dataset::new(self.name(), graph, features, labels, split, self.metric()?);
        Ok(Dataset {
            node_names: self.names("node_names", "node_name_ends")?,
            class_names: self.names("class_names", "class_name_ends")?,
            original,
            ..dataset
        })
    }

    pub fn name(&self) -> String {
        self.0.find_text("name").map_or_else(|| name_of(&self.0.path), str::to_owned)
    }

    pub fn metric(&self) -> Result<Metric, Error> {
        let metric = self.0.text("metric")?;
        metric.parse().map_err(|_| self.0.bad(format!("its metric `{metric}` is unknown")))
    }

    /// The numbers of nodes before they were renumbered.
    pub fn original(&self) -> Result<Option<Array<u32>>, Error> {
        self.0.has("original").then(|| self.0.array("original")).transpose()
    }

    pub fn features(&self) -> Result<Features, Error> {
        let Self(file) = self;
        let dim = file.number("feature_dim")?;
        if file.has("features") {
            let shape = &file.tensor("features")?.shape;
            if shape.len() != 2 || shape[1] != dim {
                let problem = format!("tensor `features` is {shape:?}; expected [nodes, {dim}]");
                return Err(file.bad(problem));
            }
            return Ok(Features::Dense { values: file.array("features")?, dim });
        }
        let has_values = file.has("feature_values");
        Ok(Features::Sparse {
            offsets: file.array("feature_offsets")?,
            indices: file.array("feature_indices")?,
            values: has_values.then(|| file.array("feature_values")).transpose()?,
            dim,
        })
    }

    pub fn labels(&self) -> Result<Labels, Error> {
        let Self(file) = self;
        let count = file.number("classes")?;
        let tensor = file.tensor("labels")?;
        if tensor.dtype == Dtype::U32 {
            return Ok(Labels::Classes { of: file.array("labels")?, count });
        }
        if tensor.shape.get(1) != Some(&count) {
            let shape = &tensor.shape;
            let problem = format!("tensor `labels` is {shape:?}; expected [nodes, {count}]");
            return Err(file.bad(problem));
        }
        Ok(Labels::Tasks { of: file.array("labels")?, count })
    }

    fn names(&self, text: &str, ends: &str) -> Result<Option<Names>, Error> {
        let Self(file) = self;
        if !file.has(text) {
            return Ok(None);
        }
        let names = Names::from_arrays(file.array(text)?, file.array(ends)?);
        names.map(Some).map_err(|problem| file.bad(format!("tensor `{ends}`: {problem}")))
    }
}
