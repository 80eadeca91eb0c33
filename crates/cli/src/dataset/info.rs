//! `hither dataset info`.

use hither_gnn::dataset::UNLABELLED;
use hither_gnn::{Dataset, Features, Labels};
use rayon::prelude::*;
use serde::Serialize;

use super::DataArgs;
use crate::{Common, outputs};

/// Tell what a dataset holds: graph, features, classes, split
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither dataset info flickr.npz
  hither dataset info products/ --json")]
pub struct Args {
    #[command(flatten)]
    data: DataArgs,
    /// Seed of a split that is drawn
    #[arg(long, value_name = "N", default_value_t = 1, env = "HITHER_SEED")]
    #[arg(allow_negative_numbers = true)]
    seed: u64,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Info {
    name: String,
    nodes: usize,
    edges: usize,
    isolated_nodes: usize,
    degree: Degree,
    features: FeatureInfo,
    /// Classes, or answers a node.
    labels: &'static str,
    classes: usize,
    /// Nodes of each class; of answers, those that say yes.
    nodes_of_class: Vec<usize>,
    unlabelled_nodes: usize,
    /// Share of edges between labelled nodes whose ends are of one class.
    homophily: Option<f64>,
    metric: &'static str,
    train: usize,
    valid: usize,
    test: usize,
}

#[derive(Serialize)]
struct Degree {
    min: usize,
    mean: f64,
    max: usize,
}

#[derive(Serialize)]
struct FeatureInfo {
    kind: &'static str,
    dim: usize,
    /// That are stored.
    values: usize,
    bytes: u64,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    let info = common
        .pool()?
        .install(|| -> anyhow::Result<Info> { Ok(describe(&args.data.open(args.seed)?)) })?;
    match args.json {
        true => outputs::print_json(&info),
        false => outputs::print(&shown(&info)),
    }
}

fn describe(data: &Dataset) -> Info {
    let nodes = data.graph.nodes();
    let degrees = || (0..nodes as u32).into_par_iter().map(|node| data.graph.degree(node));
    let (kind, values) = match &data.features {
        Features::Dense { values, .. } => ("dense", values.len()),
        Features::Sparse { indices, values: Some(_), .. } => ("sparse", indices.len()),
        Features::Sparse { indices, .. } => ("sparse, all ones", indices.len()),
    };
    let (labels, unlabelled_nodes) = match &data.labels {
        Labels::Classes { of, .. } => {
            ("classes", of.par_iter().filter(|class| **class == UNLABELLED).count())
        }
        Labels::Tasks { .. } => ("answers", 0),
    };
    Info {
        name: data.name.clone(),
        nodes,
        edges: data.graph.edges(),
        isolated_nodes: degrees().filter(|degree| *degree == 0).count(),
        degree: Degree {
            min: degrees().min().unwrap_or(0),
            mean: 2.0 * data.graph.edges() as f64 / nodes.max(1) as f64,
            max: degrees().max().unwrap_or(0),
        },
        features: FeatureInfo {
            kind,
            dim: data.features.dim(),
            values,
            bytes: (0..nodes as u32).into_par_iter().map(|n| data.features.row_bytes(n)).sum(),
        },
        labels,
        classes: data.labels.count(),
        nodes_of_class: nodes_of_class(&data.labels),
        unlabelled_nodes,
        homophily: homophily(data),
        metric: data.metric.name(),
        train: data.split.train.len(),
        valid: data.split.valid.len(),
        test: data.split.test.len(),
    }
}

fn nodes_of_class(labels: &Labels) -> Vec<usize> {
    let mut counts = vec![0; labels.count()];
    match labels {
        Labels::Classes { of, .. } => {
            for class in of.iter().filter(|class| **class != UNLABELLED) {
                counts[*class as usize] += 1;
            }
        }
        Labels::Tasks { of, count } => {
            for row in of.chunks_exact(*count) {
                for (count, answer) in counts.iter_mut().zip(row) {
                    *count += usize::from(*answer);
                }
            }
        }
    }
    counts
}

/// None where nodes have several answers, or no edge has two labelled ends.
fn homophily(data: &Dataset) -> Option<f64> {
    let Labels::Classes { of, .. } = &data.labels else { return None };
    let of_node = |node: u32| {
        let own = of[node as usize];
        let mut counts = (0_u64, 0_u64);
        if own != UNLABELLED {
            for other in data.graph.neighbours(node).iter().map(|other| of[*other as usize]) {
                counts.0 += u64::from(other == own);
                counts.1 += u64::from(other != UNLABELLED);
            }
        }
        counts
    };
    let nodes = (0..data.graph.nodes() as u32).into_par_iter();
    let (same, all) = nodes.map(of_node).reduce(|| (0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    (all > 0).then(|| same as f64 / all as f64)
}

fn shown(info: &Info) -> String {
    let share = |count: usize| 100.0 * count as f64 / info.nodes.max(1) as f64;
    let Degree { min, mean, max } = &info.degree;
    let FeatureInfo { kind, dim, values, bytes } = &info.features;
    let mut text = format!(
        "dataset    {}\nnodes      {}, {} of them isolated\nedges      {}\n\
         degree     {min} to {max}, mean {mean:.1}\n\
         features   {dim} ({kind}), {:.1} a node, {:.1} MB\n\
         labels     {} {}, judged by {}\n",
        info.name,
        info.nodes,
        info.isolated_nodes,
        info.edges,
        *values as f64 / info.nodes.max(1) as f64,
        *bytes as f64 / 1e6,
        info.classes,
        info.labels,
        info.metric,
    );
    if let Some(homophily) = info.homophily {
        text.push_str(&format!("homophily  {:.1} % of edges within a class\n", 100.0 * homophily));
    }
    text.push_str("split      ");
    let sets = [("train", info.train), ("valid", info.valid), ("test", info.test)];
    let sets = sets.map(|(name, count)| format!("{name} {count} ({:.1} %)", share(count)));
    text.push_str(&format!("{}\n\n   class     nodes\n", sets.join(", ")));
    for (class, count) in info.nodes_of_class.iter().enumerate() {
        text.push_str(&format!("{class:8}  {count:8}  {:5.1} %\n", share(*count)));
    }
    if info.unlabelled_nodes > 0 {
        let count = info.unlabelled_nodes;
        text.push_str(&format!("    none  {count:8}  {:5.1} %\n", share(count)));
    }
    text
}
