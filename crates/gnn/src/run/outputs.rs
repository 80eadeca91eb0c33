//! What a finished run leaves: the model, its outputs for every node, and the predicted class of each by the names
//! that the dataset gives.

use std::io::{self, Write};
use std::path::Path;

use hither_core::record::train::ClassScore;
use hither_data::Output;

use super::{EMBEDDINGS, MODEL, NODES, PREDICTIONS, not_evaluated};
use crate::dataset::UNLABELLED;
use crate::model::Inference;
use crate::train::Trainer;
use crate::{Dataset, Error, Labels, save};

/// Of larger graphs, outputs of all nodes are written only if they are asked for, and never as CSV.
pub const NODES_MAX: usize = 1_000_000;

/// Writes the model with the best validation score and its outputs for every node, and returns the scores of each
/// class. Outputs for the nodes of a large graph are as large as its features: they are written only if `all` asks for
/// them.
pub fn write(trainer: &Trainer, place: &Path, all: bool) -> Result<Vec<ClassScore>, Error> {
    let best = trainer.best.as_ref().ok_or_else(not_evaluated)?;
    let (model, data) = (&trainer.model, &*trainer.data);
    save::model(&place.join(MODEL), model, &best.weights, &save::Target::of(data))?;
    if all || data.graph.nodes() <= NODES_MAX {
        let outputs = model.infer(&best.weights, data);
        if data.links.is_some() {
            save::link_embeddings(&place.join(EMBEDDINGS), data, &outputs)?;
            write_rows(&place.join(NODES), data)?;
        } else {
            save::embeddings(&place.join(EMBEDDINGS), data, &outputs)?;
            write_predictions(&place.join(PREDICTIONS), data, &outputs)?;
        }
    }
    if data.links.is_some() {
        return Ok(vec![]);
    }
    let tested = model.infer_rows(&best.weights, data, &data.split.test);
    Ok(class_scores(data, &tested))
}

/// Writes a file in one step.
fn write_table(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    let mut out = Output::create(path)?;
    let failed = |source| Error::Io { action: "write", path: path.into(), source };
    content(&mut out).map_err(failed)?;
    Ok(out.commit()?)
}

/// Writes one row per node, in the order of the user's files, if there is one class per node and not too
/// many nodes.
pub fn write_predictions(path: &Path, data: &Dataset, outputs: &Inference) -> Result<(), Error> {
    let Labels::Classes { of, count } = &data.labels else { return Ok(()) };
    let nodes = data.graph.nodes();
    if nodes > NODES_MAX {
        return Ok(());
    }
    let sets = sets(data);
    write_table(path, |out| {
        out.write_all(b"node,predicted,probability,label,split\n")?;
        let order = data.nodes_in_original_order();
        for place in 0..nodes {
            let node = order.as_ref().map_or(place as u32, |order| order[place]);
            let logits = &outputs.logits[node as usize * count..][..*count];
            let (class, probability) = likeliest(logits);
            field(out, &data.node_name(node))?;
            out.write_all(b",")?;
            field(out, &data.class_name(class))?;
            write!(out, ",{probability:.4},")?;
            let label = of[node as usize];
            if label != UNLABELLED {
                field(out, &data.class_name(label))?;
            }
            writeln!(out, ",{}", sets[node as usize])?;
        }
        Ok(())
    })
}

/// Writes which row of the embeddings each node has, by kind and name.
pub fn write_rows(path: &Path, data: &Dataset) -> Result<(), Error> {
    let users = data.links.as_ref().and_then(|links| links.users);
    write_table(path, |out| {
        out.write_all(b"table,row,name\n")?;
        let order = data.nodes_in_original_order();
        for place in 0..data.graph.nodes() {
            let node = order.as_ref().map_or(place as u32, |order| order[place]);
            let (table, row) = match users {
                None => ("embeddings", place),
                Some(users) if place < users => ("user", place),
                Some(users) => ("item", place - users),
            };
            write!(out, "{table},{row},")?;
            field(out, &data.node_name(node))?;
            out.write_all(b"\n")?;
        }
        Ok(())
    })
}

/// How well the test nodes of each class are classified; `outputs` has their rows. Empty if nodes have several
/// labels.
pub fn class_scores(data: &Dataset, outputs: &Inference) -> Vec<ClassScore> {
    let Labels::Classes { of, count } = &data.labels else { return vec![] };
    let empty = |class| ClassScore {
        name: data.class_name(class).into(),
        nodes: 0,
        correct: 0,
        predicted: 0,
    };
    let mut scores: Vec<ClassScore> = (0..*count as u32).map(empty).collect();
    for (node, logits) in data.split.test.iter().zip(outputs.logits.chunks_exact(*count)) {
        let label = of[*node as usize];
        let (class, _) = likeliest(logits);
        scores[class as usize].predicted += 1;
        if label != UNLABELLED {
            scores[label as usize].nodes += 1;
            scores[label as usize].correct += u64::from(label == class);
        }
    }
    scores
}

/// The set of each node, empty for nodes in none.
fn sets(data: &Dataset) -> Vec<&'static str> {
    let mut sets = vec![""; data.graph.nodes()];
    let split = &data.split;
    for (name, nodes) in [("train", &split.train), ("valid", &split.valid), ("test", &split.test)] {
        for node in nodes {
            sets[*node as usize] = name;
        }
    }
    sets
}

/// The first class with the largest logit, and its softmax.
pub fn likeliest(logits: &[f32]) -> (u32, f64) {
    let (mut class, mut most) = (0, f32::NEG_INFINITY);
    for (at, logit) in (0..).zip(logits) {
        if *logit > most {
            (class, most) = (at, *logit);
        }
    }
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    (class, 1.0 / sum)
}

/// A field of CSV, quoted if it has to be.
pub fn field(out: &mut dyn Write, text: &str) -> std::io::Result<()> {
    if text.contains([',', '"', '\n', '\r']) {
        return write!(out, "\"{}\"", text.replace('"', "\"\""));
    }
    out.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::{field, likeliest};

    #[test]
    fn the_largest_logit_is_predicted_with_its_softmax() {
        assert_eq!(likeliest(&[1.0, 3.0, 3.0]).0, 1);
        let (class, probability) = likeliest(&[0.0, 2.0_f32.ln()]);
        assert_eq!(class, 1);
        assert!((probability - 2.0 / 3.0).abs() < 1e-6);
        // Far beyond what exp can hold.
        assert_eq!(likeliest(&[1e4, -1e4]), (0, 1.0));
    }

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        let mut out = vec![];
        field(&mut out, "Smith, \"J\"").expect("written");
        field(&mut out, ";plain").expect("written");
        assert_eq!(out, b"\"Smith, \"\"J\"\"\";plain");
    }
}
