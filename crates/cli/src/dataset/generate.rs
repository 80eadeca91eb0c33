//! `hither dataset generate`.

use std::path::PathBuf;

use anyhow::bail;
use clap::builder::RangedU64ValueParser;
use hither_data::output::{self, show_bytes};
use hither_gnn::generate::{self, Family, Settings};

use crate::Common;
use crate::inputs::number;
use crate::machine::Machine;
use crate::outputs::Force;

/// Generate a graph on which cut edges matter
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither dataset generate --family cut-homophily -o cut.graph.safetensors
  hither dataset generate --family noisy-features --nodes 10000000 \\
      -o big.graph.safetensors

Nodes belong to communities, which partitioners find, and to classes, which models learn. The \
features of one node say little about its class; those of all its neighbours together say much.
Families:
  cut-homophily   only edges between communities join nodes of the same class
  noisy-features  all edges tell of the class, so each cut edge is missed
Flags override the settings of the family.")]
pub struct Args {
    /// Preset: cut-homophily or noisy-features
    #[arg(long, value_name = "NAME")]
    family: Family,
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = RangedU64ValueParser::<usize>::new().range(1..u32::MAX as u64))]
    #[arg(allow_negative_numbers = true)]
    nodes: usize,
    /// Number of classes
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(2..=65_536))]
    #[arg(allow_negative_numbers = true)]
    classes: Option<usize>,
    /// Number of communities
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    #[arg(allow_negative_numbers = true)]
    communities: Option<usize>,
    /// Average number of neighbours per node
    #[arg(long, value_name = "N", value_parser = |t: &str| number(t, 0.0, 1e6))]
    #[arg(allow_negative_numbers = true)]
    degree: Option<f64>,
    /// Skew of the degrees: 0 makes them alike; near 1, a few nodes have very many neighbours
    #[arg(long, value_name = "F", value_parser = |t: &str| number(t, 0.0, 1.0))]
    #[arg(allow_negative_numbers = true)]
    tail: Option<f64>,
    /// Share of edges between communities
    #[arg(long, value_name = "SHARE", value_parser = |t: &str| number(t, 0.0, 1.0))]
    #[arg(allow_negative_numbers = true)]
    leaving: Option<f64>,
    /// Share of edges that join nodes of the same class, inside of communities
    #[arg(long, value_name = "SHARE", value_parser = |t: &str| number(t, 0.0, 1.0))]
    #[arg(allow_negative_numbers = true)]
    homophily_inside: Option<f64>,
    /// Share of edges that join nodes of the same class, between communities
    #[arg(long, value_name = "SHARE", value_parser = |t: &str| number(t, 0.0, 1.0))]
    #[arg(allow_negative_numbers = true)]
    homophily_outside: Option<f64>,
    /// Skew of the classes: 0 spreads them evenly over communities; 1 gives each community one
    #[arg(long, value_name = "F", value_parser = |t: &str| number(t, 0.0, 1.0))]
    #[arg(allow_negative_numbers = true)]
    skew: Option<f64>,
    /// Number of features per node
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_048_576))]
    #[arg(allow_negative_numbers = true)]
    features: Option<usize>,
    /// Distance of a class's mean from the origin; the noise has deviation 1 per dimension
    #[arg(long, value_name = "F", value_parser = |t: &str| number(t, 0.0, 1e6))]
    #[arg(allow_negative_numbers = true)]
    signal: Option<f64>,
    /// Share of training nodes
    #[arg(long, value_name = "SHARE", value_parser = |t: &str| number(t, 0.0, 1.0))]
    #[arg(allow_negative_numbers = true)]
    train: Option<f64>,
    /// Share of validation nodes
    #[arg(long, value_name = "SHARE", value_parser = |t: &str| number(t, 0.0, 1.0))]
    #[arg(allow_negative_numbers = true)]
    valid: Option<f64>,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 0, env = "HITHER_SEED")]
    #[arg(allow_negative_numbers = true)]
    seed: u64,
    /// File to write, in our own layout
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    force: Force,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    args.force.check_file(&args.output)?;
    let family = Settings::for_family(args.family, args.nodes, args.seed);
    let settings = Settings {
        classes: args.classes.unwrap_or(family.classes),
        communities: args.communities.unwrap_or(family.communities),
        degree: args.degree.unwrap_or(family.degree),
        tail: args.tail.unwrap_or(family.tail),
        leaving: args.leaving.unwrap_or(family.leaving),
        homophily_inside: args.homophily_inside.unwrap_or(family.homophily_inside),
        homophily_outside: args.homophily_outside.unwrap_or(family.homophily_outside),
        skew: args.skew.unwrap_or(family.skew),
        feature_dim: args.features.unwrap_or(family.feature_dim),
        signal: args.signal.unwrap_or(family.signal),
        train: args.train.unwrap_or(family.train),
        valid: args.valid.unwrap_or(family.valid),
        ..family
    };
    settings.check()?;
    check_room(&settings, args)?;
    let (nodes, edges) = (settings.nodes, settings.edges());
    let size = show_bytes(settings.file_bytes());
    common.say(&format!("drawing {nodes} nodes and about {edges:.0} edges: {size}"));
    // Each node is counted with its edges, and again with its features.
    let bar = common.bar(2 * nodes as u64, "drawing edges, then features");
    let done = |nodes: usize| bar.inc(nodes as u64);
    let written = common.pool()?.install(|| generate::write(&settings, &args.output, &done));
    bar.finish_and_clear();
    written?;
    common.say(&format!("seed {}: wrote {}", args.seed, args.output.display()));
    Ok(())
}

/// Refuses a graph that cannot be made here: before the work, not in the middle of it.
fn check_room(settings: &Settings, args: &Args) -> anyhow::Result<()> {
    let memory = settings.memory_bytes();
    if let Some(available) = Machine::read().available_bytes.filter(|bytes| memory > *bytes) {
        bail!(
            "{} nodes of degree {} need {} of memory, {} are available: lower --nodes or --degree",
            settings.nodes,
            settings.degree,
            show_bytes(memory),
            show_bytes(available)
        );
    }
    if !output::is_stdout(&args.output) && !output::is_written_through(&args.output) {
        output::check_space(&args.output, settings.file_bytes())?;
    }
    Ok(())
}
