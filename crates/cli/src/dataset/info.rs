//! `hither dataset info`.

use hither_gnn::dataset::UNLABELLED;
use hither_gnn::graph::Listed;
use hither_gnn::{Dataset, Features, Labels};
use rayon::prelude::*;
use serde::Serialize;

use super::DataArgs;
use crate::{Common, outputs};

/// Describe a dataset: its graph, features, classes and split
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither dataset info examples/graph
  hither dataset info products/ --json
  hither dataset info soc-network.txt        # a list of edges alone")]
pub struct Args {
    #[command(flatten)]
    data: DataArgs,
    /// Seed of a drawn split
    #[arg(long, value_name = "N", default_value_t = 0, env = "HITHER_SEED")]
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
    /// What the list of edges held; null if the file holds no such list.
    listed: Option<Listed>,
    isolated_nodes: usize,
    degree: Degree,
    features: FeatureInfo,
    /// `classes`, or `tasks` of binary labels.
    labels: &'static str,
    classes: usize,
    class_names: Vec<String>,
    /// Nodes per class; nodes with label 1 per task.
    nodes_of_class: Vec<usize>,
    unlabelled_nodes: usize,
    /// Share of edges between labelled nodes that join nodes of the same class.
    homophily: Option<f64>,
    metric: &'static str,
    train: usize,
    valid: usize,
    test: usize,
    /// Of a user–item graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<LinkInfo>,
    /// What the files hold that is not used.
    notes: Vec<String>,
}

#[derive(Serialize)]
struct LinkInfo {
    users: usize,
    items: usize,
    /// Links of the test that the files bring along.
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
    /// Stored values, all nodes together.
    values: usize,
    bytes: u64,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    let info = common.pool()?.install(|| -> anyhow::Result<Info> {
        Ok(describe(&args.data.open_graph(args.seed, common)?))
    })?;
    match args.json {
        true => outputs::print_json(&info),
        false => outputs::print(&shown(&info)),
    }
}

fn describe(data: &Dataset) -> Info {
    let nodes = data.graph.nodes();
    let degrees = || (0..nodes as u32).into_par_iter().map(|node| data.graph.degree(node));
    let (kind, values) = match &data.features {
        Features::Dense { dim: 0, .. } => ("none", 0),
        Features::Dense { values, .. } => ("dense", values.len()),
        Features::Sparse { indices, values: Some(_), .. } => ("sparse", indices.len()),
        Features::Sparse { indices, .. } => ("sparse, all ones", indices.len()),
    };
    let labels = match &data.labels {
        Labels::Classes { .. } => "classes",
        Labels::Tasks { .. } => "tasks",
    };
    let listed = Some(*data.graph.listed()).filter(|listed| listed.pairs > 0);
    let classes = data.labels.count();
    Info {
        name: data.name.clone(),
        nodes,
        edges: data.graph.edges(),
        listed,
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
            bytes: (0..data.features.rows() as u32)
                .into_par_iter()
                .map(|node| data.features.row_bytes(node))
                .sum(),
        },
        labels,
        classes,
        class_names: (0..classes as u32).map(|class| data.class_name(class).into()).collect(),
        nodes_of_class: nodes_of_class(&data.labels),
        unlabelled_nodes: data.labels.unlabelled(),
        homophily: homophily(data),
        metric: data.metric.name(),
        train: data.split.train.len(),
        valid: data.split.valid.len(),
        test: data.split.test.len(),
        links: data.links.as_ref().and_then(|links| {
            let users = links.users?;
            Some(LinkInfo { users, items: nodes - users, test: links.test.len() })
        }),
        notes: data.notes.clone(),
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

/// None if nodes have several labels, or no edge has two labelled ends.
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
    let mut text = format!(
        "dataset    {}\nnodes      {}, {} without edges{}\nedges      {}{}\n\
         degree     {min} to {max}, mean {mean:.1}\n",
        info.name,
        info.nodes,
        info.isolated_nodes,
        match info.classes {
            0 => String::new(),
            _ => format!(", {} without a label", info.unlabelled_nodes),
        },
        info.edges,
        info.listed.as_ref().map_or(String::new(), shown_listed),
    );
    let FeatureInfo { kind, dim, values, bytes } = &info.features;
    match dim {
        0 => text.push_str("features   none\n"),
        _ => text.push_str(&format!(
            "features   {dim} ({kind}), {:.1} per node, {:.1} MB\n",
            *values as f64 / info.nodes.max(1) as f64,
            *bytes as f64 / 1e6,
        )),
    }
    match info.classes {
        0 => text.push_str("labels     none\n"),
        classes => text.push_str(&format!(
            "labels     {classes} {}, scored by {}\n",
            info.labels, info.metric
        )),
    }
    if let Some(LinkInfo { users, items, test }) = &info.links {
        text.push_str(&format!(
            "links      between {users} users and {items} items; {test} test links besides\n"
        ));
    }
    if let Some(homophily) = info.homophily {
        let homophily = 100.0 * homophily;
        text.push_str(&format!(
            "homophily  {homophily:.1} % of edges join nodes of the same class\n"
        ));
    }
    if info.classes > 0 {
        let sets = [("train", info.train), ("valid", info.valid), ("test", info.test)];
        let sets = sets.map(|(name, count)| format!("{name} {count} ({:.1} %)", share(count)));
        text.push_str(&format!("split      {}\n", sets.join(", ")));
    }
    for note in &info.notes {
        text.push_str(&format!("note       {note}\n"));
    }
    text + &shown_classes(info)
}

/// What became of the pairs that the files list.
fn shown_listed(listed: &Listed) -> String {
    let Listed { pairs, self_loops, repeated, reciprocal } = listed;
    let parts = [
        (*self_loops, "self-loop", "dropped"),
        (*repeated, "repeated pair", "dropped"),
        (*reciprocal, "pair", "merged with the opposite direction"),
    ];
    let parts = parts.iter().filter(|(number, _, _)| *number > 0);
    let part = |(number, noun, fate): &(u64, &str, &str)| {
        format!("{number} {noun}{} {fate}", if *number == 1 { "" } else { "s" })
    };
    let parts: Vec<String> = parts.map(part).collect();
    match parts[..] {
        [] => String::new(),
        _ => format!(", from {pairs} listed pairs: {}", parts.join(", ")),
    }
}

fn shown_classes(info: &Info) -> String {
    if info.classes == 0 {
        return String::new();
    }
    let share = |count: usize| 100.0 * count as f64 / info.nodes.max(1) as f64;
    // Names come from files: control characters could move the cursor of a terminal.
    let printable = |name: &String| -> String {
        name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(40).collect()
    };
    let names: Vec<String> = info.class_names.iter().map(printable).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(8);
    let head = if info.labels == "tasks" { "task" } else { "class" };
    let mut text = format!("\n{head:>width$}     nodes\n");
    let none = (info.unlabelled_nodes > 0).then_some(("(none)", info.unlabelled_nodes));
    let classes = names.iter().map(String::as_str).zip(info.nodes_of_class.iter().copied());
    for (name, count) in classes.chain(none) {
        text.push_str(&format!("{name:>width$}  {count:8}  {:5.1} %\n", share(count)));
    }
    text
}
