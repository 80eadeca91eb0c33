//! `hither train`: train a graph neural network over the parts of a graph, in one of several modes.

mod args;
mod case;
mod compare;
mod drive;
mod dry_run;
mod estimate;
mod figures;
pub mod predictions;
mod profile;
mod ranks;
mod stop;
pub mod store;
mod unused;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use hither_gnn::Dataset;
use hither_gnn::train::Mode;
use hither_gnn::transport::mpi::Launch;
use serde_json::json;

use crate::outputs::Existing;
use crate::{Common, outputs};
pub use args::TrainArgs;
use case::TrainingCase;
use drive::Job;
use figures::Outcome;
pub use profile::job_name;
use ranks::Crew;
use stop::StopRequest;
pub use stop::Stopped;
use store::RunStore;
pub use store::read;

/// Train a graph neural network on a partitioned graph: learn locally, correct globally
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  hither train examples/graph --parts 2 -o out/
  hither train cora/processed/data.pt --model gcn --dry-run
  hither train flickr.npz --mode psgd-pa --model gcn --parts 8 --runs 5 -o pa/
  hither train products/ --model sage --layers 3 --hidden 256 --batch-norm \\
      --server-lr 0.01 --server-batch 2048 --checkpoint-every 5 -o out/
  hither train products/ … -o out/ --resume
  hither train examples/shop --mode single --parts 1 --batch 64 -o shop/
  hither train compare tolokers.npz --modes single,llcg,ggs -o compared/

In each round every worker starts from the global model, takes --local-steps steps on its own part \
of the graph, and sends its model back. The server averages the models and takes --server-steps \
steps on the whole graph, which correct for the edges that the partition cut. Only models are sent.
Modes:
  llcg         local steps, averaging, correction
  llcg-stale   as llcg, but the server corrects the model of the round before
  psgd-pa      local steps and averaging, no correction
  psgd-sa      as psgd-pa, with copies of some remote neighbours (--copies)
  psgd-sums    as psgd-pa, with the sums over remote neighbours as last known
  ggs          workers sample the whole graph and fetch remote features
  single       one machine with the whole graph
  server-only  the server's steps alone

A user–item graph is learnt link by link (docs/links.md): the example with the shop learns who buys \
what.

The model is scored on the whole graph with all neighbours. The one with the best validation score \
is tested and written, with its predictions for every node (predictions.csv). The same seed gives \
the same model for any number of threads, and after a kill and --resume. See docs/training.md.")]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Training mode: llcg, llcg-stale, psgd-pa, psgd-sa, psgd-sums, ggs, single or
    /// server-only
    #[arg(long, value_name = "NAME", default_value = "llcg")]
    pub mode: Mode,
    #[command(flatten)]
    train: TrainArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Compare(compare::Args),
}

impl Args {
    /// The options of a run that can be spread over ranks; `None` for a comparison.
    pub fn over_ranks(&self) -> Option<&TrainArgs> {
        self.command.is_none().then_some(&self.train)
    }

    /// Whether a signal can leave a checkpoint behind.
    pub fn writes_checkpoints(&self) -> bool {
        self.command.is_none() && self.train.run.output.is_some() && !self.train.run.dry_run
    }
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let launch = Launch::from_env();
    if let Some(Command::Compare(args)) = &args.command {
        return match launch {
            Some(Launch { rank: 1.., .. }) => Ok(ranks::LEFT_TO_RANK_0),
            Some(_) => bail!("`train compare` takes one process; start it without mpirun or srun"),
            None => compare::run(args, common),
        };
    }
    let (mode, train) = (args.mode, &args.train);
    match launch {
        Some(launch @ Launch { rank: 1.., .. }) => {
            ranks::work(train, mode, launch, &ranks::shared(common, &launch))
        }
        Some(launch) => {
            train.check(&[mode])?;
            let crew = Crew::join(train, mode)?;
            run_mode(mode, train, Some(&crew), &ranks::shared(common, &launch))
        }
        None => {
            train.check(&[mode])?;
            run_mode(mode, train, None, common)
        }
    }
}

/// All runs of one mode, with workers in this process or in a crew's.
fn run_mode(
    mode: Mode,
    train: &TrainArgs,
    crew: Option<&Crew>,
    common: &Common,
) -> anyhow::Result<ExitCode> {
    unused::note(train, &[mode], common);
    let pool = common.pool()?;
    if train.run.dry_run {
        return pool.install(|| dry_run::run(train, &[mode], common));
    }
    let mut store = match &train.run.output {
        Some(dir) => Some(RunStore::open(dir, train.asked(json!(mode)), existing(train))?),
        None => None,
    };
    let stop = match &store {
        Some(_) => StopRequest::on_signal(common)?,
        None => StopRequest::default(),
    };
    let mut records = store.as_ref().map_or(vec![], |store| store.done.clone());
    records.truncate(train.run.runs as usize);
    common.say(&format!("seed {}", train.run.seed));
    note_unsaved(train, common);
    let (first, last) = (records.len() as u32 + 1, train.run.runs);
    for run in first..=last {
        let start = Instant::now();
        let record = pool.install(|| {
            let case = TrainingCase::open(train, train.run.seed + u64::from(run) - 1, common)?;
            if run == first {
                common.note_changes(&case.data);
                note_unvalidated(&case.data, common);
            }
            let steps = train.server.server_steps.clone();
            let job = Job { args: train, case: &case, mode, run, steps, crew, stop: stop.clone() };
            job.run(job.ready()?, store.as_mut(), common)
        })?;
        records.push(record);
        if run == first {
            say_rest(start.elapsed(), last - first, common);
        }
    }
    if let Some(dir) = &train.run.output {
        store::write_report(dir, &train.asked(json!(mode)), &records)?;
        common.say(&format!("wrote {}", dir.join(store::REPORT).display()));
    }
    match train.run.json {
        true => outputs::print_json(&Outcome::from_runs(&records))?,
        false => outputs::print(&hither_report::train::table(&records))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A model that nobody keeps is no reason to stop, as people try settings; but they should know.
fn note_unsaved(args: &TrainArgs, common: &Common) {
    if args.run.output.is_none() {
        common.say("note: without -o DIR only the scores are kept, not the model");
    }
}

/// Without validation no score chooses a model.
fn note_unvalidated(data: &Dataset, common: &Common) {
    if data.links.as_ref().is_some_and(|links| links.valid.is_empty()) {
        common.say("note: no links are held out for validation; the last round's model is kept");
    }
}

/// Says how long the other runs take, after the first of several.
fn say_rest(first: Duration, others: u32, common: &Common) {
    if others > 0 {
        let (first_s, rest_s) = (first.as_secs_f64(), first.as_secs_f64() * f64::from(others));
        common.say(&format!(
            "the first run took {}; about {} for the other {others}",
            estimate::shown(first_s),
            estimate::shown(rest_s)
        ));
    }
}

fn existing(args: &TrainArgs) -> Existing {
    match (args.run.resume, args.run.force.force) {
        (true, _) => Existing::Resume,
        (_, true) => Existing::Replace,
        _ => Existing::Refuse,
    }
}
