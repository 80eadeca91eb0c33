//! What a journal says: where its scheduler stood at the end, and whether this program would have decided the
//! same from the same news.

use hither_core::topology::Topology;
use hither_sched::decide::Scheduler;
use hither_sched::forecast::Forecast;
use hither_sched::network::Network;
use hither_sched::policy::{self, Policy, Settings};
use hither_sched::state::{Checkpoints, State};
use hither_sched::topo;

use crate::journal::{self, Journal, Segment, Setup, Turn};
use crate::machines;

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
}

/// The cluster that a setup is about.
pub fn topology(setup: &Setup) -> Result<Topology, Error> {
    let read = topo::read(&[(setup.cluster.as_bytes(), "the journal's cluster")], None);
    read.map(|cluster| cluster.topology).map_err(|error| Error::Setup(error.to_string()))
}

/// The names of the places of level 1.
pub fn racks(setup: &Setup) -> Result<Vec<String>, Error> {
    let topology = topology(setup)?;
    Ok(topology.levels[1].places.iter().map(|place| place.name.clone()).collect())
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
    Ok(entry.build(&settings))
}

/// The books of a segment's cluster, without jobs.
fn empty(segment: &Segment) -> Result<State, Error> {
    let mut names = segment.machines.clone();
    Ok(fresh(&machines::in_order(&topology(&segment.setup)?, &mut names)))
}

/// The scheduler at the beginning of a segment.
pub fn begin(segment: &Segment) -> Result<Scheduler, Error> {
    let (state, policy) = (empty(segment)?, policy(&segment.setup)?);
    Ok(match &segment.snapshot {
        None => Scheduler::new(state, policy),
        Some(snapshot) => Scheduler::restore(state, policy, snapshot.clone())?,
    })
}

/// The same under the policy of another setup. What the policy had learned is kept where it is the same one with
/// the same options.
fn begin_as(segment: &Segment, setup: &Setup) -> Result<Scheduler, Error> {
    let was = &segment.setup;
    if (&was.policy, &was.settings) == (&setup.policy, &setup.settings)
        && let Ok(scheduler) = begin(segment)
    {
        return Ok(scheduler);
    }
    let (state, policy) = (empty(segment)?, policy(setup)?);
    Ok(match &segment.snapshot {
        None => Scheduler::new(state, policy),
        Some(snapshot) => Scheduler::restore_books(state, policy, snapshot.clone())?,
    })
}

/// The scheduler as it was at the end of the journal, under the policy of `setup` or under its own, and the
/// segment that would begin there. Decisions are taken over, not made again: they were carried out, whatever
/// this version of the program thinks of them. What it cannot take over the engine's records will show.
pub fn last(
    journal: &Journal,
    setup: Option<&Setup>,
) -> Result<Option<(Scheduler, Segment)>, Error> {
    let Some((first, mut segment)) = journal.last_segment()? else { return Ok(None) };
    let mut scheduler = begin_as(&segment, setup.unwrap_or(&segment.setup))?;
    for (_, turn) in journal.turns(first, journal.next())? {
        for event in &turn.events {
            let _ = scheduler.observe(turn.now, event.clone());
        }
        let _ = scheduler.apply(turn.now, &turn.decisions);
    }
    if let Some(Setup { policy, settings, partitions, version, .. }) = setup.cloned() {
        let Setup { cluster, epoch_s, .. } = segment.setup;
        segment.setup = Setup { policy, settings, partitions, version, cluster, epoch_s };
    }
    segment.snapshot = Some(scheduler.save());
    Ok(Some((scheduler, segment)))
}

/// What a replay went through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replayed {
    pub segments: u64,
    pub turns: u64,
    pub events: u64,
    pub decisions: u64,
    /// The first decision of each segment that this program would make otherwise, in words.
    pub differences: Vec<String>,
}

/// Makes every decision of a journal again. `each` sees every turn that came out the same.
pub fn replay(journal: &Journal, mut each: impl FnMut(&Turn)) -> Result<Replayed, Error> {
    let starts = journal.segment_starts()?;
    let mut replayed = Replayed::default();
    for (at, &first) in starts.iter().enumerate() {
        let end = starts.get(at + 1).copied().unwrap_or(journal.next());
        let segment = journal.segment(first)?;
        let mut scheduler = begin(&segment)?;
        replayed.segments += 1;
        for (number, turn) in journal.turns(first, end)? {
            if let Some(difference) = again(&mut scheduler, &turn) {
                let version = &segment.setup.version;
                replayed
                    .differences
                    .push(format!("turn {number}, by version {version}: {difference}"));
                break;
            }
            replayed.turns += 1;
            replayed.events += turn.events.len() as u64;
            replayed.decisions += turn.decisions.len() as u64;
            each(&turn);
        }
    }
    Ok(replayed)
}

/// Goes through one turn again; what is not the same.
fn again(scheduler: &mut Scheduler, turn: &Turn) -> Option<String> {
    for event in &turn.events {
        if let Err(error) = scheduler.observe(turn.now, event.clone()) {
            return Some(format!("the news is refused now: {error}"));
        }
    }
    let decisions = scheduler.decide(turn.now);
    let (now, then) = (format!("{decisions:?}"), format!("{:?}", turn.decisions));
    (decisions != turn.decisions).then(|| format!("decides {now} now, the journal says {then}"))
}
