//! Values that some jobs have, by the id of the job.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::job::JobId;

/// A map from jobs to values. The ids of jobs that are not over lie close together, so the values lie in a
/// queue: thousands of them change in one round.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "BTreeMap<JobId, T>", into = "BTreeMap<JobId, T>")]
#[serde(bound(serialize = "T: Serialize + Clone", deserialize = "T: Deserialize<'de>"))]
pub struct ById<T> {
    /// The id of the first value.
    first: JobId,
    values: VecDeque<Option<T>>,
}

impl<T> Default for ById<T> {
    fn default() -> Self {
        Self { first: 0, values: VecDeque::new() }
    }
}

impl<T> ById<T> {
    /// Sets the value of a job and returns the one that it had.
    pub fn insert(&mut self, id: JobId, value: T) -> Option<T> {
        if self.values.is_empty() {
            self.first = id;
        }
        while id < self.first {
            self.values.push_front(None);
            self.first -= 1;
        }
        let at = (id - self.first) as usize;
        if at >= self.values.len() {
            self.values.resize_with(at + 1, || None);
        }
        self.values[at].replace(value)
    }

    pub fn remove(&mut self, id: JobId) -> Option<T> {
        let at = id.checked_sub(self.first)? as usize;
        let value = self.values.get_mut(at)?.take();
        while let Some(None) = self.values.front() {
            self.values.pop_front();
            self.first += 1;
        }
        value
    }

    /// In order of id.
    pub fn iter(&self) -> impl Iterator<Item = (JobId, &T)> {
        (self.first..).zip(&self.values).filter_map(|(id, value)| Some((id, value.as_ref()?)))
    }

    /// In order of id.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (JobId, &mut T)> {
        let all = (self.first..).zip(&mut self.values);
        all.filter_map(|(id, value)| Some((id, value.as_mut()?)))
    }
}

impl<T> From<BTreeMap<JobId, T>> for ById<T> {
    fn from(map: BTreeMap<JobId, T>) -> Self {
        let mut values = Self::default();
        for (id, value) in map {
            values.insert(id, value);
        }
        values
    }
}

impl<T> From<ById<T>> for BTreeMap<JobId, T> {
    fn from(by_id: ById<T>) -> Self {
        let all = (by_id.first..).zip(by_id.values);
        all.filter_map(|(id, value)| Some((id, value?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map(changes in prop::collection::vec((0u32..40, prop::option::of(any::<u8>())), 0..100)) {
            let (mut by_id, mut map) = (ById::default(), BTreeMap::new());
            for (id, value) in changes {
                match value {
                    Some(value) => prop_assert_eq!(by_id.insert(id, value), map.insert(id, value)),
                    None => prop_assert_eq!(by_id.remove(id), map.remove(&id)),
                }
            }
            prop_assert!(by_id.iter().eq(map.iter().map(|(&id, value)| (id, value))));
            prop_assert_eq!(BTreeMap::from(by_id), map);
        }
    }
}
