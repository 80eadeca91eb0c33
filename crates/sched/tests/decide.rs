//! Acknowledgements: what the books say between a decision and the world's word on it, and news
//! that come late, twice, too early or not at all.

use crate::common;

use std::sync::Arc;

use common::*;
use hither_core::topology::{Tier, Topology};
use hither_sched::cluster::{Placement, Status};
use hither_sched::decide::{Error, Scheduler};
use hither_sched::event::{Action, Decision, DecisionId, End, Event, Timer, Why};
use hither_sched::job::{Host, Job, JobId, Length};
use hither_sched::network::Network;
use hither_sched::policy::{self, Settings};
use hither_sched::state::{Checkpoints, Phase, State};

/// A scheduler and a world that answers only when the test says so.
struct World {
    scheduler: Scheduler,
}

impl World {
    fn told(&self, why: &Why) -> String {
        why.told(&self.scheduler.state.cluster.levels).to_string()
    }

    fn new(policy: &str, topology: &Topology) -> Self {
        let mut settings = Settings::default();
        settings.dally.quantum_s = 60.0;
        let policy = policy::find(policy).expect("it is in the table").build(&settings);
        let network = Network::new(topology, 1.0);
        let state = State::new(topology, network, Checkpoints::default());
        Self { scheduler: Scheduler::new(state, policy) }
    }

    fn hears(&mut self, now: f64, event: Event) {
        self.scheduler.observe(now, event).expect("it can be true");
    }

    fn submit(&mut self, now: f64, jobs: Vec<Job>) -> Vec<Decision> {
        self.hears(now, Event::Submitted(jobs.into_iter().map(Arc::new).collect()));
        self.asks(now)
    }

    /// Starts and stops that are decided now.
    fn asks(&mut self, now: f64) -> Vec<Decision> {
        let counts = |d: &Decision| matches!(d.action, Action::Start { .. } | Action::Stop { .. });
        self.scheduler.decide(now).into_iter().filter(counts).collect()
    }

    /// All of these are carried out.
    fn grants(&mut self, now: f64, decisions: &[Decision]) {
        for decision in decisions {
            self.hears(now, granted(decision));
            if let Action::Start { job, .. } = decision.action {
                let done = self.scheduler.state.job(job).done;
                self.hears(now, Event::Progress { job, done, rate: 1.0 });
            }
        }
    }

    fn phase(&self, id: JobId) -> &'static str {
        let Some(job) = self.scheduler.state.jobs.get(id) else { return "over" };
        match &job.phase {
            Phase::Waiting | Phase::Parked => "waiting",
            Phase::Starting(_) => "starting",
            Phase::Running(_) => "running",
            Phase::Stopping(stop) if stop.next.is_some() => "moving",
            Phase::Stopping(_) => "stopping",
            Phase::Over => "over",
        }
    }

    /// The process dies and is started again from what it wrote to disk.
    fn dies(&mut self, policy: &str, topology: &Topology) {
        let saved = serde_json::to_string(&self.scheduler.save()).expect("plain values");
        let Self { scheduler } = World::new(policy, topology);
        let built = policy::find(policy).expect("it is in the table").build(&Settings::default());
        let snapshot = serde_json::from_str(&saved).expect("what was written can be read");
        let restored = Scheduler::restore(scheduler.state, built, snapshot);
        self.scheduler = restored.expect("the same cluster and policy");
    }

    fn free(&self) -> u32 {
        self.scheduler.state.cluster.free_total()
    }
}

fn granted(decision: &Decision) -> Event {
    match decision.action {
        Action::Start { .. } => Event::Started(decision.id),
        _ => Event::Stopped { decision: decision.id, kept: None },
    }
}

fn job_of(decision: &Decision) -> (char, JobId) {
    match decision.action {
        Action::Start { job, .. } => ('+', job),
        Action::Stop { job, .. } => ('-', job),
        _ => unreachable!("filtered"),
    }
}

fn jobs_of(decisions: &[Decision]) -> Vec<(char, JobId)> {
    decisions.iter().map(job_of).collect()
}

fn one_machine() -> Topology {
    topology(&[(0, 4)])
}

/// A long job runs on all four GPUs of a machine; at 10 a short one takes its place.
fn preempted() -> (World, Vec<Decision>) {
    let mut world = World::new("srtf", &one_machine());
    let first = world.submit(0.0, vec![job(0.0, 4, 1000.0)]);
    world.grants(0.0, &first);
    let swap = world.submit(10.0, vec![job(10.0, 4, 5.0)]);
    assert_eq!(jobs_of(&swap), [('-', 0), ('+', 1)]);
    (world, swap)
}

#[test]
fn a_start_waits_for_the_stop_whose_gpus_it_was_promised() {
    let (mut world, swap) = preempted();
    assert_eq!(swap[1].after, [swap[0].id]);
    assert_eq!((world.phase(0), world.phase(1), world.free()), ("stopping", "starting", 0));
    // The GPUs are promised: nothing is left for a third, and nobody is asked twice.
    assert_eq!(world.submit(11.0, vec![job(11.0, 1, 1.0)]), []);
    world.hears(15.0, granted(&swap[0]));
    assert_eq!((world.phase(0), world.phase(1)), ("waiting", "starting"));
    world.hears(16.0, granted(&swap[1]));
    assert_eq!(world.phase(1), "running");
    // The victim held its GPUs until 15.
    assert_eq!(world.scheduler.state.job(0).held_at(16.0), 15.0);
}

#[test]
fn a_start_on_gpus_that_are_free_today_waits_for_nobody() {
    let mut world = World::new("srtf", &topology(&[(0, 4), (0, 4)]));
    let first = world.submit(0.0, vec![job(0.0, 4, 1000.0), job(0.0, 4, 1000.0)]);
    world.grants(0.0, &first);
    let swap = world.submit(10.0, vec![job(10.0, 2, 5.0)]);
    assert_eq!(jobs_of(&swap), [('-', 1), ('+', 2)]);
    // Two of the victim's four GPUs are still nobody's.
    let next = world.submit(11.0, vec![job(11.0, 2, 5.0)]);
    assert_eq!((jobs_of(&next), &next[0].after), (vec![('+', 3)], &vec![swap[0].id]));
    world.grants(12.0, &swap);
    world.grants(12.0, &next);
    world.hears(20.0, Event::Ended { job: 3, how: End::Finished });
    let last = world.submit(21.0, vec![job(21.0, 1, 1.0)]);
    assert_eq!(last[0].after, [] as [DecisionId; 0]);
}

#[test]
fn a_started_job_that_is_told_too_early_is_an_error() {
    let (mut world, swap) = preempted();
    let early = world.scheduler.observe(12.0, granted(&swap[1]));
    assert_eq!(early, Err(Error::TooEarly { decision: swap[1].id, before: swap[0].id }));
    assert_eq!((world.phase(0), world.phase(1)), ("stopping", "starting"));
}

#[test]
fn a_refused_start_leaves_the_job_in_line() {
    let mut world = World::new("fifo", &one_machine());
    let start = world.submit(0.0, vec![job(0.0, 4, 10.0)]);
    world.hears(1.0, Event::Refused(start[0].id));
    assert_eq!((world.phase(0), world.free()), ("waiting", 4));
    assert_eq!(world.scheduler.state.job(0).why, Why::Refused);
    let again = world.asks(2.0);
    assert_eq!(jobs_of(&again), [('+', 0)]);
    // Late news about the first try mean nothing.
    world.hears(3.0, Event::Started(start[0].id));
    assert_eq!(world.phase(0), "starting");
    world.grants(3.0, &again);
    assert_eq!(world.phase(0), "running");
}

#[test]
fn a_refused_stop_takes_the_starts_that_wait_for_it_along() {
    for policy in ["srtf", "themis", "tiresias"] {
        let mut world = World::new(policy, &one_machine());
        let first = world.submit(0.0, vec![job(0.0, 4, 90_000.0)]);
        world.grants(0.0, &first);
        // Past every lease and threshold; the short job ranks first.
        world.submit(10_000.0, vec![job(10_000.0, 4, 5.0)]);
        let mut swap = Vec::new();
        for timer in [Timer::Round, Timer::Job(0)] {
            world.hears(20_000.0, Event::Timer(timer));
            swap.extend(world.asks(20_000.0));
        }
        let (stop, start) = match &swap[..] {
            [stop, start] => (stop.id, start.id),
            _ => {
                // Decided at its submission.
                let mut ids = world.scheduler.state.in_flight.keys().copied();
                (ids.next().expect("a stop"), ids.next().expect("a start"))
            }
        };
        world.hears(20_001.0, Event::Refused(stop));
        assert_eq!((world.phase(0), world.phase(1)), ("running", "waiting"), "{policy}");
        assert_eq!((world.free(), world.scheduler.state.line.len()), (0, 1), "{policy}");
        // The first job never stopped: its time counts through.
        assert_eq!(world.scheduler.state.job(0).held_at(20_001.0), 20_001.0, "{policy}");
        world.hears(20_001.0, Event::Refused(start));
        world.hears(20_002.0, Event::Ended { job: 0, how: End::Finished });
        let next = world.asks(20_002.0);
        assert_eq!(jobs_of(&next), [('+', 1)], "{policy}");
    }
}

#[test]
fn jobs_in_flight_may_end_and_leave_no_trace() {
    let (mut world, swap) = preempted();
    world.hears(12.0, Event::Ended { job: 0, how: End::Cancelled });
    world.hears(12.0, Event::Ended { job: 1, how: End::Failed });
    assert_eq!((world.phase(0), world.phase(1), world.free()), ("over", "over", 4));
    let state = &world.scheduler.state;
    assert_eq!((state.line.len(), state.unfinished, state.in_flight.len()), (0, 0, 0));
    for late in [granted(&swap[0]), granted(&swap[1]), Event::Refused(swap[0].id)] {
        world.hears(13.0, late);
    }
    assert_eq!(world.free(), 4);
}

#[test]
fn news_that_come_twice_change_nothing() {
    let (mut world, swap) = preempted();
    for _ in 0..2 {
        world.hears(15.0, granted(&swap[0]));
        world.hears(15.0, granted(&swap[1]));
    }
    for _ in 0..2 {
        world.hears(20.0, Event::Ended { job: 1, how: End::Finished });
    }
    let back = world.asks(20.0);
    assert_eq!((jobs_of(&back), world.scheduler.state.unfinished), (vec![('+', 0)], 1));
}

#[test]
fn impossible_news_are_errors_and_change_nothing() {
    let (mut world, swap) = preempted();
    let mut says = |event| world.scheduler.observe(12.0, event).expect_err("it cannot be");
    assert_eq!(says(Event::Started(99)), Error::UnknownDecision(99));
    let wrong = |decision, expected| Error::WrongAnswer { decision, expected };
    assert_eq!(says(Event::Started(swap[0].id)), wrong(swap[0].id, "start that is in flight"));
    let stopped = Event::Stopped { decision: swap[1].id, kept: None };
    assert_eq!(says(stopped), wrong(swap[1].id, "stop"));
    assert_eq!(says(Event::Ended { job: 7, how: End::Finished }), Error::UnknownJob(7));
    assert_eq!(says(Event::Timer(Timer::Job(7))), Error::UnknownJob(7));
    assert_eq!(says(Event::Foreign { machine: 5, gpus: 1 }), Error::UnknownMachine(5));
    assert_eq!(says(Event::Resized { machine: 5, gpus: 1 }), Error::UnknownMachine(5));
    let down = Event::Machine { machine: 5, status: Status::Gone };
    assert_eq!(says(down), Error::UnknownMachine(5));
    let mad = Event::Progress { job: 0, done: f64::NAN, rate: 1.0 };
    assert!(matches!(says(mad), Error::NoProgress { job: 0, .. }));
    let huge = Event::Submitted(vec![Arc::new(job(12.0, 99, 1.0))]);
    assert!(matches!(says(huge), Error::NeverFits { gpus: 99, .. }));
    assert_eq!(says(Event::Parked { job: 7 }), Error::UnknownJob(7));
    let host = Event::Host { machine: 5, host: Host::NONE, foreign: Host::NONE };
    assert_eq!(says(host), Error::UnknownMachine(5));
    let vast = Event::Resized { machine: 0, gpus: u32::MAX };
    assert!(matches!(says(vast), Error::TooManyGpus { gpus: u32::MAX, .. }));
    let flawed = |change: fn(&mut Job)| {
        let mut job = job(12.0, 1, 1.0);
        change(&mut job);
        Event::Submitted(vec![Arc::new(job)])
    };
    for change in [
        (|job| job.gpus = 0) as fn(&mut Job),
        |job| job.submit_s = f64::INFINITY,
        |job| job.length = Length::Iterations(f64::NAN),
        |job| job.length = Length::Seconds(-1.0),
        |job| Arc::make_mut(&mut job.profile).compute_s = f64::INFINITY,
        |job| Arc::make_mut(&mut job.profile).overlap = 2.0,
    ] {
        assert!(matches!(says(flawed(change)), Error::Flawed { .. }));
    }
    let never = world.scheduler.observe(f64::NAN, Event::Timer(Timer::Round));
    assert!(matches!(never, Err(Error::NoTime(_))));
    assert_eq!((world.phase(0), world.phase(1)), ("stopping", "starting"));
}

#[test]
fn a_clock_that_steps_back_stands_still() {
    let (mut world, swap) = preempted();
    world.grants(5.0, &swap);
    assert_eq!(world.scheduler.state.now, 10.0);
    assert_eq!(world.scheduler.state.job(0).held_at(10.0), 10.0);
    world.hears(20.0, Event::Ended { job: 1, how: End::Finished });
    assert_eq!(world.scheduler.state.now, 20.0);
    let _ = world.asks(f64::INFINITY);
    assert_eq!(world.scheduler.state.now, 20.0);
}

#[test]
fn a_job_waits_for_the_best_place_of_the_cluster_that_there_is() {
    // Two machines of four: a job of four waits for one of them, for ever.
    let two = topology(&[(0, 4), (0, 4)]);
    let mut world = World::new("dally-consolidate", &two);
    let blockers = world.submit(0.0, vec![job(0.0, 3, 1e6), job(0.0, 1, 1e6)]);
    world.grants(0.0, &blockers);
    world.hears(1.0, Event::Foreign { machine: 1, gpus: 1 });
    world.submit(2.0, vec![talking_job(2.0, 4, 100.0, 0.1)]);
    assert_eq!(world.scheduler.state.job(2).best, Tier::MACHINE);
    // No machine has four any more: the rack is the best that it can get.
    world.hears(3.0, Event::Resized { machine: 0, gpus: 3 });
    world.hears(3.0, Event::Resized { machine: 1, gpus: 3 });
    assert_eq!(world.scheduler.state.job(2).best, Tier(1));
    world.hears(4.0, Event::Ended { job: 0, how: End::Finished });
    assert_eq!(jobs_of(&world.asks(4.0)), [('+', 2)]);
}

#[test]
fn kept_iterations_are_what_the_world_says() {
    let (mut world, swap) = preempted();
    assert_eq!(world.scheduler.state.job(0).done, 10.0);
    world.hears(15.0, Event::Stopped { decision: swap[0].id, kept: Some(7.0) });
    assert_eq!(world.scheduler.state.job(0).done, 7.0);
}

#[test]
fn a_machine_that_goes_takes_its_jobs_along_whatever_they_were_doing() {
    let (mut world, swap) = preempted();
    world.hears(12.0, Event::Machine { machine: 0, status: Status::Gone });
    // The stop has happened; the start is for the world to refuse.
    assert_eq!((world.phase(0), world.phase(1)), ("waiting", "starting"));
    world.hears(13.0, granted(&swap[1]));
    assert_eq!(world.phase(1), "waiting");
    assert_eq!(world.asks(14.0), []);
    world.hears(15.0, Event::Machine { machine: 0, status: Status::Up });
    assert_eq!(jobs_of(&world.asks(15.0)), [('+', 1)]);
}

#[test]
fn a_draining_machine_keeps_its_jobs_and_gets_no_others() {
    let mut world = World::new("fifo", &one_machine());
    let first = world.submit(0.0, vec![job(0.0, 2, 10.0)]);
    world.grants(0.0, &first);
    world.hears(1.0, Event::Machine { machine: 0, status: Status::Draining });
    assert_eq!(world.submit(2.0, vec![job(2.0, 1, 10.0)]), []);
    assert_eq!((world.phase(0), world.free()), ("running", 0));
    world.hears(3.0, Event::Machine { machine: 0, status: Status::Up });
    assert_eq!((jobs_of(&world.asks(3.0)), world.free()), (vec![('+', 1)], 1));
}

#[test]
fn gpus_that_others_use_are_given_to_nobody() {
    let mut world = World::new("fifo", &one_machine());
    world.hears(0.0, Event::Foreign { machine: 0, gpus: 3 });
    assert_eq!(world.submit(1.0, vec![job(1.0, 2, 10.0)]), []);
    world.hears(2.0, Event::Foreign { machine: 0, gpus: 1 });
    let start = world.asks(2.0);
    world.grants(2.0, &start);
    // More than there are: the books stay sound, and nothing is free.
    world.hears(3.0, Event::Foreign { machine: 0, gpus: 9 });
    assert_eq!((world.phase(0), world.free()), ("running", 0));
    world.hears(4.0, Event::Ended { job: 0, how: End::Finished });
    world.hears(5.0, Event::Foreign { machine: 0, gpus: 0 });
    assert_eq!(world.free(), 4);
}

#[test]
fn parked_jobs_are_not_started_and_lose_nothing() {
    let mut world = World::new("dally", &one_machine());
    world
        .hears(0.0, Event::Submitted(vec![Arc::new(job(0.0, 4, 1.0)), Arc::new(job(0.0, 4, 1.0))]));
    world.hears(0.0, Event::Parked { job: 0 });
    world.hears(0.0, Event::Parked { job: 0 });
    assert_eq!(world.scheduler.state.line.len(), 1);
    let start = world.asks(0.0);
    assert_eq!(jobs_of(&start), [('+', 1)]);
    let busy = world.scheduler.observe(0.0, Event::Parked { job: 1 });
    assert_eq!(busy, Err(Error::NotWaiting(1)));
    world.grants(0.0, &start);
    world.hears(5.0, Event::Ended { job: 1, how: End::Finished });
    assert!(jobs_of(&world.asks(5.0)).is_empty());
    world.hears(6.0, Event::Unparked { job: 0 });
    assert_eq!(jobs_of(&world.asks(6.0)), [('+', 0)]);
    // Over while it is parked: nothing is left of it.
    world.hears(7.0, Event::Submitted(vec![Arc::new(job(7.0, 4, 1.0))]));
    world.hears(7.0, Event::Parked { job: 2 });
    world.hears(8.0, Event::Ended { job: 2, how: End::Cancelled });
    assert_eq!(world.scheduler.state.line.len(), 0);
}

#[test]
fn books_move_to_another_network_and_to_another_policy() {
    let mut world = World::new("dally", &common::topology(&[(0, 4), (1, 4)]));
    let jobs = [8, 4, 4].map(|gpus| Arc::new(job(0.0, gpus, 1.0)));
    world.hears(0.0, Event::Submitted(jobs.to_vec()));
    let start = world.asks(0.0);
    world.grants(0.0, &start);
    assert_eq!(world.scheduler.state.job(0).run().unwrap().placement.tier, Tier(2));
    // Both machines stand in one rack now, and a third has come.
    let topology = common::topology(&[(0, 4), (0, 4), (1, 4)]);
    let network = Network::new(&topology, 1.0);
    world.scheduler.rearrange(&topology, network.clone());
    let state = &world.scheduler.state;
    assert_eq!(state.job(0).run().unwrap().placement.tier, Tier(1));
    assert_eq!((state.running.len(), state.line.len(), state.cluster.free_total()), (1, 2, 4));
    let fifo = policy::find("fifo").unwrap().build(&Settings::default());
    let fresh = State::new(&topology, network, Checkpoints::default());
    let saved = world.scheduler.save();
    world.scheduler = Scheduler::restore_books(fresh, fifo, saved).unwrap();
    assert_eq!(jobs_of(&world.asks(1.0)), [('+', 1)]);
    world.hears(2.0, Event::Ended { job: 0, how: End::Finished });
    assert_eq!(jobs_of(&world.asks(2.0)), [('+', 2)]);
}

#[test]
fn decisions_of_the_record_are_taken_over_as_they_are() {
    let topology = common::topology(&[(0, 4), (0, 4)]);
    let mut world = World::new("dally", &topology);
    world
        .hears(0.0, Event::Submitted(vec![Arc::new(job(0.0, 4, 9.0)), Arc::new(job(0.0, 4, 9.0))]));
    let mut decisions = world.asks(0.0);
    // What an earlier version chose: the machines the other way round.
    let mut starts: Vec<&mut Arc<Placement>> = decisions
        .iter_mut()
        .filter_map(|d| match &mut d.action {
            Action::Start { placement, .. } => Some(placement),
            _ => None,
        })
        .collect();
    let [first, second] = &mut starts[..] else { panic!("two starts") };
    std::mem::swap(*first, *second);
    let mut again = World::new("dally", &topology);
    again
        .hears(0.0, Event::Submitted(vec![Arc::new(job(0.0, 4, 9.0)), Arc::new(job(0.0, 4, 9.0))]));
    again.scheduler.apply(0.0, &decisions).unwrap();
    let in_flight = again.scheduler.state.decisions_in_flight();
    let starts: Vec<&Decision> =
        decisions.iter().filter(|d| matches!(d.action, Action::Start { .. })).collect();
    assert_eq!(in_flight.iter().collect::<Vec<_>>(), starts);
    assert_eq!((again.free(), again.scheduler.state.line.len()), (0, 0));
    again.hears(1.0, Event::Started(in_flight[0].id));
    // A record that cannot be true is an error.
    assert!(again.scheduler.apply(1.0, &decisions).is_err());
}

#[test]
fn machines_change_their_size() {
    let mut world = World::new("dally-no-wait", &one_machine());
    let huge = Event::Submitted(vec![Arc::new(job(0.0, 8, 1.0))]);
    assert!(world.scheduler.observe(0.0, huge.clone()).is_err());
    world.hears(1.0, Event::Resized { machine: 0, gpus: 8 });
    world.hears(2.0, huge);
    let start = world.asks(2.0);
    assert_eq!((jobs_of(&start), world.free()), (vec![('+', 0)], 0));
    world.hears(3.0, Event::Resized { machine: 0, gpus: 6 });
    world.grants(3.0, &start);
    world.hears(9.0, Event::Ended { job: 0, how: End::Finished });
    assert_eq!(world.free(), 6);
}

#[test]
fn what_is_in_flight_survives_a_restart() {
    let (mut world, swap) = preempted();
    world.dies("srtf", &one_machine());
    assert_eq!((world.phase(0), world.phase(1), world.free()), ("stopping", "starting", 0));
    assert_eq!(world.scheduler.state.decisions_in_flight(), swap);
    world.grants(15.0, &swap);
    world.dies("srtf", &one_machine());
    assert_eq!((world.phase(0), world.phase(1)), ("waiting", "running"));
    world.hears(20.0, Event::Ended { job: 1, how: End::Finished });
    assert_eq!(jobs_of(&world.asks(20.0)), [('+', 0)]);
}

#[test]
fn timers_are_armed_anew_after_a_restart() {
    let two = topology(&[(0, 4), (0, 4)]);
    let mut world = World::new("dally", &two);
    let blockers = world.submit(0.0, vec![job(0.0, 3, 1e6), job(0.0, 3, 1e6)]);
    world.grants(0.0, &blockers);
    world.submit(10.0, vec![talking_job(10.0, 2, 100_000.0, 0.5)]);
    world.dies("dally", &two);
    let timers: Vec<(Timer, f64)> = (world.scheduler.decide(20.0).into_iter())
        .filter_map(|d| match d.action {
            Action::SetTimer { timer, at_s } => Some((timer, at_s)),
            _ => None,
        })
        .collect();
    // A rack would cost it 100,000 × 0.5 s: so long it holds out before it has learned anything.
    assert_eq!(timers, [(Timer::Job(2), 50_010.0), (Timer::Round, 300.0)]);
    world.hears(50_010.0, Event::Timer(Timer::Job(2)));
    assert_eq!(jobs_of(&world.asks(50_010.0)), [('+', 2)]);
}

#[test]
fn jobs_that_are_over_are_forgotten() {
    for entry in policy::TABLE {
        let mut world = World::new(entry.name, &one_machine());
        let mut size = 0;
        for n in 0..400 {
            let now = 100.0 * f64::from(n);
            let start = world.submit(now, vec![job(now, 4, 50.0)]);
            world.grants(now, &start);
            let job = n as JobId;
            world.hears(now + 50.0, Event::Ended { job, how: End::Finished });
            if n == 300 {
                size = serde_json::to_string(&world.scheduler.save()).expect("plain values").len();
            }
        }
        assert_eq!(world.scheduler.state.jobs.remembered(), 0, "{}", entry.name);
        // The forecast remembers 512 jobs of each size, gittins more.
        let grown = serde_json::to_string(&world.scheduler.save()).expect("plain values").len();
        assert!(grown < size + 10_000, "{} grew from {size} to {grown} bytes", entry.name);
    }
}

#[test]
fn jobs_that_run_already_are_adopted() {
    for entry in policy::TABLE {
        let mut world = World::new(entry.name, &one_machine());
        let both = vec![Arc::new(job(0.0, 3, 50.0)), Arc::new(job(0.0, 2, 10.0))];
        world.hears(0.0, Event::Submitted(both));
        let cluster = &world.scheduler.state.cluster;
        let placement = Arc::new(placed(cluster, &[(0, 3)]));
        world.hears(0.0, Event::Found { job: 0, placement: placement.clone() });
        let again = world.scheduler.observe(0.0, Event::Found { job: 0, placement });
        assert_eq!(again, Err(Error::NotWaiting(0)));
        assert_eq!((world.phase(0), world.free()), ("running", 1), "{}", entry.name);
        let _ = world.asks(0.0);
        world.hears(60.0, Event::Ended { job: 0, how: End::Finished });
        let next = world.asks(60.0);
        assert!(next.is_empty() || jobs_of(&next) == [('+', 1)], "{}", entry.name);
    }
}

#[test]
fn reasons_can_be_read() {
    let mut world = World::new("dally", &topology(&[(0, 4), (0, 4)]));
    let blockers = world.submit(0.0, vec![job(0.0, 3, 1e6), job(0.0, 3, 1e6)]);
    world.grants(0.0, &blockers);
    assert_eq!(world.told(&blockers[0].why), "it is its turn, and one machine has room");
    world.submit(10.0, vec![talking_job(10.0, 2, 100_000.0, 0.5)]);
    let why = world.told(&world.scheduler.state.job(2).why);
    let weighs = "declines one rack: it would lose 50000 s there; how long a better place takes is not known yet";
    assert_eq!(why, weighs);
    world.hears(50_010.0, Event::Timer(Timer::Job(2)));
    let start = world.asks(50_010.0);
    let why = world.told(&start[0].why);
    let settles =
        "takes one rack: it would lose 50000 s there; a better place is expected in 50000 s";
    assert_eq!(why, settles);
}

#[test]
fn reasons_of_fixed_timers_can_be_read() {
    let mut world = World::new("dally-manual", &topology(&[(0, 4), (0, 4)]));
    let blockers = world.submit(0.0, vec![job(0.0, 3, 1e6), job(0.0, 3, 1e6)]);
    world.grants(0.0, &blockers);
    world.submit(10.0, vec![talking_job(10.0, 2, 100_000.0, 0.5)]);
    let why = world.told(&world.scheduler.state.job(2).why);
    let weighs = "declines one rack: what it would lose there is not known yet; how long a better place takes is not known yet";
    assert_eq!(why, weighs);
    world.hears(43_210.0, Event::Timer(Timer::Job(2)));
    let start = world.asks(43_210.0);
    assert!(matches!(start[0].why, Why::Settles { tier: Tier(1), lost_s: None, .. }));
}

#[test]
fn ways_to_split_a_gang_are_forgotten_with_their_jobs() {
    let mut world = World::new("dally", &topology(&[(2, 8)]));
    let lengths = |world: &World| {
        let cluster = serde_json::to_value(&world.scheduler.state.cluster).unwrap();
        cluster["splits"].as_array().unwrap().len()
    };
    for (n, chunks_max) in (1..=500).enumerate() {
        let mut wanted = job(n as f64, 1, 10.0);
        wanted.terms.split.chunks_max = chunks_max;
        let decisions = world.submit(n as f64, vec![wanted]);
        world.grants(n as f64, &decisions);
        world.hears(n as f64 + 0.5, Event::Ended { job: n as JobId, how: End::Finished });
        assert!(lengths(&world) <= 32, "{} after {n} jobs", lengths(&world));
    }
}
