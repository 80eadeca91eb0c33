//! The figures that modes are compared by. Terminal and page share this one list, so that they
//! cannot disagree.

use hither_core::record::train::{Bytes, RunRecord, Works};

use super::group::ModeGroup;
use crate::format::{TimeUnit, count, percent};
use crate::metric::winners;

/// Mean and sample standard deviation over runs; one run has no deviation.
#[derive(Clone, Copy)]
pub struct Spread {
    pub mean: f64,
    pub std: Option<f64>,
}

impl Spread {
    fn over_runs(group: &ModeGroup, read: fn(&RunRecord) -> f64) -> Option<Self> {
        let mean = group.mean(read)?;
        let values: Vec<f64> =
            group.runs.iter().map(|run| read(run)).filter(|v| v.is_finite()).collect();
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        let std = (values.len() > 1).then(|| (squares / (values.len() - 1) as f64).sqrt());
        Some(Self { mean, std })
    }

    /// Of scores from 0 to 1, in percent: `61.23 ± 0.45`.
    pub fn percent(&self) -> String {
        let mean = self.mean * 100.0;
        match self.std {
            Some(std) => format!("{mean:.2} ± {:.2}", std * 100.0),
            None => format!("{mean:.2}"),
        }
    }
}

/// Means over the runs of a group.
pub struct Figures {
    runs: usize,
    /// Scores at the round of the best validation score.
    pub test: Option<Spread>,
    valid: Option<Spread>,
    /// Test score minus that of one machine with the whole graph, in points.
    delta: Option<f64>,
    down_bytes: f64,
    up_bytes: f64,
    pub total_bytes: f64,
    /// What a run sends before its first round.
    pub setup_bytes: f64,
    /// Measured time of partitioning, and computed time of probes and copies, before the first round.
    pub partition_s: f64,
    pub setup_path_s: f64,
    /// Bytes per round divided by those of llcg.
    ratio: Option<f64>,
    best_round: Option<f64>,
    server_steps: Option<f64>,
    /// Multiply–adds of all steps.
    work: Option<f64>,
    /// Share of the work that the server did.
    server_share: Option<f64>,
    /// Seconds on one machine per worker and one for the server.
    path_s: Option<f64>,
    /// The computed time of single divided by this one.
    speedup: Option<f64>,
    /// What a run took on this machine.
    wall_s: Option<f64>,
}

impl Figures {
    pub fn round_bytes(&self) -> f64 {
        self.down_bytes + self.up_bytes
    }
}

pub fn down(bytes: &Bytes) -> f64 {
    bytes.model_down_bytes as f64 + bytes.features_down_bytes as f64
}

pub fn up(bytes: &Bytes) -> f64 {
    bytes.model_up_bytes as f64 + bytes.requests_up_bytes as f64
}

pub fn both(bytes: &Bytes) -> f64 {
    down(bytes) + up(bytes)
}

/// Bytes that were sent before the first round: all that the rounds do not account for.
pub fn setup(run: &RunRecord) -> f64 {
    let rounds: f64 = run.rounds.iter().map(|round| both(&round.bytes)).sum();
    if run.rounds.is_empty() { 0.0 } else { (both(&run.summary.bytes) - rounds).max(0.0) }
}

/// A round's mean; a record without its rounds has only the whole.
fn a_round(run: &RunRecord, read: fn(&Bytes) -> f64) -> f64 {
    match run.rounds.as_slice() {
        [] => read(&run.summary.bytes) / f64::from(run.summary.rounds.max(1)),
        rounds => rounds.iter().map(|round| read(&round.bytes)).sum::<f64>() / rounds.len() as f64,
    }
}

/// NaN in records that counted none.
fn work(run: &RunRecord) -> f64 {
    let Works { workers, server, judge, .. } = run.summary.work;
    positive((workers + server + judge).total() as f64)
}

fn wall_s(run: &RunRecord) -> f64 {
    positive(run.summary.time.total())
}

fn path_s(run: &RunRecord) -> f64 {
    positive(run.summary.path.total())
}

fn positive(value: f64) -> f64 {
    if value > 0.0 { value } else { f64::NAN }
}

pub fn figures(groups: &[ModeGroup]) -> Vec<Figures> {
    let own = |group: &ModeGroup| Figures {
        runs: group.runs.len(),
        test: Spread::over_runs(group, |run| run.summary.test),
        valid: Spread::over_runs(group, |run| run.summary.valid.unwrap_or(f64::NAN)),
        delta: None,
        down_bytes: group.mean(|run| a_round(run, down)).unwrap_or(0.0),
        up_bytes: group.mean(|run| a_round(run, up)).unwrap_or(0.0),
        total_bytes: group.mean(|run| both(&run.summary.bytes)).unwrap_or(0.0),
        setup_bytes: group.mean(setup).unwrap_or(0.0),
        partition_s: group.mean(|run| run.summary.setup.partition_s).unwrap_or(0.0),
        setup_path_s: group.mean(|run| run.summary.setup.path_s).unwrap_or(0.0),
        ratio: None,
        server_steps: group.mean(|run| run.summary.server_steps as f64),
        best_round: group.mean(|run| run.summary.best_round.into()),
        work: group.mean(work),
        server_share: group.mean(|run| run.summary.work.server_share() + 0.0 * work(run)),
        path_s: group.mean(path_s),
        speedup: None,
        wall_s: group.mean(wall_s),
    };
    let mut all: Vec<Figures> = groups.iter().map(own).collect();
    for (i, group) in groups.iter().enumerate() {
        let reference = |mode: &str| {
            let same = |other: &ModeGroup| other.header().mode == mode && other.same_task(group);
            groups.iter().position(same).filter(|&at| at != i)
        };
        let single = reference("single").and_then(|at| all[at].test);
        all[i].delta =
            all[i].test.zip(single).map(|(own, single)| (own.mean - single.mean) * 100.0);
        all[i].speedup = reference("single")
            .and_then(|at| all[at].path_s)
            .zip(all[i].path_s)
            .map(|(single, own)| single / own);
        let llcg = reference("llcg").map(|at| all[at].round_bytes()).filter(|bytes| *bytes > 0.0);
        all[i].ratio = llcg.map(|bytes| all[i].round_bytes() / bytes);
    }
    all
}

/// Which values of a column are good.
pub enum Best {
    Largest,
    Smallest,
    /// More is neither better nor worse.
    Neither,
}

/// A column of the comparison of modes.
pub struct Column {
    pub name: &'static str,
    /// Shown when the pointer rests on the column.
    pub meaning: &'static str,
    pub best: Best,
    pub value: fn(&Figures) -> Option<f64>,
    show: Show,
}

/// How a column is written.
enum Show {
    /// Seconds, in one unit for the whole column.
    Time,
    Text(fn(&Figures) -> String),
}

impl Column {
    /// The column's cells, one per group.
    pub fn texts(&self, figures: &[Figures]) -> Vec<String> {
        match self.show {
            Show::Text(text) => figures.iter().map(text).collect(),
            Show::Time => {
                let seconds: Vec<f64> =
                    figures.iter().map(|f| (self.value)(f).unwrap_or(f64::NAN)).collect();
                let unit = TimeUnit::for_column(seconds.iter().copied());
                seconds.into_iter().map(|s| unit.text(s)).collect()
            }
        }
    }

    /// Only modes whose figure is above 0 compete: a mode that sends no bytes does not win by that,
    /// and the only mode that sends any does not win either.
    pub fn winners(&self, figures: &[Figures]) -> Vec<bool> {
        let mut marks = vec![false; figures.len()];
        let smaller = match self.best {
            Best::Neither => return marks,
            Best::Largest => false,
            Best::Smallest => true,
        };
        let values = figures.iter().map(self.value).enumerate();
        let (racing, values): (Vec<usize>, Vec<Option<f64>>) =
            values.filter(|(_, value)| value.is_some_and(|v| v > 0.0)).unzip();
        for (at, won) in racing.into_iter().zip(winners(&values, smaller)) {
            marks[at] = won;
        }
        marks
    }
}

/// Columns of what workers send and a server does: left out where nobody sends or does anything.
const OF_WORKERS: [&str; 5] = ["MB/round down", "up", "total MB", "server steps", "server share"];

/// The columns for which at least one group has a figure.
pub fn columns(figures: &[Figures]) -> Vec<&'static Column> {
    let shows = |column: &&Column| {
        let mut values = figures.iter().filter_map(|f| (column.value)(f));
        let needs_more = OF_WORKERS.contains(&column.name);
        values.any(|value| value != 0.0 || !needs_more)
    };
    COLUMNS.iter().filter(shows).collect()
}

const COLUMNS: &[Column] = &[
    Column {
        name: "runs",
        meaning: "Repetitions with different seeds",
        best: Best::Neither,
        value: |f| Some(f.runs as f64),
        show: Show::Text(|f| f.runs.to_string()),
    },
    Column {
        name: "test %",
        meaning: "Test score at the round of the best validation score, mean ± standard deviation",
        best: Best::Largest,
        value: |f| f.test.map(|s| s.mean),
        show: Show::Text(|f| f.test.map_or_else(none, |s| s.percent())),
    },
    Column {
        name: "Δ single",
        meaning: "Mean test score minus that of single, one machine with the whole graph; in points",
        best: Best::Neither,
        value: |f| f.delta,
        show: Show::Text(|f| f.delta.map_or_else(none, points)),
    },
    Column {
        name: "valid %",
        meaning: "Best validation score, mean ± standard deviation",
        best: Best::Largest,
        value: |f| f.valid.map(|s| s.mean),
        show: Show::Text(|f| f.valid.map_or_else(none, |s| s.percent())),
    },
    Column {
        name: "best round",
        meaning: "Round of the best validation score, whose model is tested and written; mean over runs",
        best: Best::Neither,
        value: |f| f.best_round,
        show: Show::Text(|f| f.best_round.map_or_else(none, |round| format!("{round:.0}"))),
    },
    Column {
        name: "MB/round down",
        meaning: "Megabytes sent to all workers per round",
        best: Best::Smallest,
        value: |f| Some(f.down_bytes),
        show: Show::Text(|f| megabytes(f.down_bytes)),
    },
    Column {
        name: "up",
        meaning: "Megabytes sent by all workers per round",
        best: Best::Smallest,
        value: |f| Some(f.up_bytes),
        show: Show::Text(|f| megabytes(f.up_bytes)),
    },
    Column {
        name: "total MB",
        meaning: "Megabytes of a whole run, both directions",
        best: Best::Smallest,
        value: |f| Some(f.total_bytes),
        show: Show::Text(|f| megabytes(f.total_bytes)),
    },
    Column {
        name: "to llcg",
        meaning: "Bytes per round, both directions, divided by those of llcg",
        best: Best::Neither,
        value: |f| f.ratio,
        show: Show::Text(|f| f.ratio.map_or_else(none, times)),
    },
    Column {
        name: "server steps",
        meaning: "Steps of the server in a whole run",
        best: Best::Neither,
        value: |f| f.server_steps,
        show: Show::Text(|f| f.server_steps.map_or_else(none, |steps| count(steps.round() as u64))),
    },
    Column {
        name: "work, 10⁹",
        meaning: "Billions of multiply–adds of all local and server steps of a run, counted; measuring \
                  evaluation is left out",
        best: Best::Smallest,
        value: |f| f.work,
        show: Show::Text(|f| f.work.map_or_else(none, billions)),
    },
    Column {
        name: "server share",
        meaning: "Share of the work that the server did",
        best: Best::Neither,
        value: |f| f.server_share,
        show: Show::Text(|f| f.server_share.map_or_else(none, percent)),
    },
    Column {
        name: "wall time",
        meaning: "What a run took here, evaluation included: measured, with all workers on the machines that were \
                  used",
        best: Best::Neither,
        value: |f| f.wall_s,
        show: Show::Time,
    },
    Column {
        name: "computed time",
        meaning: "What a run would take with one machine per worker and one for the server: the slowest \
                  worker, transfers, and what the server does while the workers wait. Not measured, but computed \
                  from counted work and bytes",
        best: Best::Smallest,
        value: |f| f.path_s,
        show: Show::Time,
    },
    Column {
        name: "computed speed-up",
        meaning: "Computed time of single divided by this one",
        best: Best::Neither,
        value: |f| f.speedup,
        show: Show::Text(|f| f.speedup.map_or_else(none, times)),
    },
];

fn none() -> String {
    "–".to_owned()
}

/// With a sign that is as wide as a plus.
fn points(delta: f64) -> String {
    let sign = if delta < 0.0 { '−' } else { '+' };
    format!("{sign}{:.2}", delta.abs())
}

pub fn times(ratio: f64) -> String {
    match ratio {
        0.0 => "0".to_owned(),
        _ if ratio >= 9.95 => format!("{ratio:.0}×"),
        _ => format!("{ratio:.2}×"),
    }
}

/// In units of 10⁹.
fn billions(work: f64) -> String {
    match work / 1e9 {
        work if work >= 99.5 => count(work.round() as u64),
        work if work >= 0.95 => format!("{work:.1}"),
        work => significant(work),
    }
}

/// Two significant digits of a number below 1.
fn significant(small: f64) -> String {
    let decimals = if small > 0.0 { (1.0 - small.log10().floor()) as usize } else { 0 };
    format!("{small:.decimals$}")
}

/// In units of 10⁶ bytes: two decimals, and more where the figure is small.
pub fn megabytes(bytes: f64) -> String {
    match bytes / 1e6 {
        0.0 => "0".to_owned(),
        mb if mb >= 999.5 => count(mb.round() as u64),
        mb if mb >= 0.1 => format!("{mb:.2}"),
        mb => significant(mb),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn megabytes_keep_what_can_be_told() {
        let cases = [(0.0, "0"), (12.57e6, "12.57"), (3799.4e6, "3,799"), (1234.0, "0.0012")];
        for (bytes, text) in cases {
            assert_eq!(megabytes(bytes), text);
        }
    }

    #[test]
    fn small_work_is_not_nothing() {
        let cases =
            [(0.0, "0"), (3.2e6, "0.0032"), (0.97e9, "1.0"), (20e9, "20.0"), (1.5e12, "1,500")];
        for (work, text) in cases {
            assert_eq!(billions(work), text);
        }
    }

    #[test]
    fn points_and_times() {
        assert_eq!([-0.5, 0.0, 1.236].map(points), ["−0.50", "+0.00", "+1.24"]);
        assert_eq!([0.0, 0.5, 1.0, 147.4].map(times), ["0", "0.50×", "1.00×", "147×"]);
    }
}
