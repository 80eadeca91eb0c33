//! Preemptive policies that plan anew at every event: empty the cluster on paper, walk all jobs in
//! order of priority, take all that fit, preempt the rest.

use std::collections::{BTreeMap, BTreeSet};

use hither_core::record::Reason;
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, Placement, PoolId, Slot};
use crate::event::Why;
use crate::job::JobId;
use crate::policy::queue::class_of;
use crate::state::{JobState, Turn};

/// Waiting jobs by priority; running ones are ranked when the plan is made, as their priority
/// changes while they run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "K: Serialize", deserialize = "K: Deserialize<'de>"))]
pub struct Ranks<K: Ord + Copy> {
    waiting: BTreeSet<(K, JobId)>,
    key_of: BTreeMap<JobId, K>,
}

impl<K: Ord + Copy> Default for Ranks<K> {
    fn default() -> Self {
        Self { waiting: BTreeSet::new(), key_of: BTreeMap::new() }
    }
}

impl<K: Ord + Copy> Ranks<K> {
    pub fn insert(&mut self, key: K, id: JobId) {
        self.remove(id);
        self.key_of.insert(id, key);
        self.waiting.insert((key, id));
    }

    pub fn remove(&mut self, id: JobId) {
        if let Some(key) = self.key_of.remove(&id) {
            self.waiting.remove(&(key, id));
        }
    }

    /// All waiting jobs, most deserving first.
    pub fn ids(&self) -> Vec<JobId> {
        self.waiting.iter().map(|&(_, id)| id).collect()
    }

    /// Plans and carries the plan out. `key` ranks a job as it is now, least first; `place` puts a
    /// chosen job on free GPUs of the pool. Returns who started and who was preempted.
    pub fn replan(
        &mut self,
        turn: &mut Turn,
        key: impl Fn(&Turn, JobId) -> K,
        place: impl Fn(&Cluster, &JobState, PoolId) -> Option<Placement>,
    ) -> (Vec<JobId>, BTreeSet<JobId>) {
        let Some(&first) = self.waiting.first() else {
            return Default::default(); // nobody to preempt for
        };
        // Running jobs that rank before all who wait keep their GPUs: only the others are planned.
        let mut contested: Vec<(K, JobId)> = turn
            .state
            .running
            .iter()
            .copied()
            .filter(|&id| turn.state.job(id).job.terms.preemptible)
            .map(|id| (key(turn, id), id))
            .filter(|rank| *rank > first)
            .collect();
        contested.sort_unstable();
        let waiting = self.waiting.iter().copied();
        let (preempted, chosen) = match turn.state.cluster.splits_freely() {
            true => choose(turn, &contested, waiting),
            false => choose_on_paper(turn, &contested, waiting, &place),
        };
        for &id in &preempted {
            turn.preempt(id, Reason::Priority, Why::Outranked);
            self.insert(key(turn, id), id);
        }
        let mut started = Vec::with_capacity(chosen.len());
        for (id, pool, planned) in chosen {
            // GPUs that others took from under a job are missing when it has made room.
            let place = || place(&turn.state.cluster, turn.state.job(id), pool);
            let Some(placement) = planned.or_else(place) else { continue };
            self.remove(id);
            started.push(id);
            let why = Why::Turn { tier: placement.tier };
            turn.start(id, placement, why);
        }
        (started, preempted)
    }
}

fn merge<T: Ord + Copy, A: Iterator<Item = T>, B: Iterator<Item = T>>(
    mut a: std::iter::Peekable<A>,
    mut b: std::iter::Peekable<B>,
) -> impl Iterator<Item = T> {
    std::iter::from_fn(move || match (a.peek(), b.peek()) {
        (Some(x), Some(y)) if x <= y => a.next(),
        (_, Some(_)) => b.next(),
        _ => a.next(),
    })
}

/// Who must go, and who comes in, in which pool and, if that is planned, where.
type Plan = (BTreeSet<JobId>, Vec<(JobId, PoolId, Option<Placement>)>);

/// Who must go, and who comes in and in which pool, when jobs are taken in order of rank. Running
/// jobs that are not contested stay.
fn choose<K: Ord + Copy>(
    turn: &Turn,
    contested: &[(K, JobId)],
    waiting: impl Iterator<Item = (K, JobId)>,
) -> Plan {
    let cluster = &turn.state.cluster;
    let pools = 0..cluster.pool_count() as PoolId;
    let mut room: Vec<u32> = pools.map(|p| cluster.free_gpus(p)).collect();
    for &(_, id) in contested {
        room[turn.state.pool_of_run(id) as usize] += turn.state.would_free(id);
    }
    let mut unchosen: BTreeSet<JobId> = contested.iter().map(|&(_, id)| id).collect();
    let mut chosen = Vec::new();
    for (_, id) in merge(contested.iter().copied().peekable(), waiting.peekable()) {
        if room.iter().all(|&r| r == 0) {
            break;
        }
        let job = turn.state.job(id);
        let wanted = if job.is_waiting() { job.gpus() } else { turn.state.would_free(id) };
        let pool = match job.run() {
            // A running job stays where it is, or makes room.
            Some(_) => Some(turn.state.pool_of_run(id)).filter(|&p| room[p as usize] >= wanted),
            None => cluster.pools_for(job.pool).find(|&p| room[p as usize] >= wanted),
        };
        let Some(pool) = pool else { continue };
        room[pool as usize] -= wanted;
        if !unchosen.remove(&id) {
            chosen.push((id, pool, None));
        }
    }
    (unchosen, chosen)
}

/// As [`choose`] where gangs may not be split freely: counted GPUs do not tell whether such a gang
/// fits, so the plan is made on a copy of the cluster. A waiting job takes what is free; else running
/// jobs that rank after it leave, the last first, until it fits.
fn choose_on_paper<K: Ord + Copy>(
    turn: &Turn,
    contested: &[(K, JobId)],
    waiting: impl Iterator<Item = (K, JobId)>,
    place: impl Fn(&Cluster, &JobState, PoolId) -> Option<Placement>,
) -> Plan {
    let mut paper = turn.state.cluster.clone();
    let held = |id: JobId| &turn.state.job(id).run().expect("it runs").placement;
    let mut left = contested.len();
    let (mut chosen, mut hopeless) = (Vec::new(), BTreeSet::new());
    for (rank, id) in waiting {
        let job = turn.state.job(id);
        if hopeless.contains(&class_of(job)) {
            continue; // others of its kind rank before it and do not fit
        }
        let before = left;
        let offer = loop {
            let mut pools = paper.pools_for(job.pool);
            let offer = pools.find_map(|pool| Some((pool, place(&paper, job, pool)?)));
            if offer.is_some() || left == 0 || contested[left - 1].0 < rank {
                break offer;
            }
            left -= 1;
            paper.release(held(contested[left].1));
        };
        match offer {
            Some((pool, placement)) => {
                paper.take(&placement);
                chosen.push((id, pool, Some(placement)));
            }
            None => {
                contested[left..before].iter().for_each(|&(_, id)| paper.take(held(id)));
                left = before;
                hopeless.insert(class_of(job));
            }
        }
    }
    let mut victims = BTreeSet::new();
    for &(_, id) in &contested[left..] {
        let has_room = |slot: &Slot| {
            let machine = &paper.machines[slot.machine as usize];
            machine.free >= slot.gpus || !machine.is_up()
        };
        match held(id).slots.iter().all(has_room) {
            true => paper.take(held(id)), // nobody came for its GPUs
            false => drop(victims.insert(id)),
        }
    }
    (victims, chosen)
}
