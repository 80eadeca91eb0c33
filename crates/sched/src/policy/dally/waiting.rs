//! Waiting jobs and their patience. All jobs of one demand are offered the same tier, so they wait
//! in one line, sorted by the worst tier they accept and by claim, and an offer looks only at the
//! heads. Their clocks are deadlines on a stopwatch that the line's jobs share.

use std::collections::{BTreeMap, BTreeSet};

use hither_core::Seconds;
use hither_core::topology::Tier;
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, PoolId};
use crate::event::Timer;
use crate::job::JobId;
use crate::order::{Total, pairs};
use crate::policy::queue::{Class, class_of};
use crate::state::Turn;

#[derive(Debug, Serialize, Deserialize)]
pub struct Waiting {
    #[serde(with = "pairs")]
    lines: BTreeMap<Class, Line>,
    /// By job, while it waits.
    patience: BTreeMap<JobId, Patience>,
    /// (since when, job), of all that wait and are not overdue.
    by_release: BTreeSet<(Total, JobId)>,
    overdue: BTreeSet<JobId>,
    /// Whether clocks stop while there is nothing to decline.
    #[serde(skip)]
    pub pausing: bool,
}

/// Waiting jobs of one demand.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    levels: Vec<Level>,
}

/// Those of them that accept the same tiers now.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Level {
    by_claim: BTreeSet<(Total, JobId)>,
    /// Those whose clock has not started: nothing was offered to them yet.
    unoffered: BTreeSet<JobId>,
    /// When the others relent, in the time of the watch.
    deadlines: BTreeSet<(Total, JobId)>,
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
    claim: Total,
    /// Since when it waits.
    since: Total,
    allowed: Tier,
    /// Since when it holds out for the tier, and until when, on its level's watch.
    clock: Option<(Seconds, Total)>,
}

/// What is known of a job that no longer waits.
#[derive(Debug, Clone, Copy)]
pub struct Left {
    pub allowed: Tier,
    /// How long it held out for that tier; none if it was never offered a worse one.
    pub held_out_s: Option<Seconds>,
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
        saved: &Saved,
    ) -> Option<(JobId, Tier, PoolId)> {
        let mut first: Option<(Total, JobId, Tier, PoolId)> = None;
        for (&(gang, wanted), line) in &self.lines {
            let offered = cluster.best_pool(gang, wanted).filter(|_| saved.leaves(wanted));
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
    pub fn decline(&mut self, turn: &Turn, saved: &Saved) -> Vec<JobId> {
        let mut declined = Vec::new();
        for (&(gang, wanted), line) in &mut self.lines {
            let offered =
                turn.state.cluster.best_pool(gang, wanted).filter(|_| saved.leaves(wanted));
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
        patience.clock = Some((from_s, Total(from_s + hold_out_s)));
        level.unoffered.remove(&id);
        level.deadlines.insert((Total(from_s + hold_out_s), id));
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
        patience.clock.is_some_and(|(_, until)| now_s >= until.0 - 1e-6)
    }

    pub fn join(&mut self, turn: &Turn, id: JobId, claim: f64, allowed: Tier) {
        let job = turn.state.job(id);
        let (now, pausing) = (turn.now(), self.pausing);
        let line = self.lines.entry(class_of(job)).or_insert_with(|| {
            let mut level = Level::default();
            level.watch.run(now, !pausing);
            Line { levels: vec![level; turn.state.cluster.levels.len()] }
        });
        let claim = Total(claim);
        line.levels[allowed.level()].by_claim.insert((claim, id));
        line.levels[allowed.level()].unoffered.insert(id);
        let since = Total(job.since_s);
        self.by_release.insert((since, id));
        self.patience.insert(id, Patience { claim, since, allowed, clock: None });
    }

    pub fn leave(&mut self, turn: &Turn, id: JobId) -> Option<Left> {
        let patience = self.patience.remove(&id)?;
        let job = turn.state.job(id);
        let line = self.lines.get_mut(&class_of(job)).expect("it is in line");
        let level = &mut line.levels[patience.allowed.level()];
        level.by_claim.remove(&(patience.claim, id));
        level.unoffered.remove(&id);
        let held_out_s = patience.clock.map(|(from_s, until)| {
            level.deadlines.remove(&(until, id));
            level.watch.read(turn.now()) - from_s
        });
        if line.levels.iter().all(|l| l.by_claim.is_empty()) {
            self.lines.remove(&class_of(job));
        }
        self.by_release.remove(&(patience.since, id));
        self.overdue.remove(&id);
        Some(Left { allowed: patience.allowed, held_out_s })
    }

    /// Of the jobs that have waited for so long, the first with an id of at least `from`.
    pub fn overdue(&mut self, now: Seconds, overdue_s: Seconds, from: JobId) -> Option<JobId> {
        while let Some(&(Total(since_s), id)) = self.by_release.first()
            && now - since_s >= overdue_s
        {
            self.by_release.pop_first();
            self.overdue.insert(id);
        }
        self.overdue.range(from..).next().copied()
    }
}

/// GPU types whose free GPUs are saved for overdue jobs.
#[derive(Debug, Default)]
pub struct Saved {
    all: bool,
    pools: BTreeSet<PoolId>,
}

impl Saved {
    pub fn save(&mut self, wanted: Option<PoolId>) {
        match wanted {
            Some(pool) => {
                self.pools.insert(pool);
            }
            None => self.all = true,
        }
    }

    pub fn everything(&self) -> bool {
        self.all
    }

    /// Whether a job that wants this type takes nothing that is saved.
    pub fn leaves(&self, wanted: Option<PoolId>) -> bool {
        match wanted {
            Some(pool) => !self.all && !self.pools.contains(&pool),
            None => !self.all && self.pools.is_empty(),
        }
    }
}
