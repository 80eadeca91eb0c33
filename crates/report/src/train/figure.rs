//! The figures that modes are compared by. Terminal and page share this one list, so that they
//! cannot disagree.

use hither_core::record::train::{Bytes, RunRecord};

use super::group::Group;
use crate::format::{count, duration};
use crate::metric::winners;

/// Mean and sample standard deviation over runs; one run has no deviation.
#[derive(Clone, Copy)]
pub struct Spread {
    pub mean: f64,
    pub std: Option<f64>,
}

impl Spread {
    fn of(group: &Group, read: fn(&RunRecord) -> f64) -> Option<Self> {
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
    /// Points of the test score to one machine with the whole graph.
    delta: Option<f64>,
    down_bytes: f64,
    up_bytes: f64,
    pub total_bytes: f64,
    /// What a run sends before its first round.
    pub setup_bytes: f64,
    /// Bytes a round, over those of llcg.
    ratio: Option<f64>,
    server_steps: Option<f64>,
    work_s: Option<f64>,
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

/// What the run's rounds do not account for was sent before them.
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

pub fn figures(groups: &[Group]) -> Vec<Figures> {
    let own = |group: &Group| Figures {
        runs: group.runs.len(),
        test: Spread::of(group, |run| run.summary.test),
        valid: Spread::of(group, |run| run.summary.valid),
        delta: None,
        down_bytes: group.mean(|run| a_round(run, down)).unwrap_or(0.0),
        up_bytes: group.mean(|run| a_round(run, up)).unwrap_or(0.0),
        total_bytes: group.mean(|run| both(&run.summary.bytes)).unwrap_or(0.0),
        setup_bytes: group.mean(setup).unwrap_or(0.0),
        ratio: None,
        server_steps: group.mean(|run| run.summary.server_steps as f64),
        work_s: group.mean(|run| run.summary.time.local_s + run.summary.time.server_s),
    };
    let mut all: Vec<Figures> = groups.iter().map(own).collect();
    for (i, group) in groups.iter().enumerate() {
        let reference = |mode: &str| {
            let same = |other: &Group| other.header().mode == mode && other.same_task(group);
            groups.iter().position(same).filter(|&at| at != i)
        };
        let single = reference("single").and_then(|at| all[at].test);
        all[i].delta =
            all[i].test.zip(single).map(|(own, single)| (own.mean - single.mean) * 100.0);
        let llcg = reference("llcg").map(|at| all[at].round_bytes()).filter(|bytes| *bytes > 0.0);
        all[i].ratio = llcg.map(|bytes| all[i].round_bytes() / bytes);
    }
    all
}

pub enum Best {
    Largest,
    Smallest,
    /// More is neither better nor worse.
    Neither,
}

pub struct Column {
    pub name: &'static str,
    /// What the page tells on hovering over the column.
    pub meaning: &'static str,
    pub best: Best,
    pub value: fn(&Figures) -> Option<f64>,
    pub text: fn(&Figures) -> String,
}

impl Column {
    /// Only who has the figure, and sends or takes anything at all, is in the race: a mode without
    /// bytes does not win by that, and the only one with bytes does not either.
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

/// Without those for which no group has a figure.
pub fn columns(figures: &[Figures]) -> Vec<&'static Column> {
    COLUMNS.iter().filter(|c| figures.iter().any(|f| (c.value)(f).is_some())).collect()
}

const COLUMNS: &[Column] = &[
    Column {
        name: "runs",
        meaning: "Repetitions with other seeds",
        best: Best::Neither,
        value: |f| Some(f.runs as f64),
        text: |f| f.runs.to_string(),
    },
    Column {
        name: "test %",
        meaning: "Test score at the round of the best validation score, mean ± standard deviation",
        best: Best::Largest,
        value: |f| f.test.map(|s| s.mean),
        text: |f| f.test.map_or_else(none, |s| s.percent()),
    },
    Column {
        name: "Δ single",
        meaning: "Points of the mean test score to one machine with the whole graph",
        best: Best::Neither,
        value: |f| f.delta,
        text: |f| f.delta.map_or_else(none, points),
    },
    Column {
        name: "valid %",
        meaning: "Best validation score, mean ± standard deviation",
        best: Best::Largest,
        value: |f| f.valid.map(|s| s.mean),
        text: |f| f.valid.map_or_else(none, |s| s.percent()),
    },
    Column {
        name: "MB/round down",
        meaning: "Millions of bytes that a round sends to workers, all together",
        best: Best::Smallest,
        value: |f| Some(f.down_bytes),
        text: |f| megabytes(f.down_bytes),
    },
    Column {
        name: "up",
        meaning: "Millions of bytes that workers send in a round, all together",
        best: Best::Smallest,
        value: |f| Some(f.up_bytes),
        text: |f| megabytes(f.up_bytes),
    },
    Column {
        name: "total MB",
        meaning: "Millions of bytes of a whole run, both directions",
        best: Best::Smallest,
        value: |f| Some(f.total_bytes),
        text: |f| megabytes(f.total_bytes),
    },
    Column {
        name: "to llcg",
        meaning: "Bytes of a round, both directions, over those of llcg",
        best: Best::Neither,
        value: |f| f.ratio,
        text: |f| f.ratio.map_or_else(none, times),
    },
    Column {
        name: "server steps",
        meaning: "Steps of the server in a whole run",
        best: Best::Neither,
        value: |f| f.server_steps,
        text: |f| f.server_steps.map_or_else(none, |steps| count(steps.round() as u64)),
    },
    Column {
        name: "work",
        meaning: "Time of local and server steps in a whole run, on the threads of one machine; \
                  measuring and evaluation are not counted",
        best: Best::Smallest,
        value: |f| f.work_s,
        text: |f| f.work_s.map_or_else(none, duration),
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

/// Of 10⁶ bytes, to the hundredth where that says enough.
pub fn megabytes(bytes: f64) -> String {
    match bytes / 1e6 {
        0.0 => "0".to_owned(),
        mb if mb >= 999.5 => count(mb.round() as u64),
        mb if mb >= 0.1 => format!("{mb:.2}"),
        mb => {
            let decimals = (1.0 - mb.log10().floor()) as usize;
            format!("{mb:.decimals$}")
        }
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
    fn points_and_times() {
        assert_eq!([-0.5, 0.0, 1.236].map(points), ["−0.50", "+0.00", "+1.24"]);
        assert_eq!([0.0, 0.5, 1.0, 147.4].map(times), ["0", "0.50×", "1.00×", "147×"]);
    }
}
