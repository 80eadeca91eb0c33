//! Running jobs of each pool in order of rank, though ranks change while jobs run.
//!
//! Jobs that rank alike as long as they run, such as an array of jobs that started together, are one
//! cohort. Each cohort is kept at a limit that its rank does not exceed for some time. A plan ranks
//! exactly only those cohorts whose limit lies below the jobs that it looks for.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, btree_set};
use std::iter::{Peekable, Rev};

use crate::cluster::PoolId;
use crate::job::JobId;
use crate::order::SortKey;
use crate::policy::replan::Order;
use crate::state::Turn;

#[derive(Debug)]
pub struct Running<K, C> {
    cohorts: BTreeMap<(PoolId, C), Cohort<K>>,
    /// Of each job that is in one.
    cohort_of: BTreeMap<JobId, (PoolId, C)>,
    /// By pool: the limit of each cohort, and its last job.
    by_limit: Vec<BTreeSet<(K, JobId)>>,
    /// Until when the limit holds, and the cohort's last job.
    by_end: BTreeSet<(SortKey, JobId)>,
    /// Jobs without a limit as yet.
    fresh: BTreeSet<JobId>,
    /// Last jobs of cohorts whose limit is above their rank: a lower one may hold.
    loose: Vec<JobId>,
}

#[derive(Debug)]
struct Cohort<K> {
    limit: K,
    until: SortKey,
    /// Never empty.
    jobs: BTreeSet<JobId>,
}

impl<K> Cohort<K> {
    /// The least deserving of the cohort: among equals the order of ids decides.
    fn last(&self) -> JobId {
        *self.jobs.last().expect("a cohort is not empty")
    }
}

/// Whether a plan may take a running job's GPUs away.
pub fn may_stop(turn: &Turn, id: JobId) -> bool {
    turn.state.job(id).job.terms.preemptible
}

impl<K: Ord + Copy, C: Ord + Copy> Running<K, C> {
    pub fn new(jobs: &BTreeSet<JobId>) -> Self {
        Self {
            cohorts: BTreeMap::new(),
            cohort_of: BTreeMap::new(),
            by_limit: Vec::new(),
            by_end: BTreeSet::new(),
            fresh: jobs.clone(),
            loose: Vec::new(),
        }
    }

    pub fn remove(&mut self, id: JobId) {
        self.fresh.remove(&id);
        let Some(at) = self.cohort_of.remove(&id) else { return };
        let mut cohort = self.take(at);
        cohort.jobs.remove(&id);
        if !cohort.jobs.is_empty() {
            self.put(at, cohort);
        }
    }

    /// The job runs from now on, or its limit holds no more.
    pub fn revise(&mut self, id: JobId) {
        self.remove(id);
        self.fresh.insert(id);
    }

    /// Gives every job a limit that holds now.
    pub fn refresh(&mut self, turn: &Turn, order: &impl Order<Key = K, Cohort = C>) {
        let pools = turn.state.cluster.pool_count();
        self.by_limit.resize_with(pools.max(self.by_limit.len()), BTreeSet::new);
        let mut again = std::mem::take(&mut self.loose);
        let over = self.by_end.iter().take_while(|(until, _)| until.0 <= turn.now());
        again.extend(over.map(|&(_, id)| id));
        for id in again {
            // Jobs may have left since, and the cohort may have another last job.
            if let Some(&at) = self.cohort_of.get(&id) {
                self.set_limit(at, limit(turn, order, id));
            }
        }
        let fresh = std::mem::take(&mut self.fresh);
        for id in fresh.into_iter().filter(|&id| may_stop(turn, id)) {
            let at = (turn.state.pool_of_run(id), order.cohort(turn, id));
            self.cohort_of.insert(id, at);
            let cohort = match self.cohorts.contains_key(&at) {
                true => {
                    let mut cohort = self.take(at);
                    cohort.jobs.insert(id);
                    cohort
                }
                false => {
                    let (limit, until) = limit(turn, order, id);
                    Cohort { limit, until, jobs: BTreeSet::from([id]) }
                }
            };
            self.put(at, cohort);
        }
        let stoppable = turn.state.running.iter().filter(|&&id| may_stop(turn, id));
        debug_assert!(self.cohort_of.keys().eq(stoppable));
    }

    fn take(&mut self, at: (PoolId, C)) -> Cohort<K> {
        let cohort = self.cohorts.remove(&at).expect("its jobs name it");
        self.by_limit[at.0 as usize].remove(&(cohort.limit, cohort.last()));
        self.by_end.remove(&(cohort.until, cohort.last()));
        cohort
    }

    fn put(&mut self, at: (PoolId, C), cohort: Cohort<K>) {
        self.by_limit[at.0 as usize].insert((cohort.limit, cohort.last()));
        self.by_end.insert((cohort.until, cohort.last()));
        self.cohorts.insert(at, cohort);
    }

    fn set_limit(&mut self, at: (PoolId, C), limit: (K, SortKey)) {
        let cohort = self.cohorts.get_mut(&at).expect("its jobs name it");
        let (last, before) = (cohort.last(), (cohort.limit, cohort.until));
        if before.0 != limit.0 {
            self.by_limit[at.0 as usize].remove(&(before.0, last));
            self.by_limit[at.0 as usize].insert((limit.0, last));
        }
        if before.1 != limit.1 {
            self.by_end.remove(&(before.1, last));
            self.by_end.insert((limit.1, last));
        }
        (cohort.limit, cohort.until) = limit;
    }

    /// The next plan finds lower limits for these cohorts, given by their last jobs.
    pub fn found_loose(&mut self, last_jobs: impl IntoIterator<Item = JobId>) {
        self.loose.extend(last_jobs);
    }

    /// The job of the same cohort that comes before.
    fn before(&self, id: JobId) -> Option<JobId> {
        self.cohorts[&self.cohort_of[&id]].jobs.range(..id).next_back().copied()
    }
}

fn limit<K, C>(turn: &Turn, order: &impl Order<Key = K, Cohort = C>, id: JobId) -> (K, SortKey) {
    let (limit, until_s) = order.limit(turn, id);
    (limit, SortKey(until_s))
}

/// The way up through the running jobs of one pool, from the least deserving.
pub struct Ascent<'a, K, C> {
    running: &'a Running<K, C>,
    /// Limits and last jobs of the cohorts that were not met yet.
    unmet: Peekable<Rev<btree_set::Iter<'a, (K, JobId)>>>,
    /// The next job of each cohort that was met.
    heads: BinaryHeap<(K, JobId)>,
    /// Last jobs of cohorts that were met and rank above their limits.
    pub loose: Vec<JobId>,
}

impl<'a, K: Ord + Copy, C: Ord + Copy> Ascent<'a, K, C> {
    pub fn new(running: &'a Running<K, C>, pool: PoolId) -> Self {
        let unmet = running.by_limit[pool as usize].iter().rev().peekable();
        Self { running, unmet, heads: BinaryHeap::new(), loose: Vec::new() }
    }

    /// The next job, if it ranks below `rank`, which may only sink from call to call.
    pub fn next(
        &mut self,
        turn: &Turn,
        order: &impl Order<Key = K, Cohort = C>,
        rank: (K, JobId),
    ) -> Option<(K, JobId)> {
        let heads = &mut self.heads;
        let may_be_next = |heads: &BinaryHeap<_>, at: (K, JobId)| {
            at > rank && heads.peek().is_none_or(|&head| at > head)
        };
        while let Some(&(limit, last)) = self.unmet.next_if(|at| may_be_next(heads, **at)) {
            let key = order.key(turn, last);
            debug_assert!(key <= limit, "a job exceeds its limit");
            heads.push((key, last));
            if key < limit {
                self.loose.push(last);
            }
        }
        let (key, id) = *heads.peek().filter(|&&head| head > rank)?;
        heads.pop();
        heads.extend(self.running.before(id).map(|before| (key, before)));
        Some((key, id))
    }
}
