//! What happens to a model's tables after it began to serve: they are copied as its plan says, and
//! their hot rows follow the requests. Each step is a new layout that the engine exchanges between
//! two batches.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hither_dlrm::model::Spec;
use hither_dlrm::plan::{Packing, PageChoice, Plan};
use tracing::{info, warn};

use crate::backend::Served;
use crate::repository::{Budget, Share, bytes_where};

/// How a version's tables lie.
pub struct Settling {
    spec: Spec,
    /// How they are to lie in the end.
    target: Plan,
    /// Whether the target is a plan that somebody made, and not a default.
    has_plan: bool,
    state: Mutex<Current>,
    pub hotness: Hotness,
}

struct Current {
    plan: Plan,
    /// The memory of the copies.
    shares: Vec<Share>,
    is_settled: bool,
}

/// The share of sampled lookups that packed rows took. A share is stored in millionths.
#[derive(Debug)]
pub struct Hotness {
    now: AtomicU64,
    before: AtomicU64,
    after: AtomicU64,
    pub refreshes: AtomicU64,
}

/// Stands for a share that is not known.
const UNKNOWN: u64 = u64::MAX;
/// Seconds that a model without a plan tries prefetch schemes for.
const SELF_TEST_S: f64 = 0.2;
/// Sampled ids below which nothing is concluded.
const SEEN_MIN: usize = 1000;

impl Settling {
    pub(crate) fn new(spec: Spec, target: Plan, now: Plan, has_plan: bool, share: Share) -> Self {
        let state = Current { plan: now, shares: vec![share], is_settled: false };
        Self { spec, target, has_plan, state: Mutex::new(state), hotness: Hotness::default() }
    }

    fn state(&self) -> MutexGuard<'_, Current> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the tables lie as the plan says.
    pub fn is_settled(&self) -> bool {
        self.state().is_settled
    }

    fn has_hot_rows(&self) -> bool {
        self.target.tables.iter().any(|table| table.packing == Packing::Lookup)
    }
}

/// Begins to settle a version; stops by itself when the version is no longer served.
pub(crate) fn start(served: &Arc<Served>, budget: &Arc<Budget>) {
    let (served, budget) = (Arc::downgrade(served), Arc::clone(budget));
    tokio::spawn(async move {
        copy(&served, &budget).await;
        refresh(&served).await;
    });
}

/// Runs work on a version on a thread of its own; `None` if the version has gone.
async fn on<T: Send + 'static>(
    served: &Weak<Served>,
    work: impl FnOnce(&Served) -> T + Send + 'static,
) -> Option<T> {
    let served = served.upgrade()?;
    tokio::task::spawn_blocking(move || work(&served)).await.ok()
}

/// Copies the tables that the plan wants on pages of their own.
async fn copy(served: &Weak<Served>, budget: &Arc<Budget>) {
    let _turn = budget.copying.lock().await;
    let budget = Arc::clone(budget);
    on(served, move |served| {
        let settling = &served.settling;
        let now = settling.state().plan.clone();
        let wanted = bytes_where(&settling.spec, &settling.target, |table| {
            table.pages != PageChoice::Mapped && table.packing != Packing::Ids
        });
        let (model, version) = (&served.name, served.version);
        if wanted > 0 && now != settling.target {
            match budget.take(wanted) {
                Ok(share) => match served.engine.replan(&settling.target, &|_| ()) {
                    Ok(()) => {
                        let mut state = settling.state();
                        state.plan = settling.target.clone();
                        state.shares.push(share);
                    }
                    Err(error) => warn!(model, version, %error, "tables stay mapped"),
                },
                Err(reason) => warn!(model, version, reason, "tables stay mapped"),
            }
        }
        if !settling.has_plan && wanted > 0 {
            let plan = settling.state().plan.clone();
            match served.engine.self_test(&plan, SELF_TEST_S) {
                Ok(plan) => settling.state().plan = plan,
                Err(error) => warn!(model, version, %error, "no prefetch scheme was chosen"),
            }
        }
        settling.state().is_settled = true;
        info!(model, version, copied_bytes = budget.used(), "tables are in place");
    })
    .await;
}

/// Looks at the sampled ids from time to time, and exchanges the hot rows when others are clearly
/// hotter.
async fn refresh(served: &Weak<Served>) {
    let Some(config) = served.upgrade().map(|served| served.config.hotness.clone()) else { return };
    let is_wanted = served.upgrade().is_some_and(|served| served.settling.has_hot_rows());
    if config.sample_every == 0 || !is_wanted {
        return;
    }
    let pause = Duration::from_secs_f64(config.refresh_s);
    loop {
        tokio::time::sleep(pause).await;
        if on(served, refresh_once).await.is_none() {
            return;
        }
    }
}

fn refresh_once(served: &Served) {
    let Served { settling, engine, config, .. } = served;
    let seen = engine.seen();
    if seen.len() < SEEN_MIN {
        return;
    }
    let now = engine.tables().hot_share(&seen);
    settling.hotness.now.store(millionths(now), Relaxed);
    let plan = settling.state().plan.clone();
    let hot_bytes = config.hotness.hot_bytes.unwrap_or_else(|| packed_bytes(&settling.spec, &plan));
    // Rows are chosen by one half of the sample and judged by the other: on its own sample any
    // choice looks good.
    let halves = |odd: usize| seen.iter().skip(odd).step_by(2).copied().collect::<Vec<_>>();
    let (chosen_by, judged_by) = (halves(0), halves(1));
    let next = plan.refreshed(&settling.spec, &chosen_by, hot_bytes);
    let expected = expected_share(&next, &judged_by);
    let before = engine.tables().hot_share(&judged_by).unwrap_or(0.0);
    if expected < before + config.hotness.gain_min {
        return;
    }
    let (model, version) = (&served.name, served.version);
    match engine.replan(&next, &|_| ()) {
        Ok(()) => {
            let after = engine.tables().hot_share(&judged_by);
            settling.state().plan = next;
            settling.hotness.before.store(millionths(Some(before)), Relaxed);
            settling.hotness.after.store(millionths(after), Relaxed);
            settling.hotness.now.store(millionths(after), Relaxed);
            settling.hotness.refreshes.fetch_add(1, Relaxed);
            info!(model, version, before, after, "hot rows refreshed");
        }
        Err(error) => warn!(model, version, %error, "hot rows stay"),
    }
}

/// Bytes of the rows that a plan packs.
fn packed_bytes(spec: &Spec, plan: &Plan) -> usize {
    let tables = spec.tables.iter().zip(&plan.tables);
    let packed = tables.filter(|(_, plan)| plan.packing == Packing::Lookup);
    packed.map(|(table, plan)| plan.hot_rows * table.row_bytes().next_multiple_of(64)).sum()
}

/// The share of lookups in packed tables that a plan's hot rows would take.
fn expected_share(plan: &Plan, seen: &[hither_dlrm::run::Seen]) -> f64 {
    use std::collections::HashSet;
    let hot: Vec<Option<HashSet<u32>>> = (plan.tables.iter().zip(&plan.hot))
        .map(|(table, hot)| {
            (table.packing == Packing::Lookup).then(|| hot.iter().copied().collect())
        })
        .collect();
    let (mut all, mut found) = (0u64, 0u64);
    for one in seen {
        if let Some(Some(hot)) = hot.get(one.table as usize) {
            all += 1;
            found += u64::from(hot.contains(&one.row));
        }
    }
    if all == 0 { 0.0 } else { found as f64 / all as f64 }
}

fn millionths(share: Option<f64>) -> u64 {
    share.map_or(UNKNOWN, |share| (share * 1e6) as u64)
}

impl Hotness {
    /// The share now, and before and after the last refresh.
    pub fn shares(&self) -> [Option<f64>; 3] {
        let read = |share: &AtomicU64| {
            Some(share.load(Relaxed))
                .filter(|share| *share != UNKNOWN)
                .map(|share| share as f64 / 1e6)
        };
        [read(&self.now), read(&self.before), read(&self.after)]
    }
}

impl Default for Hotness {
    fn default() -> Self {
        let unknown = || AtomicU64::new(UNKNOWN);
        Self { now: unknown(), before: unknown(), after: unknown(), refreshes: AtomicU64::new(0) }
    }
}
