//! Jobs by id. Those that are over are forgotten, so that months of jobs take no memory.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

use crate::job::JobId;
use crate::state::JobState;

/// All jobs that are not over, by id. Ids rise without gaps, so the jobs lie in a queue.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Jobs {
    /// The oldest job that is remembered.
    first: JobId,
    jobs: VecDeque<Option<Box<JobState>>>,
}

impl Jobs {
    /// The id of the next job to arrive; all smaller ones are taken.
    pub fn next_id(&self) -> JobId {
        self.first + self.jobs.len() as JobId
    }

    pub fn push(&mut self, job: JobState) -> JobId {
        let id = self.next_id();
        self.jobs.push_back(Some(Box::new(job)));
        id
    }

    /// Jobs that are not over, in order of id.
    pub fn ids(&self) -> impl Iterator<Item = JobId> + '_ {
        let remembered = (self.first..).zip(&self.jobs);
        remembered.filter(|(_, job)| job.is_some()).map(|(id, _)| id)
    }

    /// `None`: it is over, or there never was one.
    pub fn get(&self, id: JobId) -> Option<&JobState> {
        self.jobs.get(id.checked_sub(self.first)? as usize)?.as_deref()
    }

    pub(crate) fn forget(&mut self, id: JobId) {
        if let Some(index) = id.checked_sub(self.first)
            && let Some(job) = self.jobs.get_mut(index as usize)
        {
            *job = None;
        }
        while let Some(None) = self.jobs.front() {
            self.jobs.pop_front();
            self.first += 1;
        }
    }

    /// Jobs that take memory: one pointer for each that is over but younger than one that is not.
    pub fn remembered(&self) -> usize {
        self.jobs.len()
    }
}

impl Index<JobId> for Jobs {
    type Output = JobState;

    fn index(&self, id: JobId) -> &JobState {
        self.get(id).expect("the job is not over")
    }
}

impl IndexMut<JobId> for Jobs {
    fn index_mut(&mut self, id: JobId) -> &mut JobState {
        let job = self.jobs.get_mut((id - self.first) as usize);
        job.and_then(|job| job.as_deref_mut()).expect("the job is not over")
    }
}
