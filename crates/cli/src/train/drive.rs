//! One run from its first round, or its last checkpoint, to its files, and what is told meanwhile.

use std::io::{IsTerminal as _, stderr};
use std::path::Path;
use std::time::{Duration, Instant};

use hither_core::record::train::{Round, RunRecord};
use hither_gnn::Dataset;
use hither_gnn::config::TrainConfig;
use hither_gnn::correct::ServerSteps;
use hither_gnn::run::folder::{PROFILE, RunFolder, write_json};
use hither_gnn::run::{Existing, Run};
use hither_gnn::train::Trainer;
use hither_gnn::transport::Workers;
use hither_report::plural;
use indicatif::{ProgressBar, ProgressStyle};
use rayon::current_num_threads;
use serde_json::{Map, Value};

use super::args::TrainArgs;
use super::case::TrainingCase;
use super::profile::{RankReport, profile};
use super::stop::{StopRequest, Stopped};
use crate::Common;
use crate::outputs::{Kind, OutputDir};

/// Interval between lines of progress if standard error is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// A run that takes longer says so after its first round.
const LONG_S: f64 = 20.0;
const BAR: &str = "{msg} [{bar:30}] {pos}/{len}  {elapsed} elapsed{prefix}";

/// A directory of results that no other command writes to meanwhile.
pub struct Place {
    output: OutputDir,
    folder: Option<RunFolder>,
}

impl Place {
    /// Locks the directory, if it is there, and refuses what must stay.
    pub fn open(dir: &Path, existing: Existing) -> anyhow::Result<Self> {
        let existing = match existing {
            Existing::Refuse => crate::outputs::Existing::Refuse,
            Existing::Resume => crate::outputs::Existing::Resume,
            Existing::Replace => crate::outputs::Existing::Replace,
        };
        Ok(Self { output: OutputDir::open(dir, Kind::Training, existing)?, folder: None })
    }

    /// Compares the settings with those of the run that is there.
    pub fn compare(
        &mut self,
        settings: Map<String, Value>,
        existing: Existing,
    ) -> anyhow::Result<Vec<RunRecord>> {
        let folder = RunFolder::open(self.output.path(), settings, existing)?;
        Ok(self.folder.insert(folder).done.clone())
    }

    /// Makes the directory one of this run.
    pub fn prepare(&mut self) -> anyhow::Result<()> {
        self.output.create()?;
        Ok(self.folder.as_mut().map_or(Ok(()), RunFolder::prepare)?)
    }
}

/// The other ranks of an MPI job, which hold the workers.
pub trait OtherRanks: Sync {
    /// Has all of them make ready for a run on a dataset in parts.
    fn begin(
        &self,
        folder: &Path,
        config: &TrainConfig,
        data: &Dataset,
    ) -> anyhow::Result<Box<dyn Workers>>;

    /// What every rank used and sent, server first; written to the run's folder too.
    fn report(&self, trainer: &mut Trainer, dir: &Path) -> anyhow::Result<Vec<RankReport>>;
}

/// One run that is to be done.
pub struct Job<'a> {
    pub args: &'a TrainArgs,
    pub case: &'a TrainingCase<'a>,
    pub config: TrainConfig,
    /// From 1.
    pub run: u32,
    /// The server's steps, where another run decides them.
    pub steps: Option<ServerSteps>,
    /// Where the workers run, if not in this process.
    pub ranks: Option<&'a dyn OtherRanks>,
    pub stop: StopRequest,
}

impl Job<'_> {
    pub fn ready(&self) -> anyhow::Result<Run> {
        let Self { args, case, config, .. } = self;
        let cut = case.cut(config)?;
        let mut plan = config.resolve(&cut.facts(&case.data))?;
        if let Some(steps) = &self.steps {
            if let ServerSteps::Like(taken) = steps {
                // Stop where the other run stopped: beyond that there is nothing to compare with.
                plan.settings.rounds = plan.settings.rounds.min(taken.len() as u32);
            }
            plan.settings.server_steps = steps.clone();
        }
        let workers = match self.ranks {
            Some(ranks) => Some(ranks.begin(args.data.path(), config, &case.data)?),
            None => None,
        };
        let mut run = Run::from_plan(plan, case.data.clone(), cut, workers)?;
        run.checkpoint_every = args.output.checkpoint_every.unwrap_or(run.checkpoint_every);
        run.all_outputs = args.output.embeddings;
        Ok(run)
    }

    /// Trains and writes the files. Call it on the threads that are to do the work.
    pub fn run(
        &self,
        mut run: Run,
        place: Option<&mut Place>,
        common: &Common,
    ) -> anyhow::Result<RunRecord> {
        let mut none = None;
        let folder = place.map_or(&mut none, |place| &mut place.folder);
        if let Some(folder) = folder.take() {
            run.begin(folder, self.run)?;
            let round = run.rounds().len() as u32;
            if round > 0 {
                self.stop.note_saved(round);
                common.say(&format!("resuming after round {round}"));
            }
        }
        self.rounds(&mut run, common)?;
        note_saturated(&run, common);
        let record = run.finish_with(|trainer, record, dir| {
            let ranks = self.ranks.map(|ranks| ranks.report(trainer, dir)).transpose()?;
            let profile = profile(record, current_num_threads(), ranks.as_deref());
            anyhow::Ok(write_json(&dir.join(PROFILE), &profile)?)
        })?;
        *folder = run.into_folder();
        Ok(record)
    }

    fn rounds(&self, run: &mut Run, common: &Common) -> anyhow::Result<()> {
        let start = Instant::now();
        let clock = || start.elapsed().as_secs_f64();
        let mut progress = Progress::new(self, run, common);
        while !run.is_done() {
            let round = run.step(&clock)?.round;
            if round.is_multiple_of(run.checkpoint_every) {
                self.stop.note_saved(round);
            }
            if let (Some(signal), false) = (self.stop.asked(), run.is_done()) {
                run.save()?;
                progress.bar.finish_and_clear();
                return Err(Stopped { round, signal }.into());
            }
            progress.tell(run, common);
        }
        progress.bar.finish_and_clear();
        Ok(())
    }
}

/// A score that no model can better chooses none.
fn note_saturated(run: &Run, common: &Common) {
    let Some(best) = run.best().filter(|best| best.valid.is_some_and(|valid| valid >= 1.0)) else {
        return;
    };
    let metric = run.trainer.settings.task.metric(&run.trainer.data);
    common.say(&format!(
        "note: the validation {metric} reached 100 %, which tells models no longer apart; of those rounds the last, \
         {}, is kept; a harder --metric chooses better",
        best.round
    ));
}

/// A bar on a terminal; elsewhere a line now and then.
struct Progress {
    bar: ProgressBar,
    name: String,
    lines: bool,
    start: Instant,
    since: Instant,
    /// Rounds that an earlier process did.
    before: usize,
}

impl Progress {
    fn new(job: &Job<'_>, run: &Run, common: &Common) -> Self {
        let bar = common.bar(run.trainer.settings.rounds.into(), "");
        if let Ok(style) = ProgressStyle::with_template(BAR) {
            bar.set_style(style);
        }
        let mode = job.config.by.mode().name();
        let name = match job.args.output.runs {
            1 => mode.to_owned(),
            runs => format!("{mode}, run {} of {runs}", job.run),
        };
        bar.set_message(name.clone());
        let before = run.rounds().len();
        bar.inc(before as u64);
        let (lines, start) = (!stderr().is_terminal(), Instant::now());
        Self { bar, name, lines, start, since: start, before }
    }

    fn tell(&mut self, run: &Run, common: &Common) {
        let Some(round) = run.rounds().last() else { return };
        let text = self.text(run, round);
        let (done, all) = (run.rounds().len(), run.trainer.settings.rounds as usize);
        let here = done - self.before;
        let left_s = self.start.elapsed().as_secs_f64() / here as f64 * (all - done) as f64;
        let most = if run.trainer.settings.patience.is_some() { "at most" } else { "about" };
        let left = format!("{most} {}", shown(left_s));
        self.bar.set_prefix(format!(", {left} left"));
        if here == 1 && left_s > LONG_S {
            let line = format!("{}: {left} for {}", self.name, plural(all - done, "more round"));
            self.bar.suspend(|| common.say(&line));
        }
        if self.lines && self.since.elapsed() >= LINE_EVERY {
            self.since = Instant::now();
            common.say(&format!("round {done} of {all}, {left} left; {text}"));
        }
        self.bar.set_message(text);
        self.bar.inc(1);
    }

    fn text(&self, run: &Run, round: &Round) -> String {
        let mut text = format!("{}: loss {:.3}", self.name, round.loss);
        if let Some(valid) = round.valid {
            text.push_str(&format!(", valid {:.2}", 100.0 * valid));
        }
        if let Some(best) = run.best() {
            match best.valid {
                Some(valid) => {
                    let (score, at) = (100.0 * valid, best.round);
                    text.push_str(&format!(", best {score:.2} in round {at}"));
                }
                None => text.push_str(&format!(", test {:.2}", 100.0 * best.test)),
            }
        }
        match run.trainer.sent_bytes {
            0 => text,
            bytes => text + &format!(", {:.1} MB sent", bytes as f64 / 1e6),
        }
    }
}

/// A duration with one unit: `40 s`, `12 min`, `3 h`.
pub fn shown(seconds: f64) -> String {
    match Duration::try_from_secs_f64(seconds.max(0.0)).map_or(u64::MAX, |time| time.as_secs()) {
        seconds @ 0..90 => format!("{} s", seconds.max(1)),
        seconds @ 90..5400 => format!("{} min", seconds.div_ceil(60)),
        seconds @ 5400..172_800 => format!("{} h", seconds.div_ceil(3600)),
        seconds => format!("{} days", seconds.div_ceil(86_400)),
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn durations_have_one_unit() {
        let cases =
            [(0.2, "1 s"), (89.0, "89 s"), (100.0, "2 min"), (7200.0, "2 h"), (1e6, "12 days")];
        for (seconds, expected) in cases {
            assert_eq!(shown(seconds), expected);
        }
    }
}
