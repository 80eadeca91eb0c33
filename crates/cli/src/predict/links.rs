//! Links that a trained model predicts: the first items of each user, or the first nodes of each node.

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::bail;
use hither_data::Output;
use hither_gnn::links::each_top;
use hither_gnn::model::Inference;
use hither_gnn::run::field;
use hither_gnn::save::{self, Trained};
use hither_gnn::{Dataset, Features};
use hither_report::plural;

use super::{Args, listed};
use crate::Common;
use crate::scores::{ScoreFormat, ScoreWriter};

/// Predicts links of a graph: of the nodes that `--nodes` lists, or of all that can have some.
pub fn run(
    args: &Args,
    trained: &Trained,
    path: &Path,
    format: ScoreFormat,
    output: &Path,
    common: &Common,
) -> anyhow::Result<()> {
    let mut data = args.data.open_graph(0, common)?;
    let (inputs, nodes) = (trained.model.spec.inputs, data.graph.nodes());
    if trained.model.table().is_some() {
        if inputs != nodes {
            bail!(
                "{} has {}, but {} has a row for each of {inputs} that it was trained on, and none for \
                 others",
                data.name,
                plural(nodes, "node"),
                path.display()
            );
        }
        data.features = Features::one_hot(nodes);
    }
    super::check_features(&trained.model, &data, path)?;
    let users = data.links.as_ref().and_then(|links| links.users);
    let sources = match &args.nodes {
        Some(list) => listed(list, &data)?,
        None => (0..users.unwrap_or(nodes) as u32).collect(),
    };
    if let Some(item) =
        sources.iter().find(|node| users.is_some_and(|users| **node as usize >= users))
    {
        bail!("{} is an item; links are predicted for users", data.node_name(*item));
    }
    let pool = common.pool()?;
    let outputs = pool.install(|| trained.model.infer(&trained.weights, &data));
    match format {
        ScoreFormat::Csv => {
            let head =
                if users.is_some() { "user,rank,item,score" } else { "source,rank,target,score" };
            let mut out = Output::create(output)?;
            let written = pool.install(|| {
                writeln!(out, "{head}")?;
                each_top(&data, &outputs, &sources, &[], args.top, |source, first| {
                    write_rows(&mut out, &data, source, &first)
                })
            });
            written.map_err(|error: io::Error| {
                anyhow::anyhow!("cannot write {}: {error}", output.display())
            })?;
            out.commit()?;
        }
        ScoreFormat::Npy => write_npy(output, &outputs, &sources)?,
        _ => save::link_embeddings(output, &data, &outputs)?,
    }
    common.say(&format!("predicted links of {}", plural(sources.len(), "node")));
    Ok(())
}

fn write_rows(
    out: &mut Output,
    data: &Dataset,
    source: u32,
    first: &[(u32, f32)],
) -> io::Result<()> {
    for (rank, (node, score)) in (1..).zip(first) {
        field(out, &data.node_name(source))?;
        write!(out, ",{rank},")?;
        field(out, &data.node_name(*node))?;
        writeln!(out, ",{score:.4}")?;
    }
    Ok(())
}

/// The embeddings of the sources.
fn write_npy(path: &Path, outputs: &Inference, sources: &[u32]) -> anyhow::Result<()> {
    let dim = outputs.classes;
    let mut writer = ScoreWriter::new(path, ScoreFormat::Npy, dim)?;
    let mut rows = sources.iter().map(|source| &outputs.logits[*source as usize * dim..][..dim]);
    rows.try_for_each(|row| writer.write(row))?;
    writer.finish()
}
