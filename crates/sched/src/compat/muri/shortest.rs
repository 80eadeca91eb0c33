//! SRTF and SRSF.
//!
//! The rules sort all live jobs anew at every event. Only the keys of running jobs have changed
//! since the last one, and there are never more of those than GPUs, so this sorts the running
//! jobs alone and merges them with the waiting ones, which lie in one heap per size. A size that
//! failed to fit once in a plan is out of that plan, which ends the merge early.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::nodes::Nodes;
use super::{Job, Tally, Workload, close};

/// A job's place in the order. The stamp stands for "ties keep the order they had": keys only
/// fall, so a job that has just reached a key comes after those that had it already.
#[derive(Debug, Clone, Copy)]
struct Turn {
    key: f64,
    stamp: u64,
    job: usize,
}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.total_cmp(&other.key).then(self.stamp.cmp(&other.stamp))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Turn {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Turn {}

/// All jobs that want the same number of GPUs.
#[derive(Debug)]
struct Size {
    gpus: u32,
    waiting: BinaryHeap<Reverse<Turn>>,
    /// Whether another one may still fit in the plan being made, and where to look.
    open: bool,
    from: usize,
}

#[derive(Debug)]
struct Engine<'a> {
    jobs: &'a mut [Job],
    by_service: bool,
    nodes: Nodes,
    sizes: Vec<Size>,
    /// In the order of the last plan.
    running: Vec<Turn>,
    planned: Vec<Turn>,
    stamps: u64,
    before: f64,
    /// Next jobs to end, in plan order.
    ending: Vec<usize>,
    tally: Tally,
}

pub(super) fn simulate(work: &mut Workload, nodes: u32, per_node: u32, by_service: bool) -> Tally {
    // First fit never reaches past the nodes that all jobs together could fill.
    let wanted: u64 = work.jobs.iter().map(|job| u64::from(job.gpus.div_ceil(per_node))).sum();
    let nodes = u64::from(nodes).min(wanted) as usize;
    let size = |&gpus: &u32| Size { gpus, waiting: BinaryHeap::new(), open: true, from: 0 };
    let mut engine = Engine {
        by_service,
        nodes: Nodes::new(nodes, per_node),
        sizes: work.sizes.iter().map(size).collect(),
        running: Vec::new(),
        planned: Vec::new(),
        stamps: 0,
        before: 0.0,
        ending: Vec::new(),
        tally: Tally::default(),
        jobs: &mut work.jobs,
    };
    let mut arrivals = work.arrivals.iter().peekable();
    let mut end = f64::INFINITY;
    while arrivals.peek().is_some() || !engine.running.is_empty() {
        let arrival = arrivals.peek().map_or(f64::INFINITY, |(time, _)| *time);
        let now = arrival.min(end);
        if now == end {
            engine.finish(now);
        }
        engine.advance(now);
        if now == arrival
            && let Some((_, group)) = arrivals.next()
        {
            group.clone().for_each(|job| engine.arrive(job));
        }
        engine.plan(now);
        end = engine.next_end(now);
        engine.before = now;
        engine.tally.events += 1;
    }
    engine.tally
}

impl Engine<'_> {
    fn key(&self, job: usize) -> f64 {
        let job = &self.jobs[job];
        let key = if self.by_service { job.left_s() * f64::from(job.gpus) } else { job.left_s() };
        // No key is -0.0, which `total_cmp` would put before its equal.
        key + 0.0
    }

    fn stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }

    fn finish(&mut self, now: f64) {
        for &job in &self.ending {
            self.jobs[job].finish(self.before, now);
        }
        self.tally.finished.append(&mut self.ending);
        self.running.retain(|turn| self.jobs[turn.job].finish_s.is_none());
    }

    /// Brings the running jobs up to `now` and into their new order.
    fn advance(&mut self, now: f64) {
        for i in 0..self.running.len() {
            let job = self.running[i].job;
            self.jobs[job].advance(self.before, now);
            let key = self.key(job);
            if key != self.running[i].key {
                self.running[i] = Turn { key, stamp: self.stamp(), job };
            }
        }
        self.running.sort_unstable();
    }

    fn arrive(&mut self, job: usize) {
        let turn = Turn { key: self.key(job), stamp: self.stamp(), job };
        self.sizes[self.jobs[job].size].waiting.push(Reverse(turn));
    }

    fn plan(&mut self, now: f64) {
        self.nodes.clear();
        for size in &mut self.sizes {
            (size.open, size.from) = (true, 0);
        }
        let mut first = self.first_waiting();
        let running = std::mem::take(&mut self.running);
        let mut runs = running.iter().peekable();
        loop {
            let Some(&turn) = runs.next_if(|&&run| first.is_none_or(|wait| run < wait)) else {
                let Some(wait) = first else { break };
                self.try_start(wait, now);
                first = self.first_waiting();
                continue;
            };
            if !self.try_keep(turn) {
                first = self.first_waiting();
            }
        }
        self.running = std::mem::replace(&mut self.planned, running);
        self.planned.clear();
    }

    /// The waiting job whose turn is next, among sizes that may still fit.
    fn first_waiting(&self) -> Option<Turn> {
        let open = self.sizes.iter().filter(|size| size.open);
        open.filter_map(|size| size.waiting.peek()).map(|turn| turn.0).min()
    }

    fn fits(&mut self, job: usize) -> bool {
        let size = &mut self.sizes[self.jobs[job].size];
        size.open = size.open && self.nodes.place(size.gpus, &mut size.from);
        size.open
    }

    fn try_start(&mut self, turn: Turn, now: f64) {
        if self.fits(turn.job) {
            let job = &mut self.jobs[turn.job];
            job.start_s.get_or_insert(now);
            self.sizes[job.size].waiting.pop();
            self.planned.push(turn);
        }
    }

    fn try_keep(&mut self, turn: Turn) -> bool {
        let fits = self.fits(turn.job);
        if fits {
            self.planned.push(turn);
        } else {
            let job = &mut self.jobs[turn.job];
            job.preemptions += 1;
            self.sizes[job.size].waiting.push(Reverse(turn));
        }
        fits
    }

    /// Finds who ends next and when: the earliest group of ends that are `close`.
    fn next_end(&mut self, now: f64) -> f64 {
        self.ending.clear();
        let (mut first, mut second, mut job) = (f64::INFINITY, f64::INFINITY, 0);
        for turn in &self.running {
            let end = now + self.jobs[turn.job].left_s();
            if end < first {
                (first, second, job) = (end, first, turn.job);
            } else if end < second {
                second = end;
            }
        }
        if second == f64::INFINITY || !close(first, second) {
            if first < f64::INFINITY {
                self.ending.push(job);
            }
            return first;
        }
        self.next_end_group(now)
    }

    /// A group's time is that of its first member in plan order, and a job joins the first group
    /// it is close to. Being close is not transitive, so groups far from the earliest end can
    /// matter too, and all have to be made.
    fn next_end_group(&mut self, now: f64) -> f64 {
        let mut groups: Vec<(f64, Vec<usize>)> = Vec::new();
        for turn in &self.running {
            let end = now + self.jobs[turn.job].left_s();
            match groups.iter_mut().find(|(time, _)| close(*time, end)) {
                Some((_, members)) => members.push(turn.job),
                None => groups.push((end, vec![turn.job])),
            }
        }
        let earliest = groups.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let (time, members) = earliest.unwrap_or((f64::INFINITY, Vec::new()));
        self.ending = members;
        time
    }
}
