//! `hither train`: train a graph neural network on one machine, or over the parts of a graph in one of several modes.

mod args;
mod case;
mod compare;
mod drive;
mod dry_run;
mod profile;
#[cfg(feature = "mpi")]
mod ranks;
mod stop;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use hither_core::record::train::RunRecord;
use hither_gnn::Dataset;
use hither_gnn::run::figures::Outcome;
use hither_gnn::run::folder::{self, REPORT};
use hither_gnn::train::Mode;
use hither_gnn::transport::mpi::Launch;
use serde_json::{Map, Value};

use crate::{Common, outputs};
pub use args::TrainArgs;
use case::TrainingCase;
use drive::{Job, OtherRanks, Place, shown};
pub use profile::job_name;
use stop::StopRequest;
pub use stop::Stopped;

/// Train a graph neural network on CPUs: on one machine, or over the parts of a graph
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(allow_negative_numbers = true)]
#[command(after_help = "\
Examples:
  hither train examples/graph -o out/
  hither train examples/shop -o shop/
  hither train cora/processed/data.pt --model gcn --dry-run
  hither train flickr.npz --model gcn --parts 8 --runs 5 -o llcg/
  hither train products/ --layers 3 --hidden 256 --batch-norm -o out/
  hither train products/ … -o out/ --resume
  hither train compare tolokers.npz --modes single,llcg,ggs -o compared/

A user–item graph is learnt link by link (docs/links.md): the shop learns who buys what. `-h` shows the \
options that most people need, `--help` all.")]
#[command(after_long_help = "\
Examples:
  hither train examples/graph -o out/
  hither train examples/shop -o shop/
  hither train cora/processed/data.pt --model gcn --dry-run
  hither train flickr.npz --model gcn --parts 8 --runs 5 -o llcg/
  hither train products/ --layers 3 --hidden 256 --checkpoint-every 5 -o out/
  hither train products/ … -o out/ --resume
  hither train compare tolokers.npz --modes single,llcg,ggs -o compared/

Modes:
  single      one machine with the whole graph and sampled batches: the default
  llcg        workers on parts of the graph and a server that corrects: the default with --parts, with a \
dataset in parts, and under mpirun or srun
  llcg-stale  as llcg, but the server corrects the model of the round before, so that nobody waits for it
The baselines that `hither train compare --help` lists can be named too.

In each round of llcg every worker starts from the global model, takes --local-steps steps on its own part \
of the graph, and sends its model back. The server averages the models and takes --server-steps \
steps on the whole graph, which correct for the edges that the partition cut. Only models are sent.

The model is scored on the whole graph with all neighbours. The one with the best validation score \
is tested and written, with its predictions for every node (predictions.csv). The same seed gives \
the same model for any number of threads, and after a kill and --resume. See docs/training.md.")]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Training mode: single, llcg or llcg-stale [default: single; llcg with --parts, with a dataset in parts, and
    /// under mpirun or srun]
    #[arg(long, value_name = "NAME")]
    mode: Option<Mode>,
    #[command(flatten)]
    train: TrainArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Compare(Box<compare::Args>),
}

impl Args {
    /// The mode and options of a run that is spread over ranks; `None` for a comparison.
    pub fn over_ranks(&self) -> Option<(Mode, &TrainArgs)> {
        let mode = self.train.mode_or_usual(self.mode, true);
        self.command.is_none().then_some((mode, &self.train))
    }

    /// Whether a signal can leave a checkpoint behind.
    pub fn writes_checkpoints(&self) -> bool {
        let train = match &self.command {
            Some(Command::Compare(args)) => &args.train,
            None => &self.train,
        };
        train.output.output.is_some() && !train.output.dry_run
    }
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let launch = Launch::from_env()?;
    #[cfg(feature = "mpi")]
    if let Some(launch) = launch {
        return ranks::run(args, launch, common);
    }
    if launch.is_some() {
        bail!(
            "this hither was built without MPI, but mpirun or srun started several copies of it; build it with \
             `cargo build --release --features mpi`, or start one copy"
        );
    }
    match &args.command {
        Some(Command::Compare(args)) => compare::run(args, common),
        None => {
            let mode = args.train.mode_or_usual(args.mode, false);
            run_mode(mode, &args.train, None, common)
        }
    }
}

/// All runs of one mode, with workers in this process or in other ranks.
fn run_mode(
    mode: Mode,
    train: &TrainArgs,
    ranks: Option<&dyn OtherRanks>,
    common: &Common,
) -> anyhow::Result<ExitCode> {
    train.check(&[mode])?;
    let config = train.config(mode)?;
    let pool = common.pool()?;
    if train.output.dry_run {
        return pool
            .install(|| dry_run::run(train, &[mode], &|case, mode| case.config(mode), common));
    }
    let dir = train.output.output.as_deref();
    let mut place = dir.map(|dir| Place::open(dir, train.existing())).transpose()?;
    let stop = StopRequest::if_kept(&place, common)?;
    common.say(&format!("seed {}", train.run.seed));
    note_unsaved(train, common);
    pool.install(|| {
        let mut first = Some(TrainingCase::open(train, 1, common)?);
        let (mut settings, mut records) = (Map::new(), vec![]);
        if let (Some(place), Some(case)) = (&mut place, &first) {
            settings = train.settings(&config, &case.data);
            records = place.compare(settings.clone(), train.existing())?;
            records.truncate(train.output.runs as usize);
        }
        let done = records.len() as u32;
        for run in done + 1..=train.output.runs {
            let start = Instant::now();
            let case = match first.take().filter(|_| run == 1) {
                Some(case) => case,
                None => TrainingCase::open(train, run, common)?,
            };
            if run == done + 1 {
                common.note_changes(&case.data);
                note_unvalidated(&case.data, common);
            }
            let config = case.config(mode)?;
            let job = Job {
                args: train,
                case: &case,
                config,
                run,
                steps: None,
                ranks,
                stop: stop.clone(),
            };
            let ready = job.ready()?;
            place.as_mut().map_or(Ok(()), Place::prepare)?;
            records.push(job.run(ready, place.as_mut(), common)?);
            if run == done + 1 {
                say_rest(start.elapsed(), train.output.runs - run, common);
            }
        }
        tell(train, &settings, &records, common)
    })
}

/// Writes the report and prints the results.
fn tell(
    train: &TrainArgs,
    settings: &Map<String, Value>,
    records: &[RunRecord],
    common: &Common,
) -> anyhow::Result<ExitCode> {
    if let Some(dir) = &train.output.output {
        let page = hither_report::train::page(records, std::slice::from_ref(settings));
        outputs::write_file(&dir.join(REPORT), page.as_bytes())?;
        common.say(&format!("wrote {}", dir.join(REPORT).display()));
    }
    match train.output.json {
        true => outputs::print_json(&Outcome::from_runs(records))?,
        false => outputs::print(&hither_report::train::table(records))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The settings and the finished runs of a directory, in a comparison those of all modes.
pub fn read(dir: &std::path::Path) -> anyhow::Result<(Map<String, Value>, Vec<RunRecord>)> {
    Ok(folder::read(dir)?)
}

/// A model that nobody keeps is no reason to stop, as people try settings; but they should know.
fn note_unsaved(args: &TrainArgs, common: &Common) {
    if args.output.output.is_none() {
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
            shown(first_s),
            shown(rest_s)
        ));
    }
}
