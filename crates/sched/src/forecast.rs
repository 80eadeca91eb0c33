//! What the scheduler believes of what it cannot know: how much of a job is left, and what a tier
//! would cost it. Policies ask here and nowhere else.
//!
//! The cost of a place begins with a prior: the closed forms of an idle network and the job's profile, as
//! told. What runs of the same model and size took at that tier, and what all runs took at that place,
//! corrects it: so traffic that nobody declared is anticipated, and so is what neighbours usually do to each
//! other.
//! Lengths come from the user if the user gave one; otherwise, and once a job has run past what was told,
//! from jobs of the same size that ended lately.

use std::collections::{BTreeMap, VecDeque};

use hither_core::Seconds;
use hither_core::topology::{LEVELS_MAX, Tier};
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, PlaceId, PoolId};
use crate::job::{Job, Length};
use crate::network::Network;
use crate::order::{SortKey, pairs};
use crate::state::{JobState, Phase};

/// What can be said of a job when it is submitted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The GPU type that it asks for.
    pub pool: Option<PoolId>,
    /// The lowest tier that could ever hold it.
    pub best: Tier,
    /// Iteration time of a compact placement at each tier on an idle network; tiers below the best
    /// count as the best, and those that the cluster does not have as the widest. `None`: nobody
    /// knows its profile.
    pub iteration_s: Option<[Seconds; LEVELS_MAX]>,
    /// Infinite if nobody knows its length.
    pub iterations: f64,
}

impl Estimate {
    /// What can be said of the job; `None` if the cluster could never hold it.
    pub fn new(job: &Job, cluster: &Cluster, network: &Network) -> Option<Self> {
        let pool = match &job.gpu_type {
            None => None,
            Some(name) => Some(cluster.pool_named(name)?),
        };
        let best = cluster.best_tier(job.demand(), pool)?;
        let largest = cluster.largest_pool(job.demand(), pool, best);
        let known = job.profile.is_known();
        let iterations = match job.length {
            Length::Iterations(n) => n,
            // Background traffic lengthens a job: what a trace recorded is its length without.
            Length::Seconds(s) if known => {
                let quiet = network.typical_quiet(job.gpus, largest, best);
                s / network.iteration_s(&job.profile, &quiet)
            }
            Length::Seconds(_) | Length::Unknown => f64::INFINITY,
        };
        let at = |tier: Tier| {
            network.iteration_s(&job.profile, &network.typical(job.gpus, largest, tier))
        };
        let iteration_s = known.then(|| {
            let mut iteration_s = [at(best); LEVELS_MAX];
            for tier in cluster.tiers().filter(|&tier| tier > best) {
                iteration_s[tier.level()..].fill(at(tier));
            }
            iteration_s
        });
        Some(Self { pool, best, iteration_s, iterations })
    }
}

/// Ended jobs that are remembered for each size.
const ENDED_MAX: usize = 512;
/// Fewer jobs that lasted longer say nothing of how much longer.
const LONGER_MIN: usize = 8;
/// What is left of a job of which nothing at all is known, at least.
const LEFT_MIN_S: Seconds = 3600.0;

/// Beliefs, and what they have been learned from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Whether told lengths are true, so that a job which has done all of them is at its end.
    pub exact: bool,
    /// By power of two that holds the demand.
    of_size: BTreeMap<u32, Ended>,
    all: Ended,
    /// How much longer runs took than on idle links, by model, size of the gang and tier.
    #[serde(default)]
    by_model: BTreeMap<String, Paces>,
    /// When each model was heard of last, counted in news.
    #[serde(default)]
    used: BTreeMap<String, u64>,
    #[serde(default)]
    news: u64,
    /// The same by tier and place, beyond what the model explains.
    #[serde(default, with = "pairs")]
    by_place: BTreeMap<(Tier, PlaceId), Excess>,
}

/// Models whose pace is remembered.
const MODELS_MAX: usize = 4096;
/// Each run makes what earlier ones showed count less by one part in so many.
const MEMORY_RUNS: f64 = 32.0;
/// Fewer runs show nothing.
const RUNS_MIN: f64 = 3.0;
/// Runs that are shorter say nothing about their place.
const RUN_MIN_S: Seconds = 600.0;

/// Running time, and what it was expected to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    spent_s: Seconds,
    expected_s: Seconds,
}

impl Spent {
    pub(crate) fn add(&mut self, spent_s: Seconds, expected_s: Seconds) {
        self.spent_s += spent_s;
        self.expected_s += expected_s;
    }

    /// What has come to it since an earlier state of it.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            spent_s: self.spent_s - earlier.spent_s,
            expected_s: self.expected_s - earlier.expected_s,
        }
    }

    /// Whether it is at least as much time as another.
    pub(crate) fn is_as_long_as(&self, other: &Self) -> bool {
        self.spent_s >= other.spent_s
    }

    /// How many times as long as expected it took, if it was long enough to say.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let is_long = self.spent_s >= RUN_MIN_S && self.expected_s > 0.0;
        is_long.then(|| self.spent_s / self.expected_s)
    }
}

/// By how much runs took longer than expected. Profiles may be wrong, each by another factor, so the mean
/// counts only as far as the spread of the runs leaves no doubt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Excess {
    runs: f64,
    /// Mean and variance of the logarithm of the ratio.
    mean: f64,
    variance: f64,
}

impl Excess {
    fn add(&mut self, log_ratio: f64) {
        self.runs = self.runs * (1.0 - 1.0 / MEMORY_RUNS) + 1.0;
        let share = 1.0 / self.runs;
        let off = log_ratio - self.mean;
        self.mean += share * off;
        self.variance = (1.0 - share) * (self.variance + share * off * off);
    }

    /// The factor that the runs show beyond doubt: two standard errors below their mean, and at least 1.
    fn factor(&self) -> f64 {
        self.log_factor().exp()
    }

    fn log_factor(&self) -> f64 {
        if self.runs < RUNS_MIN || self.mean <= 0.0 {
            return 0.0;
        }
        let error = (self.variance / (self.runs - 1.0)).sqrt();
        (self.mean - 2.0 * error).max(0.0)
    }
}

/// How much longer runs of one model took than on idle links, by size of the gang, a power of two, and tier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<u32, [Excess; LEVELS_MAX]>", into = "BTreeMap<u32, [Excess; LEVELS_MAX]>")]
struct Paces {
    by_size: BTreeMap<u32, [Excess; LEVELS_MAX]>,
    /// The factor for each size and tier. It is asked for far more often than runs end.
    slowdowns: Vec<(u32, [f64; LEVELS_MAX])>,
}

impl Paces {
    fn add(&mut self, size: u32, tier: Tier, log_ratio: f64) {
        self.by_size.entry(size).or_default()[tier.level()].add(log_ratio);
        self.find_slowdowns();
    }

    /// Nobody is slowed less at a wider tier, nor in a larger gang: where those have shown nothing, the
    /// narrower and the smaller count.
    fn find_slowdowns(&mut self) {
        self.slowdowns.clear();
        let mut of_smaller = [0.0_f64; LEVELS_MAX];
        for (&size, by_tier) in &self.by_size {
            let mut of_narrower = 0.0_f64;
            for (most, excess) in of_smaller.iter_mut().zip(by_tier) {
                of_narrower = of_narrower.max(excess.log_factor());
                *most = most.max(of_narrower);
            }
            self.slowdowns.push((size, of_smaller.map(f64::exp)));
        }
    }

    fn slowdown(&self, size: u32, tier: Tier) -> f64 {
        let up_to = self.slowdowns.partition_point(|&(known, _)| known <= size);
        self.slowdowns[..up_to].last().map_or(1.0, |(_, by_tier)| by_tier[tier.level()])
    }
}

impl From<BTreeMap<u32, [Excess; LEVELS_MAX]>> for Paces {
    fn from(by_size: BTreeMap<u32, [Excess; LEVELS_MAX]>) -> Self {
        let mut paces = Self { by_size, slowdowns: Vec::new() };
        paces.find_slowdowns();
        paces
    }
}

impl From<Paces> for BTreeMap<u32, [Excess; LEVELS_MAX]> {
    fn from(paces: Paces) -> Self {
        paces.by_size
    }
}

impl Forecast {
    /// Takes told lengths for the truth.
    pub fn exact() -> Self {
        Self { exact: true, ..Self::default() }
    }

    /// Iterations that the job still has to do; `None` if neither they nor its pace can be told.
    pub fn left(&self, job: &JobState, now: Seconds) -> Option<f64> {
        self.told_left(job, now).or_else(|| Some(self.expected_s(job, now) * pace(job)?))
    }

    /// Time that the job still needs at its best place if nothing disturbs it.
    pub fn left_s(&self, job: &JobState, now: Seconds) -> Seconds {
        match (self.told_left(job, now), job.iteration_s, pace(job)) {
            (Some(left), Some(iteration_s), _) => left * iteration_s[0],
            (Some(left), None, Some(pace)) => left / pace,
            _ => self.expected_s(job, now),
        }
    }

    /// Time that the whole job takes at its best place on an idle network.
    pub fn whole_s(&self, job: &JobState, now: Seconds) -> Seconds {
        match (self.told_left(job, now), job.iteration_s) {
            (Some(_), Some(iteration_s)) => job.iterations * iteration_s[0],
            _ => job.held_at(now) + self.left_s(job, now),
        }
    }

    /// How much longer an iteration takes at the widest tier than at the best.
    pub fn sensitivity(&self, job: &JobState) -> f64 {
        job.iteration_s.map_or(1.0, |iteration_s| iteration_s[LEVELS_MAX - 1] / iteration_s[0])
    }

    /// Time that a running job would save over what is left of it at its best tier; `None`: nobody knows.
    pub fn saving_s(&self, job: &JobState, now: Seconds, learned: bool) -> Option<Seconds> {
        let Phase::Running(run) = &job.phase else { return None };
        let alone_s = job.iteration_s?[job.best.level()];
        let slowdown = match learned {
            true => self.slowdown_at(&job.job, job.best) * job.own_pace(self),
            false => 1.0,
        };
        let left = self.left(job, now).filter(|_| run.pace.rate > 0.0)?;
        Some(left * (1.0 / run.pace.rate - alone_s * slowdown))
    }

    /// How much longer an iteration of the job takes at a place than on idle links, as far as runs have shown.
    pub fn slowdown(&self, job: &Job, tier: Tier, place: PlaceId) -> f64 {
        let of_place = self.by_place.get(&(tier, place)).map_or(1.0, Excess::factor);
        self.slowdown_at(job, tier) * of_place
    }

    /// The same at any place of the tier.
    pub fn slowdown_at(&self, job: &Job, tier: Tier) -> f64 {
        let paces = self.by_model.get(&job.profile.name);
        paces.map_or(1.0, |paces| paces.slowdown(job.gpus.next_power_of_two(), tier))
    }

    /// A run of the job there took so many times as long as on idle links.
    pub(crate) fn learn_pace(&mut self, job: &Job, tier: Tier, place: PlaceId, ratio: f64) {
        let explained = self.slowdown_at(job, tier);
        self.by_place.entry((tier, place)).or_default().add((ratio / explained).ln());
        let model = &job.profile.name;
        if !self.by_model.contains_key(model) {
            if self.by_model.len() >= MODELS_MAX {
                let oldest = self.used.iter().min_by_key(|(_, used)| **used);
                if let Some(oldest) = oldest.map(|(model, _)| model.clone()) {
                    self.used.remove(&oldest);
                    self.by_model.remove(&oldest);
                }
            }
            self.by_model.insert(model.clone(), Paces::default());
        }
        self.news += 1;
        self.used.insert(model.clone(), self.news);
        let paces = self.by_model.get_mut(model).expect("inserted above");
        paces.add(job.gpus.next_power_of_two(), tier, ratio.ln());
    }

    /// The places are others.
    pub(crate) fn forget_places(&mut self) {
        self.by_place.clear();
    }

    /// A job ended after having held its GPUs for so long.
    pub(crate) fn learn(&mut self, gpus: u32, held_s: Seconds) {
        self.of_size.entry(gpus.next_power_of_two()).or_default().add(held_s);
        self.all.add(held_s);
    }

    /// What the user's word leaves to do. A job that has outrun it has no word any more.
    fn told_left(&self, job: &JobState, now: Seconds) -> Option<f64> {
        let left = job.iterations - job.done_at(now);
        (job.iterations.is_finite() && (self.exact || left > 0.0)).then_some(left)
    }

    /// Mean time that jobs which got as far as this one went on for.
    fn expected_s(&self, job: &JobState, now: Seconds) -> Seconds {
        let held_s = job.held_at(now);
        let of_size = self.of_size.get(&job.gpus().next_power_of_two());
        of_size
            .and_then(|ended| ended.residual_s(held_s))
            .or_else(|| self.all.residual_s(held_s))
            .unwrap_or(held_s.max(LEFT_MIN_S))
    }
}

/// Iterations per second: as observed, else at the best place.
fn pace(job: &JobState) -> Option<f64> {
    let observed = match &job.phase {
        Phase::Running(run) => Some(run.pace.rate).filter(|&rate| rate > 0.0),
        _ => None,
    };
    observed.or_else(|| Some(1.0 / job.iteration_s?[0]))
}

/// How long the last jobs held their GPUs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Ended {
    in_order: VecDeque<Seconds>,
    sorted: Vec<Seconds>,
    /// The sum of those from each on, as the residual is asked for far more often than jobs end.
    sum_from: Vec<Seconds>,
}

impl Ended {
    fn add(&mut self, held_s: Seconds) {
        let at =
            |sorted: &[Seconds], s: Seconds| sorted.partition_point(|&t| SortKey(t) < SortKey(s));
        // Sums from here on stay as they are.
        let mut unchanged = 0;
        if self.in_order.len() == ENDED_MAX
            && let Some(oldest_s) = self.in_order.pop_front()
        {
            let oldest = at(&self.sorted, oldest_s);
            self.sorted.remove(oldest);
            self.sum_from.remove(oldest);
            unchanged = oldest;
        }
        self.in_order.push_back(held_s);
        let newest = at(&self.sorted, held_s);
        self.sorted.insert(newest, held_s);
        self.sum_from.insert(newest, 0.0);
        unchanged = if newest < unchanged { unchanged + 1 } else { newest + 1 };
        let mut sum = self.sum_from.get(unchanged).copied().unwrap_or(0.0);
        let changed = self.sum_from[..unchanged].iter_mut().zip(&self.sorted[..unchanged]);
        for (from, held_s) in changed.rev() {
            sum += held_s;
            *from = sum;
        }
    }

    /// Mean time that those which lasted longer than this went on for.
    fn residual_s(&self, held_s: Seconds) -> Option<Seconds> {
        let from = self.sorted.partition_point(|&s| s <= held_s);
        let longer = self.sorted.len() - from;
        (longer >= LONGER_MIN).then(|| (self.sum_from[from] / longer as f64 - held_s).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slowdown_counts_once_runs_agree_on_it() {
        let mut excess = Excess::default();
        for n in 0..20 {
            assert!(n >= 3 || excess.factor() == 1.0, "too few to say");
            excess.add(2f64.ln());
        }
        assert!((excess.factor() - 2.0).abs() < 1e-9);
        // Runs that are wrong by any factor, and right on average, show nothing.
        let mut noise = Excess::default();
        (0..100).for_each(|n| noise.add(if n % 2 == 0 { 0.5 } else { -0.5 }));
        assert_eq!(noise.factor(), 1.0);
    }

    #[test]
    fn the_residual_is_the_mean_of_those_that_lasted_longer() {
        let mut ended = Ended::default();
        (1..=10).for_each(|n| ended.add(f64::from(n) * 100.0));
        assert_eq!(ended.residual_s(0.0), Some(550.0));
        assert_eq!(ended.residual_s(200.0), Some((100.0 + 800.0) / 2.0));
        assert_eq!(ended.residual_s(300.0), None);
    }

    #[test]
    fn only_the_last_jobs_are_remembered() {
        let mut ended = Ended::default();
        (0..2000).for_each(|n| ended.add(if n < 1000 { 1.0 } else { 500.0 }));
        assert_eq!((ended.in_order.len(), ended.sorted.len()), (ENDED_MAX, ENDED_MAX));
        assert_eq!(ended.residual_s(0.0), Some(500.0));
    }

    #[test]
    fn the_model_that_was_used_longest_ago_is_forgotten() {
        let mut forecast = Forecast::default();
        let mut job = crate::fixture::gang(2, None);
        let mut learn = |name: String| {
            let mut profile = (*job.profile).clone();
            profile.name = name;
            job.profile = std::sync::Arc::new(profile);
            forecast.learn_pace(&job, Tier(1), 0, 2.0);
        };
        (0..MODELS_MAX).for_each(|n| learn(format!("{n:04}")));
        learn("0000".into());
        learn("new".into());
        assert_eq!(forecast.by_model.len(), MODELS_MAX);
        let knows = |name: &str| forecast.by_model.contains_key(name);
        assert!(knows("0000") && knows("new") && !knows("0001"));
    }

    proptest! {
        #[test]
        fn slowdowns_are_the_largest_of_smaller_gangs_and_narrower_tiers(
            runs in prop::collection::vec((0u32..5, 0u8..4, -0.5..2.0f64), 0..60),
        ) {
            let mut paces = Paces::default();
            for (size, tier, log_ratio) in runs {
                paces.add(1 << size, Tier(tier), log_ratio);
            }
            for (size, tier) in (0..6).flat_map(|size| (0..4).map(move |tier| (1u32 << size, Tier(tier)))) {
                let up_to = paces.by_size.range(..=size);
                let factors = up_to.flat_map(|(_, by_tier)| by_tier[..=tier.level()].iter());
                let want = factors.map(Excess::factor).fold(1.0, f64::max);
                prop_assert_eq!(paces.slowdown(size, tier), want);
            }
            let saved = serde_json::to_string(&paces).unwrap();
            prop_assert_eq!(serde_json::from_str::<Paces>(&saved).unwrap(), paces);
        }

        #[test]
        fn sums_are_those_of_the_times_that_are_remembered(
            held_s in prop::collection::vec(0u32..50, 0..3 * ENDED_MAX),
        ) {
            let mut ended = Ended::default();
            for held_s in held_s {
                ended.add(f64::from(held_s) * 0.1);
            }
            let mut sum = 0.0;
            for (&from, held_s) in ended.sum_from.iter().zip(&ended.sorted).rev() {
                sum += held_s;
                prop_assert_eq!(from, sum, "to the last bit");
            }
            prop_assert_eq!(ended.sum_from.len(), ended.in_order.len());
        }
    }
}
