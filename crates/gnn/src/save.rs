//! Writes models and embeddings in files that other programs read, and reads models back.

use std::collections::BTreeMap;
use std::path::Path;

use hither_data::safetensors::{Entry, Writer};
use hither_data::{Checkpoint, Dtype};

use crate::model::{Inference, Model, Named, Spec, Weights};
use crate::{Dataset, Error};

const SPEC: &str = "hither.model";

/// Writes one tensor per parameter, by the names of PyTorch Geometric's models, without padding
/// tensors, which `load_state_dict` would refuse.
pub fn model(path: &Path, model: &Model, weights: &Weights) -> Result<(), Error> {
    let pieces = || pieces(model, weights);
    let mut entries: Vec<Entry> =
        pieces().map(|(named, _)| Entry::new(&named.name, Dtype::F32, &named.shape)).collect();
    // PyTorch's batch norms expect a count of batches.
    let counts = model.stats.iter().filter_map(|named| named.name.strip_suffix("running_mean"));
    entries.extend(
        counts.map(|norm| Entry::new(format!("{norm}num_batches_tracked"), Dtype::I64, &[])),
    );
    let spec = serde_json::to_string(&model.spec).map_err(|error| Error::File {
        path: path.into(),
        problem: format!("the model cannot be described: {error}"),
    })?;
    let metadata = BTreeMap::from([(SPEC.to_owned(), spec), ("format".into(), "pt".into())]);
    let mut writer = Writer::packed(path, &entries, &metadata)?;
    for (_, values) in pieces() {
        writer.write(bytemuck::cast_slice(values))?;
    }
    for _ in entries.iter().filter(|entry| entry.dtype == Dtype::I64) {
        writer.write(&0_i64.to_le_bytes())?;
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
pub fn open_model(path: &Path) -> Result<(Model, Weights), Error> {
    let file = Checkpoint::open(path)?;
    let bad = |problem: String| Error::File { path: path.into(), problem };
    let spec = file.metadata.get(SPEC).ok_or_else(|| {
        bad("its metadata describe no layers; only models of `hither train` do".into())
    })?;
    let spec: Spec = serde_json::from_str(spec)
        .map_err(|error| bad(format!("the description of its layers is wrong: {error}")))?;
    let model = Model::new(spec)?;
    let weights = read(&file, "", &model)?;
    Ok((model, weights))
}

/// Reads the weights of a model from tensors whose names begin with a prefix.
pub(crate) fn read(file: &Checkpoint, prefix: &str, model: &Model) -> Result<Weights, Error> {
    let mut weights =
        Weights { params: vec![0.0; model.params_len()], stats: vec![0.0; model.stats_len()] };
    for (pieces, values) in
        [(&model.params, &mut weights.params), (&model.stats, &mut weights.stats)]
    {
        for piece in pieces {
            let name = format!("{prefix}{}", piece.name);
            let bad = |problem: String| Error::File { path: file.path.clone(), problem };
            let tensor = file.tensors.get(&name);
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

/// Writes the model's outputs for every node, in the order of the user's files: `embeddings`, which
/// can serve as a table, and `logits`.
pub fn embeddings(path: &Path, data: &Dataset, outputs: &Inference) -> Result<(), Error> {
    let nodes = data.graph.nodes();
    let tensors = [
        ("embeddings", outputs.embeddings.as_deref().unwrap_or(&[])),
        ("logits", &outputs.logits[..]),
    ];
    let present = || tensors.iter().filter(|(_, values)| !values.is_empty());
    let entries: Vec<Entry> = present()
        .map(|(name, values)| Entry::new(*name, Dtype::F32, &[nodes, values.len() / nodes.max(1)]))
        .collect();
    let metadata = BTreeMap::from([("dataset".to_owned(), data.name.clone())]);
    let mut writer = Writer::packed(path, &entries, &metadata)?;
    let order = data.nodes_in_original_order();
    for (_, values) in present() {
        let Some(order) = &order else {
            writer.write(bytemuck::cast_slice(values))?;
            continue;
        };
        let dim = values.len() / nodes;
        for node in order {
            let row = &values[*node as usize * dim..(*node as usize + 1) * dim];
            writer.write(bytemuck::cast_slice(row))?;
        }
    }
    Ok(writer.finish()?)
}
