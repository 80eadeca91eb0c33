//! What a policy may do to the books: each change is a decision.

use std::ops::Deref;
use std::sync::Arc;

use hither_core::Seconds;
use hither_core::record::Reason;

use crate::cluster::Placement;
use crate::contention::Trial;
use crate::event::{Action, Decision, Timer, Why};
use crate::job::JobId;
use crate::network::Shape;
use crate::policy::Policy;
use crate::state::{Ask, Declined, State};

/// One decision in the making: the state that policies plan on and the decisions that they make.
#[derive(Debug)]
pub struct Turn<'a> {
    pub state: Books<'a>,
    decisions: &'a mut Vec<Decision>,
}

/// The state, for policies to read. Only the methods of [`Turn`] change it, and each change is a
/// decision.
#[derive(Debug)]
pub struct Books<'a>(&'a mut State);

impl Deref for Books<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.0
    }
}

impl<'a> Turn<'a> {
    pub fn new(state: &'a mut State, decisions: &'a mut Vec<Decision>) -> Self {
        Self { state: Books(state), decisions }
    }

    pub fn now(&self) -> Seconds {
        self.state.now
    }

    /// A waiting job gets these GPUs, which the books call free.
    pub fn start(&mut self, id: JobId, placement: Placement, why: Why) {
        let placement = Arc::new(placement);
        let (decision, after) = self.state.0.start(id, placement.clone());
        self.state.0.jobs[id].why = why;
        self.decisions.push(Decision {
            id: decision,
            action: Action::Start { job: id, placement },
            after,
            why,
        });
    }

    /// A waiting job takes a place in its turn: how long it waited, and that it got a good place, is noted.
    pub fn accept(&mut self, id: JobId, placement: Placement, why: Why) {
        let State { waits, jobs, now, .. } = &mut *self.state.0;
        let job = &jobs[id];
        waits.started(*now - job.since_s);
        if placement.tier <= job.best {
            waits.got_place(Ask::of(job), *now);
        }
        self.start(id, placement, why);
    }

    /// A running job gives its GPUs back and waits again.
    pub fn preempt(&mut self, id: JobId, reason: Reason, why: Why) {
        let decision = self.state.0.stop(id, reason);
        self.state.0.jobs[id].why = why;
        let action = Action::Stop { job: id, reason };
        self.decisions.push(Decision { id: decision, action, after: Vec::new(), why });
    }

    /// The best offer for a running job if its own GPUs count as free.
    pub fn offer_instead(&mut self, id: JobId) -> Option<Placement> {
        let state = &mut *self.state.0;
        let job = state.job(id);
        let (gang, pool) = (job.demand(), state.pool_of_run(id));
        let held = job.run()?.placement.clone();
        state.cluster.release(&held, gang.split);
        let offer = state.cluster.best_offer(gang, Some(pool));
        state.cluster.take(&held, gang.split);
        offer
    }

    /// What would become of the job and of those who run if it had these GPUs, as believed.
    pub fn trial(&mut self, id: JobId, placement: &Placement, shape: &Shape) -> Trial {
        let State { traffic, jobs, cluster, network, .. } = &mut *self.state.0;
        traffic.trial(id, &jobs[id].job.profile, placement, shape, cluster, network)
    }

    /// What would become of the others if a running job stopped: who would go faster, with the time of an
    /// iteration before, and after.
    pub fn trial_stop(&mut self, id: JobId) -> Vec<(JobId, Seconds, Seconds)> {
        self.state.0.traffic.trial_stop(id)
    }

    /// A suspended job leaves the machines whose memory holds its state: its next start takes so
    /// long, unless it reads a checkpoint anyway.
    pub fn move_memory(&mut self, id: JobId, move_s: Seconds) {
        let job = &mut self.state.0.jobs[id];
        if job.starts > 0 {
            job.restart_s = job.restart_s.max(move_s);
        }
    }

    // ---- the line ----

    /// Jobs that have joined the line get the claim that the policy gives them.
    pub fn enlist(&mut self, policy: &dyn Policy) {
        let state = &mut *self.state.0;
        for id in state.line.take_joining() {
            let claim = policy.claim(state, id);
            state.line.insert(id, Ask::of(&state.jobs[id]), claim);
        }
    }

    /// These waiting jobs get their claims anew.
    pub fn rank_anew(&mut self, policy: &dyn Policy, jobs: &[JobId]) {
        for &id in jobs {
            self.state.0.line.rejoin(id);
        }
        self.enlist(policy);
    }

    /// Numbers the passes over the line.
    pub fn pass(&self) -> u64 {
        self.state.passes
    }

    pub(crate) fn begin_pass(&mut self) {
        self.state.0.passes += 1;
    }

    /// Of the jobs that have waited for so long, the first with an id of at least `from`.
    pub fn overdue(&mut self, overdue_s: Seconds, from: JobId) -> Option<JobId> {
        let now = self.now();
        self.state.0.line.overdue(now, overdue_s, from)
    }

    /// All jobs of the ask that were asked have declined; `None`: they are to be asked again.
    pub(crate) fn declined(&mut self, ask: Ask, declined: Option<Declined>) {
        self.state.0.line.declined(ask, declined);
    }

    /// The ask holds out from now on, or no longer does.
    pub(crate) fn hold_out(&mut self, ask: Ask, holds_out: bool) {
        let now = self.now();
        self.state.0.waits.hold_out(ask, now, holds_out);
    }

    /// Says how long an ask expects to wait, when that has changed.
    pub(crate) fn report_wait(&mut self, ask: Ask) {
        let now = self.now();
        if let Some(wait_s) = self.state.0.waits.news_s(ask, now) {
            let timers_s = vec![wait_s; self.state.cluster.levels.len() - 1];
            self.say(Action::Tuned { gpus: ask.gang.gpus, timers_s }, Why::Learned);
        }
    }

    // ---- timers ----

    /// Whether this timer has gone off since the policy was last asked.
    pub fn take_due(&mut self, timer: Timer) -> bool {
        self.state.0.due.remove(&timer)
    }

    /// The jobs whose timers have gone off since.
    pub fn take_due_jobs(&mut self) -> Vec<JobId> {
        let due = std::mem::take(&mut self.state.0.due);
        let job = |timer| if let Timer::Job(id) = timer { Some(id) } else { None };
        due.into_iter().filter_map(job).collect()
    }

    /// The next round is due after so long, unless one is already set.
    pub fn await_round(&mut self, after_s: Seconds) {
        if !self.state.timers.contains_key(&Timer::Round) {
            self.set_timer(Timer::Round, self.now() + after_s);
        }
    }

    // ---- what else there is to say ----

    /// A waiting job turns down what it could have now.
    pub fn decline(&mut self, id: JobId, why: Why) {
        self.state.0.jobs[id].why = why;
        self.say(Action::Decline { job: id }, why);
    }

    /// A job that has said so before still turns an offer down, for this reason by now.
    pub fn still_declines(&mut self, id: JobId, why: Why) {
        self.state.0.jobs[id].why = why;
    }

    pub fn set_timer(&mut self, timer: Timer, at_s: Seconds) {
        self.state.0.timers.insert(timer, at_s);
        self.say(Action::SetTimer { timer, at_s }, Why::Alarm);
    }

    /// An action that nobody acknowledges.
    pub(crate) fn say(&mut self, action: Action, why: Why) {
        let id = self.state.next_decision;
        self.state.0.next_decision += 1;
        self.decisions.push(Decision { id, action, after: Vec::new(), why });
    }
}
