//! The cluster's gauges over time, replayed from the events of a run.

use std::collections::HashMap;

use hither_core::record::{ClusterRow, EventRow, Happening};

/// The quantities of the plots over time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Gauges {
    /// Share of all GPUs that jobs hold.
    pub utilisation: f64,
    /// Share of the free GPUs that lie in partly used machines.
    pub fragmentation: f64,
    /// Jobs submitted and without GPUs.
    pub waiting: f64,
}

enum Job<'a> {
    Waiting,
    Running(&'a [(u32, u32)]),
}

struct Machine {
    gpus: i64,
    used: i64,
    down: bool,
}

impl Machine {
    fn free(&self) -> i64 {
        if self.down { 0 } else { (self.gpus - self.used).max(0) }
    }

    fn free_beside_jobs(&self) -> i64 {
        if self.used > 0 { self.free() } else { 0 }
    }
}

/// The state of the cluster as events are replayed.
pub struct Replay<'a> {
    machines: Vec<Machine>,
    jobs: HashMap<u32, Job<'a>>,
    gpus: i64,
    used: i64,
    free: i64,
    free_beside_jobs: i64,
    waiting: u64,
}

impl<'a> Replay<'a> {
    pub fn new(cluster: &ClusterRow) -> Self {
        let machines: Vec<Machine> = cluster
            .machines
            .iter()
            .map(|m| Machine { gpus: i64::from(m.gpus), used: 0, down: false })
            .collect();
        let gpus = machines.iter().map(|m| m.gpus).sum();
        let jobs = HashMap::new();
        Self { machines, jobs, gpus, used: 0, free: gpus, free_beside_jobs: 0, waiting: 0 }
    }

    pub fn apply(&mut self, event: &'a EventRow) {
        match &event.what {
            Happening::Arrive { job, .. } | Happening::Preempt { job, .. } => {
                self.leave(*job);
                self.jobs.insert(*job, Job::Waiting);
                self.waiting += 1;
            }
            Happening::Start { job, machines, .. } => {
                self.leave(*job);
                self.take(machines, 1);
                self.jobs.insert(*job, Job::Running(machines));
            }
            Happening::Finish { job } | Happening::Cancel { job } => self.leave(*job),
            Happening::MachineDown { machine } => self.change(*machine, |m| m.down = true),
            Happening::MachineUp { machine } => self.change(*machine, |m| m.down = false),
            Happening::Timers { .. } | Happening::Links { .. } | Happening::Decline { .. } => {}
        }
    }

    pub fn gauges(&self) -> Gauges {
        let share = |part: i64, whole: i64| {
            if whole > 0 { part as f64 / whole as f64 } else { 0.0 }
        };
        Gauges {
            utilisation: share(self.used, self.gpus),
            fragmentation: share(self.free_beside_jobs, self.free),
            waiting: self.waiting as f64,
        }
    }

    fn leave(&mut self, job: u32) {
        match self.jobs.remove(&job) {
            Some(Job::Waiting) => self.waiting -= 1,
            Some(Job::Running(machines)) => self.take(machines, -1),
            None => {}
        }
    }

    fn take(&mut self, machines: &[(u32, u32)], sign: i64) {
        for &(machine, gpus) in machines {
            self.change(machine, |m| m.used += sign * i64::from(gpus));
        }
    }

    fn change(&mut self, machine: u32, change: impl FnOnce(&mut Machine)) {
        // A record from elsewhere may name machines that its header does not have.
        let Some(m) = self.machines.get_mut(machine as usize) else { return };
        self.used -= m.used;
        self.free -= m.free();
        self.free_beside_jobs -= m.free_beside_jobs();
        change(m);
        self.used += m.used;
        self.free += m.free();
        self.free_beside_jobs += m.free_beside_jobs();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::record::{LevelRow, MachineRow, Reason};

    fn cluster() -> ClusterRow {
        let machine =
            |name: &str| MachineRow { name: name.into(), parent: 0, gpus: 4, gpu_type: "x".into() };
        ClusterRow {
            name: "c".into(),
            levels: LevelRow::racks(["r"]),
            machines: vec![machine("a"), machine("b")],
        }
    }

    #[test]
    fn gauges_follow_starts_preemptions_and_failures() {
        let at = |what| EventRow { t: 0.0, what };
        let events = [
            at(Happening::Arrive { job: 0, gpus: 3 }),
            at(Happening::Start { job: 0, tier: 0, machines: vec![(0, 3)], why: None }),
            at(Happening::MachineDown { machine: 1 }),
            at(Happening::MachineUp { machine: 1 }),
            at(Happening::Preempt { job: 0, reason: Reason::Priority, why: None }),
            at(Happening::Start { job: 0, tier: 1, machines: vec![(0, 2), (1, 1)], why: None }),
            at(Happening::Start { job: 9, tier: 1, machines: vec![(77, 2)], why: None }),
            at(Happening::Finish { job: 0 }),
        ];
        let cluster = cluster();
        let mut replay = Replay::new(&cluster);
        let expected = [
            (0.0, 0.0, 1.0),
            (3.0 / 8.0, 1.0 / 5.0, 0.0),
            (3.0 / 8.0, 1.0, 0.0),
            (3.0 / 8.0, 1.0 / 5.0, 0.0),
            (0.0, 0.0, 1.0),
            (3.0 / 8.0, 1.0, 0.0),
            (3.0 / 8.0, 1.0, 0.0),
            (0.0, 0.0, 0.0),
        ];
        for (event, (utilisation, fragmentation, waiting)) in events.iter().zip(expected) {
            replay.apply(event);
            assert_eq!(
                replay.gauges(),
                Gauges { utilisation, fragmentation, waiting },
                "{event:?}"
            );
        }
    }
}
