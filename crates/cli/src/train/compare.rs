//! `hither train compare`: several modes on the same splits, partitions and seeds.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use hither_core::record::train::RunRecord;
use hither_gnn::config::{Facts, StepCount, TrainBy, TrainConfig};
use hither_gnn::correct::ServerSteps;
use hither_gnn::run::figures::Outcome;
use hither_gnn::run::folder::{REPORT, SUMMARY, merged, write_json};
use hither_gnn::train::Mode;
use hither_report::plural;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::args::TrainArgs;
use super::case::TrainingCase;
use super::drive::{Job, Place};
use super::stop::StopRequest;
use super::{dry_run, note_unsaved, note_unvalidated, say_rest};
use crate::{Common, outputs};

/// Train in several modes on the same splits, partitions and seeds, and compare the results
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
#[command(after_help = "\
Examples:
  hither train compare tolokers.npz -o compared/
  hither train compare flickr.npz --modes single,psgd-pa,llcg,ggs,server-only \\
      --model gcn --runs 5 --server-batch 64 -o compared/
  hither train compare flickr.npz … -o compared/ --resume

Modes:
  single       one machine with the whole graph; it takes the batches of all workers together
  llcg         local steps, averaging, correction
  llcg-stale   as llcg, but the server corrects the model of the round before
  psgd-pa      local steps and averaging, no correction
  psgd-sa      as psgd-pa, with copies of some remote neighbours (--copies)
  ggs          workers sample the whole graph and fetch remote features
  server-only  the server's steps alone

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
    pub(super) train: TrainArgs,
}

/// One mode, its runs so far, and the directory that keeps them.
struct Entry {
    mode: Mode,
    runs: Vec<RunRecord>,
    place: Option<Place>,
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
    let pool = common.pool()?;
    if train.output.dry_run {
        let config = |case: &TrainingCase<'_>, mode: Mode| config(case, mode, &modes);
        return pool.install(|| dry_run::run(train, &modes, &config, common));
    }
    let (mut top, mut entries) = open(train, &modes)?;
    let stop = StopRequest::if_kept(&top, common)?;
    common.say(&format!("seed {}", train.run.seed));
    note_unsaved(train, common);
    let settings = pool.install(|| -> anyhow::Result<Map<String, Value>> {
        let mut first = Some(TrainingCase::open(train, 1, common)?);
        let mut settings = Map::new();
        if let Some(case) = &first {
            common.note_changes(&case.data);
            note_unvalidated(&case.data, common);
            settings = compare(train, case, &modes, &mut top, &mut entries)?;
        }
        let mut pending = Pending::new(&entries, train.output.runs);
        pending.say(common, modes.len(), train.output.runs);
        for run in 1..=train.output.runs {
            if entries.iter().all(|entry| entry.runs.len() >= run as usize) {
                continue;
            }
            let case = match first.take().filter(|_| run == 1) {
                Some(case) => case,
                None => TrainingCase::open(train, run, common)?,
            };
            let all = All { train, case: &case, run, stop: &stop, common };
            all.run(&mut top, &mut entries, &mut pending)?;
        }
        Ok(settings)
    })?;
    let runs: Vec<RunRecord> = entries.iter().flat_map(|entry| entry.runs.clone()).collect();
    let document = Document { settings: &settings, modes: compared(&entries) };
    if let Some(dir) = &train.output.output {
        write_json(&dir.join(SUMMARY), &document)?;
        let page = hither_report::train::page(&runs, std::slice::from_ref(&settings));
        outputs::write_file(&dir.join(REPORT), page.as_bytes())?;
        common.say(&format!("wrote {}", dir.join(REPORT).display()));
    }
    match train.output.json {
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
fn open(train: &TrainArgs, modes: &[Mode]) -> anyhow::Result<(Option<Place>, Vec<Entry>)> {
    let (dir, existing) = (train.output.output.as_deref(), train.existing());
    let top = dir.map(|dir| Place::open(dir, existing)).transpose()?;
    let open = |mode: &Mode| {
        let place = dir.map(|dir| Place::open(&dir.join(mode.name()), existing)).transpose()?;
        Ok(Entry { mode: *mode, runs: vec![], place })
    };
    Ok((top, modes.iter().map(open).collect::<anyhow::Result<_>>()?))
}

/// Compares the settings with those that are there, and takes over finished runs. Returns the settings of the whole.
fn compare(
    train: &TrainArgs,
    case: &TrainingCase<'_>,
    modes: &[Mode],
    top: &mut Option<Place>,
    entries: &mut [Entry],
) -> anyhow::Result<Map<String, Value>> {
    let existing = train.existing();
    // What a mode alone has is compared in its own directory.
    let mut settings = train.settings(&train.config(Mode::Single)?, &case.data);
    settings.remove("mode");
    settings.insert("modes".into(), json!(modes));
    if let Some(top) = top {
        top.compare(settings.clone(), existing)?;
    }
    let mut all = vec![];
    for Entry { mode, runs, place } in entries {
        let config = config(case, *mode, modes)?;
        // What a mode cannot do is said before any other has begun.
        config.resolve(&Facts::of(&case.data))?;
        let asked = train.settings(&config, &case.data);
        all.push(asked.clone());
        let Some(place) = place else { continue };
        *runs = place.compare(asked, existing)?;
        runs.truncate(train.output.runs as usize);
    }
    Ok(merged(settings, all))
}

/// What a mode is asked for in a comparison with others.
fn config(case: &TrainingCase<'_>, mode: Mode, modes: &[Mode]) -> anyhow::Result<TrainConfig> {
    let mut config = match mode {
        Mode::Single => case.together()?,
        mode => case.config(mode)?,
    };
    if let TrainBy::ServerOnly(server) = &mut config.by {
        if model_of_server_only(modes).is_some() {
            server.server_steps = Some(StepCount::Like);
        }
        // What the others' local steps are asked for.
        (config.steps.batch, config.steps.fanout, config.steps.rho) = (None, None, 1.0);
    }
    Ok(config)
}

/// The mode whose server steps server-only repeats.
fn model_of_server_only(modes: &[Mode]) -> Option<Mode> {
    [Mode::Llcg, Mode::LlcgStale].into_iter().find(|mode| modes.contains(mode))
}

/// All modes with one seed.
struct All<'a> {
    train: &'a TrainArgs,
    case: &'a TrainingCase<'a>,
    run: u32,
    stop: &'a StopRequest,
    common: &'a Common,
}

impl All<'_> {
    /// Runs them, server-only last.
    fn run(
        &self,
        top: &mut Option<Place>,
        entries: &mut [Entry],
        pending: &mut Pending,
    ) -> anyhow::Result<()> {
        let Self { train, case, run, stop, common } = *self;
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
            let steps = model.and_then(|entry| entry.runs.get(run as usize - 1));
            let steps = steps.map(|record| ServerSteps::like(&record.rounds));
            let config = config(case, mode, &modes)?;
            let job =
                Job { args: train, case, config, run, steps, ranks: None, stop: stop.clone() };
            let ready = job.ready()?;
            // All directories before the first round, so that a killed comparison is recognised.
            let places = entries.iter_mut().filter_map(|entry| entry.place.as_mut());
            top.iter_mut().chain(places).try_for_each(Place::prepare)?;
            let Entry { runs, place, .. } = &mut entries[at];
            let start = Instant::now();
            runs.push(job.run(ready, place.as_mut(), common)?);
            pending.finish_one(start.elapsed(), common);
        }
        Ok(())
    }
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
