//! Waiting jobs, grouped by what they ask for: all jobs of a class fit or none does, so a policy
//! looks at the heads of the classes and not at every job.

use std::cmp::Reverse;
use std::collections::btree_set::Iter;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, PoolId};
use crate::job::{Demand, JobId};
use crate::order::pairs;
use crate::state::JobState;

/// Demand and GPU type: what decides where a job fits.
pub type Class = (Demand, Option<PoolId>);

pub fn class_of(job: &JobState) -> Class {
    (job.demand(), job.pool)
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "K: Serialize", deserialize = "K: Deserialize<'de>"))]
pub struct Queue<K: Ord + Copy> {
    #[serde(with = "pairs")]
    classes: BTreeMap<Class, BTreeSet<(K, JobId)>>,
}

impl<K: Ord + Copy> Default for Queue<K> {
    fn default() -> Self {
        Self { classes: BTreeMap::new() }
    }
}

impl<K: Ord + Copy> FromIterator<(Class, K, JobId)> for Queue<K> {
    fn from_iter<I: IntoIterator<Item = (Class, K, JobId)>>(jobs: I) -> Self {
        // Sorting all at once is quicker than inserting one by one.
        let mut classes: BTreeMap<Class, Vec<(K, JobId)>> = BTreeMap::new();
        for (class, key, id) in jobs {
            classes.entry(class).or_default().push((key, id));
        }
        let sorted = |(class, jobs): (Class, Vec<_>)| (class, jobs.into_iter().collect());
        Self { classes: classes.into_iter().map(sorted).collect() }
    }
}

impl<K: Ord + Copy> Queue<K> {
    pub fn insert(&mut self, class: Class, key: K, id: JobId) {
        self.classes.entry(class).or_default().insert((key, id));
    }

    /// Inserts many jobs.
    pub fn extend(&mut self, mut jobs: Vec<(Class, K, JobId)>) {
        jobs.sort_unstable();
        for alike in jobs.chunk_by(|a, b| a.0 == b.0) {
            let set = self.classes.entry(alike[0].0).or_default();
            let ranks = alike.iter().map(|&(_, key, id)| (key, id));
            // Merging builds the whole set anew, which is quicker only where many jobs join.
            match 16 * alike.len() > set.len() {
                true => set.append(&mut ranks.collect()),
                false => set.extend(ranks),
            }
        }
    }

    pub fn remove(&mut self, class: Class, key: K, id: JobId) -> bool {
        let Some(set) = self.classes.get_mut(&class) else {
            return false;
        };
        let removed = set.remove(&(key, id));
        if set.is_empty() {
            self.classes.remove(&class);
        }
        removed
    }

    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// All jobs by key.
    pub fn ids(&self) -> Vec<JobId> {
        let mut all: Vec<(K, JobId)> = self.classes.values().flatten().copied().collect();
        all.sort_unstable();
        all.into_iter().map(|(_, id)| id).collect()
    }

    /// All jobs by key, with the option to leave a class.
    pub fn walk(&self) -> Walk<'_, K> {
        let mut walk = Walk { lines: Vec::new(), heads: BinaryHeap::new(), at: None };
        for (line, (&class, jobs)) in self.classes.iter().enumerate() {
            let mut jobs = jobs.iter();
            walk.heads.extend(jobs.next().map(|&rank| Reverse((rank, line))));
            walk.lines.push((class, jobs));
        }
        walk
    }

    /// The first job by key among the classes that fit somewhere now.
    pub fn first_fitting(&self, cluster: &Cluster) -> Option<(Class, K, JobId)> {
        self.classes
            .iter()
            .filter(|((gang, pool), _)| cluster.best_pool(*gang, *pool).is_some())
            .filter_map(|(&class, set)| set.first().map(|&(key, id)| (key, id, class)))
            .min()
            .map(|(key, id, class)| (class, key, id))
    }
}

/// Goes through the jobs of all classes by key.
pub struct Walk<'a, K> {
    lines: Vec<(Class, Iter<'a, (K, JobId)>)>,
    /// The first job of each line that was not returned yet, but for the line `at`.
    heads: BinaryHeap<Reverse<((K, JobId), usize)>>,
    at: Option<usize>,
}

impl<K: Ord + Copy> Walk<'_, K> {
    pub fn advance(&mut self) -> Option<((K, JobId), Class)> {
        if let Some(line) = self.at.take()
            && let Some(&rank) = self.lines[line].1.next()
        {
            self.heads.push(Reverse((rank, line)));
        }
        let Reverse((rank, line)) = self.heads.pop()?;
        self.at = Some(line);
        Some((rank, self.lines[line].0))
    }

    /// Passes over all further jobs of the class of the last one.
    pub fn leave_class(&mut self) {
        self.at = None;
    }
}
