//! `hither train compare`: several modes on the same splits, partitions and seeds.

use std::process::ExitCode;
use std::time::Instant;

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
    let mut comparison = Comparison::open(train, modes)?;
    let stop = StopRequest::if_kept(&comparison.top, common)?;
    common.say(&format!("seed {}", train.run.seed));
    note_unsaved(train, common);
    let settings = pool.install(|| comparison.run(&stop, common))?;
    let entries = comparison.entries;
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

/// All modes, and the directory of the whole.
struct Comparison<'a> {
    train: &'a TrainArgs,
    modes: Vec<Mode>,
    top: Option<Place>,
    entries: Vec<Entry>,
}

impl<'a> Comparison<'a> {
    fn open(train: &'a TrainArgs, modes: Vec<Mode>) -> anyhow::Result<Self> {
        let (dir, existing) = (train.output.output.as_deref(), train.existing());
        let top = dir.map(|dir| Place::open(dir, existing)).transpose()?;
        let open = |mode: &Mode| {
            let place = dir.map(|dir| Place::open(&dir.join(mode.name()), existing)).transpose()?;
            Ok(Entry { mode: *mode, runs: vec![], place })
        };
        let entries = modes.iter().map(open).collect::<anyhow::Result<_>>()?;
        Ok(Self { train, modes, top, entries })
    }

    /// Does what is left to do, and returns the settings of the whole.
    fn run(&mut self, stop: &StopRequest, common: &Common) -> anyhow::Result<Map<String, Value>> {
        let (train, seeds) = (self.train, self.train.output.runs);
        let mut case = TrainingCase::open(train, 1, common)?;
        common.note_changes(&case.data);
        note_unvalidated(&case.data, common);
        let settings = self.compare(&case)?;
        let all = self.modes.len() * seeds as usize;
        let done: usize = self.entries.iter().map(|entry| entry.runs.len()).sum();
        common.say(&match done {
            0 => {
                let (modes, seeds) = (self.modes.len(), plural(seeds as usize, "seed"));
                format!("{}: {} × {seeds}", plural(all, "run"), plural(modes, "mode"))
            }
            _ => format!("{} of {} × {seeds} runs are left", all - done, self.modes.len()),
        });
        let mut left = (all - done) as u32;
        for run in 1..=seeds {
            let mut due: Vec<usize> = (0..self.entries.len()).collect();
            due.retain(|at| self.entries[*at].runs.len() < run as usize);
            // It repeats the steps of another mode.
            due.sort_by_key(|at| self.modes[*at] == Mode::ServerOnly);
            if run > 1 && !due.is_empty() {
                case = TrainingCase::open(train, run, common)?;
            }
            for at in due {
                let start = Instant::now();
                self.train(at, run, &case, stop, common)?;
                left -= 1;
                if left as usize + 1 == all - done {
                    say_rest(start.elapsed(), left, common);
                }
            }
        }
        Ok(settings)
    }

    /// Compares the settings with those that are there, and takes over finished runs.
    fn compare(&mut self, case: &TrainingCase<'_>) -> anyhow::Result<Map<String, Value>> {
        let Self { train, modes, top, entries } = self;
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

    /// Trains one mode with one seed.
    fn train(
        &mut self,
        at: usize,
        run: u32,
        case: &TrainingCase<'_>,
        stop: &StopRequest,
        common: &Common,
    ) -> anyhow::Result<()> {
        let Self { train, modes, top, entries } = self;
        let mode = modes[at];
        let like = model_of_server_only(modes).filter(|_| mode == Mode::ServerOnly);
        let model = entries.iter().find(|entry| Some(entry.mode) == like);
        let steps = model.and_then(|entry| entry.runs.get(run as usize - 1));
        let steps = steps.map(|record| ServerSteps::like(&record.rounds));
        let config = config(case, mode, modes)?;
        let job = Job { args: train, case, config, run, steps, ranks: None, stop: stop.clone() };
        let ready = job.ready()?;
        // All directories before the first round, so that a killed comparison is recognised.
        let places = entries.iter_mut().filter_map(|entry| entry.place.as_mut());
        top.iter_mut().chain(places).try_for_each(Place::prepare)?;
        let Entry { runs, place, .. } = &mut entries[at];
        runs.push(job.run(ready, place.as_mut(), common)?);
        Ok(())
    }
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
