//! Gandiva (OSDI 2018), for gangs: machines are set aside by job size; a job goes to the least
//! loaded machines of its size, else to empty ones, else it shares GPUs in turns. Suspended jobs
//! move to GPUs that fall free, and jobs that are spread thinly move together when they can.

use std::collections::{BTreeMap, BTreeSet};

use hither_core::Seconds;
use hither_core::record::Reason;
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, MachineId, Placement, PoolId, Slot};
use crate::event::{Timer, Why};
use crate::job::{Demand, JobId};
use crate::order::Total;
use crate::policy::queue::{Queue, class_of};
use crate::policy::{Policy, saved_whole};
use crate::state::Turn;

pub const ABOUT: &str = "Gandiva: machines by job size, time slicing, migration";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// How long a job runs before one that shares its GPUs takes its turn.
    pub slice_s: Seconds,
    /// How often jobs are moved to improve the packing.
    pub rebalance_s: Seconds,
}

impl Default for Options {
    fn default() -> Self {
        Self { slice_s: 60.0, rebalance_s: 600.0 }
    }
}

pub fn gandiva(options: &Options) -> Box<dyn Policy> {
    Box::new(Gandiva {
        options: options.clone(),
        homes: BTreeMap::new(),
        waiting: Queue::default(),
        since: BTreeMap::new(),
        machines: Vec::new(),
        slice_set: false,
        slice_over: false,
        rebalanced_s: 0.0,
    })
}

#[derive(Debug, Serialize, Deserialize)]
struct Gandiva {
    #[serde(skip)]
    options: Options,
    /// By job: the GPUs that it uses, alone or in turns.
    homes: BTreeMap<JobId, Placement>,
    /// By since when they wait.
    waiting: Queue<Total>,
    since: BTreeMap<JobId, Total>,
    machines: Vec<Room>,
    slice_set: bool,
    slice_over: bool,
    rebalanced_s: Seconds,
}

/// What lives on a machine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Room {
    /// GPUs promised, over the machine's number where jobs take turns.
    promised: u32,
    /// Size of the jobs that the machine is set aside for.
    size: Option<u32>,
    jobs: Vec<JobId>,
}

impl Gandiva {
    fn resize(&mut self, turn: &Turn) {
        self.machines.resize(turn.state.cluster.machines.len(), Room::default());
    }

    fn settle(&mut self, id: JobId, home: Placement, size: u32) {
        for slot in &home.slots {
            let room = &mut self.machines[slot.machine as usize];
            room.promised += slot.gpus;
            room.size.get_or_insert(size);
            room.jobs.push(id);
        }
        self.homes.insert(id, home);
    }

    fn unsettle(&mut self, id: JobId) {
        let Some(home) = self.homes.remove(&id) else { return };
        for slot in &home.slots {
            let room = &mut self.machines[slot.machine as usize];
            room.promised -= slot.gpus;
            room.jobs.retain(|&j| j != id);
            if room.jobs.is_empty() {
                room.size = None;
            }
        }
    }

    /// Where a job of this size should live: machines of its size with room, else empty ones, else
    /// any with room; and if none has, in turns on the least loaded of its size, else of all.
    fn find_home(&self, cluster: &Cluster, gang: Demand, pool: PoolId) -> Option<Placement> {
        let up = |m: &MachineId| {
            let machine = &cluster.machines[*m as usize];
            machine.is_up() && machine.pool == pool
        };
        let candidates: Vec<MachineId> =
            (0..cluster.machines.len() as MachineId).filter(up).collect();
        let room = |m: MachineId| {
            cluster.machines[m as usize].gpus.saturating_sub(self.machines[m as usize].promised)
        };
        let set_aside = |m: MachineId, size: Option<u32>| self.machines[m as usize].size == size;
        let own: Vec<_> =
            candidates.iter().copied().filter(|&m| set_aside(m, Some(gang.gpus))).collect();
        let empty: Vec<_> = candidates.iter().copied().filter(|&m| set_aside(m, None)).collect();
        self.pack(cluster, &own, gang, room)
            .or_else(|| self.pack(cluster, &empty, gang, room))
            .or_else(|| self.pack(cluster, &candidates, gang, room))
            .or_else(|| self.share(cluster, &own, gang))
            .or_else(|| self.share(cluster, &candidates, gang))
    }

    /// The fewest of these machines with so much room; the fullest one that fits if one does.
    fn pack(
        &self,
        cluster: &Cluster,
        machines: &[MachineId],
        gang: Demand,
        room: impl Fn(MachineId) -> u32,
    ) -> Option<Placement> {
        let one = machines
            .iter()
            .copied()
            .filter(|&m| gang.fits_in(room(m)))
            .min_by_key(|&m| (room(m), m));
        if let Some(machine) = one {
            return cluster.gather(gang, std::iter::once((gang.gpus, machine)));
        }
        let mut roomy: Vec<MachineId> = machines.iter().copied().filter(|&m| room(m) > 0).collect();
        roomy.sort_unstable_by_key(|&m| (std::cmp::Reverse(room(m)), m));
        cluster.gather(gang, roomy.into_iter().map(|m| (room(m), m)))
    }

    /// The least loaded of these machines, in turns with those who are there.
    fn share(&self, cluster: &Cluster, machines: &[MachineId], gang: Demand) -> Option<Placement> {
        let size = |m: MachineId| cluster.machines[m as usize].gpus;
        let load = |m: MachineId| {
            Total(f64::from(self.machines[m as usize].promised) / f64::from(size(m)))
        };
        let fitting = machines.iter().copied().filter(|&m| gang.fits_in(size(m)));
        if let Some(machine) = fitting.min_by_key(|&m| (load(m), m)) {
            return cluster.gather(gang, std::iter::once((gang.gpus, machine)));
        }
        let mut by_load: Vec<MachineId> = machines.to_vec();
        by_load.sort_unstable_by_key(|&m| (load(m), m));
        cluster.gather(gang, by_load.into_iter().map(|m| (size(m), m)))
    }

    /// Finds the job a home if it has none or one of its machines is down.
    fn has_home(&mut self, turn: &Turn, id: JobId) -> bool {
        let cluster = &turn.state.cluster;
        let is_up = |slot: &Slot| cluster.machines[slot.machine as usize].is_up();
        match self.homes.get(&id) {
            Some(home) if home.slots.iter().all(is_up) => return true,
            _ => self.unsettle(id),
        }
        let job = turn.state.job(id);
        let mut pools = cluster.pools_for(job.pool);
        let home = pools.find_map(|pool| self.find_home(cluster, job.demand(), pool));
        home.map(|home| self.settle(id, home, job.gpus())).is_some()
    }

    fn is_free(&self, turn: &Turn, home: &Placement) -> bool {
        let machines = &turn.state.cluster.machines;
        home.slots.iter().all(|s| machines[s.machine as usize].free >= s.gpus)
    }

    fn wait(&mut self, turn: &Turn, id: JobId) {
        let job = turn.state.job(id);
        self.since.insert(id, Total(job.since_s));
        self.waiting.insert(class_of(job), Total(job.since_s), id);
    }

    fn wait_no_more(&mut self, turn: &Turn, id: JobId) {
        if let Some(since) = self.since.remove(&id) {
            self.waiting.remove(class_of(turn.state.job(id)), since, id);
        }
    }

    /// Starts a waiting job at its home.
    fn start(&mut self, turn: &mut Turn, id: JobId, why: Why) {
        self.wait_no_more(turn, id);
        turn.start(id, self.homes[&id].clone(), why);
    }

    /// Starts a job for which there are enough free GPUs, at its home if they are there.
    fn start_on_free(&mut self, turn: &mut Turn, id: JobId) {
        let at_home = match self.homes.get(&id) {
            Some(home) => self.is_free(turn, home),
            None => false,
        };
        if !at_home {
            self.move_to_free(turn, id);
        }
        let tier = self.homes[&id].tier;
        self.start(turn, id, Why::Turn { tier });
    }

    fn move_to_free(&mut self, turn: &mut Turn, id: JobId) {
        let job = turn.state.job(id);
        let gang = job.demand();
        let cluster = &turn.state.cluster;
        let (_, pool) = cluster.best_pool(gang, job.pool).expect("it fits somewhere");
        let machines: Vec<MachineId> = (0..cluster.machines.len() as MachineId)
            .filter(|&m| cluster.machines[m as usize].pool == pool)
            .collect();
        let free = |m: MachineId| cluster.machines[m as usize].free;
        let own: Vec<MachineId> = machines
            .iter()
            .copied()
            .filter(|&m| self.machines[m as usize].size.is_none_or(|size| size == gang.gpus))
            .collect();
        let home = self
            .pack(cluster, &own, gang, free)
            .or_else(|| self.pack(cluster, &machines, gang, free))
            .expect("the pool has that many free");
        self.unsettle(id);
        self.settle(id, home, gang.gpus);
        turn.leave_memory(id);
    }

    /// Suspends those who have had their slice where `id` lives, if that makes room for it.
    /// `spent` are machines where all who run have only just begun.
    fn take_turn(&mut self, turn: &mut Turn, id: JobId, spent: &mut BTreeSet<MachineId>) {
        let Some(home) = self.homes.get(&id) else { return };
        if home.slots.iter().any(|slot| spent.contains(&slot.machine)) {
            return;
        }
        let home = home.clone();
        let mut suspended: BTreeSet<JobId> = BTreeSet::new();
        for slot in &home.slots {
            let mut free = turn.state.cluster.machines[slot.machine as usize].free;
            let held = |j: JobId| {
                let slots = &self.homes[&j].slots;
                slots.iter().find(|s| s.machine == slot.machine).map_or(0, |s| s.gpus)
            };
            free += suspended.iter().map(|&j| held(j)).sum::<u32>();
            for &other in &self.machines[slot.machine as usize].jobs {
                if free >= slot.gpus {
                    break;
                }
                let job = turn.state.job(other);
                let had_slice = turn.now() - job.since_s >= self.options.slice_s - 1e-6;
                let runs = turn.state.running.contains(&other) && job.job.terms.preemptible;
                if runs && had_slice && suspended.insert(other) {
                    free += held(other);
                }
            }
            if free < slot.gpus {
                if suspended.is_empty() {
                    spent.insert(slot.machine);
                }
                return;
            }
        }
        let victims = suspended.len() as u32;
        for other in suspended {
            turn.preempt(other, Reason::TimeSlice, Why::SliceOver);
            self.wait(turn, other);
        }
        // Others may have taken GPUs from under the suspended jobs.
        if self.is_free(turn, &home) {
            self.start(turn, id, Why::RoomMade { tier: home.tier, victims });
        }
    }

    /// Jobs on more machines than they need move together where that is possible, once they have
    /// run for a slice.
    fn rebalance(&mut self, turn: &mut Turn) {
        let spread: Vec<JobId> = turn
            .state
            .running
            .iter()
            .copied()
            .filter(|&id| turn.state.worked_s(id).is_some_and(|s| s >= self.options.slice_s))
            .filter(|&id| turn.state.job(id).run().is_some_and(|r| r.placement.slots.len() > 1))
            .collect();
        for id in spread {
            let job = turn.state.job(id);
            let (gang, pool) = (job.demand(), turn.state.pool_of_run(id));
            let slots = job.run().map_or(0, |r| r.placement.slots.len());
            let better = turn.state.cluster.best_offer(gang, Some(pool));
            let Some(better) = better.filter(|p| p.slots.len() < slots) else {
                continue;
            };
            let why = Why::FewerMachines { machines: better.slots.len() as u32 };
            turn.preempt(id, Reason::Upgrade, why);
            self.unsettle(id);
            self.settle(id, better, gang.gpus);
            self.start(turn, id, why);
        }
    }
}

impl Policy for Gandiva {
    fn enqueue(&mut self, turn: &mut Turn, id: JobId) {
        self.resize(turn);
        // After a failure the old home is gone.
        self.unsettle(id);
        self.wait(turn, id);
    }

    fn forget(&mut self, turn: &mut Turn, id: JobId) {
        self.unsettle(id);
        self.wait_no_more(turn, id);
    }

    fn adopt(&mut self, turn: &mut Turn, id: JobId) {
        self.resize(turn);
        self.forget(turn, id);
        let job = turn.state.job(id);
        if let Some(run) = job.run() {
            self.settle(id, Placement::clone(&run.placement), job.gpus());
        }
    }

    fn schedule(&mut self, turn: &mut Turn) {
        self.resize(turn);
        if std::mem::take(&mut self.slice_over) {
            // Who has waited longest comes first, so that large gangs get their turn too.
            let mut spent = BTreeSet::new();
            for id in self.waiting.ids() {
                if spent.len() == self.machines.len() {
                    break; // nobody else can get a turn
                }
                let job = turn.state.job(id);
                if turn.state.cluster.best_pool(job.demand(), job.pool).is_some() {
                    self.start_on_free(turn, id);
                } else if self.has_home(turn, id) {
                    self.take_turn(turn, id, &mut spent);
                }
            }
        }
        while let Some((_, _, id)) = self.waiting.first_fitting(&turn.state.cluster) {
            self.start_on_free(turn, id);
        }
        if turn.now() - self.rebalanced_s >= self.options.rebalance_s {
            self.rebalanced_s = turn.now();
            self.rebalance(turn);
        }
        if !self.waiting.is_empty() && !self.slice_set {
            self.slice_set = true;
            turn.set_timer(Timer::Round, turn.now() + self.options.slice_s);
        }
    }

    saved_whole!(options);

    fn timer(&mut self, _turn: &mut Turn, _round: Timer) {
        self.slice_set = false;
        self.slice_over = true;
    }
}
