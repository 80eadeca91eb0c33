//! `hither partition`: partition a graph, measure the partition, and write the graph by part.

use std::borrow::Cow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use anyhow::bail;
use clap::builder::RangedU64ValueParser;
use comfy_table::{CellAlignment, Table, presets};
use hither_data::output::is_stdout;
use hither_gnn::Dataset;
use hither_gnn::partition::{self, Method, PARTS_MAX, Partition, Quality, Settings, quality};
use hither_gnn::parts::PartWriter;
use hither_report::plural;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::dataset::DataArgs;
use crate::inputs::number;
use crate::outputs::{Force, Kind, OutputDir};
use crate::{Common, outputs};

/// Partition a graph for training, and report cut edges, balance and label skew
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither partition examples/graph --parts 2 --method all
  hither partition examples/graph --parts 2 -o graph.parts
  hither train examples/graph --partition-file graph.parts -o out/
  hither partition soc-network.txt --parts 4 --method ldg    # edges alone
  hither partition products/ --parts 16 --write products-16/
  hither train products-16/ -o out/

The file of -o holds one part number per line, in the order of the nodes, as gpmetis writes it. The \
folder of --write holds the whole dataset with its nodes numbered by part: training maps it and \
copies nothing, and gives the same results (docs/formats/partition.md). Methods:
  metis       multilevel; cuts the fewest edges
  metis-even  the same, and each part has its share of every class of training nodes
  clusters    small clusters by metis, dealt so that each part has its share of every class
  ldg         streaming: each node joins most of its neighbours, if there is room
  fennel      streaming, with Fennel's penalty on the size of parts
  random      nodes dealt at random, each class by itself: the most alike parts
  label       nodes sorted by class and cut into equal pieces: the least alike parts")]
pub struct Args {
    #[command(flatten)]
    data: DataArgs,
    /// Number of parts
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(1..=PARTS_MAX as u64))]
    #[arg(allow_negative_numbers = true)]
    parts: usize,
    /// Method: metis, metis-even, clusters, ldg, fennel, random or label; `all` compares them
    #[arg(long, value_name = "NAME", default_value = "metis")]
    method: Methods,
    /// Largest allowed part, as a multiple of the average size
    #[arg(long, value_name = "F", default_value_t = Settings::default().imbalance, value_parser = |t: &str| number(t, 1.0, 1e6))]
    #[arg(allow_negative_numbers = true)]
    imbalance: f64,
    /// Also balance the training nodes
    #[arg(long, value_name = "yes|no", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "yes", default_missing_value = "yes", value_parser = yes)]
    balance_train: bool,
    /// Random seed of the partition, and of a drawn split
    #[arg(long, value_name = "N", default_value_t = 0, env = "HITHER_SEED")]
    #[arg(allow_negative_numbers = true)]
    seed: u64,
    /// File to write the part numbers to
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Folder to write the dataset to, with its nodes numbered by part
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone)]
struct Methods(Vec<Method>);

impl FromStr for Methods {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Ok(Self(if name == "all" { Method::ALL.to_vec() } else { vec![name.parse()?] }))
    }
}

fn yes(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("expected yes or no".into()),
    }
}

/// Graphs with more edges take long enough to say so first.
const EDGES_MANY: usize = 2_000_000;

/// A spinner for the time in which a graph is partitioned. Says first what is done if that takes long.
pub fn say_partitioning(
    data: &Dataset,
    parts: usize,
    method: &str,
    common: &Common,
) -> ProgressBar {
    let graph = &data.graph;
    let (nodes, edges, parts) = (graph.nodes(), graph.edges(), plural(parts, "part"));
    let work = format!("partitioning {nodes} nodes and {edges} edges into {parts} by {method}");
    let spinner = common.spinner(work.clone());
    if edges >= EDGES_MANY {
        let time = match method {
            // 0.6 to 1 µs per edge on current server processors.
            "metis" | "metis-even" | "clusters" | "auto" => {
                format!("; allow about {} s", edges.div_ceil(1_000_000))
            }
            _ => String::new(),
        };
        spinner.suspend(|| common.say(&(work + &time)));
    }
    spinner
}

fn partition_graph(
    data: &Dataset,
    settings: &Settings,
    common: &Common,
) -> anyhow::Result<Partition> {
    let Dataset { graph, labels, split, .. } = data;
    let spinner = say_partitioning(data, settings.parts, settings.method.name(), common);
    let partition = partition::partition(graph, labels, &split.train, settings);
    spinner.finish_and_clear();
    Ok(partition?)
}

#[derive(Serialize)]
struct MeasuredPartition {
    method: Method,
    time_s: f64,
    #[serde(flatten)]
    quality: Quality,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let Methods(methods) = &args.method;
    args.output.iter().try_for_each(|path| args.force.check_file(path))?;
    if methods.len() > 1 && (args.output.is_some() || args.write.is_some()) {
        bail!("--method all only compares; name one method to write its parts");
    }
    let open_dir = |dir: &PathBuf| OutputDir::open(dir, Kind::Parts, args.force.into());
    let mut dir = args.write.as_ref().map(open_dir).transpose()?;
    common.say(&format!("seed {}", args.seed));
    let cuts = common.pool()?.install(|| -> anyhow::Result<Vec<MeasuredPartition>> {
        // A graph to train on must be complete.
        let data = match args.write {
            Some(_) => args.data.open(args.seed, common)?,
            None => args.data.open_graph(args.seed, common)?,
        };
        if args.write.is_some() && data.links.is_some() {
            bail!(
                "{} is a user–item graph, which --write does not store; train on its files",
                data.name
            );
        }
        common.note_changes(&data);
        if data.labels.count() == 0 && methods[..] == [Method::Label] {
            bail!("--method label sorts nodes by class, but {} has no labels", data.name);
        }
        let fits = |method: &&Method| data.labels.count() > 0 || **method != Method::Label;
        let methods = methods.iter().filter(fits);
        methods.map(|method| cut(args, *method, &data, dir.as_mut(), common)).collect()
    })?;
    if let Some(path) = &args.output {
        if is_stdout(path) {
            // The parts themselves were the result.
            return Ok(ExitCode::SUCCESS);
        }
        common.say(&format!("wrote {}", path.display()));
    }
    match args.json {
        true => outputs::print_json(&cuts)?,
        false => outputs::print(&shown(&cuts))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn cut(
    args: &Args,
    method: Method,
    data: &Dataset,
    dir: Option<&mut OutputDir>,
    common: &Common,
) -> anyhow::Result<MeasuredPartition> {
    let settings = Settings {
        method,
        parts: args.parts,
        seed: args.seed,
        imbalance: args.imbalance,
        balance_train: args.balance_train,
    };
    let Dataset { graph, labels, split, .. } = data;
    let start = Instant::now();
    let parts = partition_graph(data, &settings, common)?;
    let time_s = start.elapsed().as_secs_f64();
    if let Some(path) = &args.output {
        partition::write(path, &in_original_order(data, &parts))?;
    }
    if let Some(dir) = dir {
        write(dir, data, &parts, method, common)?;
    }
    let quality = quality(graph, labels, &split.train, &parts);
    let quality = quality.with_features(&data.features, &parts);
    Ok(MeasuredPartition { method, time_s, quality })
}

/// The part of each node of the user's files.
fn in_original_order<'a>(data: &Dataset, parts: &'a Partition) -> Cow<'a, Partition> {
    let Some(nodes) = data.nodes_in_original_order() else { return Cow::Borrowed(parts) };
    let of = nodes.iter().map(|node| parts.of[*node as usize]).collect();
    Cow::Owned(Partition { of, parts: parts.parts })
}

/// Writes the dataset with its nodes numbered by part.
fn write(
    dir: &mut OutputDir,
    data: &Dataset,
    parts: &Partition,
    method: Method,
    common: &Common,
) -> anyhow::Result<()> {
    let writer = PartWriter::new(data, parts, method.name())?;
    dir.create()?;
    let bar = common.bar(writer.bytes(), "writing bytes");
    writer.write(dir.path(), &|bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    common.say(&format!("wrote {}", dir.path().display()));
    Ok(())
}

fn shown(cuts: &[MeasuredPartition]) -> String {
    let mut table = new_table(&[
        "method",
        "cut edges",
        "share",
        "nodes per part",
        "largest / mean",
        "training nodes",
        "largest / mean",
        "label skew",
        "feature skew",
        "rows to fetch",
        "copies per node",
        "time",
    ]);
    for MeasuredPartition { method, time_s, quality } in cuts {
        table.add_row([
            method.name().to_owned(),
            quality.cut_edges.to_string(),
            format!("{:.1} %", 100.0 * quality.cut_share),
            format!("{} – {}", quality.nodes.min, quality.nodes.max),
            format!("{:.3}", quality.nodes.imbalance),
            format!("{} – {}", quality.train.min, quality.train.max),
            format!("{:.3}", quality.train.imbalance),
            format!("{:.3}", quality.label_skew),
            shown_skew(quality.feature_skew),
            quality.communication_volume.to_string(),
            format!("{:.2}", quality.replication),
            format!("{time_s:.2} s"),
        ]);
    }
    let mut text = format!("{table}\n");
    // A row per part, for one method and few enough parts.
    if let [MeasuredPartition { quality, .. }] = cuts
        && quality.parts.len() <= 64
    {
        let mut table = new_table(&[
            "part",
            "nodes",
            "training nodes",
            "edges inside",
            "edges cut",
            "boundary nodes",
            "hubs",
            "label skew",
            "feature skew",
        ]);
        for (number, part) in quality.parts.iter().enumerate() {
            table.add_row([
                number.to_string(),
                part.nodes.to_string(),
                part.train.to_string(),
                part.edges_inside.to_string(),
                part.edges_cut.to_string(),
                part.boundary_nodes.to_string(),
                part.hubs.to_string(),
                format!("{:.3}", part.label_skew),
                shown_skew(part.feature_skew),
            ]);
        }
        text.push_str(&format!("{table}\n"));
    }
    text
}

/// A graph without features has none.
fn shown_skew(skew: Option<f64>) -> String {
    skew.map_or_else(|| "–".to_owned(), |skew| format!("{skew:.3}"))
}

fn new_table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(head.to_vec());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
