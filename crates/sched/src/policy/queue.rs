//! Waiting jobs, grouped by what they ask for: all jobs of a class fit or none does, so a policy
//! looks at the heads of the classes and not at every job.

use std::collections::{BTreeMap, BTreeSet};

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

impl<K: Ord + Copy> Queue<K> {
    pub fn insert(&mut self, class: Class, key: K, id: JobId) {
        self.classes.entry(class).or_default().insert((key, id));
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
