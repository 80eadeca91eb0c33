//! `hither train`: learn locally, correct globally, and compare with the ways that do not.

mod args;
mod case;
mod compare;
mod drive;
mod dry_run;
mod figures;
mod profile;
mod store;

use std::process::ExitCode;

use hither_gnn::train::Mode;
use serde_json::json;

use crate::outputs::Existing;
use crate::{Common, outputs};
use args::TrainArgs;
use case::Case;
use drive::Job;
use figures::Outcome;
use store::Store;
pub use store::{holds_run, read};

/// Train a graph neural network over parts of a graph: learn locally, correct globally
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  hither train flickr.npz -o out/
  hither train flickr.npz --mode psgd-pa --model gcn --parts 8 --rounds 100 --runs 5 -o pa/
  hither train products/ --model sage --layers 3 --hidden 256 --batch-norm --rho 1.1 \\
      --lr 0.001 --server-lr 0.01 --server-batch 2048 --checkpoint-every 5 -o out/
  hither train products/ … -o out/ --resume
  hither train compare tolokers.npz --modes single,psgd-pa,llcg,ggs,server-only -o compared/

In each round every worker takes the global model, learns for --local-steps on its own part alone,
and sends its model back; the server averages them and takes --server-steps on the whole graph, to
undo what the cut edges did. Only models travel. Modes:
  llcg         local steps, averaging, correction
  llcg-stale   the server corrects the last model meanwhile, so that nobody waits for it
  psgd-pa      no correction
  psgd-sa      no correction, but each part stores copies of some remote neighbours (--copies)
  ggs          workers sample the whole graph and fetch remote features at every step
  single       one machine with the whole graph
  server-only  the server's steps alone

Scores are of the whole graph with all neighbours; the model with the best validation score is the
one that is tested and written. The same seed gives the same model for any number of threads, and
if a run was killed and resumed. See docs/training.md.")]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// llcg, llcg-stale, psgd-pa, psgd-sa, ggs, single or server-only
    #[arg(long, value_name = "NAME", default_value = "llcg")]
    mode: Mode,
    #[command(flatten)]
    train: TrainArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Compare(compare::Args),
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    if let Some(Command::Compare(args)) = &args.command {
        return compare::run(args, common);
    }
    let (mode, train) = (args.mode, &args.train);
    train.check(&[mode])?;
    let pool = common.pool()?;
    if train.run.dry_run {
        return pool.install(|| dry_run::run(train, &[mode]));
    }
    let mut store = match &train.run.output {
        Some(dir) => Some(Store::open(dir, train.asked(json!(mode)), existing(train))?),
        None => None,
    };
    let mut records = store.as_ref().map_or(vec![], |store| store.done.clone());
    records.truncate(train.run.runs as usize);
    common.say(&format!("seed {}", train.run.seed));
    for run in records.len() as u32 + 1..=train.run.runs {
        let record = pool.install(|| {
            let case = Case::open(train, train.run.seed + u64::from(run) - 1)?;
            let steps = train.server.server_steps.clone();
            let job = Job { args: train, case: &case, mode, run, steps };
            job.run(job.ready()?, store.as_mut(), common)
        })?;
        records.push(record);
    }
    if let Some(dir) = &train.run.output {
        store::write_report(dir, &train.asked(json!(mode)), &records)?;
        common.say(&format!("wrote {}", dir.join(store::REPORT).display()));
    }
    match train.run.json {
        true => outputs::print_json(&Outcome::of(&records))?,
        false => outputs::print(&hither_report::train::table(&records))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn existing(args: &TrainArgs) -> Existing {
    match (args.run.resume, args.run.force.force) {
        (true, _) => Existing::Resume,
        (_, true) => Existing::Replace,
        _ => Existing::Refuse,
    }
}
