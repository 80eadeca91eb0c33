//! `hither partition`: cut a graph into parts, and tell how good the cut is.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use anyhow::bail;
use clap::builder::RangedU64ValueParser;
use comfy_table::{CellAlignment, Table, presets};
use hither_data::output::is_stdout;
use hither_gnn::Dataset;
use hither_gnn::partition::{self, Method, PARTS_MAX, Quality, Settings, quality};
use serde::Serialize;

use crate::dataset::DataArgs;
use crate::inputs::number;
use crate::outputs::Force;
use crate::{Common, outputs};

/// Cut a graph into parts for training, and tell how good the cut is
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither partition flickr.npz --parts 8 -o flickr.parts
  hither partition flickr.npz --parts 8 --method all
  hither train flickr.npz --partition-file flickr.parts

The file has one number of a part a line, in the order of the nodes, as gpmetis writes it. Methods:
  metis   multilevel: the fewest cut edges
  ldg     nodes come one by one and go to most of their neighbours
  fennel  the same with another price of a part's size
  random  equal parts by lot
  label   nodes sorted by class")]
pub struct Args {
    #[command(flatten)]
    data: DataArgs,
    /// Number of parts
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(1..=PARTS_MAX as u64))]
    #[arg(allow_negative_numbers = true)]
    parts: usize,
    /// metis, ldg, fennel, random or label; `all` compares them
    #[arg(long, value_name = "NAME", default_value = "metis")]
    method: Methods,
    /// Most nodes of a part, in terms of the mean
    #[arg(long, value_name = "F", default_value_t = Settings::default().imbalance, value_parser = |t: &str| number(t, 1.0, 1e6))]
    #[arg(allow_negative_numbers = true)]
    imbalance: f64,
    /// Bound each part's training nodes like its nodes
    #[arg(long, value_name = "yes|no", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "yes", default_missing_value = "yes", value_parser = yes)]
    balance_train: bool,
    /// Seed of the cut, and of a split that is drawn
    #[arg(long, value_name = "N", default_value_t = 1, env = "HITHER_SEED")]
    #[arg(allow_negative_numbers = true)]
    seed: u64,
    /// File to write the parts to
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone)]
struct Methods(Vec<Method>);

impl FromStr for Methods {
    type Err = hither_gnn::Error;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
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

#[derive(Serialize)]
struct Cut {
    method: Method,
    time_s: f64,
    #[serde(flatten)]
    quality: Quality,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let Methods(methods) = &args.method;
    args.output.iter().try_for_each(|path| args.force.check_file(path))?;
    if methods.len() > 1 && args.output.is_some() {
        bail!("--method all compares only; give one method to write its parts");
    }
    common.say(&format!("seed {}", args.seed));
    let cuts = common.pool()?.install(|| -> anyhow::Result<Vec<Cut>> {
        let data = args.data.open(args.seed)?;
        methods.iter().map(|method| cut(args, *method, &data)).collect()
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

fn cut(args: &Args, method: Method, data: &Dataset) -> anyhow::Result<Cut> {
    let settings = Settings {
        method,
        parts: args.parts,
        seed: args.seed,
        imbalance: args.imbalance,
        balance_train: args.balance_train,
    };
    let Dataset { graph, labels, split, .. } = data;
    let start = Instant::now();
    let parts = partition::partition(graph, labels, &split.train, &settings)?;
    let time_s = start.elapsed().as_secs_f64();
    if let Some(path) = &args.output {
        partition::write(path, &parts)?;
    }
    Ok(Cut { method, time_s, quality: quality(graph, labels, &split.train, &parts) })
}

fn shown(cuts: &[Cut]) -> String {
    let mut table = new_table(&[
        "method",
        "cut edges",
        "share",
        "nodes a part",
        "largest / mean",
        "training nodes",
        "largest / mean",
        "label skew",
        "rows to fetch",
        "copies a node",
        "time",
    ]);
    for Cut { method, time_s, quality } in cuts {
        table.add_row([
            method.name().to_owned(),
            quality.cut_edges.to_string(),
            format!("{:.1} %", 100.0 * quality.cut_share),
            format!("{} – {}", quality.nodes.min, quality.nodes.max),
            format!("{:.3}", quality.nodes.imbalance),
            format!("{} – {}", quality.train.min, quality.train.max),
            format!("{:.3}", quality.train.imbalance),
            format!("{:.3}", quality.label_skew),
            quality.communication_volume.to_string(),
            format!("{:.2}", quality.replication),
            format!("{time_s:.2} s"),
        ]);
    }
    let mut text = format!("{table}\n");
    // Part by part, where there is one cut and a screen holds it.
    if let [Cut { quality, .. }] = cuts
        && quality.parts.len() <= 64
    {
        let mut table = new_table(&[
            "part",
            "nodes",
            "training nodes",
            "edges inside",
            "edges cut",
            "boundary nodes",
        ]);
        for (number, part) in quality.parts.iter().enumerate() {
            table.add_row([
                number.to_string(),
                part.nodes.to_string(),
                part.train.to_string(),
                part.edges_inside.to_string(),
                part.edges_cut.to_string(),
                part.boundary_nodes.to_string(),
            ]);
        }
        text.push_str(&format!("{table}\n"));
    }
    text
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
