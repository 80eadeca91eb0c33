//! What the scheduler has to be told: the difference between its books and what is seen.
//!
//! Nothing here remembers what was done before. That is why a driver that was killed at any moment
//! goes on from what it sees, and why a command that was lost, doubled or refused does no harm.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use hither_core::Seconds;
use hither_core::topology::{Machine, Topology};
use hither_sched::cluster::{PlaceId, Status};
use hither_sched::event::{DecisionId, End, Event};
use hither_sched::job::{Job, JobId, Length, Profile, Terms};
use hither_sched::profile::Library;
use hither_sched::state::{JobState, Phase, State};

use crate::engine::{Key, Seen, SeenJob, Stands, Wants};
use crate::learn::Learnt;
use crate::orders::Patience;
use crate::places::Places;
use crate::wish::Wish;

/// Jobs that the scheduler has, by the engine's key.
pub type Managed = HashMap<Key, JobId>;

/// All jobs that are not over.
pub fn managed(state: &State) -> Managed {
    let first = state.jobs.next_id() - state.jobs.remembered() as JobId;
    let known = (first..state.jobs.next_id()).filter_map(|id| Some((id, state.jobs.get(id)?)));
    known.map(|(id, job)| (job.job.name.clone(), id)).collect()
}

/// What the news are worked out from.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The scheduler's time. Its own clock stands still while there is no news.
    pub now: Seconds,
    pub state: &'a State,
    pub managed: &'a Managed,
    pub places: &'a Places,
    pub seen: &'a Seen,
    pub library: &'a Library,
    pub learnt: &'a Learnt,
    /// Unix time of the scheduler's zero.
    pub epoch_s: Seconds,
}

/// News in the order in which they have to be told: what frees GPUs comes first.
#[derive(Debug, Default)]
pub struct News {
    pub freed: Vec<Event>,
    pub cluster: Vec<Event>,
    pub settled: Vec<Event>,
    pub jobs: Vec<Event>,
    /// Sentences for the log.
    pub notes: Vec<String>,
}

impl News {
    pub fn events(self) -> Vec<Event> {
        [self.freed, self.cluster, self.settled, self.jobs].into_iter().flatten().collect()
    }
}

pub fn news(view: View<'_>, patience: &Patience) -> News {
    let mut news = News::default();
    let mut in_order: Vec<(&Key, JobId)> = view.managed.iter().map(|(k, id)| (k, *id)).collect();
    in_order.sort_unstable_by_key(|(_, id)| *id);
    for (key, id) in in_order {
        let job = view.state.job(id);
        match view.seen.jobs.get(key) {
            // The engine has forgotten it: it ended while nobody looked.
            None => news.freed.push(Event::Ended { job: id, how: End::Cancelled }),
            Some(SeenJob { stands: Stands::Over(how), .. }) => {
                news.freed.push(Event::Ended { job: id, how: *how });
            }
            Some(seen) => about_job(view, patience, (id, job), seen, &mut news),
        }
    }
    about_machines(view, &mut news);
    submissions(view, patience, &mut news);
    news
}

fn about_job(
    view: View<'_>,
    patience: &Patience,
    (id, job): (JobId, &JobState),
    seen: &SeenJob,
    news: &mut News,
) {
    let key = &job.job.name;
    match (&job.phase, seen.stands) {
        (Phase::Waiting, Stands::Running) => found(view, id, job, seen, news),
        (Phase::Waiting, Stands::Queued) if !is_requeued(seen) => {
            news.notes.push(format!("job {key} was released by hand: it is Slurm's from now on"));
            news.freed.push(Event::Ended { job: id, how: End::Cancelled });
        }
        // The scheduler may have decided anew before it heard of the last refusal.
        (Phase::Waiting | Phase::Starting(_), Stands::Held) if patience.is_handed_over(key) => {
            news.notes.push(format!("job {key} would start nowhere: it is left to Slurm"));
            news.freed.push(Event::Ended { job: id, how: End::Cancelled });
        }
        (Phase::Starting(start), Stands::Running) => {
            let as_decided =
                seen.holds.is_empty() || view.places.is_at(&start.run.placement, &seen.holds);
            let is_ready = start.after.iter().all(|stop| !view.state.in_flight.contains_key(stop));
            if as_decided && is_ready {
                news.settled.push(Event::Started(start.decision));
            } else {
                news.settled.push(Event::Refused(start.decision));
                found(view, id, job, seen, news);
            }
        }
        (Phase::Starting(start), Stands::Held) if patience.gave_up(start.decision) => {
            let reason = &seen.reason;
            news.notes.push(format!("job {key} did not start where it was placed: {reason}"));
            news.settled.push(Event::Refused(start.decision));
        }
        (Phase::Running(run), Stands::Running) => {
            let is_there = seen.holds.is_empty() || view.places.is_at(&run.placement, &seen.holds);
            if is_there {
                news.jobs.extend(progress(view, id, job, seen));
            } else {
                news.freed.push(Event::Lost { job: id });
                found(view, id, job, seen, news);
            }
        }
        (Phase::Running(_), Stands::Held | Stands::Queued) => {
            news.freed.push(Event::Lost { job: id });
        }
        (Phase::Stopping(stop), Stands::Held | Stands::Queued) => {
            let kept = Wish::parse(&seen.comment).saved;
            news.freed.push(Event::Stopped { decision: stop.decision, kept });
        }
        (Phase::Stopping(stop), Stands::Running)
            if is_unstoppable(patience, stop.decision, seen) =>
        {
            news.notes.push(format!("job {key} cannot be requeued: it runs on"));
            news.settled.push(Event::Refused(stop.decision));
        }
        _ => {}
    }
}

fn is_unstoppable(patience: &Patience, decision: DecisionId, seen: &SeenJob) -> bool {
    !seen.can_requeue || patience.gave_up(decision)
}

/// Whether the engine put a job of ours back in its own queue: after a node failed, for instance.
/// Then it is still bound to the nodes that were decided.
pub fn is_requeued(seen: &SeenJob) -> bool {
    seen.restarts > 0 && !seen.required.is_empty()
}

/// A job runs that the books do not have running there.
fn found(view: View<'_>, id: JobId, job: &JobState, seen: &SeenJob, news: &mut News) {
    let placement = view.places.placement(&view.state.cluster, &seen.holds);
    let is_gang = |gpus: u32| seen.holds.iter().map(|(_, gpus)| gpus).sum::<u32>() == gpus;
    match placement.filter(|_| is_gang(job.gpus())) {
        Some(placement) => {
            news.settled.push(Event::Found { job: id, placement: Arc::new(placement) });
        }
        None => {
            let key = &job.job.name;
            news.notes.push(format!("job {key} runs on other GPUs than it asked for: left alone"));
            news.settled.push(Event::Ended { job: id, how: End::Cancelled });
        }
    }
}

/// What a running job reported; without reports, what its profile says.
fn progress(view: View<'_>, id: JobId, job: &JobState, seen: &SeenJob) -> Option<Event> {
    let Phase::Running(run) = &job.phase else { return None };
    let wish = Wish::parse(&seen.comment);
    let network = &view.state.network;
    let expected = || {
        let shape = network.shape(&view.state.cluster, &run.placement);
        1.0 / network.iteration_s(&job.job.profile, &shape)
    };
    let report = wish.done.zip(wish.at_s).map(|(done, at_s)| (done, at_s - view.epoch_s));
    // Reports of an earlier run say nothing about this one's pace.
    if let Some((done, at_s)) = report.filter(|&(_, at_s)| at_s > job.since_s) {
        let (pace_s, pace_done) = (run.pace.since_s, run.pace.done);
        if at_s <= pace_s || done < pace_done {
            return None;
        }
        let rate = view.learnt.rate(&job.job.name, done, at_s);
        let known = Some(run.pace.rate).filter(|rate| *rate > 0.0);
        let rate = rate.or(known).or_else(|| job.job.profile.is_known().then(expected))?;
        let now_done = done + rate * (view.now - at_s).max(0.0);
        let is_news = view.learnt.is_new(&job.job.name, done, at_s);
        return is_news.then_some(Event::Progress { job: id, done: now_done, rate });
    }
    let is_silent = run.pace.rate == 0.0 && job.job.profile.is_known();
    is_silent.then(|| Event::Progress { job: id, done: run.pace.done, rate: expected() })
}

fn about_machines(view: View<'_>, news: &mut News) {
    let machines = &view.state.cluster.machines;
    let mut foreign: BTreeMap<&str, u32> = BTreeMap::new();
    for (key, job) in &view.seen.jobs {
        let holds = matches!(job.stands, Stands::Running | Stands::Leaving);
        if holds && !view.managed.contains_key(key) {
            for (node, gpus) in &job.holds {
                *foreign.entry(node).or_default() += gpus;
            }
        }
    }
    for (id, machine) in (0..).zip(machines) {
        let name = view.places.name(id);
        let node = view.seen.nodes.get(name);
        let is_empty = machine.taken == 0 && machine.stopping.is_empty();
        let status = match node {
            Some(node) => node.status,
            None if is_empty => Status::Gone,
            None => Status::Draining,
        };
        if status != machine.status {
            let state = node.map_or("gone", |node| &node.state);
            news.notes.push(format!("node {name} is {state}"));
            news.cluster.push(Event::Machine { machine: id, status });
        }
        if let Some(gpus) = node.map(|node| node.gpus).filter(|gpus| *gpus != machine.gpus) {
            news.cluster.push(Event::Resized { machine: id, gpus });
        }
        let gpus = foreign.get(name).copied().unwrap_or(0);
        if gpus != machine.foreign {
            news.cluster.push(Event::Foreign { machine: id, gpus });
        }
    }
}

/// Nodes of the topology that are not in the books yet, each with the place of level 2 around it. A rack
/// that is new gets the next number; places of higher levels are those of the network `before`.
pub fn joining(
    places: &Places,
    topology: &Topology,
    before: &Topology,
    racks: &mut Vec<String>,
) -> Vec<(Machine, PlaceId)> {
    let is_new = |machine: &&Machine| places.id(&machine.name).is_none();
    let mut place = |machine: &Machine| {
        let rack = &topology.levels[1].places[machine.parent as usize];
        let number = racks.iter().position(|known| *known == rack.name).unwrap_or_else(|| {
            racks.push(rack.name.clone());
            racks.len() - 1
        });
        let around = topology.levels.get(2).and_then(|level| {
            let name = &level.places[rack.parent as usize].name;
            before.levels.get(2)?.places.iter().position(|place| place.name == *name)
        });
        let machine = Machine { parent: number as u32, ..machine.clone() };
        (machine, around.unwrap_or_default() as PlaceId)
    };
    topology.machines.iter().filter(is_new).map(&mut place).collect()
}

/// Held jobs that are new.
fn submissions(view: View<'_>, patience: &Patience, news: &mut News) {
    let is_new = |(key, job): &(&Key, &SeenJob)| {
        job.managed
            && job.stands == Stands::Held
            && !job.is_early
            && !view.managed.contains_key(*key)
            && !patience.is_handed_over(key)
    };
    let mut new: Vec<(&Key, &SeenJob)> = view.seen.jobs.iter().filter(is_new).collect();
    new.sort_by(|a, b| {
        a.1.submitted_s.total_cmp(&b.1.submitted_s).then_with(|| number(a.0).cmp(&number(b.0)))
    });
    let jobs: Vec<Arc<Job>> = new
        .into_iter()
        .filter_map(|(key, seen)| Some(Arc::new(job(view, key, seen)?)))
        .filter(|job| view.state.admits(job))
        .collect();
    if !jobs.is_empty() {
        news.jobs.push(Event::Submitted(jobs));
    }
}

/// Job and task numbers, so that 9 comes before 10.
fn number(key: &str) -> Vec<u64> {
    key.split('_').map(|part| part.parse().unwrap_or(u64::MAX)).collect()
}

/// The job as the scheduler understands it; `None`: not one that Hither places.
pub fn job(view: View<'_>, key: &Key, seen: &SeenJob) -> Option<Job> {
    let Wants::Gpus { count, gpu_type, split } = &seen.wants else { return None };
    let wish = Wish::parse(&seen.comment);
    Some(Job {
        name: key.clone(),
        user: seen.user.clone(),
        gpus: *count,
        terms: Terms { split: *split, preemptible: seen.can_requeue },
        gpu_type: gpu_type.clone(),
        submit_s: seen.submitted_s - view.epoch_s,
        length: wish.iterations.map_or(Length::Unknown, Length::Iterations),
        profile: profile(view, &wish, seen),
    })
}

/// From the library by the name that the user gave, or by the job's own; else what earlier jobs of
/// that name have shown.
fn profile(view: View<'_>, wish: &Wish, seen: &SeenJob) -> Arc<Profile> {
    let given = wish.model.as_deref().unwrap_or(&seen.name);
    if let Some(known) = view.library.get(given) {
        return known.clone();
    }
    Arc::new(view.learnt.profile(given))
}
