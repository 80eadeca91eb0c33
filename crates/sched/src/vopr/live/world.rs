//! The world's side: what happens to jobs and machines, and which news go out.

use std::sync::Arc;

use hither_core::topology::Machine;
use rand::RngExt;

use super::{Due, Live, RECONCILE_S, Real, RealRun, TROUBLE_S, Verdict};
use crate::cluster::{MachineId, Placement, Slot, Status};
use crate::event::{Action, Decision, DecisionId, End, Event};
use crate::job::{Demand, JobId};

impl Live<'_> {
    pub(super) fn happens(&mut self, what: Due) -> Verdict {
        match what {
            Due::Submit(index) => self.submit(index),
            Due::CarryOut(decision) => self.carry_out(decision),
            Due::Tell(event) => self.observe(event),
            Due::Timer(timer, version) => match self.timer_version.get(&timer) == Some(&version) {
                true => {
                    self.armed.remove(&timer);
                    self.observe(Event::Timer(timer))
                }
                false => Ok(()),
            },
            Due::End(id, serial) => self.end(id, serial),
            Due::Machine(status) => self.machine(status),
            Due::Foreign => self.others(),
            Due::Resize => self.resize(),
            Due::Join => self.join(),
            Due::Cancel => self.cancel(),
            Due::TakeAway => self.take_away(),
            Due::Reconcile => {
                self.at(self.now + RECONCILE_S, Due::Reconcile);
                self.report_progress();
                self.reconcile()
            }
        }
    }

    /// News goes out: at once or late, perhaps twice, perhaps not at all.
    fn tell(&mut self, event: Event) {
        if self.in_trouble() && self.rng.random_bool(0.1) {
            return; // lost
        }
        let times = if self.in_trouble() && self.rng.random_bool(0.1) { 2 } else { 1 };
        for _ in 0..times {
            let at_s = self.soon();
            self.at(at_s, Due::Tell(event.clone()));
        }
    }

    fn submit(&mut self, index: usize) -> Verdict {
        let job = self.case.scenario.jobs[index].clone();
        if !self.scheduler.state.admits(&job) {
            // Machines have shrunk: its user tries again when they are back to their size.
            if !self.in_trouble() {
                return Err(format!("job {index} fits no more"));
            }
            self.at(TROUBLE_S + 2.0, Due::Submit(index));
            return Ok(());
        }
        let left_s = 10f64.powf(self.rng.random_range(0.0..3.3));
        self.jobs.push(Real { index, demand: job.demand(), left_s, run: None, over: false });
        self.observe(Event::Submitted(vec![job]))
    }

    fn carry_out(&mut self, decision: Decision) -> Verdict {
        let id = decision.id;
        self.in_hand.remove(&id);
        if !self.scheduler.state.in_flight.contains_key(&id) {
            return Ok(()); // its job is over, or what it waited for was refused
        }
        // A driver obeys the order: it looks again when the stops may be done.
        if decision.after.iter().any(|stop| self.scheduler.state.in_flight.contains_key(stop)) {
            self.in_hand.insert(id);
            self.at(self.now + 30.0, Due::CarryOut(decision));
            return Ok(());
        }
        let outcome = match &decision.action {
            Action::Start { job, placement } => self.start(id, *job, placement)?,
            Action::Stop { job, .. } => self.stop(id, *job),
            _ => return Ok(()),
        };
        let Some(outcome) = outcome else { return Ok(()) };
        self.outcome.insert(id, outcome.clone());
        self.tell(outcome);
        Ok(())
    }

    /// What happens to a start; `None`: its job is over, and that is news enough.
    fn start(
        &mut self,
        decision: DecisionId,
        id: JobId,
        placement: &Arc<Placement>,
    ) -> Result<Option<Event>, String> {
        let job = &self.jobs[id as usize];
        if job.over {
            return Ok(None);
        }
        if job.run.is_some() {
            return Err(format!("job {id} was started twice"));
        }
        let Demand { gpus, split } = job.demand;
        let is_whole = |s: &Slot| split.chunks_in(s.gpus) * split.chunk == s.gpus;
        if !placement.slots.iter().all(is_whole) {
            return Err(format!("job {id} is split otherwise than it may be"));
        }
        if placement.slots.iter().map(|s| s.gpus).sum::<u32>() != gpus {
            return Err(format!("job {id} was started in part"));
        }
        let mut room = true;
        for slot in &placement.slots {
            let at = slot.machine as usize;
            let used = self.used[at] + slot.gpus;
            let is_up = self.status[at] == Status::Up;
            if is_up && used > self.gpus_max[at] {
                return Err(format!("machine {at} is booked twice by job {id}"));
            }
            room &= is_up && used + self.foreign[at] <= self.gpus[at];
        }
        if !room || (self.in_trouble() && self.rng.random_bool(0.1)) {
            return Ok(Some(Event::Refused(decision)));
        }
        for slot in &placement.slots {
            self.used[slot.machine as usize] += slot.gpus;
        }
        self.serial += 1;
        let (serial, since_s) = (self.serial as u32, self.now);
        let job = &mut self.jobs[id as usize];
        job.run = Some(RealRun { placement: placement.clone(), since_s, serial });
        let end_s = self.now + job.left_s;
        self.at(end_s, Due::End(id, serial));
        self.tell(Event::Progress { job: id, done: 0.0, rate: 1.0 });
        Ok(Some(Event::Started(decision)))
    }

    fn stop(&mut self, decision: DecisionId, id: JobId) -> Option<Event> {
        if self.jobs[id as usize].over {
            return None;
        }
        let runs = self.jobs[id as usize].run.is_some();
        if runs && self.in_trouble() && self.rng.random_bool(0.1) {
            return Some(Event::Refused(decision));
        }
        self.halt(id, true);
        let kept = self.rng.random_bool(0.5).then(|| self.rng.random_range(0.0..2000.0));
        Some(Event::Stopped { decision, kept })
    }

    /// The job holds no GPUs any more.
    fn halt(&mut self, id: JobId, keeps: bool) {
        let job = &mut self.jobs[id as usize];
        let Some(run) = job.run.take() else { return };
        if keeps {
            job.left_s = (job.left_s - (self.now - run.since_s)).max(1.0);
        }
        for slot in &run.placement.slots {
            self.used[slot.machine as usize] -= slot.gpus;
        }
    }

    fn end(&mut self, id: JobId, serial: u32) -> Verdict {
        if self.jobs[id as usize].run.as_ref().is_none_or(|run| run.serial != serial) {
            return Ok(()); // that run was stopped
        }
        self.halt(id, true);
        self.jobs[id as usize].over = true;
        let how = if self.rng.random_bool(0.1) { End::Failed } else { End::Finished };
        self.tell(Event::Ended { job: id, how });
        Ok(())
    }

    fn cancel(&mut self) -> Verdict {
        if self.jobs.is_empty() {
            return Ok(());
        }
        let id = self.rng.random_range(0..self.jobs.len()) as JobId;
        self.halt(id, true);
        self.jobs[id as usize].over = true;
        self.tell(Event::Ended { job: id, how: End::Cancelled });
        Ok(())
    }

    /// The cluster takes a job's GPUs away, as when somebody requeues it by hand. A driver learns that
    /// by looking, so the news is never late; a look may come later.
    fn take_away(&mut self) -> Verdict {
        let runs = |id: &JobId| self.jobs[*id as usize].run.is_some();
        let running: Vec<JobId> = (0..self.jobs.len() as JobId).filter(runs).collect();
        if running.is_empty() {
            return Ok(());
        }
        let job = running[self.rng.random_range(0..running.len())];
        self.lose(job)?;
        match self.rng.random_bool(0.2) {
            true => Ok(()),
            false => self.observe(Event::Lost { job }),
        }
    }

    /// A running job says how far it is and how fast it goes, rightly or not.
    pub(super) fn report_progress(&mut self) {
        let runs = |id: &JobId| self.jobs[*id as usize].run.is_some();
        let running: Vec<JobId> = (0..self.jobs.len() as JobId).filter(runs).collect();
        for job in running {
            if self.in_trouble() && self.rng.random_bool(0.3) {
                let done = self.rng.random_range(0.0..20_000.0);
                let rate =
                    if self.rng.random_bool(0.1) { 0.0 } else { self.rng.random_range(0.1..10.0) };
                self.tell(Event::Progress { job, done, rate });
            }
        }
    }

    fn any_machine(&mut self) -> MachineId {
        self.rng.random_range(0..self.status.len()) as MachineId
    }

    /// A machine goes or drains, and comes back; jobs there die with it.
    fn machine(&mut self, status: Status) -> Verdict {
        if status == Status::Up {
            for machine in 0..self.status.len() {
                self.status[machine] = Status::Up;
                self.observe(Event::Machine { machine: machine as MachineId, status })?;
            }
            return Ok(());
        }
        let machine = self.any_machine();
        self.status[machine as usize] = status;
        if status == Status::Gone {
            for id in 0..self.jobs.len() {
                let on = |run: &RealRun| run.placement.slots.iter().any(|s| s.machine == machine);
                if self.jobs[id].run.as_ref().is_some_and(on) {
                    self.lose(id as JobId)?;
                }
            }
        }
        let back_s = self.now + self.rng.random_range(1.0..10_000.0);
        self.at(back_s, Due::Machine(Status::Up));
        self.observe(Event::Machine { machine, status })
    }

    /// The job dies with its machine. A start whose news is still out is told now: nobody learns of
    /// it otherwise.
    fn lose(&mut self, id: JobId) -> Verdict {
        self.halt(id, false);
        for decision in self.scheduler.state.decisions_in_flight() {
            if let Action::Start { job, .. } = decision.action
                && job == id
                && let Some(outcome) = self.outcome.get(&decision.id)
            {
                self.observe(outcome.clone())?;
            }
        }
        Ok(())
    }

    fn others(&mut self) -> Verdict {
        if !self.in_trouble() {
            for machine in 0..self.foreign.len() {
                self.foreign[machine] = 0;
                self.observe(Event::Foreign { machine: machine as MachineId, gpus: 0 })?;
            }
            return Ok(());
        }
        let machine = self.any_machine();
        let at = machine as usize;
        let room = self.gpus[at].saturating_sub(self.used[at]);
        self.foreign[at] = self.rng.random_range(0..=room);
        self.observe(Event::Foreign { machine, gpus: self.foreign[at] })
    }

    /// A machine grows or shrinks, also below what its jobs hold. In the end all are back to their
    /// largest size: jobs that fit nowhere would wait for ever.
    fn resize(&mut self) -> Verdict {
        if !self.in_trouble() {
            for machine in 0..self.gpus.len() {
                self.gpus[machine] = self.gpus_max[machine];
                let gpus = self.gpus[machine];
                self.observe(Event::Resized { machine: machine as MachineId, gpus })?;
            }
            return Ok(());
        }
        let machine = self.any_machine();
        let at = machine as usize;
        self.gpus[at] = self.rng.random_range(0..=self.gpus_max[at] + 1);
        self.gpus_max[at] = self.gpus_max[at].max(self.gpus[at]);
        self.observe(Event::Resized { machine, gpus: self.gpus[at] })
    }

    /// A machine joins a rack, or a new one in any place around.
    fn join(&mut self) -> Verdict {
        let cluster = &self.scheduler.state.cluster;
        let (places, around) = match cluster.levels.len() {
            2 => (1, 1),
            _ => (cluster.places(1) as u32 + 1, cluster.places(2) as u32),
        };
        let around = self.rng.random_range(0..around);
        let machine = Machine {
            name: format!("m{}", self.gpus.len()),
            parent: self.rng.random_range(0..places),
            gpus: self.rng.random_range(1..=8),
            gpu_type: self.case.topology.machines[0].gpu_type.clone(),
        };
        for counts in [&mut self.gpus, &mut self.gpus_max] {
            counts.push(machine.gpus);
        }
        self.used.push(0);
        self.foreign.push(0);
        self.status.push(Status::Up);
        self.joined.push((machine.clone(), around));
        self.observe(Event::Added { machine, around })
    }
}
