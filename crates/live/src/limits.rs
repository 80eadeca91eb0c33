//! Limits of users, accounts, classes of service and arrays. A job that is beyond one is parked before it is
//! offered any GPUs: the engine would not start it, and its GPUs would stand idle until it said so.
//!
//! Some limits are told by the engine. Others show when it refuses a start: what was in use and was asked for
//! then is too much.

use std::collections::{BTreeMap, HashMap};

use hither_core::Seconds;

use crate::engine::{Counts, Key, Obstacle, Scope, Seen, SeenJob};

/// A limit that showed is tried again after so long: it may have been raised.
const BELIEVED_S: Seconds = 600.0;
/// Where nobody can say what is limited, the job is tried again after so long.
const RETRY_S: Seconds = 60.0;

#[derive(Debug, Default)]
pub struct LimitTable {
    /// The most that was not too much, and since when that is believed.
    shown: BTreeMap<(Scope, Counts, String), (u32, Seconds)>,
}

fn asks(job: &SeenJob, counts: Counts) -> u32 {
    match counts {
        Counts::Gpus => job.gpus(),
        Counts::Jobs | Counts::Other => 1,
    }
}

fn words(scope: Scope, counts: Counts, job: &SeenJob, max: u32) -> String {
    let SeenJob { user, account, qos, reason, .. } = job;
    let whose = match scope {
        Scope::Qos => format!("QOS {qos}"),
        Scope::QosUser => format!("user {user} in QOS {qos}"),
        Scope::Account => format!("account {account}"),
        Scope::AccountUser => format!("user {user} in account {account}"),
        Scope::Array => "its array".into(),
        Scope::Job => return format!("a limit was reached when it was tried last ({reason})"),
    };
    match counts {
        Counts::Gpus => format!("{whose} may have {max} GPUs at a time"),
        Counts::Jobs | Counts::Other => format!("{whose} may run {max} jobs at a time"),
    }
}

/// What jobs with the same key have in use.
fn used(
    seen: &Seen,
    scope: Scope,
    counts: Counts,
    is_promised: impl Fn(&Key) -> bool,
) -> HashMap<String, u32> {
    let mut used: HashMap<String, u32> = HashMap::new();
    for (key, job) in &seen.jobs {
        if job.is_active() || is_promised(key) {
            *used.entry(scope.key(key, job)).or_default() += asks(job, counts);
        }
    }
    used
}

impl LimitTable {
    /// The engine refused to start the job because of a limit.
    pub fn refused(&mut self, key: &Key, seen: &Seen, now: Seconds) {
        let Some(job) = seen.jobs.get(key) else { return };
        let Obstacle::Limit(scope, counts) = job.obstacle else { return };
        // Nobody knows how much is too much of something that nobody counts: the job itself waits.
        let scope = if counts == Counts::Other { Scope::Job } else { scope };
        let of = scope.key(key, job);
        let used = used(seen, scope, counts, |_| false).get(&of).copied().unwrap_or(0);
        let max = match counts {
            Counts::Other => 0,
            _ => (used + asks(job, counts)).saturating_sub(1),
        };
        let (least, since_s) = self.shown.entry((scope, counts, of)).or_insert((max, now));
        (*least, *since_s) = (max.min(*least), now);
    }

    /// The jobs that limits keep from starting, of those that wait, in their order, and which limits.
    /// `is_promised`: the job is about to start.
    pub fn barred<'a>(
        &mut self,
        seen: &Seen,
        waiting: &[(&'a Key, &'a SeenJob)],
        now: Seconds,
        is_promised: impl Fn(&Key) -> bool,
    ) -> HashMap<&'a Key, String> {
        self.shown.retain(|(scope, ..), (_, since_s)| {
            now < *since_s + if *scope == Scope::Job { RETRY_S } else { BELIEVED_S }
        });
        let mut limits: BTreeMap<(Scope, Counts), HashMap<&str, u32>> = BTreeMap::new();
        let told = seen.limits.iter().map(|l| (l.scope, l.counts, l.of.as_str(), l.max));
        let shown = self.shown.iter().map(|((s, c, of), (max, _))| (*s, *c, of.as_str(), *max));
        for (scope, counts, of, max) in told.chain(shown) {
            let least = limits.entry((scope, counts)).or_default().entry(of).or_insert(max);
            *least = max.min(*least);
        }
        let mut barred = HashMap::new();
        for ((scope, counts), max) in limits {
            let mut used = used(seen, scope, counts, &is_promised);
            for (key, job) in waiting {
                let of = scope.key(key, job);
                // A limit per user of a QOS is told for all its users together.
                let of_all = || max.get(job.qos.as_str()).filter(|_| scope == Scope::QosUser);
                let Some(max) = max.get(of.as_str()).or_else(of_all) else { continue };
                let used = used.entry(of).or_default();
                match *used + asks(job, counts) <= *max {
                    true => *used += asks(job, counts),
                    false => drop(barred.insert(*key, words(scope, counts, job, *max))),
                }
            }
        }
        barred
    }
}
