//! Waiting jobs and their patience. All jobs of one demand are offered the same tier, so they wait
//! in one line, sorted by the worst tier they accept and by claim, and an offer looks only at the
//! heads. Their clocks are deadlines on a stopwatch that the line's jobs share.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use hither_core::Seconds;
use hither_core::topology::Tier;
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, PoolId};
use crate::event::Timer;
use crate::job::JobId;
use crate::order::{SortKey, any_float, pairs};
use crate::policy::queue::{Class, class_of};
use crate::state::Turn;

#[derive(Debug, Serialize, Deserialize)]
pub struct Waiting {
    #[serde(with = "pairs")]
    lines: BTreeMap<Class, Line>,
    /// By job, while it waits.
    patience: BTreeMap<JobId, Patience>,
    /// (since when, job), of all that wait and are not overdue.
    by_release: BTreeSet<(SortKey, JobId)>,
    overdue: BTreeSet<JobId>,
    /// Whether clocks stop while there is nothing to decline.
    #[serde(skip)]
    pub pausing: bool,
}

/// Waiting jobs of one demand.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    levels: Vec<Level>,
    /// The last answer, where jobs weigh each offer: all that were asked declined.
    #[serde(default)]
    answer: Option<Answer>,
}

/// A claim, and whose it is.
pub type Head = (SortKey, JobId);

/// The jobs of a line declined a place of this tier.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Answer {
    pub tier: Tier,
    pub at_s: Seconds,
    /// The job that gives in first, if nothing better comes.
    pub first: JobId,
    /// When it gives in: never, where its timer is infinite and nobody knows what the place costs it.
    #[serde(with = "any_float")]
    pub gives_in_s: Seconds,
}

impl Line {
    /// The next job by claim.
    fn after(&self, last: Option<Head>) -> Option<Head> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = |level: &Level| level.by_claim.range((from, Bound::Unbounded)).next().copied();
        self.levels.iter().filter_map(next).min()
    }
}

/// Those of them that accept the same tiers now.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Level {
    by_claim: BTreeSet<(SortKey, JobId)>,
    /// Those whose clock has not started: nothing was offered to them yet.
    unoffered: BTreeSet<JobId>,
    /// When the others relent, in the time of the watch.
    deadlines: BTreeSet<(SortKey, JobId)>,
    watch: Stopwatch,
    /// The alarm that is set.
    alarm: Option<(JobId, Seconds)>,
}

/// Time that passes only while it runs.
#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
struct Stopwatch {
    total_s: Seconds,
    since_s: Option<Seconds>,
}

impl Stopwatch {
    fn read(&self, now: Seconds) -> Seconds {
        self.total_s + self.since_s.map_or(0.0, |since| now - since)
    }

    fn run(&mut self, now: Seconds, running: bool) {
        if running != self.since_s.is_some() {
            self.total_s = self.read(now);
            self.since_s = running.then_some(now);
        }
    }
}

/// How a job waits.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Patience {
    claim: SortKey,
    /// Since when it waits.
    since: SortKey,
    allowed: Tier,
    /// Until when it holds out for the tier, on its level's watch.
    until: Option<SortKey>,
}

impl Waiting {
    pub fn new(pausing: bool) -> Self {
        Self {
            lines: BTreeMap::new(),
            patience: BTreeMap::new(),
            by_release: BTreeSet::new(),
            overdue: BTreeSet::new(),
            pausing,
        }
    }

    pub fn allowed(&self, id: JobId) -> Tier {
        self.patience[&id].allowed
    }

    /// The job with the best claim that accepts what its demand can be offered.
    pub fn first_acceptor(
        &self,
        cluster: &Cluster,
        reserved: &Reserved,
    ) -> Option<(JobId, Tier, PoolId)> {
        let mut first: Option<(SortKey, JobId, Tier, PoolId)> = None;
        for (&(gang, wanted), line) in &self.lines {
            let offered = cluster.best_pool(gang, wanted).filter(|_| reserved.allows(wanted));
            let Some((tier, pool)) = offered else {
                continue;
            };
            let heads = line.levels[tier.level()..].iter().filter_map(|l| l.by_claim.first());
            if let Some(&(claim, id)) = heads.min()
                && first.is_none_or(|f| (claim, id) < (f.0, f.1))
            {
                first = Some((claim, id, tier, pool));
            }
        }
        first.map(|(_, id, tier, pool)| (id, tier, pool))
    }

    /// The demands that are offered something and have to be asked, each with its best claim; and those that
    /// are offered nothing. An answer holds for `again_s`, unless the offer gets better, a job joins or
    /// the first job gives in.
    pub fn demands_to_ask(
        &mut self,
        turn: &Turn,
        reserved: &Reserved,
        again_s: Seconds,
    ) -> (Vec<(Class, Head)>, Vec<Class>) {
        let (mut asked, mut idle) = (Vec::new(), Vec::new());
        for (&(gang, wanted), line) in &mut self.lines {
            let offered =
                turn.state.cluster.best_pool(gang, wanted).filter(|_| reserved.allows(wanted));
            let Some((tier, _)) = offered else {
                line.answer = None;
                idle.push((gang, wanted));
                continue;
            };
            let now = turn.now();
            let holds = |answer: &Answer| {
                tier >= answer.tier && now < answer.at_s + again_s && now < answer.gives_in_s - 1e-6
            };
            if !line.answer.as_ref().is_some_and(holds) {
                line.answer = None;
                asked.extend(line.after(None).map(|head| ((gang, wanted), head)));
            }
        }
        (asked, idle)
    }

    /// The next job of the demand by claim.
    pub fn after(&self, demand: Class, last: Head) -> Option<Head> {
        self.lines.get(&demand)?.after(Some(last))
    }

    /// All of the demand that were asked have declined. Sets the alarm for the first that gives in.
    pub fn answered(&mut self, turn: &mut Turn, demand: Class, answer: Answer) {
        if let Some(line) = self.lines.get_mut(&demand) {
            line.answer = Some(answer);
            if answer.gives_in_s.is_finite() {
                turn.set_timer(Timer::Job(answer.first), answer.gives_in_s);
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.patience.is_empty()
    }

    /// All jobs by claim.
    pub fn by_claim(&self) -> Vec<JobId> {
        let levels = self.lines.values().flat_map(|line| &line.levels);
        let mut all: Vec<Head> = levels.flat_map(|level| &level.by_claim).copied().collect();
        all.sort_unstable();
        all.into_iter().map(|(_, id)| id).collect()
    }

    /// Whether anybody of the demand waits.
    pub fn has(&self, demand: Class) -> bool {
        self.lines.contains_key(&demand)
    }

    /// The best claim but for demands, by the worst tier accepted, that are hopeless.
    pub fn first_claimant(&self, hopeless: &BTreeSet<(Class, Tier)>) -> Option<(f64, JobId)> {
        let heads = self.lines.iter().flat_map(|(&class, line)| {
            let levels = Tier::all(line.levels.len()).zip(&line.levels);
            let hopeful = levels.filter(move |&(tier, _)| !hopeless.contains(&(class, tier)));
            hopeful.filter_map(|(_, level)| level.by_claim.first())
        });
        heads.min().map(|&(claim, id)| (claim.0, id))
    }

    /// Clocks run where free GPUs would do for a job that holds out for better. Returns the jobs
    /// that decline for the first time.
    pub fn decline(&mut self, turn: &Turn, reserved: &Reserved) -> Vec<JobId> {
        let mut declined = Vec::new();
        for (&(gang, wanted), line) in &mut self.lines {
            let offered =
                turn.state.cluster.best_pool(gang, wanted).filter(|_| reserved.allows(wanted));
            for (tier, level) in Tier::all(line.levels.len()).zip(&mut line.levels) {
                let declines = offered.is_some_and(|(offered, _)| tier < offered);
                level.watch.run(turn.now(), declines || !self.pausing);
                if declines {
                    declined.extend(std::mem::take(&mut level.unoffered));
                }
            }
        }
        declined
    }

    /// The job holds out for so long from now on. Returns when it relents if its clock never
    /// stops; `None`: never.
    pub fn start_clock(&mut self, turn: &Turn, id: JobId, hold_out_s: Seconds) -> Option<Seconds> {
        let patience = self.patience.get_mut(&id).expect("it waits");
        let line = self.lines.get_mut(&class_of(turn.state.job(id))).expect("it is in line");
        let level = &mut line.levels[patience.allowed.level()];
        let from_s = level.watch.read(turn.now());
        patience.until = Some(SortKey(from_s + hold_out_s));
        level.unoffered.remove(&id);
        level.deadlines.insert((SortKey(from_s + hold_out_s), id));
        hold_out_s.is_finite().then_some(turn.now() + hold_out_s)
    }

    /// One alarm a level: for the job that relents first, if its clock runs.
    pub fn set_alarms(&mut self, turn: &mut Turn) {
        let now = turn.now();
        for level in self.lines.values_mut().flat_map(|line| &mut line.levels) {
            let Some(&(until, id)) = level.deadlines.first().filter(|d| d.0.0.is_finite()) else {
                continue;
            };
            let at_s = now + (until.0 - level.watch.read(now)).max(0.0);
            let is_set = level.alarm.is_some_and(|(j, s)| j == id && (s - at_s).abs() < 1e-6);
            if level.watch.since_s.is_some() && !is_set {
                level.alarm = Some((id, at_s));
                turn.set_timer(Timer::Job(id), at_s);
            }
        }
    }

    /// Whether the job has held out as long as it was going to. An alarm may be early: the watch
    /// may have stood still since it was set.
    pub fn is_time(&mut self, turn: &Turn, id: JobId) -> bool {
        let Some(patience) = self.patience.get(&id).copied() else {
            return false;
        };
        let line = self.lines.get_mut(&class_of(turn.state.job(id))).expect("it is in line");
        let level = &mut line.levels[patience.allowed.level()];
        level.alarm = None;
        let now_s = level.watch.read(turn.now());
        patience.until.is_some_and(|until| now_s >= until.0 - 1e-6)
    }

    pub fn join(&mut self, turn: &Turn, id: JobId, claim: f64, allowed: Tier) {
        let job = turn.state.job(id);
        let (now, pausing) = (turn.now(), self.pausing);
        let line = self.lines.entry(class_of(job)).or_insert_with(|| {
            let mut level = Level::default();
            level.watch.run(now, !pausing);
            Line { levels: vec![level; turn.state.cluster.levels.len()], answer: None }
        });
        let claim = SortKey(claim);
        line.answer = None;
        line.levels[allowed.level()].by_claim.insert((claim, id));
        line.levels[allowed.level()].unoffered.insert(id);
        let since = SortKey(job.since_s);
        self.by_release.insert((since, id));
        self.patience.insert(id, Patience { claim, since, allowed, until: None });
    }

    /// The job waits no more. Returns the worst tier that it accepted.
    pub fn leave(&mut self, turn: &Turn, id: JobId) -> Option<Tier> {
        let patience = self.patience.remove(&id)?;
        let job = turn.state.job(id);
        let line = self.lines.get_mut(&class_of(job)).expect("it is in line");
        let level = &mut line.levels[patience.allowed.level()];
        level.by_claim.remove(&(patience.claim, id));
        level.unoffered.remove(&id);
        line.answer = line.answer.filter(|answer| answer.first != id);
        if let Some(until) = patience.until {
            level.deadlines.remove(&(until, id));
        }
        if line.levels.iter().all(|l| l.by_claim.is_empty()) {
            self.lines.remove(&class_of(job));
        }
        self.by_release.remove(&(patience.since, id));
        self.overdue.remove(&id);
        Some(patience.allowed)
    }

    /// Of the jobs that have waited for so long, the first with an id of at least `from`.
    pub fn overdue(&mut self, now: Seconds, overdue_s: Seconds, from: JobId) -> Option<JobId> {
        while let Some(&(SortKey(since_s), id)) = self.by_release.first()
            && now - since_s >= overdue_s
        {
            self.by_release.pop_first();
            self.overdue.insert(id);
        }
        self.overdue.range(from..).next().copied()
    }
}

/// How long jobs waited that started lately.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct UsualWait {
    starts: f64,
    mean_s: Seconds,
    /// The mean when the present turn began: one bound holds for the whole turn.
    pub at_turn_s: Seconds,
}

/// The mean is over about so many starts.
const STARTS_MAX: f64 = 512.0;

impl UsualWait {
    pub fn add(&mut self, waited_s: Seconds) {
        self.starts = (self.starts + 1.0).min(STARTS_MAX);
        self.mean_s += (waited_s - self.mean_s) / self.starts;
    }

    pub fn begin_turn(&mut self) {
        self.at_turn_s = self.mean_s;
    }
}

/// GPU types whose free GPUs are reserved for overdue jobs.
#[derive(Debug, Default)]
pub struct Reserved {
    all: bool,
    pools: BTreeSet<PoolId>,
}

impl Reserved {
    pub fn add(&mut self, wanted: Option<PoolId>) {
        match wanted {
            Some(pool) => {
                self.pools.insert(pool);
            }
            None => self.all = true,
        }
    }

    pub fn is_everything(&self) -> bool {
        self.all
    }

    /// Whether a job that wants this type takes nothing that is reserved.
    pub fn allows(&self, wanted: Option<PoolId>) -> bool {
        match wanted {
            Some(pool) => !self.all && !self.pools.contains(&pool),
            None => !self.all && self.pools.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_wait_follows_the_last_starts() {
        let mut usual = UsualWait::default();
        usual.begin_turn();
        [10.0, 20.0, 30.0].into_iter().for_each(|waited_s| usual.add(waited_s));
        assert_eq!(usual.at_turn_s, 0.0, "one bound holds for the whole turn");
        usual.begin_turn();
        assert_eq!(usual.at_turn_s, 20.0);
        (0..10_000).for_each(|_| usual.add(500.0));
        usual.begin_turn();
        assert!((usual.at_turn_s - 500.0).abs() < 1.0, "old starts are forgotten");
    }
}
