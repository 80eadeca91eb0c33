//! `hither train compare`: several modes on the same splits, cuts and seeds.

use std::process::ExitCode;

use anyhow::bail;
use hither_core::record::train::RunRecord;
use hither_gnn::correct::ServerSteps;
use hither_gnn::train::Mode;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::args::TrainArgs;
use super::case::Case;
use super::drive::Job;
use super::figures::Outcome;
use super::store::{self, REPORT, SUMMARY, Store, write_json};
use super::{dry_run, existing};
use crate::{Common, outputs};

/// Train in several modes on the same splits, cuts and seeds, and compare what comes out
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither train compare tolokers.npz -o compared/
  hither train compare flickr.npz --modes single,psgd-pa,llcg,ggs,server-only --model gcn --runs 5 \\
      --server-batch 64 -o compared/
  hither train compare flickr.npz … -o compared/ --resume

Every mode has the same number of rounds and local steps. server-only takes, round by round, as many
steps as llcg did, so that the server works alike in both: what llcg has more comes from local
training. Each mode's files are in DIR/MODE; DIR has the figures of all of them and report.html.
With --resume, runs that are finished are not done again, and modes can be added.")]
pub struct Args {
    /// Modes, separated by commas, or `all`
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    #[arg(default_value = "single,psgd-pa,llcg,ggs,server-only")]
    modes: Vec<String>,
    #[command(flatten)]
    train: TrainArgs,
}

/// One mode: its runs so far, and where they are kept.
struct Entry {
    mode: Mode,
    runs: Vec<RunRecord>,
    store: Option<Store>,
}

/// summary.json, and what `--json` prints.
#[derive(Serialize)]
struct Document<'a> {
    settings: &'a Map<String, Value>,
    modes: Vec<Compared>,
}

#[derive(Serialize)]
struct Compared {
    /// Mean test score less that of one machine.
    to_single: Option<f64>,
    #[serde(flatten)]
    outcome: Outcome,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let modes = modes(&args.modes)?;
    let train = &args.train;
    train.check(&modes)?;
    let pool = common.pool()?;
    if train.run.dry_run {
        return pool.install(|| dry_run::run(train, &modes));
    }
    let mut asked = train.asked(Value::Null);
    asked.remove("mode");
    asked.insert("modes".into(), json!(modes));
    let (mut top, mut entries) = open(train, &modes, &asked)?;
    common.say(&format!("seed {}", train.run.seed));
    for run in 1..=train.run.runs {
        if entries.iter().all(|entry| entry.runs.len() >= run as usize) {
            continue;
        }
        pool.install(|| {
            let case = Case::open(train, train.run.seed + u64::from(run) - 1)?;
            run_all(train, &case, run, &mut top, &mut entries, common)
        })?;
    }
    let runs: Vec<RunRecord> = entries.iter().flat_map(|entry| entry.runs.clone()).collect();
    let document = Document { settings: &asked, modes: compared(&entries) };
    if let Some(dir) = &train.run.output {
        write_json(&dir.join(SUMMARY), &document)?;
        store::write_report(dir, &asked, &runs)?;
        common.say(&format!("wrote {}", dir.join(REPORT).display()));
    }
    match train.run.json {
        true => outputs::print_json(&document)?,
        false => outputs::print(&hither_report::train::table(&runs))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Each once, in the order asked.
fn modes(names: &[String]) -> anyhow::Result<Vec<Mode>> {
    let mut modes = vec![];
    for name in names {
        let more = match name.trim() {
            "all" => Mode::ALL.to_vec(),
            name => vec![name.parse().map_err(anyhow::Error::msg)?],
        };
        for mode in more {
            if !modes.contains(&mode) {
                modes.push(mode);
            }
        }
    }
    if modes.is_empty() {
        bail!("no mode is given; there are {}", Mode::ALL.map(Mode::name).join(", "));
    }
    Ok(modes)
}

/// The directory of the comparison, and one in it for each mode.
fn open(
    train: &TrainArgs,
    modes: &[Mode],
    asked: &Map<String, Value>,
) -> anyhow::Result<(Option<Store>, Vec<Entry>)> {
    let Some(dir) = &train.run.output else {
        let entry = |mode: &Mode| Entry { mode: *mode, runs: vec![], store: None };
        return Ok((None, modes.iter().map(entry).collect()));
    };
    let existing = existing(train);
    let top = Store::open(dir, asked.clone(), existing)?;
    let open = |mode: &Mode| {
        let place = dir.join(mode.name());
        let store = Store::open(&place, asked_of(train, *mode, modes), existing)?;
        let mut runs = store.done.clone();
        runs.truncate(train.run.runs as usize);
        Ok(Entry { mode: *mode, runs, store: Some(store) })
    };
    let entries: anyhow::Result<Vec<Entry>> = modes.iter().map(open).collect();
    Ok((Some(top), entries?))
}

fn asked_of(train: &TrainArgs, mode: Mode, modes: &[Mode]) -> Map<String, Value> {
    let mut asked = train.asked(json!(mode));
    if let (Mode::ServerOnly, Some(model)) = (mode, model_of_server_only(modes)) {
        asked.insert("server-steps".into(), json!({ "like": model }));
    }
    asked
}

/// Whose steps server-only takes.
fn model_of_server_only(modes: &[Mode]) -> Option<Mode> {
    [Mode::Llcg, Mode::LlcgStale].into_iter().find(|mode| modes.contains(mode))
}

/// All modes of one seed, server-only last.
fn run_all(
    train: &TrainArgs,
    case: &Case<'_>,
    run: u32,
    top: &mut Option<Store>,
    entries: &mut [Entry],
    common: &Common,
) -> anyhow::Result<()> {
    let modes: Vec<Mode> = entries.iter().map(|entry| entry.mode).collect();
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|at| modes[*at] == Mode::ServerOnly);
    for at in order {
        if entries[at].runs.len() >= run as usize {
            continue;
        }
        let mode = modes[at];
        let like = model_of_server_only(&modes).filter(|_| mode == Mode::ServerOnly);
        let model = entries.iter().find(|entry| Some(entry.mode) == like);
        let steps = match model.and_then(|entry| entry.runs.get(run as usize - 1)) {
            Some(record) => {
                ServerSteps::Like(record.rounds.iter().map(|round| round.server_steps).collect())
            }
            None => train.server.server_steps.clone(),
        };
        let job = Job { args: train, case, mode, run, steps };
        let ready = job.ready()?;
        // All of it, before the first round: a run that is killed can be told from others.
        let stores = entries.iter_mut().filter_map(|entry| entry.store.as_mut());
        top.iter_mut().chain(stores).try_for_each(Store::prepare)?;
        let Entry { runs, store, .. } = &mut entries[at];
        runs.push(job.run(ready, store.as_mut(), common)?);
    }
    Ok(())
}

fn compared(entries: &[Entry]) -> Vec<Compared> {
    let outcomes: Vec<Outcome> = entries.iter().map(|entry| Outcome::of(&entry.runs)).collect();
    let single = outcomes.iter().find(|outcome| outcome.figures.mode == "single");
    let single = single.map(|outcome| outcome.figures.test.mean);
    outcomes
        .into_iter()
        .map(|outcome| Compared {
            to_single: single.map(|single| outcome.figures.test.mean - single),
            outcome,
        })
        .collect()
}
