//! Fair share by user: the next job comes from the user who holds the fewest GPUs now; among equals
//! from the one who has used the least, with a half-life.

use std::collections::BTreeMap;

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::event::Why;
use crate::job::JobId;
use crate::order::SortKey;
use crate::policy::queue::{Queue, class_of};
use crate::policy::{Policy, saved_whole};
use crate::state::Turn;

pub const ABOUT: &str =
    "users take turns: next is who holds the fewest GPUs, then who used the least";

/// Past use counts half after a week, as Slurm's default.
const HALF_LIFE_S: Seconds = 7.0 * 86_400.0;

#[derive(Debug, Default, Serialize, Deserialize)]
struct User {
    queue: Queue<()>,
    held: u32,
    /// Decayed GPU seconds, as of `as_of_s`.
    used: f64,
    as_of_s: Seconds,
}

impl User {
    fn used_at(&self, now: Seconds) -> f64 {
        let elapsed = now - self.as_of_s;
        let decay = (-elapsed / HALF_LIFE_S * std::f64::consts::LN_2).exp();
        // While GPUs are held, use grows towards held × half-life / ln 2.
        let steady = f64::from(self.held) * HALF_LIFE_S / std::f64::consts::LN_2;
        steady + (self.used - steady) * decay
    }

    fn hold(&mut self, now: Seconds, held: u32) {
        self.used = self.used_at(now);
        self.as_of_s = now;
        self.held = held;
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct FairShare {
    users: BTreeMap<String, User>,
    holding: BTreeMap<JobId, u32>,
}

impl FairShare {
    fn release(&mut self, turn: &Turn, id: JobId) {
        if let Some(gpus) = self.holding.remove(&id) {
            let user = self.users.entry(turn.state.job(id).job.user.clone()).or_default();
            user.hold(turn.now(), user.held - gpus);
        }
    }
}

impl Policy for FairShare {
    fn enqueue(&mut self, turn: &mut Turn, id: JobId) {
        self.release(turn, id);
        let job = turn.state.job(id);
        let user = self.users.entry(job.job.user.clone()).or_default();
        user.queue.insert(class_of(job), (), id);
    }

    fn forget(&mut self, turn: &mut Turn, id: JobId) {
        self.release(turn, id);
        let job = turn.state.job(id);
        if let Some(user) = self.users.get_mut(&job.job.user) {
            user.queue.remove(class_of(job), (), id);
        }
    }

    fn adopt(&mut self, turn: &mut Turn, id: JobId) {
        self.forget(turn, id);
        let job = turn.state.job(id);
        let user = self.users.entry(job.job.user.clone()).or_default();
        user.hold(turn.now(), user.held + job.gpus());
        self.holding.insert(id, job.gpus());
    }

    saved_whole!();

    fn schedule(&mut self, turn: &mut Turn) {
        let now = turn.now();
        loop {
            let cluster = &turn.state.cluster;
            let fitting = self.users.values_mut().filter_map(|user| {
                let (class, key, id) = user.queue.first_fitting(cluster)?;
                Some(((user.held, SortKey(user.used_at(now)), id), class, key, user))
            });
            let least = fitting.min_by_key(|f| f.0);
            let Some(((_, _, id), class, key, user)) = least else {
                return;
            };
            let placement = cluster.best_offer(class.0, class.1).expect("the class fits");
            user.queue.remove(class, key, id);
            user.hold(now, user.held + class.0.gpus);
            self.holding.insert(id, class.0.gpus);
            let why = Why::Turn { tier: placement.tier };
            turn.start(id, placement, why);
        }
    }
}
