//! The driver: look, tell the scheduler, let it decide, write that down, act.
//!
//! The driver has no memory of its own that matters. What is decided is in the journal, what is
//! done is in the engine's records, and each step works out the difference anew.

use hither_core::Seconds;
use hither_core::topology::Topology;
use hither_sched::decide::Scheduler;
use hither_sched::event::{Action, Decision, Event};
use hither_sched::profile::Library;
use hither_sched::state::Phase;
use hither_sched::topo;

use crate::engine::{self, Engine, Order, Seen};
use crate::journal::{self, Journal, Said, Segment, Setup, Turn};
use crate::learn::Learnt;
use crate::news::{self, Managed, View};
use crate::orders::{self, Limits, Patience};
use crate::places::Places;
use crate::replay;
use crate::say;
use crate::wish::Wish;

/// Turns between two snapshots.
const SEGMENT_TURNS: u64 = 1000;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Engine(#[from] engine::Error),
    #[error(transparent)]
    Journal(#[from] journal::Error),
    #[error("{0}; give another --state to start anew")]
    Replay(#[from] replay::Error),
    #[error(
        "the journal was written with policy {found}, not {expected}; give --policy {found}, or \
         another --state"
    )]
    OtherPolicy { found: String, expected: String },
}

#[derive(Debug, Clone)]
pub struct Options {
    pub limits: Limits,
    /// Whether orders go to the engine.
    pub act: bool,
    /// How long turns are kept.
    pub keep_s: Seconds,
}

/// Figures since the start of the process, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counters {
    pub looks: u64,
    pub turns: u64,
    pub starts: u64,
    pub stops: u64,
    pub refusals: u64,
    pub orders: u64,
    pub complaints: u64,
    pub failures: u64,
}

pub struct Driver<E> {
    pub engine: E,
    pub scheduler: Scheduler,
    pub journal: Journal,
    pub setup: Setup,
    pub places: Places,
    pub racks: Vec<String>,
    pub seen: Seen,
    pub counters: Counters,
    pub patience: Patience,
    library: Library,
    learnt: Learnt,
    options: Options,
    segment_begun: u64,
}

/// What a step did.
#[derive(Debug, Default)]
pub struct Step {
    pub orders: Vec<Order>,
    /// Decisions and notes in words.
    pub said: Vec<Said>,
}

/// The topology as it comes back from the journal.
fn settled(topology: &Topology) -> Result<(String, Topology), engine::Error> {
    let text = topo::to_toml(topology);
    let read = topo::read(&[(text.as_bytes(), "cluster")], None)?;
    Ok((text, read.topology))
}

impl<E: Engine> Driver<E> {
    /// Goes on where the journal ends, or begins anew. `now_s` is in Unix time.
    pub fn open(
        engine: E,
        journal: Journal,
        topology: &Topology,
        mut setup: Setup,
        library: Library,
        options: Options,
        now_s: Seconds,
    ) -> Result<Self, Error> {
        let (cluster, topology) = settled(topology)?;
        let mut names: Vec<String> = topology.machines.iter().map(|m| m.name.clone()).collect();
        let mut racks: Vec<String> =
            topology.levels[1].places.iter().map(|place| place.name.clone()).collect();
        let mut learnt = Learnt::default();
        let scheduler = match replay::last(&journal)? {
            Some((scheduler, segment)) if is_same_network(&segment, &topology) => {
                if segment.setup.policy != setup.policy {
                    let (found, expected) = (segment.setup.policy.clone(), setup.policy);
                    return Err(Error::OtherPolicy { found, expected });
                }
                setup.cluster = segment.setup.cluster.clone();
                setup.epoch_s = segment.setup.epoch_s;
                (names, racks) = (segment.machines.clone(), segment.racks.clone());
                learnt = segment.learnt.clone();
                Some(scheduler)
            }
            // The network is another one: what was learned there holds no more.
            _ => {
                setup.cluster = cluster;
                None
            }
        };
        let begun = scheduler.is_some();
        let scheduler = match scheduler {
            Some(scheduler) => scheduler,
            None => Scheduler::new(replay::fresh(&topology), replay::policy(&setup)?),
        };
        let mut driver = Self {
            engine,
            scheduler,
            segment_begun: journal.next(),
            journal,
            setup,
            places: Places::new(names),
            racks,
            seen: Seen::default(),
            counters: Counters::default(),
            patience: Patience::default(),
            library,
            learnt,
            options,
        };
        driver.begin_segment(now_s, begun)?;
        Ok(driver)
    }

    /// Writes a snapshot, and goes on as if restarted from it: whoever replays the journal from
    /// here comes to the same decisions.
    fn begin_segment(&mut self, now_s: Seconds, has_begun: bool) -> Result<(), Error> {
        let segment = Segment {
            at_s: now_s,
            setup: self.setup.clone(),
            snapshot: has_begun.then(|| self.scheduler.save()),
            machines: self.places.names().to_vec(),
            racks: self.racks.clone(),
            learnt: self.learnt.clone(),
        };
        self.journal.begin(&segment, now_s - self.options.keep_s)?;
        self.scheduler = replay::begin(&segment)?;
        self.segment_begun = self.journal.next();
        Ok(())
    }

    /// The scheduler's time.
    pub fn now(&self, now_s: Seconds) -> Seconds {
        now_s - self.setup.epoch_s
    }

    /// One round. `now_s` is in Unix time.
    pub fn step(&mut self, now_s: Seconds) -> Result<Step, Error> {
        self.seen = self.engine.observe()?;
        self.counters.looks += 1;
        if self.journal.next() >= self.segment_begun + SEGMENT_TURNS {
            self.begin_segment(now_s, true)?;
        }
        let now = self.now(now_s);
        let said = self.turn(now, now_s)?;
        self.learn();
        let managed = news::managed(&self.scheduler.state);
        let mut patience = std::mem::take(&mut self.patience);
        patience.tidy(|key| self.seen.jobs.contains_key(key), &self.scheduler.state);
        let orders = orders::orders(self.view(now, &managed), &mut patience, &self.options.limits);
        self.patience = patience;
        let mut step = Step { orders, said };
        if self.options.act && !step.orders.is_empty() {
            self.act(now_s, &mut step)?;
        }
        Ok(step)
    }

    fn view<'a>(&'a self, now: Seconds, managed: &'a Managed) -> View<'a> {
        View {
            now,
            state: &self.scheduler.state,
            managed,
            places: &self.places,
            seen: &self.seen,
            library: &self.library,
            learnt: &self.learnt,
            epoch_s: self.setup.epoch_s,
        }
    }

    /// Tells the scheduler what is new, lets it decide, and writes both down.
    fn turn(&mut self, now: Seconds, now_s: Seconds) -> Result<Vec<Said>, Error> {
        let mut events = self.joining()?;
        let managed = news::managed(&self.scheduler.state);
        let mut found = news::news(self.view(now, &managed), &self.patience);
        let mut said = say::notes(std::mem::take(&mut found.notes), now_s);
        events.extend(found.events());
        let due = self.scheduler.state.timers.iter().filter(|(_, at_s)| **at_s <= now);
        events.extend(due.map(|(timer, _)| Event::Timer(*timer)));
        events.retain(|event| self.take(now, event, now_s, &mut said));
        // Timers are armed anew after a restart, and news may have been said before.
        if events.is_empty() {
            return Ok(said);
        }
        let decisions = self.scheduler.decide(now);
        said.extend(say::decisions(&decisions, &self.scheduler.state, &self.places, now_s));
        self.count(&decisions);
        let turn = Turn { now, events, decisions, said };
        self.journal.append(&turn)?;
        Ok(turn.said)
    }

    /// Nodes that have joined the cluster.
    fn joining(&mut self) -> Result<Vec<Event>, Error> {
        if self.seen.nodes.keys().all(|name| self.places.id(name).is_some()) {
            return Ok(Vec::new());
        }
        let (topology, _) = self.engine.topology()?;
        let events = news::joining(&self.places, &topology, &mut self.racks);
        for event in &events {
            if let Event::Added { machine, .. } = event {
                self.places.add(&machine.name);
            }
        }
        Ok(events)
    }

    /// Whether the scheduler took the news. News that cannot be true is a bug or a record that
    /// changed while it was read; the next look sees more.
    fn take(&mut self, now: Seconds, event: &Event, now_s: Seconds, said: &mut Vec<Said>) -> bool {
        self.before(event);
        match self.scheduler.observe(now, event.clone()) {
            Ok(()) => true,
            Err(error) => {
                said.extend(say::notes(vec![format!("news was not taken: {error}")], now_s));
                false
            }
        }
    }

    /// Counts refusals and forgets reports of runs that end.
    fn before(&mut self, event: &Event) {
        let state = &self.scheduler.state;
        match event {
            Event::Refused(decision) => {
                self.counters.refusals += 1;
                // A start on other GPUs than decided is no reason to give the job up.
                if let Some(&id) = state.in_flight.get(decision)
                    && self.patience.gave_up(*decision)
                    && matches!(state.job(id).phase, Phase::Starting(_))
                {
                    let key = state.job(id).job.name.clone();
                    self.patience.refused(&key, &self.options.limits);
                }
            }
            Event::Lost { job } | Event::Ended { job, .. } => {
                if let Some(job) = state.jobs.get(*job) {
                    self.learnt.forget_run(&job.job.name);
                }
            }
            _ => {}
        }
    }

    fn count(&mut self, decisions: &[Decision]) {
        self.counters.turns += 1;
        for decision in decisions {
            match decision.action {
                Action::Start { .. } => self.counters.starts += 1,
                Action::Stop { .. } => self.counters.stops += 1,
                _ => {}
            }
        }
    }

    /// Learns from the progress that running jobs report.
    fn learn(&mut self) {
        let state = &self.scheduler.state;
        for &id in &state.running {
            let job = state.job(id);
            let Some(seen) = self.seen.jobs.get(&job.job.name) else { continue };
            let wish = Wish::parse(&seen.comment);
            if let (Some(done), Some(at_s), Some(run)) = (wish.done, wish.at_s, job.run()) {
                let at_s = at_s - self.setup.epoch_s;
                let gpus: Vec<u32> = run.placement.slots.iter().map(|slot| slot.gpus).collect();
                if at_s > job.since_s {
                    let model = &job.job.profile.name;
                    self.learnt.report(&job.job.name, model, &gpus, done, at_s);
                }
            }
        }
    }

    fn act(&mut self, now_s: Seconds, step: &mut Step) -> Result<(), Error> {
        self.counters.orders += step.orders.len() as u64;
        let complaints = self.engine.act(&step.orders)?;
        self.counters.complaints += complaints.len() as u64;
        step.said.extend(complaints.into_iter().map(|complaint| {
            let job = complaint.job.unwrap_or_default();
            Said { job, at_s: now_s, text: format!("Slurm says: {}", complaint.message) }
        }));
        Ok(())
    }

    /// When the next timer runs out, in the scheduler's time.
    pub fn next_timer(&self) -> Option<Seconds> {
        self.scheduler.state.timers.values().copied().min_by(f64::total_cmp)
    }
}

/// Whether the machines that both know are in the same racks.
fn is_same_network(segment: &Segment, topology: &Topology) -> bool {
    let Ok(before) = replay::topology(&segment.setup) else { return false };
    let rack = |topology: &Topology, name: &str| {
        let machine = topology.machines.iter().find(|machine| machine.name == name);
        machine.map(|machine| topology.levels[1].places[machine.parent as usize].name.clone())
    };
    before.machines.iter().all(|machine| {
        let now = rack(topology, &machine.name);
        now.is_none() || now == rack(&before, &machine.name)
    })
}
