//! Writes models and embeddings in files that other programs read, and reads models back.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use hither_data::safetensors::{Entry, Writer};
use hither_data::{Checkpoint, Dtype};

use serde::{Deserialize, Serialize};

use crate::model::{Inference, Model, Named, Spec, Weights};
use crate::{Dataset, Error, Labels};

/// Keys of a model's metadata.
const SPEC: &str = "hither.model";
const TARGET: &str = "hither.target";

/// What the outputs of a model stand for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Whether each output answers a question of its own; otherwise they are the classes of a node.
    pub has_tasks: bool,
    /// What the training data call them; None: by their numbers.
    pub names: Option<Vec<String>>,
    /// Whether the outputs are embeddings whose products tell which nodes are linked.
    pub is_links: bool,
}

impl Target {
    /// What a model that is trained on this dataset predicts.
    pub fn of(data: &Dataset) -> Self {
        let names = data.class_names.as_ref();
        Self {
            has_tasks: matches!(data.labels, Labels::Tasks { .. }),
            names: names.map(|names| names.iter().map(Into::into).collect()),
            is_links: data.links.is_some(),
        }
    }

    /// What an output is called.
    pub fn name(&self, output: usize) -> String {
        self.names
            .as_ref()
            .and_then(|names| names.get(output))
            .map_or_else(|| output.to_string(), Clone::clone)
    }
}

/// A model that can be used.
pub struct Trained {
    pub model: Model,
    pub weights: Weights,
    pub target: Target,
}

/// Writes one tensor per parameter, by the names of PyTorch Geometric's models, without padding
/// tensors, which `load_state_dict` would refuse.
pub fn model(path: &Path, model: &Model, weights: &Weights, target: &Target) -> Result<(), Error> {
    let pieces = || pieces(model, weights);
    let mut entries: Vec<Entry> =
        pieces().map(|(named, _)| Entry::new(&named.name, Dtype::F32, &named.shape)).collect();
    // PyTorch's batch norms expect a count of batches.
    let counts = model.stats.iter().filter_map(|named| named.name.strip_suffix("running_mean"));
    entries.extend(
        counts.map(|norm| Entry::new(format!("{norm}num_batches_tracked"), Dtype::I64, &[])),
    );
    // Its GIN layers expect ε, which is 0 here.
    let gin = model.params.iter().filter_map(|named| named.name.strip_suffix("nn.lins.0.weight"));
    entries.extend(gin.map(|layer| Entry::new(format!("{layer}eps"), Dtype::F32, &[1])));
    let undescribed = |error| Error::File {
        path: path.into(),
        problem: format!("the model cannot be described: {error}"),
    };
    let spec = serde_json::to_string(&model.spec).map_err(undescribed)?;
    let target = serde_json::to_string(target).map_err(undescribed)?;
    let metadata = [(SPEC, spec), (TARGET, target), ("format", "pt".into())];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value)).into();
    let mut writer = Writer::packed(path, &entries, &metadata)?;
    for (_, values) in pieces() {
        writer.write(bytemuck::cast_slice(values))?;
    }
    for entry in &entries[pieces().count()..] {
        let zero: &[u8] = if entry.dtype == Dtype::I64 { &[0; 8] } else { &[0; 4] };
        writer.write(zero)?;
    }
    Ok(writer.finish()?)
}

fn pieces<'a>(
    model: &'a Model,
    weights: &'a Weights,
) -> impl Iterator<Item = (&'a Named, &'a [f32])> {
    let params = model.params.iter().map(|named| (named, &weights.params[named.at.clone()]));
    params.chain(model.stats.iter().map(|named| (named, &weights.stats[named.at.clone()])))
}

/// Reads a model that [`model`] wrote.
pub fn open_model(path: &Path) -> Result<Trained, Error> {
    let file = Checkpoint::open(path)?;
    let bad = |problem: String| Error::File { path: path.into(), problem };
    let spec = file.metadata.get(SPEC).ok_or_else(|| {
        bad("its metadata describe no layers; only models of `hither train` do".into())
    })?;
    let spec: Spec = serde_json::from_str(spec)
        .map_err(|error| bad(format!("the description of its layers is wrong: {error}")))?;
    let model = Model::new(spec)?;
    let weights = read_weights(&file, &model)?;
    let target = file.metadata.get(TARGET).map_or("", String::as_str);
    let target: Target = serde_json::from_str(target)
        .map_err(|error| bad(format!("the description of what it predicts is wrong: {error}")))?;
    let names = target.names.as_ref();
    if let Some(names) = names.filter(|names| names.len() != model.spec.outputs) {
        let (outputs, names) = (model.spec.outputs, names.len());
        return Err(bad(format!("it has {outputs} outputs and {names} names for them")));
    }
    Ok(Trained { model, weights, target })
}

/// Reads the weights of a model: one tensor per piece.
fn read_weights(file: &Checkpoint, model: &Model) -> Result<Weights, Error> {
    let mut weights =
        Weights { params: vec![0.0; model.params_len()], stats: vec![0.0; model.stats_len()] };
    for (pieces, values) in
        [(&model.params, &mut weights.params), (&model.stats, &mut weights.stats)]
    {
        for piece in pieces {
            let name = &piece.name;
            let bad = |problem: String| Error::File { path: file.path.clone(), problem };
            let tensor = file.tensors.get(name);
            let tensor = tensor.ok_or_else(|| bad(format!("tensor `{name}` is missing")))?;
            let numbers = tensor.as_f32().filter(|_| tensor.shape == piece.shape);
            let numbers = numbers.ok_or_else(|| {
                let (dtype, shape) = (tensor.dtype, &tensor.shape);
                let expected = &piece.shape;
                bad(format!("tensor `{name}` is {dtype} {shape:?}, expected fp32 {expected:?}"))
            })?;
            values[piece.at.clone()].copy_from_slice(&numbers);
        }
    }
    Ok(weights)
}

/// Some rows of one value per node and column, by the places of nodes in the user's files.
type Piece<'a> = (&'a str, &'a [f32], Range<usize>);

/// Writes the model's outputs for every node, in the order of the user's files: `embeddings`, which
/// can serve as a table, and `logits`.
pub fn embeddings(path: &Path, data: &Dataset, outputs: &Inference) -> Result<(), Error> {
    let (nodes, order) = (data.graph.nodes(), data.nodes_in_original_order());
    write(path, &data.name, nodes, &pieces_of(outputs, nodes), order.as_deref())
}

/// Writes what links are predicted by, one row per node: `embeddings`, or in a user–item graph `user` and
/// `item`.
pub fn link_embeddings(path: &Path, data: &Dataset, outputs: &Inference) -> Result<(), Error> {
    let (nodes, order) = (data.graph.nodes(), data.nodes_in_original_order());
    let rows = &outputs.logits[..];
    let pieces = match data.links.as_ref().and_then(|links| links.users) {
        None => vec![("embeddings", rows, 0..nodes)],
        Some(users) => vec![("user", rows, 0..users), ("item", rows, users..nodes)],
    };
    write(path, &data.name, nodes, &pieces, order.as_deref())
}

/// Writes the outputs for some nodes, as they come.
pub fn outputs(path: &Path, dataset: &str, nodes: usize, outputs: &Inference) -> Result<(), Error> {
    write(path, dataset, nodes, &pieces_of(outputs, nodes), None)
}

fn pieces_of(outputs: &Inference, nodes: usize) -> Vec<Piece<'_>> {
    let embeddings = outputs.embeddings.as_deref().unwrap_or(&[]);
    let mut pieces =
        vec![("embeddings", embeddings, 0..nodes), ("logits", &outputs.logits, 0..nodes)];
    pieces.retain(|(_, values, _)| !values.is_empty());
    pieces
}

fn write(
    path: &Path,
    dataset: &str,
    nodes: usize,
    pieces: &[Piece],
    order: Option<&[u32]>,
) -> Result<(), Error> {
    let dim = |values: &[f32]| values.len() / nodes.max(1);
    let entry =
        |(name, values, rows): &Piece| Entry::new(*name, Dtype::F32, &[rows.len(), dim(values)]);
    let entries: Vec<Entry> = pieces.iter().map(entry).collect();
    let metadata = BTreeMap::from([("dataset".to_owned(), dataset.to_owned())]);
    let mut writer = Writer::packed(path, &entries, &metadata)?;
    for (_, values, rows) in pieces {
        let row = |start: usize, end: usize| &values[start * dim(values)..end * dim(values)];
        match order {
            None => writer.write(bytemuck::cast_slice(row(rows.start, rows.end)))?,
            Some(order) => {
                for node in &order[rows.clone()] {
                    let node = *node as usize;
                    writer.write(bytemuck::cast_slice(row(node, node + 1)))?;
                }
            }
        }
    }
    Ok(writer.finish()?)
}
