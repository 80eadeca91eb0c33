//! How much of an average the server takes, and how many steps it corrects it by.
//!
//! `auto` gives the server a budget: a share of the work of all workers' round, 0.3 by default. Three
//! quarters of it pay for steps with sampled neighbours, one quarter for judging. A judgement
//! compares the loss of training nodes that the server's steps of the round leave out, with all
//! their neighbours: at the old model, half way to the average, at the average, and after the
//! steps. It decides
//!
//! - how far to go to the average: to where a parabola through the first three losses is lowest;
//! - whether corrections harm: if they raised the loss by more than 3 %, they are undone. A
//!   smaller rise is the noise of few nodes and steps. Sampled steps that harm see too little of the
//!   neighbours: from then on the server takes steps on the whole graph, if a round pays for one.
//!   Otherwise, or if those harm too, it takes none until the next judgement.
//!   (To take the whole average then was tried, and lost where parts mislead.)
//!
//! Sampled steps shrink where they are dear: as long as a round pays for fewer server steps than local
//! ones, their nodes are halved.
//!
//! Both hold until the next judgement, which comes as soon as the quarter pays for it. What is not
//! spent is kept for later rounds. The paper has neither the budget nor the judgement: it takes the
//! whole average and a fixed number of steps ([`ServerSteps::Fixed`]).

use std::collections::HashSet;

use hither_core::record::train::{Machine, Round, Work};
use hither_core::{Seconds, seed};
use serde::{Deserialize, Serialize};

use crate::average::between;
use crate::local::{Learner, Until};
use crate::model::{Model, Weights};
use crate::sample::{Batch, Fanout, draw};
use crate::task::Task;
use crate::{Dataset, Graph};

/// Share of the budget that pays for judging.
const JUDGING: f64 = 0.25;
/// The loss may rise by this share of itself before corrections count as harmful.
const TOLERANCE: f64 = 0.03;
/// Held-out nodes per check: 512, but at most a quarter of the training nodes.
const CHECK_NODES: usize = 512;
const CHECK_FRACTION: f64 = 0.25;
/// Nodes that a check may read with all their neighbours. Where it would read more, fewer are checked: their features
/// and hidden rows are in memory at once.
pub(crate) const CHECK_ROWS_MAX: usize = 1 << 21;

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
    /// Of the time of all workers together, per round.
    pub share: f64,
    pub machine: Machine,
    /// One step on the whole graph; `None`: the server takes no such steps.
    pub whole_step: Option<Work>,
    /// What the rounds so far took.
    pub spent: Spent,
}

/// The time of all rounds so far, in seconds of the budget's machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// All workers together.
    workers_s: Seconds,
    server_s: Seconds,
    judge_s: Seconds,
}

impl Budget {
    /// Counts one more round.
    pub fn note(&mut self, round: &Round) {
        self.spent.workers_s += self.machine.seconds(round.work.workers);
        self.spent.server_s += self.machine.seconds(round.work.server);
        self.spent.judge_s += self.machine.seconds(round.work.judge);
    }

    /// The budget of the rounds so far.
    fn earned_s(&self) -> Seconds {
        self.share * self.spent.workers_s
    }

    /// Whether a judgement is due after these rounds: the first at once, others as soon as they are
    /// paid for.
    pub fn judges(&self, past: &[Round]) -> bool {
        let Some(last) = past.iter().rev().find(|round| round.work.judge.total() > 0) else {
            return true;
        };
        self.spent.judge_s + self.machine.seconds(last.work.judge) <= JUDGING * self.earned_s()
    }

    /// Whether one round pays for a step on the whole graph.
    fn pays_for_whole_step(&self, rounds: usize) -> bool {
        let of_a_round_s = (1.0 - JUDGING) * self.earned_s() / rounds as f64;
        self.whole_step.is_some_and(|step| self.machine.seconds(step) <= of_a_round_s)
    }

    /// What steps may take now. The work of this round's workers counts if it is known.
    pub fn left_s(&self, workers: Option<Work>) -> Seconds {
        let now_s = workers.map_or(0.0, |work| self.share * self.machine.seconds(work));
        (1.0 - JUDGING) * (self.earned_s() + now_s) - self.spent.server_s
    }
}

impl ServerSteps {
    /// When the server stops after some rounds, with so many nodes per step. `workers` is the work of
    /// this round's workers, if it is known before the steps. `judged` says that this round's steps are
    /// judged.
    pub fn until(
        &self,
        past: &[Round],
        batch: Option<usize>,
        budget: &Budget,
        workers: Option<Work>,
        judged: bool,
    ) -> Until {
        match self {
            Self::Fixed(steps) => Until::Count(*steps),
            Self::Like(taken) => Until::Count(taken.get(past.len()).map_or(0, |(n, _)| *n)),
            Self::Auto if judged || !corrections_harm(past, batch) => {
                let seconds = budget.left_s(workers);
                Until::Spent { seconds, machine: budget.machine }
            }
            Self::Auto => Until::Count(0),
        }
    }

    /// Nodes of each step after some rounds, of which `asked` are asked for; none: the whole graph.
    pub fn batch(&self, asked: Option<usize>, past: &[Round], budget: &Budget) -> Option<usize> {
        match (self, past.last()) {
            (Self::Like(taken), _) => taken.get(past.len()).map_or(asked, |(_, batch)| *batch),
            (Self::Auto, Some(last)) if past[0].server_batch == asked => {
                let batch = last.server_batch?;
                let harmed = last.gain.is_some_and(harms);
                let is_whole = harmed && budget.pays_for_whole_step(past.len());
                (!is_whole).then(|| affordable(batch, last))
            }
            _ => asked,
        }
    }

    /// What a run took, for another one to take as well.
    pub fn like(rounds: &[Round]) -> Self {
        let taken = |round: &Round| (round.server_steps, round.server_batch);
        Self::Like(rounds.iter().map(taken).collect())
    }
}

/// Halves the nodes of a step after a round in which the budget paid for fewer server steps than
/// local ones: where a step reaches most of the graph, few large steps correct less than more small ones.
fn affordable(batch: usize, last: &Round) -> usize {
    let is_dear = 0 < last.server_steps && last.server_steps < last.local_steps;
    if is_dear && batch / 2 >= BATCH_MIN { batch / 2 } else { batch }
}

/// Whether the last judgement said so of corrections of this kind: with sampled neighbours, or on the
/// whole graph.
fn corrections_harm(past: &[Round], batch: Option<usize>) -> bool {
    let judged = past.iter().rev().find_map(|round| Some((round.gain?, round.server_batch)));
    judged.is_some_and(|(gain, then)| harms(gain) && then.is_some() == batch.is_some())
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
    /// The examples that the server's steps leave out, in ascending order.
    pub held_out: Vec<u32>,
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
        let name = format!("judge/{round}");
        let draw = |count| draw(&server.train, count, &mut seed::stream(seed, &name));
        let most = (server.train.len() as f64 * CHECK_FRACTION) as usize;
        let count = CHECK_NODES.min(most).max(1);
        let hops = model.needs().hops;
        let examples = match server.task {
            Task::Nodes => few_enough(count, draw, &data.graph, hops, CHECK_ROWS_MAX),
            // All rows are read in any case.
            Task::Links(_) => draw(count),
        };
        // An edge that is left out from one end only would still be learnt from.
        let mut held_out = server.task.mirrors(data, &examples);
        held_out.extend(&examples);
        held_out.sort_unstable();
        let batch = server.neighbourhood(data, model, examples, &Fanout::All, (seed, &name));
        Self { model, data, batch, held_out, ends: None, work: Work::default() }
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

/// So many nodes, or half as many, and so on, that they and their neighbours are no more than `most`.
pub(crate) fn few_enough(
    count: usize,
    draw: impl Fn(usize) -> Vec<u32>,
    graph: &Graph,
    hops: usize,
    most: usize,
) -> Vec<u32> {
    let nodes = draw(count);
    match count > 1 && reaches_beyond(graph, &nodes, hops, most) {
        true => few_enough(count / 2, draw, graph, hops, most),
        false => nodes,
    }
}

/// Whether some nodes and their neighbours within so many hops are more than `most`.
fn reaches_beyond(graph: &Graph, nodes: &[u32], hops: usize, most: usize) -> bool {
    let mut reached: HashSet<u32> = nodes.iter().copied().collect();
    let mut outermost = nodes.to_vec();
    for _ in 0..hops {
        let mut next = vec![];
        for neighbour in outermost.iter().flat_map(|node| graph.neighbours(*node)) {
            if reached.insert(*neighbour) {
                next.push(*neighbour);
            }
            if reached.len() > most {
                return true;
            }
        }
        outermost = next;
    }
    reached.len() > most
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
    use std::slice;

    use hither_core::record::train::{Bytes, CriticalPath, Times, Works};

    use super::*;

    const BUDGET: Budget = Budget {
        share: 1.0,
        machine: Machine { sums_per_s: 1.0, products_per_s: 1.0, link_bytes_per_s: 1.0 },
        whole_step: Some(Work { sums: 75, products: 0 }),
        spent: Spent { workers_s: 0.0, server_s: 0.0, judge_s: 0.0 },
    };

    /// The budget after some rounds.
    fn after(past: &[Round]) -> Budget {
        let mut budget = BUDGET;
        past.iter().for_each(|round| budget.note(round));
        budget
    }

    /// A round whose workers took 100 seconds.
    fn round(server: u64, judge: u64, gain: Option<f64>) -> Round {
        let work = |sums| Work { sums, products: 0 };
        let works = Works {
            workers: work(100),
            server: work(server),
            judge: work(judge),
            ..Works::default()
        };
        Round {
            round: 1,
            local_steps: 1,
            kept: 1.0,
            server_steps: 1,
            server_batch: Some(256),
            loss: 0.0,
            valid: None,
            test: None,
            further: Default::default(),
            bytes: Bytes::default(),
            gain,
            work: works,
            path: CriticalPath::default(),
            time: Times::default(),
        }
    }

    #[test]
    fn a_check_of_too_many_neighbours_is_noticed() {
        // A star: one hop from a leaf is the centre, two hops are all.
        let edges: Vec<(u32, u32)> = (1..100).map(|leaf| (0, leaf)).collect();
        let star = Graph::from_edges(100, &edges).expect("a graph");
        let beyond = |nodes: &[u32], hops| reaches_beyond(&star, nodes, hops, 50);
        assert_eq!([0, 1, 2].map(|hops| beyond(&[7], hops)), [false, false, true]);
        assert!(beyond(&[0], 1) && !beyond(&[0], 0));
    }

    #[test]
    fn a_check_reads_no_more_rows_than_there_is_room_for() {
        // 64 stars: within two hops a leaf reads the 51 nodes of its star.
        let edges =
            (0..64_u32).flat_map(|star| (1..51).map(move |leaf| (51 * star, 51 * star + leaf)));
        let graph = Graph::from_edges(64 * 51, &edges.collect::<Vec<_>>()).expect("a graph");
        let leaves: Vec<u32> = (0..64 * 51).filter(|node| node % 51 > 0).collect();
        let drawn = |count| draw(&leaves, count, &mut seed::stream(1, "test"));
        let nodes = |most| few_enough(512, drawn, &graph, 2, most);
        assert_eq!((nodes(64 * 51).len(), nodes(51).len()), (512, 1));
        let some = nodes(1000);
        assert!((8..=32).contains(&some.len()) && !reaches_beyond(&graph, &some, 2, 1000));
    }

    #[test]
    fn steps_get_what_judging_leaves_and_earlier_rounds_saved() {
        let now = Some(Work { sums: 100, products: 0 });
        assert_eq!(BUDGET.left_s(now), 75.0);
        assert_eq!(after(&[round(60, 25, None)]).left_s(now), 90.0);
        // A step that cost more than there was is paid off later.
        assert_eq!(after(&[round(200, 25, None)]).left_s(now), -50.0);
        // A server that does not wait knows only the rounds before.
        assert_eq!(after(&[round(60, 25, None)]).left_s(None), 15.0);
    }

    #[test]
    fn judgements_come_as_they_are_paid_for() {
        assert!(BUDGET.judges(&[]));
        let first = round(0, 40, Some(1.0));
        let other = round(0, 0, None);
        let due = |others: usize| {
            let past = [vec![first.clone()], vec![other.clone(); others]].concat();
            after(&past).judges(&past)
        };
        // Two judgements cost 80, a round pays 25.
        assert_eq!([0, 1, 2, 3].map(due), [false, false, false, true]);
    }

    #[test]
    fn harmful_corrections_wait_for_the_next_judgement() {
        let until = |gain: f64, judged: bool| {
            let past = [round(0, 40, Some(gain)), round(0, 0, None)];
            ServerSteps::Auto.until(&past, Some(256), &after(&past), None, judged)
        };
        assert_eq!(until(-0.1, false), Until::Count(0));
        assert_eq!(until(f64::NAN, false), Until::Count(0));
        let spends = Until::Spent { seconds: 150.0, machine: BUDGET.machine };
        assert_eq!(until(0.1, false), spends);
        assert_eq!(until(-0.01, false), spends);
        assert_eq!(until(-0.1, true), spends);
    }

    #[test]
    fn whole_steps_take_the_place_of_sampled_ones_that_harm() {
        let auto = ServerSteps::Auto;
        let harmed = round(0, 40, Some(-0.1));
        let batch = |past: &[Round], whole: u64| {
            let whole_step = Some(Work { sums: whole, products: 0 });
            auto.batch(Some(256), past, &Budget { whole_step, ..after(past) })
        };
        assert_eq!(batch(slice::from_ref(&harmed), 75), None);
        assert_eq!(batch(slice::from_ref(&harmed), 76), Some(256), "a round does not pay for it");
        assert_eq!(batch(&[round(0, 40, Some(0.1))], 75), Some(256));
        // They begin at once, and go on until they harm too.
        let spends =
            |past: &[Round]| auto.until(past, None, &after(past), None, false) != Until::Count(0);
        let whole = |gain| Round { server_batch: None, ..round(0, 40, gain) };
        assert!(spends(slice::from_ref(&harmed)));
        assert_eq!(batch(&[harmed.clone(), whole(None)], 75), None);
        assert!(spends(&[harmed.clone(), whole(Some(0.1)), whole(None)]));
        assert!(!spends(&[harmed, whole(Some(-0.1)), whole(None)]));
    }

    #[test]
    fn another_runs_steps_end_with_it() {
        let like = ServerSteps::Like(vec![(3, Some(8)), (4, None)]);
        let past = [round(0, 0, None), round(0, 0, None)];
        let until = |past| like.until(past, None, &BUDGET, None, false);
        assert_eq!([&past[..0], &past[..1], &past].map(until), [3, 4, 0].map(Until::Count));
        let batch = |past| like.batch(Some(256), past, &BUDGET);
        assert_eq!([&past[..0], &past[..1]].map(batch), [Some(8), None]);
    }

    #[test]
    fn dear_steps_become_smaller() {
        let mut rounds: Vec<Round> = vec![];
        for server_steps in [2, 0, 5, 12, 9, 3] {
            let server_batch = ServerSteps::Auto.batch(Some(256), &rounds, &BUDGET);
            let took = round(1, 0, None);
            rounds.push(Round { server_steps, server_batch, local_steps: 10, ..took });
        }
        // Rounds without steps say nothing; 32 is the least.
        let sizes = [256, 128, 128, 64, 64, 32].map(Some);
        assert!(rounds.iter().map(|round| round.server_batch).eq(sizes));
        assert_eq!(ServerSteps::Auto.batch(Some(256), &rounds, &BUDGET), Some(32));
        // A number of steps was asked for, or the whole graph: nothing is halved.
        assert_eq!(ServerSteps::Fixed(2).batch(Some(256), &rounds, &BUDGET), Some(256));
        let whole = [Round { server_batch: None, ..rounds[0].clone() }];
        assert_eq!(ServerSteps::Auto.batch(None, &whole, &BUDGET), None);
        assert_eq!(ServerSteps::Auto.batch(Some(256), &whole, &BUDGET), Some(256), "an old record");
        let ServerSteps::Like(taken) = ServerSteps::like(&rounds) else { panic!() };
        assert_eq!(taken, [2, 0, 5, 12, 9, 3].into_iter().zip(sizes).collect::<Vec<_>>());
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
