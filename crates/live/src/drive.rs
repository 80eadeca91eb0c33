//! The driver: look, tell the scheduler, let it decide, write that down, act.
//!
//! The driver has no memory of its own that matters. What is decided is in the journal, what is
//! done is in the engine's records, and each step works out the difference anew.

use std::collections::HashSet;

use hither_core::Seconds;
use hither_core::topology::Topology;
use hither_sched::decide::Scheduler;
use hither_sched::event::{Action, Decision, Event};
use hither_sched::network::Network;
use hither_sched::profile::Library;
use hither_sched::topo;

use crate::attempts::Limits;
use crate::engine::{self, Engine, Order, Seen};
use crate::jobs::{self, Managed, Memory, View};
use crate::journal::{self, Journal, Said, Segment, Setup, Turn};
use crate::learn::Learnt;
use crate::machines;
use crate::places::Places;
use crate::replay;
use crate::say;

/// Turns between two snapshots.
const SEGMENT_TURNS: u64 = 1000;
/// How often the network is looked at: racks and switches change now and then.
const TOPOLOGY_S: Seconds = 60.0;
/// A clock that is further off than this was wrong, or is wrong now.
const CLOCK_JUMP_S: Seconds = 3600.0;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Engine(#[from] engine::Error),
    #[error(transparent)]
    Journal(#[from] journal::Error),
    #[error("{0}; give another --state to start anew")]
    Replay(#[from] replay::Error),
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
    /// Names of the places of level 1.
    pub racks: Vec<String>,
    pub seen: Seen,
    pub counters: Counters,
    pub memory: Memory,
    /// The scheduler's jobs by the engine's key.
    pub managed: Managed,
    library: Library,
    learnt: Learnt,
    options: Options,
    segment_begun: u64,
    topology_due_s: Seconds,
    /// What was said of the network or the look last, so that it is said once.
    noted: HashSet<String>,
}

/// What a step did.
#[derive(Debug, Default)]
pub struct Step {
    pub orders: Vec<Order>,
    /// Decisions and notes in words.
    pub said: Vec<Said>,
}

impl<E: Engine> Driver<E> {
    /// Goes on where the journal ends, or begins anew. `now_s` is in Unix time. Decisions of the journal are
    /// taken over as they are, whatever this version of the program, this policy or this network would have
    /// decided.
    pub fn open(
        engine: E,
        journal: Journal,
        topology: &Topology,
        mut setup: Setup,
        library: Library,
        options: Options,
        now_s: Seconds,
    ) -> Result<Self, Error> {
        setup.cluster = topo::to_toml(topology);
        let segment = match replay::last(&journal, Some(&setup))? {
            Some((_, segment)) => segment,
            None => {
                let names = topology.machines.iter().map(|machine| machine.name.clone());
                Segment::first(now_s, setup, names.collect())
            }
        };
        let mut driver = Self {
            engine,
            scheduler: replay::begin(&segment)?,
            segment_begun: 0,
            journal,
            places: Places::new(segment.machines.clone()),
            racks: Vec::new(),
            seen: Seen::default(),
            counters: Counters::default(),
            memory: Memory::default(),
            managed: Managed::new(),
            library,
            learnt: segment.learnt.clone(),
            options,
            topology_due_s: now_s + TOPOLOGY_S,
            noted: HashSet::new(),
            setup: segment.setup,
        };
        driver.begin_segment(now_s, segment.snapshot.is_some())?;
        driver.rearrange(topology, now_s, &mut Vec::new())?;
        driver.reset_clock(now_s)?;
        // Nobody remembers until when: they are tried again.
        for (machine, split) in driver.scheduler.state.cluster.closed() {
            driver.memory.attempts.close(machine, split, driver.now(now_s));
        }
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
            learnt: self.learnt.clone(),
        };
        self.journal.begin(&segment, now_s - self.options.keep_s)?;
        self.scheduler = replay::begin(&segment)?;
        self.segment_begun = self.journal.next();
        self.managed = jobs::managed(&self.scheduler.state);
        self.racks = replay::racks(&self.setup)?;
        Ok(())
    }

    /// The scheduler's time goes on from where it was if the clock was set by more than an hour: timers would
    /// otherwise all run out at once, or stand still until the clock has caught up.
    pub fn reset_clock(&mut self, now_s: Seconds) -> Result<(), Error> {
        let ahead_s = self.scheduler.state.now - self.now(now_s);
        if ahead_s > CLOCK_JUMP_S {
            self.shift_clock(now_s, -ahead_s)?;
        }
        Ok(())
    }

    /// The clock was set by so many seconds.
    pub fn shift_clock(&mut self, now_s: Seconds, by_s: Seconds) -> Result<(), Error> {
        self.setup.epoch_s += by_s;
        self.begin_segment(now_s, true)
    }

    /// The scheduler's time.
    pub fn now(&self, now_s: Seconds) -> Seconds {
        now_s - self.setup.epoch_s
    }

    /// One round. `now_s` is in Unix time.
    pub fn step(&mut self, now_s: Seconds) -> Result<Step, Error> {
        self.seen = self.engine.observe()?;
        self.counters.looks += 1;
        let mut said = self.look_at_network(now_s)?;
        if self.journal.next() >= self.segment_begun + SEGMENT_TURNS {
            self.begin_segment(now_s, true)?;
        }
        let now = self.now(now_s);
        said.extend(self.turn(now, now_s)?);
        self.learn();
        let (seen, mut memory) = (&self.seen, std::mem::take(&mut self.memory));
        memory.attempts.retain(|key| seen.jobs.contains_key(key));
        let orders = jobs::orders(self.view(now), &mut memory);
        self.memory = memory;
        let mut step = Step { orders, said };
        if self.options.act && !step.orders.is_empty() {
            self.act(now_s, &mut step)?;
        }
        Ok(step)
    }

    fn view(&self, now: Seconds) -> View<'_> {
        View {
            now,
            state: &self.scheduler.state,
            managed: &self.managed,
            places: &self.places,
            seen: &self.seen,
            library: &self.library,
            learnt: &self.learnt,
            epoch_s: self.setup.epoch_s,
            engine: self.engine.name(),
            limits: &self.options.limits,
        }
    }

    /// Tells the scheduler what is new, lets it decide, and writes both down.
    fn turn(&mut self, now: Seconds, now_s: Seconds) -> Result<Vec<Said>, Error> {
        let mut memory = std::mem::take(&mut self.memory);
        let told = jobs::news(self.view(now), &mut memory);
        let (of_machines, notes) = machines::news(self.view(now), &told.left, &memory.stuck);
        let reopened = memory.attempts.reopened(now);
        self.memory = memory;
        let mut said = say::notes(told.notes, notes, now_s);
        let opened = reopened.into_iter().map(|(machine, split)| Event::Closed {
            machine,
            split,
            is_closed: false,
        });
        let mut events = told.freed;
        events.extend(of_machines);
        events.extend(told.settled);
        events.extend(opened);
        events.extend(told.jobs);
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

    /// Takes in nodes that have joined the cluster, and racks and switches that are others. A network that cannot
    /// be read, as while somebody edits it, leaves the old one in place.
    fn look_at_network(&mut self, now_s: Seconds) -> Result<Vec<Said>, Error> {
        let mut notes = self.seen.notes.clone();
        let is_new = |name: &String| self.places.id(name).is_none();
        let has_joined = self.seen.nodes.keys().any(is_new);
        if has_joined || now_s >= self.topology_due_s {
            self.topology_due_s = now_s + TOPOLOGY_S;
            match self.engine.topology() {
                Ok((topology, _)) => self.rearrange(&topology, now_s, &mut notes)?,
                Err(engine::Error::Topology(error)) => {
                    notes.push(format!(
                        "the new network cannot be used, the old one holds: {error}"
                    ));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let new: Vec<String> =
            notes.iter().filter(|note| !self.noted.contains(*note)).cloned().collect();
        self.noted = notes.into_iter().collect();
        Ok(say::notes(Vec::new(), new, now_s))
    }

    fn rearrange(
        &mut self,
        topology: &Topology,
        now_s: Seconds,
        notes: &mut Vec<String>,
    ) -> Result<(), Error> {
        let mut names = self.places.names().to_vec();
        let before = machines::in_order(&replay::topology(&self.setup)?, &mut names);
        let cluster = topo::to_toml(topology);
        // Read again, so that it is just what a restart will find.
        let setup = Setup { cluster, ..self.setup.clone() };
        let after = machines::in_order(&replay::topology(&setup)?, &mut names);
        if is_alike(&before, &after) {
            return Ok(());
        }
        notes.push("the network is another: nodes or racks have joined or moved".into());
        let network = Network::new(&after, 1.0);
        self.scheduler.rearrange(&after, network);
        (self.setup, self.places) = (setup, Places::new(names));
        self.begin_segment(now_s, true)
    }

    /// Whether the scheduler took the news. News that cannot be true is a bug or a record that
    /// changed while it was read; the next look sees more.
    fn take(&mut self, now: Seconds, event: &Event, now_s: Seconds, said: &mut Vec<Said>) -> bool {
        self.before(event);
        let first_new = self.scheduler.state.jobs.next_id();
        match self.scheduler.observe(now, event.clone()) {
            Ok(()) => {
                if let Event::Submitted(jobs) = event {
                    let keys = jobs.iter().map(|job| job.name.clone());
                    self.managed.extend(keys.zip(first_new..));
                }
                true
            }
            Err(error) => {
                let text = format!("news was not taken: {error}");
                said.extend(say::notes(Vec::new(), vec![text], now_s));
                false
            }
        }
    }

    /// Counts refusals, and forgets reports of runs that end.
    fn before(&mut self, event: &Event) {
        let state = &self.scheduler.state;
        let of_decision = |decision| state.in_flight.get(decision).copied();
        let ends = match event {
            Event::Refused(_) => {
                self.counters.refusals += 1;
                None
            }
            Event::Lost { job } | Event::Ended { job, .. } => Some(*job),
            Event::Stopped { decision, .. } => of_decision(decision),
            _ => None,
        };
        if let Some(job) = ends.and_then(|id| state.jobs.get(id)) {
            self.learnt.forget_run(&job.job.name);
            if matches!(event, Event::Ended { .. }) {
                self.managed.remove(&job.job.name);
            }
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
            if let (Some(done), Some(at_s), Some(run)) = (seen.wish.done, seen.wish.at_s, job.run())
            {
                let at_s = at_s - self.setup.epoch_s;
                if at_s > job.since_s && self.learnt.is_new(&job.job.name, done, at_s) {
                    let gpus: Vec<u32> = run.placement.slots.iter().map(|slot| slot.gpus).collect();
                    let model = &job.job.profile.name;
                    self.learnt.report(&job.job.name, model, &gpus, done, at_s);
                }
            }
        }
    }

    fn act(&mut self, now_s: Seconds, step: &mut Step) -> Result<(), Error> {
        self.counters.orders += step.orders.len() as u64;
        let engine = self.engine.name();
        let complaints = self.engine.act(&step.orders)?;
        self.counters.complaints += complaints.len() as u64;
        step.said.extend(complaints.into_iter().map(|complaint| {
            let job = complaint.job.unwrap_or_default();
            Said { job, at_s: now_s, text: format!("{engine} says: {}", complaint.message) }
        }));
        Ok(())
    }

    /// When the next timer runs out, in the scheduler's time.
    pub fn next_timer(&self) -> Option<Seconds> {
        self.scheduler.state.timers.values().copied().min_by(f64::total_cmp)
    }
}

/// Whether two networks are the same but for the sizes of machines, which the engine tells at every look.
fn is_alike(before: &Topology, after: &Topology) -> bool {
    let sizeless = |topology: &Topology| {
        let mut topology = topology.clone();
        topology.machines.iter_mut().for_each(|machine| machine.gpus = 0);
        topology
    };
    sizeless(before) == sizeless(after)
}
