//! Jobs between the books and the engine: gathers what [`reconcile`] decides by, and makes events and orders of
//! what it decides.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use hither_core::Seconds;
use hither_sched::event::{End, Event};
use hither_sched::job::{Job, JobId, Length, Profile, Terms};
use hither_sched::profile::Library;
use hither_sched::state::{JobState, Phase, Start, State, Stop};

use crate::attempts::{Attempt, Attempts, Blame, Limits};
use crate::engine::{Held, Key, Obstacle, Order, Seen, SeenJob, Stands, Wants};
use crate::learn::{Learnt, model_name};
use crate::limits::LimitTable;
use crate::places::Places;
use crate::reconcile::{Act, Asking, Bar, Books, Facts, News, Shown, reconcile};

/// Jobs that the scheduler has, by the engine's key.
pub type Managed = HashMap<Key, JobId>;

/// All jobs that are not over.
pub fn managed(state: &State) -> Managed {
    state.jobs.ids().map(|id| (state.job(id).job.name.clone(), id)).collect()
}

/// What the fates of jobs are worked out from.
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
    /// What the engine is called.
    pub engine: &'a str,
    pub limits: &'a Limits,
}

/// What the driver remembers beside the books.
#[derive(Debug, Default)]
pub struct Memory {
    pub attempts: Attempts,
    pub limits: LimitTable,
    /// Why jobs may not start now, or are left to the engine: in words, as of the last look.
    pub bars: HashMap<Key, String>,
    /// Jobs that are being ended and do not leave, and what they hold.
    pub stuck: BTreeMap<Key, Vec<Held>>,
}

impl Memory {
    fn find_stuck(&mut self, view: View<'_>) {
        let leaving = |job: &SeenJob| job.managed && job.stands == Stands::Leaving;
        self.attempts.left_gone(|key| view.seen.jobs.get(key).is_some_and(leaving));
        self.stuck.clear();
        for (key, seen) in view.seen.jobs.iter().filter(|(_, seen)| leaving(seen)) {
            let since_s = *self.attempts.of(key).leaving_s.get_or_insert(view.now);
            if view.now > since_s + view.limits.stop_s {
                self.stuck.insert(key.clone(), seen.holds.clone());
            }
        }
    }
}

/// Events in the order in which they have to be told: what frees GPUs comes first.
#[derive(Debug, Default)]
pub struct Told {
    pub freed: Vec<Event>,
    pub settled: Vec<Event>,
    pub jobs: Vec<Event>,
    /// Sentences for the log, each with the job that it is about.
    pub notes: Vec<(Key, String)>,
    /// Jobs that nobody has booked any more, whatever they hold.
    pub left: HashSet<Key>,
    /// New jobs, and whether they may not start yet.
    new: Vec<(Key, SeenJob, bool)>,
}

/// The news of all jobs.
pub fn news(view: View<'_>, memory: &mut Memory) -> Told {
    let mut told = Told::default();
    for (key, id, seen, facts) in all_facts(view, memory) {
        if let (Some(news), _) = reconcile(&facts) {
            tell(view, memory, (key, id, seen), news, &mut told);
        }
    }
    submit(view, &mut told);
    told
}

/// The orders for all jobs.
pub fn orders(view: View<'_>, memory: &mut Memory) -> Vec<Order> {
    let mut orders = Vec::new();
    for (key, id, seen, facts) in all_facts(view, memory) {
        if let ((_, Some(order)), Some(seen)) = (reconcile(&facts), seen) {
            let order = order_for(view, key, id, seen, order);
            orders.extend(memory.attempts.of(key).give(order, view.now, view.limits));
        }
    }
    orders
}

type Row<'a> = (&'a Key, Option<JobId>, Option<&'a SeenJob>, Facts);

/// Jobs of the books in the order of their ids, then those that only the engine has.
fn all_facts<'a>(view: View<'a>, memory: &mut Memory) -> Vec<Row<'a>> {
    let mut booked: Vec<(&Key, JobId)> = view.managed.iter().map(|(key, id)| (key, *id)).collect();
    booked.sort_unstable_by_key(|(_, id)| *id);
    let attempts = &memory.attempts;
    let waits = |key: &Key, id: JobId| match view.state.job(id).phase {
        Phase::Waiting | Phase::Parked => true,
        // Its start will be refused at this look.
        Phase::Starting(_) => attempts.has_failed(key),
        _ => false,
    };
    let of_waiting = |(key, id): &(&'a Key, JobId)| {
        let seen = view.seen.jobs.get(*key)?;
        (seen.stands == Stands::Held && waits(key, *id)).then_some((*key, seen))
    };
    let waiting: Vec<(&Key, &SeenJob)> = booked.iter().filter_map(of_waiting).collect();
    let is_promised = |key: &Key| {
        let phase = view.managed.get(key).map(|id| &view.state.job(*id).phase);
        matches!(phase, Some(Phase::Starting(_))) && !attempts.has_failed(key)
    };
    let is_new = |(key, seen): &(&'a Key, &'a SeenJob)| {
        seen.managed && seen.stands == Stands::Held && !view.managed.contains_key(*key)
    };
    let new: Vec<(&Key, &SeenJob)> = view.seen.jobs.iter().filter(is_new).collect();
    let waiting: Vec<(&Key, &SeenJob)> = waiting.into_iter().chain(new.iter().copied()).collect();
    let limited = memory.limits.barred(view.seen, &waiting, view.now, is_promised);
    memory.bars.clear();
    memory.find_stuck(view);
    let mut rows: Vec<Row<'_>> = Vec::new();
    for (key, id) in booked {
        let seen = view.seen.jobs.get(key);
        let facts = facts_of(view, memory, (key, Some(id), seen), limited.get(key));
        rows.push((key, Some(id), seen, facts));
    }
    for (key, seen) in new {
        let facts = facts_of(view, memory, (key, None, Some(seen)), limited.get(key));
        rows.push((key, None, Some(seen), facts));
    }
    rows
}

fn facts_of(
    view: View<'_>,
    memory: &mut Memory,
    (key, id, seen): (&Key, Option<JobId>, Option<&SeenJob>),
    limit: Option<&String>,
) -> Facts {
    let job = id.map(|id| view.state.job(id));
    let books = match job.map(|job| &job.phase) {
        None | Some(Phase::Over) => Books::Unknown,
        Some(Phase::Waiting) => Books::Waiting,
        Some(Phase::Parked) => Books::Parked,
        Some(Phase::Starting(_)) => Books::Starting,
        Some(Phase::Running(_)) => Books::Running,
        Some(Phase::Stopping(_)) => Books::Stopping,
    };
    let Some(seen) = seen else { return Facts { books, shown: Shown::Gone, ..Facts::default() } };
    let shown = match seen.stands {
        Stands::Held => Shown::Held,
        Stands::Queued => Shown::Queued,
        Stands::Running => Shown::Running,
        Stands::Leaving => Shown::Leaving,
        Stands::Over(_) => Shown::Over,
    };
    let attempt = memory.attempts.of(key);
    match shown {
        Shown::Held => {
            // It had been released, and somebody else than Hither held it.
            attempt.is_held_by_hand |= books == Books::Starting
                && (attempt.was_queued && attempt.is_released && !attempt.was_told_to_hold());
            (attempt.was_held, attempt.was_queued) = (true, false);
        }
        Shown::Queued => (attempt.was_queued, attempt.is_held_by_hand) = (true, false),
        _ => (attempt.was_queued, attempt.was_held, attempt.is_held_by_hand) = Default::default(),
    }
    let is_held_by_others =
        seen.obstacle == Obstacle::Hold || seen.wish.hold || attempt.is_held_by_hand;
    let mut facts = Facts {
        books,
        shown,
        is_held_by_others,
        is_requeued: seen.restarts > 0 && !seen.required.is_empty() && !attempt.was_held,
        can_stop: seen.can_requeue && job.is_none_or(|job| job.job.terms.preemptible),
        is_stuck: memory.stuck.contains_key(key),
        ..Facts::default()
    };
    match job.map(|job| &job.phase) {
        Some(Phase::Starting(start)) => {
            let had_failed = attempt.failed.is_some();
            about_start(view, attempt, start, seen, &mut facts);
            if !had_failed && attempt.failed.is_some() {
                attempt.refusal = Some(seen.reason.clone());
                // Once it is held again, the engine no longer shows that it can never run.
                if seen.obstacle == Obstacle::Never {
                    attempt.left = Some(format!("cannot run: {}", seen.reason));
                }
                memory.limits.refused(key, view.seen, view.now);
            }
        }
        Some(Phase::Stopping(stop)) => facts.asking = stop_asking(view, attempt, stop, seen),
        Some(Phase::Running(run)) => {
            facts.is_there =
                seen.gpus_held() == 0 || view.places.is_at(&run.placement, &seen.holds);
        }
        _ => {}
    }
    if shown == Shown::Held {
        let bar = bar(view, attempt, job, key, seen, limit);
        if let Some((bar, words)) = bar {
            facts.bar = bar;
            memory.bars.insert(key.clone(), words);
        }
    }
    facts
}

/// Why a held job does not start, wherever there is room.
fn bar(
    view: View<'_>,
    attempt: &Attempt,
    job: Option<&JobState>,
    key: &Key,
    seen: &SeenJob,
    limit: Option<&String>,
) -> Option<(Bar, String)> {
    if let Some(words) = &attempt.left {
        return Some((Bar::Always, words.clone()));
    }
    let is_in_books = job.is_some_and(|job| view.state.admits(&job.job));
    if let Err(words) = if is_in_books { Ok(()) } else { placeable(view, key, seen).map(drop) } {
        return Some((Bar::Always, words));
    }
    let now = |words: String| Some((Bar::Now, words));
    match seen.obstacle {
        Obstacle::Never => Some((Bar::Always, format!("cannot run: {}", seen.reason))),
        Obstacle::Hold => now(format!("is held ({})", seen.reason)),
        _ if seen.wish.hold => now("is held by the word `hold` in its comment".into()),
        _ if attempt.is_held_by_hand => now("was held by hand; release it to let it go on".into()),
        Obstacle::Early => now("waits for its dependency or its begin time".into()),
        Obstacle::Reserved => now(
            "may still run when a reservation of its nodes begins: give it a shorter time limit"
                .into(),
        ),
        _ => limit.map(|words| (Bar::Now, format!("waits for a limit: {words}"))),
    }
}

fn about_start(
    view: View<'_>,
    attempt: &mut Attempt,
    start: &Start,
    seen: &SeenJob,
    facts: &mut Facts,
) {
    attempt.on(start.decision, view.now);
    let nodes = view.places.nodes(&start.run.placement);
    let mut required = seen.required.clone();
    required.sort_unstable();
    facts.is_bound = required == nodes;
    facts.is_released = attempt.is_released;
    facts.is_there = seen.gpus_held() == 0 || view.places.is_at(&start.run.placement, &seen.holds);
    let is_ready = start.after.iter().all(|stop| !view.state.in_flight.contains_key(stop));
    let is_up = |slot: &hither_sched::cluster::Slot| {
        view.state.cluster.machines[slot.machine as usize].is_up()
    };
    let was_refused = attempt.is_released && seen.stands == Stands::Queued;
    if !start.run.placement.slots.iter().all(is_up) {
        attempt.failed.get_or_insert(Blame::Other);
    } else if is_ready {
        let ready_s = *attempt.ready_s.get_or_insert(view.now);
        match seen.obstacle {
            Obstacle::Limit(..)
            | Obstacle::Cluster
            | Obstacle::Early
            | Obstacle::Reserved
            | Obstacle::Never
                if was_refused =>
            {
                attempt.failed.get_or_insert(Blame::Other);
            }
            Obstacle::Place if was_refused => drop(attempt.failed.get_or_insert(Blame::Place)),
            _ if view.now > ready_s + view.limits.start_s => {
                attempt.failed.get_or_insert(Blame::Place);
            }
            _ => {}
        }
    }
    facts.asking = match (attempt.failed, is_ready) {
        (Some(_), _) => Asking::Failed,
        (None, false) => Asking::Later,
        (None, true) => Asking::Now,
    };
}

fn stop_asking(view: View<'_>, attempt: &mut Attempt, stop: &Stop, seen: &SeenJob) -> Asking {
    attempt.on(stop.decision, view.now);
    let grace_s = seen.wish.grace_s.unwrap_or(view.limits.grace_s);
    if view.now > attempt.since_s + grace_s + view.limits.stop_s {
        return Asking::Failed;
    }
    match (&seen.wish.signal, attempt.signalled_s) {
        (Some(_), None) => Asking::Signal,
        (Some(_), Some(signalled_s)) if view.now < signalled_s + grace_s => Asking::Later,
        _ => Asking::Now,
    }
}

/// What the scheduler is told.
fn tell(
    view: View<'_>,
    memory: &mut Memory,
    (key, id, seen): (&Key, Option<JobId>, Option<&SeenJob>),
    news: News,
    told: &mut Told,
) {
    // Jobs that are new are told together, at the end.
    let (Some(id), false) = (id, news == News::Submitted) else {
        if let Some(seen) = seen.filter(|_| news == News::Submitted) {
            told.new.push((key.clone(), seen.clone(), memory.bars.contains_key(key)));
        }
        return;
    };
    let job = view.state.job(id);
    let how = match seen.map(|seen| seen.stands) {
        Some(Stands::Over(how)) => how,
        // The engine has forgotten it, or it is no longer Hither's.
        _ => End::Cancelled,
    };
    let mut note = |text: String| told.notes.push((key.clone(), text));
    let engine = view.engine;
    match (news, &job.phase, seen) {
        (News::Parked, ..) => told.jobs.push(Event::Parked { job: id }),
        (News::Unparked, ..) => told.jobs.push(Event::Unparked { job: id }),
        (News::Started, Phase::Starting(start), _) => {
            memory.attempts.of(key).tries = 0;
            told.settled.push(Event::Started(start.decision));
        }
        (News::StartRefused, Phase::Starting(start), Some(seen)) => {
            note(format!("did not start where it was placed: {}", refusal(memory, key, seen)));
            told.settled.push(Event::Refused(start.decision));
            start_refused(view, memory, key, job, start, told);
            if memory.bars.contains_key(key) {
                told.settled.push(Event::Parked { job: id });
            }
            if let Some(why) = memory.attempts.left(key) {
                told.notes.push((key.clone(), format!("is left to {engine}: {why}")));
                told.settled.push(Event::Ended { job: id, how });
                told.left.insert(key.clone());
            }
        }
        (News::Stopped, Phase::Stopping(stop), Some(seen)) => {
            told.freed.push(Event::Stopped { decision: stop.decision, kept: seen.wish.saved });
        }
        (News::StopRefused, Phase::Stopping(stop), _) => {
            note(format!("cannot be stopped by {engine}: it runs on, and is nobody's victim"));
            told.settled.push(Event::Refused(stop.decision));
            told.settled.push(Event::Pinned { job: id });
        }
        (News::Progress, _, Some(seen)) => told.jobs.extend(progress(view, id, job, seen)),
        (News::Lost, ..) => told.freed.push(Event::Lost { job: id }),
        // Its record was read while it ended, or is still to be read.
        (News::RunsElsewhere, _, Some(seen)) if seen.gpus_held() == 0 => {}
        (News::RunsElsewhere, phase, Some(seen)) => {
            match phase {
                Phase::Starting(start) => told.settled.push(Event::Refused(start.decision)),
                Phase::Running(_) => told.freed.push(Event::Lost { job: id }),
                _ => {}
            }
            found(view, (key, id, job), seen, told);
        }
        (News::Ended, ..) => told.freed.push(Event::Ended { job: id, how }),
        (News::Left, ..) => {
            let stuck = "is being ended and does not leave its nodes";
            let why = memory.bars.get(key).map_or(stuck, String::as_str);
            note(format!("is left to {engine}: {why}"));
            told.freed.push(Event::Ended { job: id, how });
            told.left.insert(key.clone());
        }
        (News::TakenBack, ..) => {
            note(format!("was released by hand: it is {engine}'s from now on"));
            told.freed.push(Event::Ended { job: id, how });
            told.left.insert(key.clone());
        }
        _ => {}
    }
}

/// Why a start is taken back.
fn refusal(memory: &Memory, key: &Key, seen: &SeenJob) -> String {
    match memory.bars.get(key) {
        Some(words) => words.clone(),
        None => memory.attempts.refusal(key).unwrap_or(&seen.reason).to_owned(),
    }
}

/// Counts a start that did not fit, and keeps others like it from the same machines for a while.
fn start_refused(
    view: View<'_>,
    memory: &mut Memory,
    key: &Key,
    job: &JobState,
    start: &Start,
    told: &mut Told,
) {
    let attempt = memory.attempts.of(key);
    if attempt.failed.take() != Some(Blame::Place) {
        return;
    }
    attempt.tries += 1;
    if attempt.tries >= view.limits.tries_max {
        let why = attempt.refusal.clone().unwrap_or_default();
        attempt.left =
            Some(format!("did not start where it was placed {} times: {why}", attempt.tries));
    }
    let split = job.job.terms.split;
    for slot in &start.run.placement.slots {
        let machine = slot.machine;
        memory.attempts.close(machine, split, view.now + view.limits.closed_s);
        told.jobs.push(Event::Closed { machine, split, is_closed: true });
    }
}

/// A job runs that the books do not have running there.
fn found(
    view: View<'_>,
    (key, id, job): (&Key, JobId, &JobState),
    seen: &SeenJob,
    told: &mut Told,
) {
    let held = seen.gpus_held();
    let placement = view.places.placement(&view.state.cluster, &seen.holds);
    match placement.filter(|_| held == job.gpus()) {
        Some(placement) => {
            told.settled.push(Event::Found { job: id, placement: Arc::new(placement) });
        }
        None => {
            let text = format!("runs on other GPUs than it asked for: it is {}'s", view.engine);
            told.notes.push((key.clone(), text));
            told.settled.push(Event::Ended { job: id, how: End::Cancelled });
            told.left.insert(key.clone());
        }
    }
}

/// What a running job reported; without reports, what its profile says.
fn progress(view: View<'_>, id: JobId, job: &JobState, seen: &SeenJob) -> Option<Event> {
    let Phase::Running(run) = &job.phase else { return None };
    let network = &view.state.network;
    let expected = || {
        let shape = network.shape(&view.state.cluster, &run.placement);
        1.0 / network.iteration_s(&job.job.profile, &shape)
    };
    let report = seen.wish.done.zip(seen.wish.at_s).map(|(done, at_s)| (done, at_s - view.epoch_s));
    // Reports of an earlier run say nothing about this one's pace.
    if let Some((done, at_s)) = report.filter(|&(_, at_s)| at_s > job.since_s) {
        let (pace_s, pace_done) = (run.pace.since_s, run.pace.done);
        let is_news = view.learnt.is_new(&job.job.name, done, at_s);
        if !is_news || at_s <= pace_s || done < pace_done {
            return None;
        }
        let rate = view.learnt.rate(&job.job.name, done, at_s);
        let known = Some(run.pace.rate).filter(|rate| *rate > 0.0);
        let rate = rate.or(known).or_else(|| job.job.profile.is_known().then(expected))?;
        let done = done + rate * (view.now - at_s).max(0.0);
        return Some(Event::Progress { job: id, done, rate });
    }
    let is_silent = run.pace.rate == 0.0 && job.job.profile.is_known();
    is_silent.then(|| Event::Progress { job: id, done: run.pace.done, rate: expected() })
}

/// Held jobs that are new, in the order in which they were submitted.
fn submit(view: View<'_>, told: &mut Told) {
    let mut new = std::mem::take(&mut told.new);
    new.sort_by(|(a, job_a, _), (b, job_b, _)| {
        job_a.submitted_s.total_cmp(&job_b.submitted_s).then_with(|| number(a).cmp(&number(b)))
    });
    let mut jobs: Vec<Arc<Job>> = Vec::new();
    let mut parked = Vec::new();
    for (key, seen, is_barred) in &new {
        if let Ok(job) = placeable(view, key, seen) {
            let id = view.state.jobs.next_id() + jobs.len() as JobId;
            parked.extend(is_barred.then_some(Event::Parked { job: id }));
            jobs.push(Arc::new(job));
        }
    }
    if !jobs.is_empty() {
        told.jobs.push(Event::Submitted(jobs));
        told.jobs.extend(parked);
    }
}

/// Job and task numbers, so that 9 comes before 10.
fn number(key: &str) -> Vec<u64> {
    key.split('_').map(|part| part.parse().unwrap_or(u64::MAX)).collect()
}

/// The job as the scheduler understands it, or why Hither cannot place it.
pub fn placeable(view: View<'_>, key: &Key, seen: &SeenJob) -> Result<Job, String> {
    let (count, gpu_type, split) = match &seen.wants {
        Wants::Gpus { count, gpu_type, split } => (*count, gpu_type, *split),
        Wants::Nothing => return Err("asks for no GPUs".into()),
        Wants::Other(words) => return Err(format!("asks for {words}, which Hither cannot place")),
    };
    // No machine holds more chunks than its GPUs are enough for: so many splits are the same.
    let largest = view.state.cluster.machines.iter().map(|m| m.gpus).max().unwrap_or(0);
    let chunks_max = match split.chunks_max {
        u32::MAX => u32::MAX,
        chunks_max => chunks_max.min((largest / split.chunk.max(1)).max(1)),
    };
    let job = Job {
        name: key.clone(),
        user: seen.user.clone(),
        gpus: count,
        terms: Terms {
            split: hither_sched::job::Split { chunks_max, ..split },
            preemptible: seen.can_requeue,
        },
        gpu_type: gpu_type.clone(),
        submit_s: seen.submitted_s - view.epoch_s,
        length: seen.wish.iterations.map_or(Length::Unknown, Length::Iterations),
        profile: profile(view, seen),
    };
    if let Some(flaw) = job.flaw() {
        return Err(flaw.into());
    }
    match view.state.admits(&job) {
        true => Ok(job),
        false => {
            Err(format!("asks for {} GPUs in a way that no part of the cluster holds", job.gpus))
        }
    }
}

/// From the library by the name that the user gave, or by the job's own; else what earlier jobs of
/// the same user and name have shown.
fn profile(view: View<'_>, seen: &SeenJob) -> Arc<Profile> {
    let given = seen.wish.model.as_deref().unwrap_or(&seen.name);
    if let Some(known) = view.library.get(given) {
        return known.clone();
    }
    Arc::new(view.learnt.profile(&model_name(&seen.user, &seen.name, seen.wish.model.as_deref())))
}

fn order_for(view: View<'_>, key: &Key, id: Option<JobId>, seen: &SeenJob, act: Act) -> Order {
    let job = key.clone();
    match act {
        Act::Bind => {
            let run = id.and_then(|id| view.state.job(id).run());
            let nodes = run.map_or_else(Vec::new, |run| view.places.nodes(&run.placement));
            Order::Bind { job, nodes, fewest: seen.fewest_nodes() }
        }
        Act::Release => Order::Release { job },
        Act::Hold => Order::Hold { job },
        Act::HandOver => seen.hand_over(key),
        Act::Signal => Order::Signal { job, signal: seen.wish.signal.clone().unwrap_or_default() },
        Act::Requeue => Order::Requeue { job },
    }
}
