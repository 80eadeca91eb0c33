//! How much of an average the server takes, and how many steps it corrects it by.
//!
//! `auto` gives the server a budget: a share of the work of one worker's round, 1 by default. Three
//! quarters of it pay for steps with sampled neighbours, one quarter for judging. A judgement
//! compares the loss of training nodes that the server's steps of the round leave out, with all
//! their neighbours: at the old model, half way to the average, at the average, and after the
//! steps. It decides
//!
//! - how far to go to the average: to where a parabola through the first three losses is lowest;
//! - whether corrections harm: if they raised the loss by more than a twentieth, they are undone, and
//!   no more are taken until the next judgement. A smaller rise is the noise of few nodes and steps.
//!   (To take the whole average then was tried, and lost where parts mislead.)
//!
//! Steps shrink where they are dear: as long as a round pays for fewer server steps than local ones,
//! their nodes are halved.
//!
//! Both hold until the next judgement, which comes as soon as the quarter pays for it. What is not
//! spent is kept for later rounds. The paper has neither the budget nor the judgement: it takes the
//! whole average and a fixed number of steps ([`ServerSteps::Fixed`]).

use hither_core::record::train::{Machine, Round, Work};
use hither_core::{Seconds, seed};
use serde::{Deserialize, Serialize};

use crate::Dataset;
use crate::average::between;
use crate::local::{Learner, Until};
use crate::model::{Model, Weights};
use crate::sample::{Batch, Fanout, draw};

/// Share of the budget that pays for judging.
const JUDGING: f64 = 0.25;
/// The loss may rise by this share of itself before corrections count as harmful.
const TOLERANCE: f64 = 0.05;
/// Training nodes that a judgement looks at, and the most of all training nodes that it may hold back.
const JUDGES: usize = 512;
const JUDGES_SHARE_MAX: usize = 4;

/// Nodes of a server step that halving stops at.
const BATCH_MIN: usize = 32;

/// Steps of the server after each averaging.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerSteps {
    Fixed(u32),
    /// As many as the budget allows and judgements find useful.
    Auto,
    /// As another run took, round by round, with so many nodes each: to compare at equal work of the
    /// server.
    Like(Vec<(u32, Option<usize>)>),
}

/// What the server may spend, in seconds of the machine that work is converted by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Of the slowest worker's time, per round.
    pub share: f64,
    pub machine: Machine,
}

impl Budget {
    /// The budget of some rounds.
    fn earned_s(&self, rounds: &[Round]) -> Seconds {
        let slowest = rounds.iter().map(|round| self.machine.seconds(round.work.slowest));
        self.share * slowest.sum::<Seconds>()
    }

    fn spent_s(&self, rounds: &[Round], what: fn(&Round) -> Work) -> Seconds {
        rounds.iter().map(|round| self.machine.seconds(what(round))).sum()
    }

    /// Whether a judgement is due after these rounds: the first at once, others as soon as they are
    /// paid for.
    pub fn judges(&self, past: &[Round]) -> bool {
        let Some(last) = past.iter().rev().find(|round| round.work.judge.total() > 0) else {
            return true;
        };
        let spent_s = self.spent_s(past, |round| round.work.judge);
        spent_s + self.machine.seconds(last.work.judge) <= JUDGING * self.earned_s(past)
    }

    /// Whether stored sums are computed anew after these rounds, which takes the whole budget: at once
    /// at first, then whenever it pays for it.
    pub fn refreshes(&self, past: &[Round]) -> bool {
        let Some(last) = past.iter().rev().find(|round| round.work.server.total() > 0) else {
            return true;
        };
        let spent_s = self.spent_s(past, |round| round.work.server);
        spent_s + self.machine.seconds(last.work.server) <= self.earned_s(past)
    }

    /// What steps may take after these rounds and, if it is known, this round's slowest worker.
    pub fn left_s(&self, past: &[Round], slowest: Option<Work>) -> Seconds {
        let now_s = slowest.map_or(0.0, |work| self.share * self.machine.seconds(work));
        let spent_s = self.spent_s(past, |round| round.work.server);
        (1.0 - JUDGING) * (self.earned_s(past) + now_s) - spent_s
    }
}

impl ServerSteps {
    /// When the server stops in `round`. `slowest` is the work of this round's slowest worker, if it
    /// is known before the steps. `judged` says that this round's steps are judged.
    pub fn until(
        &self,
        round: u32,
        past: &[Round],
        budget: &Budget,
        slowest: Option<Work>,
        judged: bool,
    ) -> Until {
        match self {
            Self::Fixed(steps) => Until::Count(*steps),
            Self::Like(taken) => Until::Count(taken.get(round as usize - 1).map_or(0, |(n, _)| *n)),
            Self::Auto if judged || !corrections_harm(past) => {
                let seconds = budget.left_s(past, slowest);
                Until::Spent { seconds, machine: budget.machine }
            }
            Self::Auto => Until::Count(0),
        }
    }

    /// Nodes of each step in `round`, of which `asked` are asked for; none: the whole graph.
    pub fn batch(&self, asked: Option<usize>, round: u32, past: &[Round]) -> Option<usize> {
        match self {
            Self::Fixed(_) => asked,
            Self::Like(taken) => taken.get(round as usize - 1).map_or(asked, |(_, batch)| *batch),
            Self::Auto => affordable_batch(asked, past),
        }
    }

    /// What a run took, for another one to take as well.
    pub fn like(asked: Option<usize>, rounds: &[Round]) -> Self {
        let taken = |at: usize| (rounds[at].server_steps, affordable_batch(asked, &rounds[..at]));
        Self::Like((0..rounds.len()).map(taken).collect())
    }
}

/// Halves the nodes of a step after each round in which the budget paid for fewer server steps than
/// local ones: where a step reaches most of the graph, few large steps correct less than more small ones.
fn affordable_batch(asked: Option<usize>, past: &[Round]) -> Option<usize> {
    let halve = |batch: usize, round: &Round| {
        let is_dear = 0 < round.server_steps && round.server_steps < round.local_steps;
        if is_dear && batch / 2 >= BATCH_MIN { batch / 2 } else { batch }
    };
    asked.map(|batch| past.iter().fold(batch, halve))
}

/// What the last judgement said of corrections.
fn corrections_harm(past: &[Round]) -> bool {
    past.iter().rev().find_map(|round| round.gain).is_some_and(harms)
}

/// Whether a gain is a loss beyond noise, or not a number.
pub fn harms(gain: f64) -> bool {
    gain.is_nan() || gain < -TOLERANCE
}

/// How far the last judgement went to the average.
pub fn last_kept(past: &[Round]) -> f64 {
    past.last().map_or(1.0, |round| round.kept)
}

/// Compares models on training nodes that the server's steps of the round leave out.
pub struct Judge<'a> {
    model: &'a Model,
    data: &'a Dataset,
    batch: Batch<'a>,
    /// The nodes, in ascending order.
    pub nodes: Vec<u32>,
    /// Losses at the old model and at the average, once they are known.
    ends: Option<[f64; 2]>,
    /// What it took so far.
    pub work: Work,
}

impl<'a> Judge<'a> {
    pub fn draw(
        server: &mut Learner,
        model: &'a Model,
        data: &'a Dataset,
        seed: u64,
        round: u32,
    ) -> Self {
        let count = JUDGES.min(server.train.len() / JUDGES_SHARE_MAX).max(1);
        let name = format!("judge/{round}");
        let mut nodes = draw(&server.train, count, &mut seed::stream(seed, &name));
        let batch = server.look_at(data, model, nodes.clone(), &Fanout::All, (seed, &name));
        // Only now: the batch has them as drawn, whatever their numbers are.
        nodes.sort_unstable();
        Self { model, data, batch, nodes, ends: None, work: Work::default() }
    }

    /// How far to go from the old model to the average.
    pub fn choose_kept(&mut self, start: &Weights, average: &Weights) -> f64 {
        let half = between(start, average, 0.5);
        let losses = [start, &half, average].map(|weights| self.loss(weights));
        self.ends = Some([losses[0], losses[2]]);
        lowest(losses)
    }

    /// The loss at `weights`, which lie `kept` of the way to the average.
    pub fn kept_loss(&mut self, kept: f64, weights: &Weights) -> f64 {
        match self.ends {
            Some([start, _]) if kept == 0.0 => start,
            Some([_, average]) if kept == 1.0 => average,
            _ => self.loss(weights),
        }
    }

    pub fn loss(&mut self, weights: &Weights) -> f64 {
        self.work += self.model.work(&self.batch, false);
        self.model.loss(weights, self.data, &self.batch)
    }
}

/// Where, from 0 to 1, a parabola through the losses at 0, ½ and 1 is lowest.
fn lowest([start, half, end]: [f64; 3]) -> f64 {
    let curvature = start - 2.0 * half + end;
    if curvature > 0.0 && curvature.is_finite() {
        ((3.0 * start - 4.0 * half + end) / (4.0 * curvature)).clamp(0.0, 1.0)
    } else if end <= start {
        1.0
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use hither_core::record::train::{Bytes, CriticalPath, Times, Works};

    use super::*;

    const BUDGET: Budget = Budget {
        share: 1.0,
        machine: Machine { sums_per_s: 1.0, products_per_s: 1.0, link_bytes_per_s: 1.0 },
    };

    /// A round whose slowest worker took 100 seconds.
    fn round(server: u64, judge: u64, gain: Option<f64>) -> Round {
        let work = |sums| Work { sums, products: 0 };
        let works = Works {
            slowest: work(100),
            server: work(server),
            judge: work(judge),
            ..Works::default()
        };
        Round {
            round: 1,
            local_steps: 1,
            kept: 1.0,
            server_steps: 1,
            loss: 0.0,
            valid: None,
            test: None,
            further: Default::default(),
            left_out: vec![],
            bytes: Bytes::default(),
            gain,
            drift: None,
            work: works,
            path: CriticalPath::default(),
            time: Times::default(),
        }
    }

    #[test]
    fn steps_get_what_judging_leaves_and_earlier_rounds_saved() {
        let now = Some(Work { sums: 100, products: 0 });
        assert_eq!(BUDGET.left_s(&[], now), 75.0);
        assert_eq!(BUDGET.left_s(&[round(60, 25, None)], now), 90.0);
        // A step that cost more than there was is paid off later.
        assert_eq!(BUDGET.left_s(&[round(200, 25, None)], now), -50.0);
        // A server that does not wait knows only the rounds before.
        assert_eq!(BUDGET.left_s(&[round(60, 25, None)], None), 15.0);
    }

    #[test]
    fn judgements_come_as_they_are_paid_for() {
        assert!(BUDGET.judges(&[]));
        let first = round(0, 40, Some(1.0));
        let other = round(0, 0, None);
        let due = |others: usize| {
            BUDGET.judges(&[vec![first.clone()], vec![other.clone(); others]].concat())
        };
        // Two judgements cost 80, a round pays 25.
        assert_eq!([0, 1, 2, 3].map(due), [false, false, false, true]);
    }

    #[test]
    fn harmful_corrections_wait_for_the_next_judgement() {
        let until = |gain: f64, judged: bool| {
            let past = [round(0, 40, Some(gain)), round(0, 0, None)];
            ServerSteps::Auto.until(3, &past, &BUDGET, None, judged)
        };
        assert_eq!(until(-0.1, false), Until::Count(0));
        assert_eq!(until(f64::NAN, false), Until::Count(0));
        let spends = Until::Spent { seconds: 150.0, machine: BUDGET.machine };
        assert_eq!(until(0.1, false), spends);
        assert_eq!(until(-0.01, false), spends);
        assert_eq!(until(-0.1, true), spends);
    }

    #[test]
    fn another_runs_steps_end_with_it() {
        let like = ServerSteps::Like(vec![(3, Some(8)), (4, None)]);
        let until = |round| like.until(round, &[], &BUDGET, None, false);
        assert_eq!([1, 2, 3].map(until), [3, 4, 0].map(Until::Count));
        assert_eq!([1, 2].map(|round| like.batch(Some(256), round, &[])), [Some(8), None]);
    }

    #[test]
    fn dear_steps_become_smaller() {
        let took = |server_steps: u32| Round { server_steps, local_steps: 10, ..round(1, 0, None) };
        let rounds = [2, 0, 5, 12, 9, 3].map(took);
        let batch = |past: usize| ServerSteps::Auto.batch(Some(256), 1, &rounds[..past]);
        let sizes: Vec<usize> = (0..=6).filter_map(batch).collect();
        // Rounds without steps say nothing; 32 is the least.
        assert_eq!(sizes, [256, 128, 128, 64, 64, 32, 32]);
        // A whole graph was asked for, or a number of steps: nothing is halved.
        assert_eq!(ServerSteps::Auto.batch(None, 7, &rounds), None);
        assert_eq!(ServerSteps::Fixed(2).batch(Some(256), 7, &rounds), Some(256));
        let ServerSteps::Like(taken) = ServerSteps::like(Some(256), &rounds) else { panic!() };
        let batches = [256, 128, 128, 64, 64, 32].map(Some);
        assert_eq!(taken, [2, 0, 5, 12, 9, 3].into_iter().zip(batches).collect::<Vec<_>>());
    }

    #[test]
    fn the_lowest_point_is_the_parabolas() {
        for at in [0.0, 0.25, 0.7, 1.0] {
            let loss = |t: f64| 3.0 + 2.0 * (t - at).powi(2);
            assert!((lowest([0.0, 0.5, 1.0].map(loss)) - at).abs() < 1e-12);
        }
        // Never beyond the average, nor back beyond the start.
        assert_eq!(lowest([3.0, 2.0, 1.5]), 1.0);
        assert_eq!(lowest([1.0, 2.0, 3.5]), 0.0);
        // Equal losses take the average; of a hill, the lower side.
        assert_eq!(lowest([1.0, 1.0, 1.0]), 1.0);
        assert_eq!(lowest([1.0, 3.0, 2.0]), 0.0);
        // A diverged average is rejected.
        assert_eq!(lowest([1.0, 2.0, f64::INFINITY]), 0.0);
        assert_eq!(lowest([1.0, f64::NAN, f64::NAN]), 0.0);
    }
}
