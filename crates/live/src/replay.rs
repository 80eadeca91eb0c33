//! Makes every decision of a journal again from the same news, and compares.

use hither_core::topology::Topology;
use hither_sched::decide::Scheduler;
use hither_sched::event::Event;
use hither_sched::forecast::Forecast;
use hither_sched::network::Network;
use hither_sched::policy::{self, Policy, Settings};
use hither_sched::state::{Checkpoints, State};
use hither_sched::topo;

use crate::journal::{self, Journal, Segment, Setup, Turn};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Journal(#[from] journal::Error),
    #[error("the journal was written with policy {0}, which this version does not have")]
    UnknownPolicy(String),
    #[error("the journal's setup cannot be used: {0}")]
    Setup(String),
    #[error("the journal's snapshot cannot be used: {0}")]
    Restore(#[from] hither_sched::decide::RestoreError),
    #[error("turn {turn}: decided {found}, the journal says {expected}")]
    Differs { turn: u64, found: String, expected: String },
}

/// The cluster that a setup is about.
pub fn topology(setup: &Setup) -> Result<Topology, Error> {
    let read = topo::read(&[(setup.cluster.as_bytes(), "the journal's cluster")], None);
    read.map(|cluster| cluster.topology).map_err(|error| Error::Setup(error.to_string()))
}

pub fn fresh(topology: &Topology) -> State {
    let network = Network::new(topology, 1.0);
    let mut state = State::new(topology, network, Checkpoints::default());
    // Nobody on a real cluster knows true lengths.
    state.forecast = Forecast::default();
    state
}

pub fn policy(setup: &Setup) -> Result<Box<dyn Policy>, Error> {
    let entry =
        policy::find(&setup.policy).ok_or_else(|| Error::UnknownPolicy(setup.policy.clone()))?;
    let settings: Settings =
        toml::from_str(&setup.settings).map_err(|error| Error::Setup(error.to_string()))?;
    Ok((entry.build)(&settings))
}

/// The scheduler at the beginning of a segment.
pub fn begin(segment: &Segment) -> Result<Scheduler, Error> {
    let state = fresh(&topology(&segment.setup)?);
    let policy = policy(&segment.setup)?;
    Ok(match &segment.snapshot {
        None => Scheduler::new(state, policy),
        Some(snapshot) => Scheduler::restore(state, policy, snapshot.clone())?,
    })
}

/// Goes through one turn again.
pub fn again(scheduler: &mut Scheduler, number: u64, turn: &Turn) -> Result<(), Error> {
    for event in &turn.events {
        let told = scheduler.observe(turn.now, event.clone());
        told.map_err(|error| Error::Differs {
            turn: number,
            found: error.to_string(),
            expected: "that the news was taken".into(),
        })?;
    }
    let decisions = scheduler.decide(turn.now);
    if decisions != turn.decisions {
        let (found, expected) = (format!("{decisions:?}"), format!("{:?}", turn.decisions));
        return Err(Error::Differs { turn: number, found, expected });
    }
    Ok(())
}

/// What a replay went through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replayed {
    pub segments: u64,
    pub turns: u64,
    pub events: u64,
    pub decisions: u64,
}

/// Replays a whole journal. `each` sees every turn once it has been made again.
pub fn replay(journal: &Journal, mut each: impl FnMut(&Turn)) -> Result<Replayed, Error> {
    let segments = journal.segments()?;
    let mut replayed = Replayed::default();
    for (at, (first, segment)) in segments.iter().enumerate() {
        let end = segments.get(at + 1).map_or(journal.next(), |(next, _)| *next);
        let mut scheduler = begin(segment)?;
        replayed.segments += 1;
        for (number, turn) in journal.turns(*first, end)? {
            again(&mut scheduler, number, &turn)?;
            replayed.turns += 1;
            replayed.events += turn.events.len() as u64;
            replayed.decisions += turn.decisions.len() as u64;
            each(&turn);
        }
    }
    Ok(replayed)
}

/// The scheduler as it was at the end of the journal, and the segment that it belongs to.
pub fn last(journal: &Journal) -> Result<Option<(Scheduler, Segment)>, Error> {
    let Some((first, mut segment)) = journal.last_segment()? else { return Ok(None) };
    let mut scheduler = begin(&segment)?;
    for (number, turn) in journal.turns(first, journal.next())? {
        again(&mut scheduler, number, &turn)?;
        for event in &turn.events {
            if let Event::Added { machine, .. } = event {
                segment.machines.push(machine.name.clone());
            }
        }
    }
    Ok(Some((scheduler, segment)))
}
