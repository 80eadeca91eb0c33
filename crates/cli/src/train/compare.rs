//! `hither train compare`: several modes on the same splits, partitions and seeds.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use hither_core::record::train::RunRecord;
use hither_gnn::correct::ServerSteps;
use hither_gnn::train::Mode;
use hither_report::plural;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::args::TrainArgs;
use super::case::TrainingCase;
use super::drive::Job;
use super::figures::Outcome;
use super::stop::StopRequest;
use super::store::{self, REPORT, RunStore, SUMMARY, write_json};
use super::{dry_run, existing, note_unsaved, note_unvalidated, say_rest, unused};
use crate::{Common, outputs};

/// Train in several modes on the same splits, partitions and seeds, and compare the results
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither train compare tolokers.npz -o compared/
  hither train compare flickr.npz --modes single,psgd-pa,llcg,ggs,server-only \\
      --model gcn --runs 5 --server-batch 64 -o compared/
  hither train compare flickr.npz … -o compared/ --resume

Every mode takes the same number of rounds and local steps. server-only takes as many server steps \
as llcg did, round by round: what llcg scores beyond it comes from the workers. DIR/MODE holds each \
mode's files, DIR the results of all modes and report.html. With --resume, finished runs are kept, \
and modes can be added. The number of runs is modes times --runs; after the first one the command \
says about how long the others take.")]
pub struct Args {
    /// Modes to compare, separated by commas, or `all`
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    #[arg(default_value = "single,psgd-pa,llcg,ggs,server-only")]
    modes: Vec<String>,
    #[command(flatten)]
    train: TrainArgs,
}

/// One mode, its runs so far, and the directory that keeps them.
struct Entry {
    mode: Mode,
    runs: Vec<RunRecord>,
    store: Option<RunStore>,
}

/// The content of summary.json, and the output of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    settings: &'a Map<String, Value>,
    modes: Vec<Compared>,
}

#[derive(Serialize)]
struct Compared {
    /// Mean test score minus that of `single`; None without that mode.
    to_single: Option<f64>,
    #[serde(flatten)]
    outcome: Outcome,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let modes = modes(&args.modes)?;
    let train = &args.train;
    train.check(&modes)?;
    unused::note(train, &modes, common);
    let pool = common.pool()?;
    if train.run.dry_run {
        return pool.install(|| dry_run::run(train, &modes, common));
    }
    let mut asked = train.asked(Value::Null);
    asked.remove("mode");
    asked.insert("modes".into(), json!(modes));
    let (mut top, mut entries) = open(train, &modes, &asked)?;
    common.say(&format!("seed {}", train.run.seed));
    note_unsaved(train, common);
    let mut pending = Pending::new(&entries, train.run.runs);
    pending.say(common, modes.len(), train.run.runs);
    for run in 1..=train.run.runs {
        if entries.iter().all(|entry| entry.runs.len() >= run as usize) {
            continue;
        }
        pool.install(|| {
            let case = TrainingCase::open(train, train.run.seed + u64::from(run) - 1, common)?;
            if pending.is_first {
                common.note_changes(&case.data);
                note_unvalidated(&case.data, common);
            }
            run_all(train, &case, run, &mut top, &mut entries, &mut pending, common)
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

/// The modes by name, each once, in the order given.
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
        bail!("--modes is empty; expected some of {}", Mode::ALL.map(Mode::name).join(", "));
    }
    Ok(modes)
}

/// The runs that are still to be done.
struct Pending {
    runs: u32,
    is_first: bool,
}

impl Pending {
    fn new(entries: &[Entry], runs: u32) -> Self {
        let left = entries.iter().map(|entry| runs.saturating_sub(entry.runs.len() as u32)).sum();
        Self { runs: left, is_first: true }
    }

    fn say(&self, common: &Common, modes: usize, seeds: u32) {
        let left = self.runs;
        common.say(&match left == modes as u32 * seeds {
            true => {
                let seeds = plural(seeds as usize, "seed");
                format!("{}: {} × {seeds}", plural(left as usize, "run"), plural(modes, "mode"))
            }
            false => format!("{left} of {modes} × {seeds} runs are left"),
        });
    }

    fn finish_one(&mut self, took: Duration, common: &Common) {
        self.runs = self.runs.saturating_sub(1);
        if std::mem::take(&mut self.is_first) {
            say_rest(took, self.runs, common);
        }
    }
}

/// The directory of the comparison, and one in it for each mode.
fn open(
    train: &TrainArgs,
    modes: &[Mode],
    asked: &Map<String, Value>,
) -> anyhow::Result<(Option<RunStore>, Vec<Entry>)> {
    let Some(dir) = &train.run.output else {
        let entry = |mode: &Mode| Entry { mode: *mode, runs: vec![], store: None };
        return Ok((None, modes.iter().map(entry).collect()));
    };
    let existing = existing(train);
    let top = RunStore::open(dir, asked.clone(), existing)?;
    let open = |mode: &Mode| {
        let place = dir.join(mode.name());
        let store = RunStore::open(&place, asked_of(train, *mode, modes), existing)?;
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

/// The mode whose server steps server-only repeats.
fn model_of_server_only(modes: &[Mode]) -> Option<Mode> {
    [Mode::Llcg, Mode::LlcgStale].into_iter().find(|mode| modes.contains(mode))
}

/// Runs all modes with one seed, server-only last.
fn run_all(
    train: &TrainArgs,
    case: &TrainingCase<'_>,
    run: u32,
    top: &mut Option<RunStore>,
    entries: &mut [Entry],
    pending: &mut Pending,
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
            Some(record) => ServerSteps::like(&record.rounds),
            None => train.server.server_steps.clone(),
        };
        let stop = StopRequest::default();
        let job = Job { args: train, case, mode, run, steps, crew: None, stop };
        let ready = job.ready()?;
        // All directories before the first round, so that a killed comparison is recognised.
        let stores = entries.iter_mut().filter_map(|entry| entry.store.as_mut());
        top.iter_mut().chain(stores).try_for_each(RunStore::prepare)?;
        let Entry { runs, store, .. } = &mut entries[at];
        let start = Instant::now();
        runs.push(job.run(ready, store.as_mut(), common)?);
        pending.finish_one(start.elapsed(), common);
    }
    Ok(())
}

fn compared(entries: &[Entry]) -> Vec<Compared> {
    let outcomes: Vec<Outcome> =
        entries.iter().map(|entry| Outcome::from_runs(&entry.runs)).collect();
    let single = outcomes.iter().find(|outcome| outcome.figures.mode == Mode::Single.name());
    let single = single.map(|outcome| outcome.figures.test.mean);
    outcomes
        .into_iter()
        .map(|outcome| Compared {
            to_single: single.map(|single| outcome.figures.test.mean - single),
            outcome,
        })
        .collect()
}
