//! `hither train compare`: several modes on the same splits, cuts and seeds.

use std::path::{Path, PathBuf};
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
use super::store::{self, REPORT, SETTINGS, SUMMARY, Store, write_json};
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
    let mut entries = open(train, &modes, &asked)?;
    common.say(&format!("seed {}", train.run.seed));
    for run in 1..=train.run.runs {
        if entries.iter().all(|entry| entry.runs.len() >= run as usize) {
            continue;
        }
        pool.install(|| {
            let case = Case::open(train, train.run.seed + u64::from(run) - 1)?;
            run_all(train, &case, run, &mut entries, common)
        })?;
    }
    let runs: Vec<RunRecord> = entries.iter().flat_map(|entry| entry.runs.clone()).collect();
    let document = Document { settings: &asked, modes: compared(&entries) };
    if let Some(dir) = &train.run.output {
        write_json(&dir.join(SUMMARY), &document)?;
        store::write_report(dir, &runs)?;
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

fn open(
    train: &TrainArgs,
    modes: &[Mode],
    asked: &Map<String, Value>,
) -> anyhow::Result<Vec<Entry>> {
    let Some(dir) = &train.run.output else {
        return Ok(modes
            .iter()
            .map(|mode| Entry { mode: *mode, runs: vec![], store: None })
            .collect());
    };
    let existing = existing(train);
    store::look(dir, asked, existing)?;
    outputs::make_dir(dir)?;
    write_json(&dir.join(SETTINGS), asked)?;
    let stores = modes.iter().map(|mode| {
        let store = Store::open(&place(dir, *mode), asked_of(train, *mode, modes), existing)?;
        let mut runs = store.done.clone();
        runs.truncate(train.run.runs as usize);
        Ok(Entry { mode: *mode, runs, store: Some(store) })
    });
    stores.collect()
}

fn place(dir: &Path, mode: Mode) -> PathBuf {
    dir.join(mode.name())
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
        let Entry { runs, store, .. } = &mut entries[at];
        if let Some(store) = store.as_ref().filter(|store| like.is_some() && store.is_longer) {
            // It began with the steps of a shorter run.
            store.forget(run)?;
        }
        let record = job.run(store.as_mut(), common)?;
        if let Some(store) = store {
            store.finish(record.clone())?;
        }
        runs.push(record);
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
