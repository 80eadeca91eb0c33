//! `hither predict`: what a trained model says of the nodes of a graph.

mod links;

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::builder::RangedU64ValueParser;
use hither_data::Output;
use hither_gnn::dataset::UNLABELLED;
use hither_gnn::model::{Inference, Model};
use hither_gnn::run::{MODEL, field, likeliest};
use hither_gnn::save::{self, Target, Trained};
use hither_gnn::{Dataset, Labels};
use hither_report::plural;

use crate::dataset::DataArgs;
use crate::outputs::Force;
use crate::scores::{ScoreFormat, ScoreWriter};
use crate::{Common, inputs};

/// Predict the classes of a graph's nodes, or their links, with a trained model
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither train examples/graph --parts 2 -o run
  hither predict run examples/graph
  hither predict run other-graph --nodes new.txt -o new.csv
  hither predict run examples/graph -o outputs.safetensors
  hither predict shop examples/shop --top 3

The graph may be another one than the model was trained on, if its nodes have the same features. It \
needs no labels; where it has the model's classes, the score on the labelled nodes is told.

  .csv          node, predicted class, its probability, and the label if there is one; or the
                probability of every label if nodes have several
  .npy          the model's outputs before softmax or sigmoid, one row per node
  .safetensors  these as `logits`, and the nodes' `embeddings`

A model of links writes the --top nodes that each node is most likely linked to and is not yet: user, \
rank, item, score. .npy and .safetensors get the embeddings.

All nodes are computed layer by layer. With --nodes only what these nodes depend on is read: all their \
neighbours, as many hops as the model has layers.")]
pub struct Args {
    /// Model: model.safetensors of `hither train`, or the directory of the run
    model: PathBuf,
    #[command(flatten)]
    data: DataArgs,
    /// Predict only these nodes: one per line, by name or number; - is standard input
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
    /// Nodes that are computed at once with --nodes; fewer take less memory
    #[arg(long, value_name = "N", default_value_t = 1024, requires = "nodes")]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 24))]
    batch: usize,
    /// Links to predict per node, with a model of links
    #[arg(long, value_name = "K", default_value_t = 20)]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    top: usize,
    /// File to write: .csv, .npy or .safetensors [default: CSV on standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    let output = args.output.as_deref().unwrap_or(Path::new("-"));
    let format = ScoreFormat::from_path(output)?;
    if format == ScoreFormat::JsonLines {
        bail!("{}: expected .csv, .npy or .safetensors", output.display());
    }
    args.force.check_file(output)?;
    let path = if args.model.is_dir() { args.model.join(MODEL) } else { args.model.clone() };
    let trained = save::open_model(&path)?;
    if trained.target.is_links {
        return links::run(args, &trained, &path, format, output, common);
    }
    let Trained { model, weights, target } = trained;
    let data = args.data.open_unlabelled(common)?;
    check_features(&model, &data, &path)?;
    let nodes = match &args.nodes {
        Some(path) => Nodes::Some(listed(path, &data)?),
        None => Nodes::All(data.nodes_in_original_order()),
    };
    let outputs = common.pool()?.install(|| match &nodes {
        Nodes::Some(nodes) => {
            let bar = common.bar(nodes.len() as u64, "predicting");
            let done = |count: usize| bar.inc(count as u64);
            let outputs = model.infer_nodes(&weights, &data, nodes, args.batch, done);
            bar.finish_and_clear();
            outputs
        }
        Nodes::All(_) => model.infer(&weights, &data),
    });
    let predicted = Predicted { data: &data, nodes, outputs, target };
    match format {
        ScoreFormat::Csv => predicted.write_csv(output)?,
        ScoreFormat::Npy => {
            let mut writer = ScoreWriter::new(output, format, predicted.outputs.classes)?;
            predicted.rows().try_for_each(|(_, logits)| writer.write(logits))?;
            writer.finish()?;
        }
        _ => match &predicted.nodes {
            Nodes::All(_) => save::embeddings(output, &data, &predicted.outputs)?,
            Nodes::Some(nodes) => {
                save::outputs(output, &data.name, nodes.len(), &predicted.outputs)?
            }
        },
    }
    predicted.say_score(common);
    Ok(())
}

/// Refuses a graph whose nodes have other features than the model reads.
fn check_features(model: &Model, data: &Dataset, path: &Path) -> anyhow::Result<()> {
    let (inputs, features) = (model.spec.inputs, data.features.dim());
    if features != inputs {
        bail!(
            "{} has {} per node, but {} was trained on {inputs}",
            data.name,
            plural(features, "feature"),
            path.display()
        );
    }
    Ok(())
}

/// The nodes that are predicted, in the order of the output.
enum Nodes {
    /// All; where the dataset was renumbered, its nodes in the order of the user's files.
    All(Option<Vec<u32>>),
    Some(Vec<u32>),
}

struct Predicted<'a> {
    data: &'a Dataset,
    nodes: Nodes,
    outputs: Inference,
    target: Target,
}

impl Predicted<'_> {
    /// Each node and its outputs, in the order of the result.
    fn rows(&self) -> impl Iterator<Item = (u32, &[f32])> {
        let width = self.outputs.classes;
        (0..self.outputs.logits.len() / width).map(move |place| {
            let (node, row) = match &self.nodes {
                Nodes::Some(nodes) => (nodes[place], place),
                Nodes::All(None) => (place as u32, place),
                Nodes::All(Some(order)) => (order[place], order[place] as usize),
            };
            (node, &self.outputs.logits[row * width..][..width])
        })
    }

    fn write_csv(&self, path: &Path) -> anyhow::Result<()> {
        let mut out = Output::create(path)?;
        let written = if self.target.has_tasks {
            self.write_tasks(&mut out)
        } else {
            self.write_classes(&mut out)
        };
        written.map_err(|error| anyhow::anyhow!("cannot write {}: {error}", path.display()))?;
        Ok(out.commit()?)
    }

    fn write_classes(&self, out: &mut Output) -> std::io::Result<()> {
        out.write_all(b"node,predicted,probability,label\n")?;
        for (node, logits) in self.rows() {
            let (class, probability) = likeliest(logits);
            field(out, &self.data.node_name(node))?;
            out.write_all(b",")?;
            field(out, &self.target.name(class as usize))?;
            write!(out, ",{probability:.4},")?;
            if let Labels::Classes { of, .. } = &self.data.labels
                && of[node as usize] != UNLABELLED
            {
                field(out, &self.data.class_name(of[node as usize]))?;
            }
            out.write_all(b"\n")?;
        }
        Ok(())
    }

    fn write_tasks(&self, out: &mut Output) -> std::io::Result<()> {
        out.write_all(b"node")?;
        for task in 0..self.outputs.classes {
            out.write_all(b",")?;
            field(out, &self.target.name(task))?;
        }
        out.write_all(b"\n")?;
        for (node, logits) in self.rows() {
            field(out, &self.data.node_name(node))?;
            for logit in logits {
                write!(out, ",{:.4}", 1.0 / (1.0 + (-f64::from(*logit)).exp()))?;
            }
            out.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Tells how good the predictions are, where the graph has labels by the model's names.
    fn say_score(&self, common: &Common) {
        let count = self.rows().count();
        let mut text = format!("predicted {}", plural(count, "node"));
        if let Labels::Classes { of, count } = &self.data.labels
            && Target::of(self.data) == self.target
            && *count == self.outputs.classes
        {
            let labelled = || self.rows().filter(|(node, _)| of[*node as usize] != UNLABELLED);
            let right = labelled().filter(|(node, row)| likeliest(row).0 == of[*node as usize]);
            let (right, all) = (right.count(), labelled().count());
            if all > 0 {
                let share = 100.0 * right as f64 / all as f64;
                text.push_str(&format!(": {share:.2} % of {all} labelled ones as labelled"));
            }
        }
        common.say(&text);
    }
}

/// The nodes that a file lists.
fn listed(path: &Path, data: &Dataset) -> anyhow::Result<Vec<u32>> {
    let text = inputs::text(path)?;
    let order = data.nodes_in_original_order();
    // Where there are users, they are meant: an item may have the name of one.
    let users = data.links.as_ref().and_then(|links| links.users).unwrap_or(usize::MAX);
    let names: HashMap<String, u32> = match &data.node_names {
        Some(names) => names.iter().map(Into::into).zip(0..).take(users).collect(),
        None => HashMap::new(),
    };
    let find = |word: &str| match &data.node_names {
        Some(_) => names.get(word).copied(),
        None => {
            let number: usize = word.parse().ok()?;
            let node =
                order.as_ref().map_or(Some(number as u32), |order| order.get(number).copied());
            node.filter(|_| number < data.graph.nodes())
        }
    };
    let mut nodes = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let word = line.trim();
        if word.is_empty() || word.starts_with('#') {
            continue;
        }
        match find(word) {
            Some(node) => nodes.push(node),
            None => {
                let all = data.graph.nodes();
                let file = inputs::shown(path);
                let hint = match &data.node_names {
                    Some(_) => "names are those of its files".into(),
                    None => format!("its nodes are 0 to {}", all - 1),
                };
                bail!("{file}, line {number}: {} has no node `{word}`; {hint}", data.name);
            }
        }
    }
    if nodes.is_empty() {
        bail!("{} lists no nodes", inputs::shown(path));
    }
    Ok(nodes)
}
