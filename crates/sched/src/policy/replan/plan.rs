//! Who runs, when jobs are taken in order of rank, as many as fit.
//!
//! Waiting jobs of one class either all fit or none does, so a class that does not fit is left. Only
//! the least deserving running jobs can lose their GPUs, so running jobs are looked at from that end,
//! and only as far as GPUs are wanted. `choose_plainly` makes the same plan job by job.

use std::borrow::Cow;
use std::collections::{BTreeSet, BinaryHeap};

use crate::cluster::{Placement, PoolId, Slot};
use crate::event::Why;
use crate::job::JobId;
use crate::policy::placing::Placing;
use crate::policy::queue::{Class, Queue, Walk};
use crate::policy::replan::Order;
use crate::policy::replan::running::{Ascent, Running, may_stop};
use crate::state::Turn;

/// Who must go; who comes in, in order of rank, in which pool and, if that is planned, where.
pub type Plan = (BTreeSet<JobId>, Vec<(JobId, PoolId, Option<Placement>)>);

/// The plan while all gangs may be split in any way: GPUs need only be counted. A running job stays
/// where it is, or makes room.
pub fn choose<K: Ord + Copy, C: Ord + Copy>(
    turn: &Turn,
    order: &impl Order<Key = K, Cohort = C>,
    running: &mut Running<K, C>,
    waiting: &Queue<K>,
) -> Plan {
    let cluster = &turn.state.cluster;
    let pools = 0..cluster.pool_count() as PoolId;
    let mut tails: Vec<Tail<K, C>> = pools.map(|pool| Tail::new(turn, running, pool)).collect();
    let (mut preempted, mut chosen) = Plan::default();
    let mut walk = waiting.walk();
    while let Some((rank, (gang, wanted))) = walk.advance() {
        let fits = |pool: &PoolId| {
            let tail = &mut tails[*pool as usize];
            tail.settle(&mut preempted, Some(rank));
            tail.has_room(turn, order, rank, gang.gpus)
        };
        let Some(pool) = cluster.pools_for(wanted).find(fits) else {
            walk.leave_class(); // room only shrinks on the way
            continue;
        };
        tails[pool as usize].debt += i64::from(gang.gpus);
        chosen.push((rank.1, pool, None));
    }
    tails.iter_mut().for_each(|tail| tail.settle(&mut preempted, None));
    let loose: Vec<JobId> = tails.into_iter().flat_map(|tail| tail.ascent.loose).collect();
    running.found_loose(loose);
    (preempted, chosen)
}

/// The running jobs of one pool that rank below the point reached on the way down, as far as they had
/// to be looked at.
///
/// Room at any point is what is free, plus the GPUs of running jobs further down, less what chosen
/// jobs took, plus what preempted ones left. So a running job finds no room exactly where the GPUs
/// further down do not cover the debt.
struct Tail<'a, K, C> {
    ascent: Ascent<'a, K, C>,
    /// Least deserving first.
    jobs: Vec<((K, JobId), i64)>,
    /// GPUs of all of `jobs`; at least the debt.
    gpus: i64,
    /// GPUs that chosen jobs took, less those that were free or that preempted ones left.
    debt: i64,
}

impl<'a, K: Ord + Copy, C: Ord + Copy> Tail<'a, K, C> {
    fn new(turn: &Turn, running: &'a Running<K, C>, pool: PoolId) -> Self {
        let debt = -i64::from(turn.state.cluster.free_gpus(pool));
        Self { ascent: Ascent::new(running, pool), jobs: Vec::new(), gpus: 0, debt }
    }

    /// Goes down to this rank, or to the end, and decides about the running jobs on the way.
    fn settle(&mut self, preempted: &mut BTreeSet<JobId>, rank: Option<(K, JobId)>) {
        while let Some(&(passed, gpus)) = self.jobs.last()
            && rank.is_none_or(|rank| passed < rank)
        {
            self.jobs.pop();
            self.gpus -= gpus;
            if self.gpus < self.debt {
                self.debt -= gpus;
                preempted.insert(passed.1);
            }
        }
    }

    /// Whether there is room for so many GPUs at this rank, the point that was reached.
    fn has_room(
        &mut self,
        turn: &Turn,
        order: &impl Order<Key = K, Cohort = C>,
        rank: (K, JobId),
        gpus: u32,
    ) -> bool {
        let wanted = self.debt + i64::from(gpus);
        while self.gpus < wanted {
            let Some(next) = self.ascent.next(turn, order, rank) else { return false };
            let gpus = i64::from(turn.state.would_free(next.1));
            self.jobs.push((next, gpus));
            self.gpus += gpus;
        }
        true
    }
}

/// The pool and the GPUs of a running job; `None` for one that waits.
type Held = Option<(PoolId, u32)>;

/// The same as [`choose`], job by job.
pub fn choose_plainly<K: Ord + Copy>(
    turn: &Turn,
    order: &impl Order<Key = K>,
    waiting: &Queue<K>,
) -> Plan {
    let (state, cluster) = (&turn.state, &turn.state.cluster);
    let pools = 0..cluster.pool_count() as PoolId;
    let mut room: Vec<u32> = pools.map(|pool| cluster.free_gpus(pool)).collect();
    let mut ranks: Vec<((K, JobId), Held)> = Vec::new();
    for &id in state.running.iter().filter(|&&id| may_stop(turn, id)) {
        let Some(key) = order.stop_key(turn, id) else { continue };
        let held = (state.pool_of_run(id), state.would_free(id));
        room[held.0 as usize] += held.1;
        ranks.push(((key, id), Some(held)));
    }
    let mut walk = waiting.walk();
    while let Some((rank, _)) = walk.advance() {
        ranks.push((rank, None));
    }
    ranks.sort_unstable_by_key(|(rank, _)| *rank);
    let (mut preempted, mut chosen) = (Vec::new(), Vec::new());
    for ((_, id), held) in ranks {
        let job = state.job(id);
        let (mut pools, wanted) = match held {
            None => (cluster.pools_for(job.pool), job.gpus()),
            Some((pool, gpus)) => (cluster.pools_for(Some(pool)), gpus),
        };
        let pool = pools.find(|&pool| room[pool as usize] >= wanted);
        if let Some(pool) = pool {
            room[pool as usize] -= wanted;
        }
        match (held, pool) {
            (None, Some(pool)) => chosen.push((id, pool, None)),
            (Some(_), None) => preempted.push(id),
            _ => {}
        }
    }
    (preempted.into_iter().collect(), chosen)
}

/// The running jobs that a plan may stop, the least deserving first.
pub enum LastFirst<'a, K, C> {
    /// All of them, ranked.
    Heap(BinaryHeap<(K, JobId)>),
    /// By pool.
    Ascents(Vec<PoolAscent<'a, K, C>>),
}

/// The way up in one pool.
pub struct PoolAscent<'a, K, C> {
    ascent: Ascent<'a, K, C>,
    /// The next job on it, if it has been looked for.
    next: Option<(K, JobId)>,
}

impl<'a, K: Ord + Copy, C: Ord + Copy> LastFirst<'a, K, C> {
    /// Ranks all running jobs.
    pub fn ranked(turn: &Turn, order: &impl Order<Key = K>) -> Self {
        let stoppable = turn.state.running.iter().copied().filter(|&id| may_stop(turn, id));
        Self::Heap(stoppable.filter_map(|id| Some((order.stop_key(turn, id)?, id))).collect())
    }

    /// Ranks only those that are asked for.
    pub fn ascending(turn: &Turn, running: &'a Running<K, C>) -> Self {
        let pools = 0..turn.state.cluster.pool_count() as PoolId;
        let ascent = |pool| PoolAscent { ascent: Ascent::new(running, pool), next: None };
        Self::Ascents(pools.map(ascent).collect())
    }

    /// The next job, if it ranks below `rank`, which may only sink from call to call.
    fn next(
        &mut self,
        turn: &Turn,
        order: &impl Order<Key = K, Cohort = C>,
        rank: (K, JobId),
    ) -> Option<(K, JobId)> {
        match self {
            Self::Heap(ranks) => {
                ranks.peek().is_some_and(|last| *last > rank).then(|| ranks.pop())?
            }
            Self::Ascents(ascents) => {
                for pool in ascents.iter_mut().filter(|pool| pool.next.is_none()) {
                    pool.next = pool.ascent.next(turn, order, rank);
                }
                let last = ascents.iter_mut().map(|pool| &mut pool.next).max()?;
                last.take_if(|last| *last > rank)
            }
        }
    }

    /// Jobs whose limits the next plan may lower.
    pub fn loose(self) -> Vec<JobId> {
        match self {
            Self::Heap(_) => Vec::new(),
            Self::Ascents(ascents) => {
                ascents.into_iter().flat_map(|pool| pool.ascent.loose).collect()
            }
        }
    }
}

/// The plan where counted GPUs do not tell whether a gang fits, because some may not be split freely or
/// turn GPUs down that are too far apart. It is made on paper, which is a copy of the cluster once
/// anything is moved on it. A waiting job takes what is free; else running jobs that rank after it leave,
/// the last first, until it fits.
pub fn choose_on_paper<K: Ord + Copy, C: Ord + Copy>(
    turn: &Turn,
    order: &impl Order<Key = K, Cohort = C>,
    running: &mut LastFirst<K, C>,
    waiting: &Queue<K>,
) -> Plan {
    let mut paper = Cow::Borrowed(&turn.state.cluster);
    let held = |id: JobId| &*turn.state.job(id).run().expect("it runs").placement;
    let split = |id: JobId| turn.state.job(id).job.terms.split;
    // Running jobs that were looked at, least deserving first. The first `gone` of them leave.
    let mut met: Vec<((K, JobId), &Placement)> = Vec::new();
    let mut gone = 0;
    let mut chosen = Vec::new();
    let (placing, forecast) = (order.placing(), &turn.state.forecast);
    let mut offers = Offers::new(waiting);
    while let Some((rank, class)) = offers.next(placing, turn) {
        let (id, before) = (rank.1, gone);
        let job = turn.state.job(id);
        let offer = loop {
            let mut pools = paper.pools_for(job.pool);
            let offer =
                pools.find_map(|pool| Some((pool, placing.place(forecast, &paper, job, pool)?)));
            if offer.is_some() {
                break offer;
            }
            if gone == met.len() {
                met.extend(running.next(turn, order, rank).map(|next| (next, held(next.1))));
            }
            match met.get(gone).filter(|(next, _)| *next > rank) {
                Some((next, held)) => paper.to_mut().release(held, split(next.1)),
                None => break None,
            }
            gone += 1;
        };
        match offer {
            Some((pool, placement)) => {
                paper.to_mut().take(&placement, split(id));
                chosen.push((id, pool, Some(placement)));
            }
            None => {
                let back = met[before..gone].iter();
                back.for_each(|(next, held)| paper.to_mut().take(held, split(next.1)));
                gone = before;
                offers.in_vain(placing, class);
            }
        }
    }
    let mut preempted = Vec::with_capacity(gone);
    for &((_, id), held) in met[..gone].iter().rev() {
        let has_room = |slot: &Slot| {
            let machine = &paper.machines[slot.machine as usize];
            split(id).host_of(slot.gpus).fits(machine.host_free) && machine.free >= slot.gpus
                || !machine.is_up()
        };
        match held.slots.iter().all(has_room) {
            true => paper.to_mut().take(held, split(id)), // nobody came for its GPUs
            false => preempted.push(id),
        }
    }
    (preempted.into_iter().collect(), chosen)
}

/// Starts the waiting jobs that fit on free GPUs, by rank. Nobody leaves.
pub fn start_fitting<K: Ord + Copy>(
    turn: &mut Turn,
    placing: Placing,
    waiting: &Queue<K>,
) -> Vec<JobId> {
    let mut started = Vec::new();
    let mut offers = Offers::new(waiting);
    while let Some((rank, class)) = offers.next(placing, turn) {
        let (forecast, cluster) = (&turn.state.forecast, &turn.state.cluster);
        let job = turn.state.job(rank.1);
        let mut pools = cluster.pools_for(job.pool);
        match pools.find_map(|pool| placing.place(forecast, cluster, job, pool)) {
            Some(placement) => {
                let why = Why::Turn { tier: placement.tier };
                turn.start(rank.1, placement, why);
                started.push(rank.1);
            }
            None => offers.in_vain(placing, class),
        }
    }
    started
}

/// Waiting jobs by rank, without those that fit no more than an earlier one did.
struct Offers<'a, K> {
    walk: Walk<'a, K>,
    /// Classes of which the jobs that take their best tier or nothing wait in vain.
    hopeless: BTreeSet<Class>,
    is_strict: bool,
}

impl<'a, K: Ord + Copy> Offers<'a, K> {
    fn new(waiting: &'a Queue<K>) -> Self {
        Self { walk: waiting.walk(), hopeless: BTreeSet::new(), is_strict: false }
    }

    fn next(&mut self, placing: Placing, turn: &Turn) -> Option<((K, JobId), Class)> {
        loop {
            let (rank, class) = self.walk.advance()?;
            self.is_strict = placing.is_strict(&turn.state.forecast, turn.state.job(rank.1));
            if !(self.is_strict && self.hopeless.contains(&class)) {
                return Some((rank, class));
            }
        }
    }

    /// The last job does not fit. The others of its class rank after it and fare no better, if they want
    /// the same.
    fn in_vain(&mut self, placing: Placing, class: Class) {
        match self.is_strict && placing == Placing::ByProfile {
            true => drop(self.hopeless.insert(class)),
            false => self.walk.leave_class(),
        }
    }
}

#[cfg(test)]
mod tests {
    use hither_core::Seconds;
    use hither_core::topology::Topology;
    use proptest::prelude::*;

    use super::*;
    use crate::cluster::Status;
    use crate::fixture::{gang, running_on};
    use crate::policy::queue::class_of;

    /// Keys that fall with time, each at its own pace, and limits that are more or less tight.
    struct Falling {
        jobs: Vec<(i64, i64, i64)>,
        placing: Placing,
    }

    impl Order for Falling {
        type Key = i64;
        type Cohort = (i64, i64, i64);

        fn key(&self, turn: &Turn, id: JobId) -> i64 {
            let (first, pace, _) = self.jobs[id as usize];
            first - pace * turn.now() as i64
        }

        fn limit(&self, turn: &Turn, id: JobId) -> (i64, Seconds) {
            let (_, pace, slack) = self.jobs[id as usize];
            let until_s = if pace == 0 { f64::INFINITY } else { turn.now() + slack as f64 };
            (self.key(turn, id) + slack, until_s)
        }

        fn cohort(&self, _turn: &Turn, id: JobId) -> (i64, i64, i64) {
            self.jobs[id as usize]
        }

        fn placing(&self) -> Placing {
            self.placing
        }
    }

    proptest! {
        /// Over time: jobs end, change their rank, machines drain.
        #[test]
        fn a_plan_is_the_same_as_job_by_job(
            sizes in prop::collection::vec(prop::collection::vec(1u32..=4, 0..4), 4),
            keys in prop::collection::vec((-4i64..4, 0i64..2, 0i64..3), 40),
            waits in prop::collection::vec((1u32..9, 0u8..3, -9i64..6), 1..12),
            firm in any::<u64>(),
            is_strict in any::<bool>(),
            steps in prop::collection::vec((0u8..4, 0usize..40, -5i64..5, 0u32..4), 1..10),
        ) {
            let mut topology = Topology::uniform(2, 2, 4);
            topology.machines[1].gpu_type = "other".into();
            let mut jobs = Vec::new();
            for (machine, sizes) in (0..).zip(&sizes) {
                let mut free = 4;
                for &size in sizes.iter().filter(|&&size| size > 0) {
                    if let Some(less) = u32::checked_sub(free, size) {
                        free = less;
                        jobs.push(vec![(machine, size)]);
                    }
                }
            }
            let mut state = running_on(&topology, &jobs, |id| firm >> id & 1 == 0);
            let placing = if is_strict { Placing::Strict } else { Placing::Close };
            let mut order = Falling { jobs: keys, placing };
            let mut queue = Queue::default();
            for (gpus, kind, key) in waits {
                let kind = ["", "other", &topology.machines[0].gpu_type][kind as usize];
                let job = gang(gpus, Some(kind).filter(|kind| !kind.is_empty()));
                if state.admits(&job) {
                    let id = state.admit(job.into());
                    queue.insert(class_of(state.job(id)), key, id);
                }
            }
            let mut running = Running::new(&state.running);
            for (pass, nth, key, machine) in steps {
                state.tick(state.now + f64::from(pass));
                let ids: Vec<JobId> = state.running.iter().copied().collect();
                match (ids.get(nth), nth % 3) {
                    (Some(&id), 0) => {
                        running.remove(id);
                        state.end(id, true);
                    }
                    (Some(&id), 1) => {
                        order.jobs[id as usize].0 = key;
                        running.revise(id);
                    }
                    (None, 2) => state.cluster.set_status(machine, Status::Draining),
                    _ => {}
                }
                let mut said = Vec::new();
                let turn = Turn::new(&mut state, &mut said);
                running.refresh(&turn, &order);
                let mut last_first = LastFirst::ascending(&turn, &running);
                let on_paper = choose_on_paper(&turn, &order, &mut last_first, &queue);
                let loose = last_first.loose();
                running.found_loose(loose);
                let mut sorted = LastFirst::ranked(&turn, &order);
                prop_assert_eq!(on_paper, choose_on_paper(&turn, &order, &mut sorted, &queue));
                running.refresh(&turn, &order);
                let plan = choose(&turn, &order, &mut running, &queue);
                prop_assert_eq!(plan, choose_plainly(&turn, &order, &queue));
            }
        }
    }
}
