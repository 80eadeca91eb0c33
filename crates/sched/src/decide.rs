//! `decide(event) → actions`: the one entry to the scheduler, for the simulator and for a real
//! cluster alike. First the books are brought up to date, then the policy makes its choices.

use hither_core::Seconds;
use hither_core::record::Reason;

use crate::event::{Action, Event};
use crate::job::JobId;
use crate::policy::Policy;
use crate::state::{Phase, State, Turn};

pub struct Scheduler {
    pub state: State,
    policy: Box<dyn Policy>,
    actions: Vec<Action>,
}

impl Scheduler {
    pub fn new(state: State, policy: Box<dyn Policy>) -> Self {
        Self { state, policy, actions: Vec::new() }
    }

    /// How long a job may wait until no younger one overtakes it; none: the policy has no bound.
    pub fn overtaking_s_max(&self) -> Option<Seconds> {
        self.policy.overtaking_s_max()
    }

    /// What to do, in this order, now that this has happened. Events that no longer mean anything,
    /// such as the end of a job that was cancelled, change nothing.
    pub fn decide(&mut self, now: Seconds, event: Event) -> &[Action] {
        self.actions.clear();
        self.state.now = now;
        let turn = &mut Turn { state: &mut self.state, actions: &mut self.actions };
        let policy = &mut *self.policy;
        match event {
            Event::Arrive(jobs) => {
                for job in jobs {
                    let id = turn.state.admit(job);
                    policy.enqueue(turn, id);
                }
            }
            Event::Finish(id) => {
                if turn.state.job(id).run().is_some() {
                    let iterations = turn.state.job(id).iterations;
                    turn.state.stop(id, iterations, Phase::Over);
                    policy.forget(turn, id);
                }
            }
            Event::Cancel(id) => cancel(turn, policy, id),
            Event::Timer(timer) => policy.timer(turn, timer),
            Event::MachineDown(machine) => {
                if turn.state.cluster.machines[machine as usize].up {
                    for id in turn.state.jobs_on(machine) {
                        turn.preempt(id, Reason::Failure);
                        policy.enqueue(turn, id);
                    }
                    turn.state.cluster.take_down(machine);
                }
            }
            Event::MachineUp(machine) => {
                if !turn.state.cluster.machines[machine as usize].up {
                    turn.state.cluster.bring_up(machine);
                }
            }
        }
        policy.schedule(turn);
        &self.actions
    }
}

fn cancel(turn: &mut Turn, policy: &mut dyn Policy, id: JobId) {
    let job = turn.state.job(id);
    match job.phase {
        Phase::Running(_) => {
            let done = job.done_at(turn.now());
            turn.state.stop(id, done, Phase::Over);
        }
        Phase::Waiting => {
            turn.state.jobs[id as usize].phase = Phase::Over;
            turn.state.waiting -= 1;
        }
        Phase::Over => return,
    }
    policy.forget(turn, id);
}
