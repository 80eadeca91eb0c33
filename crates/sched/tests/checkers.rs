//! The outside checkers catch what they are there for: each is shown a forged step.

use crate::common;

use std::sync::Arc;

use common::*;
use hither_core::record::Reason;
use hither_core::topology::Topology;
use hither_sched::check::Checker;
use hither_sched::cluster::{Placement, Status};
use hither_sched::decide::Scheduler;
use hither_sched::event::{Action, Decision, End, Event, Why};
use hither_sched::job::{Job, Split};
use hither_sched::network::Network;
use hither_sched::pass::{Answer, Offer};
use hither_sched::policy::Policy;
use hither_sched::state::{Checkpoints, Line, State, Turn};

/// Starts and stops nothing by itself.
struct Idle;

impl Policy for Idle {
    fn answer(&mut self, _turn: &mut Turn, _id: u32, _offer: Offer) -> Answer {
        Answer::AllWait
    }
}

/// A scheduler whose books the test writes, and the checker that looks on.
struct Forge {
    scheduler: Scheduler,
    checker: Checker,
    /// Iterations that jobs are said to keep when they stop.
    kept: Option<f64>,
}

type Verdict = Result<(), String>;

impl Forge {
    fn new(topology: &Topology, checkpoints: Checkpoints, jobs: Vec<Job>) -> Self {
        let state = State::new(topology, Network::new(topology, 1.0), checkpoints);
        let checker = Checker::new(&state);
        let scheduler = Scheduler::new(state, Box::new(Idle));
        let mut forge = Self { scheduler, checker, kept: None };
        let jobs = jobs.into_iter().map(Arc::new).collect();
        forge.happens(0.0, Event::Submitted(jobs)).expect("arrivals are fine");
        forge
    }

    /// The event comes, and the scheduler does what it must do on its own.
    fn happens(&mut self, now: f64, event: Event) -> Verdict {
        self.checker.before(now, &event, &self.scheduler.state)?;
        self.scheduler.observe(now, event).expect("it can be true");
        let decisions = self.scheduler.decide(now);
        self.checker.after(now, &decisions, &self.scheduler.state, None)
    }

    /// What the policy does at `now`, in full accord with the books.
    fn turn(&mut self, now: f64, act: impl Fn(&mut Turn)) -> Verdict {
        self.turn_within(now, None, act)
    }

    fn turn_within(&mut self, now: f64, bound: Option<f64>, act: impl Fn(&mut Turn)) -> Verdict {
        let round = Event::Timer(hither_sched::event::Timer::Round);
        self.scheduler.observe(now, round.clone()).expect("time goes by");
        let state = &mut self.scheduler.state;
        self.checker.before(now, &round, state)?;
        let mut decisions = Vec::new();
        act(&mut Turn::new(state, &mut decisions));
        for decision in &decisions {
            self.acknowledge(now, decision);
        }
        self.checker.after(now, &decisions, &self.scheduler.state, bound)
    }

    /// The world carries the decision out; a job does an iteration per second.
    fn acknowledge(&mut self, now: f64, decision: &Decision) {
        let id = decision.id;
        let news = match decision.action {
            Action::Start { .. } => Event::Started(id),
            Action::Stop { .. } => Event::Stopped { decision: id, kept: self.kept },
            _ => return,
        };
        self.scheduler.observe(now, news).expect("it is in flight");
        if let Action::Start { job, .. } = decision.action {
            let done = self.scheduler.state.job(job).done;
            let news = Event::Progress { job, done, rate: 1.0 };
            self.scheduler.observe(now, news).expect("it runs");
        }
    }

    /// The policy claims these actions; its books say nothing of them.
    fn claims(&mut self, now: f64, actions: &[Action]) -> Verdict {
        self.scheduler.state.now = now;
        let decide = |action: &Action| {
            let (action, why) = (action.clone(), Why::Alarm);
            Decision { id: 0, action, after: Vec::new(), why }
        };
        let decisions: Vec<Decision> = actions.iter().map(decide).collect();
        self.checker.after(now, &decisions, &self.scheduler.state, None)
    }

    fn placed(&self, slots: &[(u32, u32)]) -> Placement {
        placed(&self.scheduler.state.cluster, slots)
    }

    fn start(&mut self, now: f64, id: u32, slots: &[(u32, u32)]) -> Verdict {
        let placement = self.placed(slots);
        self.turn(now, |turn| turn.start(id, placement.clone(), Why::Alarm))
    }

    fn claims_start(&mut self, id: u32, slots: &[(u32, u32)]) -> Verdict {
        let placement = Arc::new(self.placed(slots));
        self.claims(0.0, &[Action::Start { job: id, placement }])
    }
}

#[track_caller]
fn caught(verdict: Verdict, word: &str) {
    let what = verdict.expect_err("the checker sees it");
    assert!(what.contains(word), "{what}");
}

fn two_machines(jobs: Vec<Job>) -> Forge {
    Forge::new(&topology(&[(0, 4), (1, 4)]), Checkpoints::default(), jobs)
}

#[test]
fn an_honest_run_passes() {
    let mut forge = two_machines(vec![job(0.0, 4, 100.0), job(0.0, 6, 50.0)]);
    assert_eq!(forge.start(0.0, 0, &[(0, 4)]), Ok(()));
    assert_eq!(forge.turn(30.0, |turn| turn.preempt(0, Reason::Priority, Why::Outranked)), Ok(()));
    assert_eq!(forge.start(30.0, 1, &[(0, 3), (1, 3)]), Ok(()));
    assert_eq!(forge.happens(80.0, Event::Ended { job: 1, how: End::Finished }), Ok(()));
    assert_eq!(forge.start(80.0, 0, &[(1, 4)]), Ok(()));
    assert_eq!(forge.happens(90.0, Event::Machine { machine: 1, status: Status::Gone }), Ok(()));
    assert_eq!(forge.happens(95.0, Event::Ended { job: 0, how: End::Cancelled }), Ok(()));
    assert_eq!(forge.happens(99.0, Event::Machine { machine: 1, status: Status::Up }), Ok(()));
}

#[test]
fn gpus_that_are_booked_twice() {
    let mut forge = two_machines(vec![job(0.0, 3, 100.0), job(0.0, 2, 100.0)]);
    forge.start(0.0, 0, &[(0, 3)]).expect("three of four");
    caught(forge.claims_start(1, &[(0, 2)]), "booked twice");
}

#[test]
fn a_machine_that_is_listed_twice_or_for_nothing() {
    let mut forge = two_machines(vec![job(0.0, 4, 100.0)]);
    caught(forge.claims_start(0, &[(0, 2), (0, 2)]), "listed twice or without");
    let mut forge = two_machines(vec![job(0.0, 4, 100.0)]);
    caught(forge.claims_start(0, &[(0, 4), (1, 0)]), "listed twice or without");
}

#[test]
fn a_gang_that_starts_in_part_or_with_too_many() {
    let mut forge = two_machines(vec![job(0.0, 4, 100.0)]);
    caught(forge.claims_start(0, &[(0, 3)]), "wants 4 GPUs and got 3");
    let mut forge = two_machines(vec![job(0.0, 4, 100.0)]);
    caught(forge.claims_start(0, &[(0, 4), (1, 1)]), "wants 4 GPUs and got 5");
}

#[test]
fn gpus_of_the_wrong_type_or_of_two_types() {
    let typed = typed_topology(&[(0, 4, "a"), (0, 4, "b")]);
    let picky = Job { gpu_type: Some("b".into()), ..job(0.0, 2, 100.0) };
    let mut forge = Forge::new(&typed, Checkpoints::default(), vec![picky]);
    caught(forge.claims_start(0, &[(0, 2)]), "wrong type");
    let any = job(0.0, 2, 100.0);
    let mut forge = Forge::new(&typed, Checkpoints::default(), vec![any]);
    caught(forge.claims_start(0, &[(0, 1), (1, 1)]), "wrong type");
}

#[test]
fn a_start_on_a_machine_that_is_down() {
    let mut forge = two_machines(vec![job(0.0, 4, 100.0)]);
    forge
        .happens(5.0, Event::Machine { machine: 1, status: Status::Gone })
        .expect("nobody was there");
    caught(forge.claims_start(0, &[(1, 4)]), "which is down");
}

#[test]
fn a_job_that_stays_on_a_machine_that_went_down() {
    let mut forge = two_machines(vec![job(0.0, 4, 100.0)]);
    forge.start(0.0, 0, &[(1, 4)]).expect("it is free");
    let down = Event::Machine { machine: 1, status: Status::Gone };
    forge.checker.before(10.0, &down, &forge.scheduler.state).expect("machines may fail");
    // The scheduler forgets to requeue the job.
    forge.scheduler.state.cluster.set_status(1, Status::Gone);
    caught(forge.claims(10.0, &[]), "is down and holds jobs");
}

#[test]
fn a_placement_that_lies_about_its_tier() {
    let mut forge = two_machines(vec![job(0.0, 4, 100.0)]);
    let spread = forge.placed(&[(0, 2), (1, 2)]);
    let tier = hither_core::topology::Tier(1);
    let placement = Arc::new(Placement { tier, ..spread });
    caught(forge.claims(0.0, &[Action::Start { job: 0, placement }]), "not of tier Tier(1)");
}

#[test]
fn a_job_that_starts_while_it_runs_or_stops_while_it_waits() {
    let mut forge = two_machines(vec![job(0.0, 1, 100.0)]);
    caught(forge.claims(0.0, &[Action::Stop { job: 0, reason: Reason::Priority }]), "did not run");
    let mut forge = two_machines(vec![job(0.0, 1, 100.0)]);
    forge.start(0.0, 0, &[(0, 1)]).expect("it is free");
    caught(forge.claims_start(0, &[(1, 1)]), "without waiting");
}

#[test]
fn books_that_disagree_with_the_actions() {
    // A start in the actions that the cluster knows nothing of.
    let mut forge = two_machines(vec![job(0.0, 1, 100.0)]);
    caught(forge.claims_start(0, &[(0, 1)]), "GPUs are free");
    // GPUs that leak when a job ends.
    let mut forge = two_machines(vec![job(0.0, 2, 100.0)]);
    let hidden = forge.placed(&[(0, 1)]);
    forge.scheduler.state.cluster.take(&hidden, Split::ANY);
    caught(forge.claims(0.0, &[]), "GPUs are free");
    // A job that vanishes from the queue.
    let mut forge = two_machines(vec![job(0.0, 2, 100.0)]);
    forge.scheduler.state.line = Line::default();
    caught(forge.claims(0.0, &[]), "lost count");
}

#[test]
fn a_job_that_ends_before_its_last_iteration() {
    let mut forge = two_machines(vec![job(0.0, 1, 100.0)]);
    caught(forge.happens(10.0, Event::Ended { job: 0, how: End::Finished }), "unstarted");
    forge.start(0.0, 0, &[(0, 1)]).expect("it is free");
    caught(forge.happens(99.0, Event::Ended { job: 0, how: End::Finished }), "after 99 of 100");
    assert_eq!(forge.happens(100.0, Event::Ended { job: 0, how: End::Finished }), Ok(()));
}

/// A job that did 70 of its iterations and is stopped for a reason, after which `kept` are left.
fn falls_back(reason: Reason, on_preempt: bool, kept: f64) -> Verdict {
    let checkpoints = Checkpoints { interval_s: 20.0, on_preempt, ..Checkpoints::default() };
    let mut forge = Forge::new(&topology(&[(0, 1)]), checkpoints, vec![job(0.0, 1, 100.0)]);
    forge.start(0.0, 0, &[(0, 1)]).expect("it is free");
    forge.kept = Some(kept);
    forge.turn(70.0, |turn| turn.preempt(0, reason, Why::Outranked))
}

#[test]
fn progress_that_is_lost() {
    // A preemption with a checkpoint keeps all, a time slice always does.
    assert_eq!(falls_back(Reason::Priority, true, 70.0), Ok(()));
    caught(falls_back(Reason::Priority, true, 69.0), "fell back from 70 to 69");
    caught(falls_back(Reason::Upgrade, true, 69.0), "fell back");
    caught(falls_back(Reason::TimeSlice, false, 69.0), "fell back");
    // Otherwise no more is lost than a checkpoint's interval of work.
    assert_eq!(falls_back(Reason::Failure, true, 60.0), Ok(()));
    assert_eq!(falls_back(Reason::Priority, false, 60.0), Ok(()));
    caught(falls_back(Reason::Failure, true, 49.0), "fell back from 70 to 49");
    caught(falls_back(Reason::Priority, false, 49.0), "fell back");
}

fn overtakes(young: Job, now: f64, bound: f64) -> Verdict {
    let typed = typed_topology(&[(0, 4, "a"), (0, 4, "b")]);
    let old = Job { gpu_type: Some("a".into()), ..job(0.0, 4, 100.0) };
    let mut forge = Forge::new(&typed, Checkpoints::default(), vec![old]);
    let arrival = Event::Submitted(vec![Arc::new(young.clone())]);
    forge.happens(young.submit_s, arrival).expect("arrivals are fine");
    let machine = u32::from(young.gpu_type.as_deref() == Some("b"));
    let placement = forge.placed(&[(machine, 1)]);
    forge.turn_within(now, Some(bound), |turn| turn.start(1, placement.clone(), Why::Alarm))
}

#[test]
fn a_younger_job_that_overtakes_one_that_has_waited_beyond_the_bound() {
    let of_type = |kind: &str| Job { gpu_type: Some(kind.into()), ..job(10.0, 1, 100.0) };
    caught(overtakes(of_type("a"), 60.0, 50.0), "overtook job 0");
    caught(overtakes(job(10.0, 1, 100.0), 60.0, 50.0), "overtook job 0");
    // Within the bound, on other GPUs, or no younger: fine.
    assert_eq!(overtakes(of_type("a"), 50.0, 50.0), Ok(()));
    assert_eq!(overtakes(of_type("b"), 60.0, 50.0), Ok(()));
    assert_eq!(overtakes(job(0.0, 1, 100.0), 60.0, 50.0), Ok(()));
}

#[test]
fn the_wait_counts_from_the_preemption() {
    let mut forge = two_machines(vec![job(0.0, 4, 500.0)]);
    forge.start(0.0, 0, &[(0, 4)]).expect("it is free");
    forge
        .turn(100.0, |turn| turn.preempt(0, Reason::Priority, Why::Outranked))
        .expect("with its progress");
    forge.happens(101.0, Event::Submitted(vec![Arc::new(job(101.0, 1, 9.0))])).expect("fine");
    let one = forge.placed(&[(0, 1)]);
    let start = |turn: &mut Turn| turn.start(1, one.clone(), Why::Alarm);
    // Since 100, not since 0.
    assert_eq!(forge.turn_within(140.0, Some(50.0), start), Ok(()));
}

#[test]
fn a_job_that_runs_past_its_end() {
    let mut forge = two_machines(vec![job(0.0, 1, 100.0)]);
    forge.start(0.0, 0, &[(0, 1)]).expect("it is free");
    assert_eq!(forge.claims(100.0, &[]), Ok(()));
    // Nobody told the scheduler that the job was over at 100.
    caught(forge.claims(101.0, &[]), "ran past its end");
}

#[test]
fn a_job_that_is_faster_than_alone_on_its_gpus() {
    // An iteration takes 1 s on one machine and 3 s on two; jobs here do one per second.
    let start = |slots: &[(u32, u32)]| {
        two_machines(vec![talking_job(0.0, 2, 100.0, 1.0)]).start(0.0, 0, slots)
    };
    assert_eq!(start(&[(0, 2)]), Ok(()));
    caught(start(&[(0, 1), (1, 1)]), "takes 1 s an iteration, alone 3 s");
}
