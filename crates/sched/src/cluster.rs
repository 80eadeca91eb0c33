//! Which GPUs are free, indexed so that the best place for a gang is found in O(log n).

use std::collections::BTreeSet;

use hither_core::topology::{Machine, Tier, Topology};
use serde::{Deserialize, Serialize};

use crate::event::DecisionId;

/// Index of a machine in the topology.
pub type MachineId = u32;

/// Index of a GPU type in the cluster.
pub type PoolId = u16;

/// GPUs of one machine that a placement takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slot {
    pub machine: MachineId,
    pub gpus: u32,
}

/// Where a gang runs. Machines are distinct.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub slots: Vec<Slot>,
    pub tier: Tier,
}

/// Whether a machine takes jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    Up,
    /// Its jobs run on; no others start there.
    Draining,
    /// It lost its jobs.
    #[default]
    Gone,
}

/// The books of one machine. They say what will be once all decisions in flight are carried out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineState {
    pub rack: u32,
    pub pool: PoolId,
    pub gpus: u32,
    /// GPUs that others hold.
    pub foreign: u32,
    /// GPUs of jobs that run here or are about to.
    pub taken: u32,
    /// GPUs that a job may be given. Some may be promised: their stop is still in flight.
    pub free: u32,
    pub status: Status,
    /// Stops in flight, and the GPUs that they will free, oldest first.
    pub stopping: Vec<(DecisionId, u32)>,
}

impl MachineState {
    /// Whether jobs may start here.
    pub fn is_up(&self) -> bool {
        self.status == Status::Up
    }
}

/// All machines of one GPU type. A gang never mixes types, so each type is a cluster of its own.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Pool {
    /// (free GPUs, machine) of machines that are up.
    pub machines: BTreeSet<(u32, MachineId)>,
    /// (free GPUs, rack).
    pub racks: BTreeSet<(u32, u32)>,
    /// For each rack, (free GPUs, machine) of its machines that are up.
    pub in_rack: Vec<BTreeSet<(u32, MachineId)>>,
    pub rack_free: Vec<u32>,
    pub free: u32,
    /// Sizes of the empty pool, all machines up: the largest machine, the largest rack, all.
    pub largest: [u32; 3],
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Cluster {
    pub machines: Vec<MachineState>,
    pub pool_names: Vec<String>,
    pub rack_count: usize,
    /// Free GPUs on machines that also have busy ones: too small for whole-machine gangs.
    pub fragmented: u32,
    pub(crate) pools: Vec<Pool>,
}

impl Cluster {
    pub fn new(topology: &Topology) -> Self {
        let rack_count = topology.racks.len();
        let mut cluster = Self { rack_count, ..Self::default() };
        for machine in &topology.machines {
            cluster.add(machine);
        }
        for pool in 0..cluster.pools.len() {
            cluster.measure(pool as PoolId);
        }
        cluster
    }

    /// A machine joins, up and empty. The caller measures its pool when all have joined.
    fn add(&mut self, machine: &Machine) -> PoolId {
        let id = self.machines.len() as MachineId;
        if machine.rack as usize >= self.rack_count {
            self.rack_count = machine.rack as usize + 1;
        }
        let pool = self.pool_named(&machine.gpu_type).unwrap_or_else(|| {
            self.pool_names.push(machine.gpu_type.clone());
            self.pools.push(Pool::default());
            (self.pools.len() - 1) as PoolId
        });
        for pool in &mut self.pools {
            pool.in_rack.resize(self.rack_count, BTreeSet::new());
            pool.rack_free.resize(self.rack_count, 0);
        }
        let (rack, gpus) = (machine.rack, machine.gpus);
        self.machines.push(MachineState { rack, pool, gpus, ..MachineState::default() });
        self.set_status(id, Status::Up);
        pool
    }

    /// A machine joins the running cluster.
    pub fn join(&mut self, machine: &Machine) {
        let pool = self.add(machine);
        self.measure(pool);
    }

    /// The machine has so many GPUs from now on. Jobs that no longer fit keep what they have.
    pub fn resize(&mut self, id: MachineId, gpus: u32) {
        if self.machines[id as usize].is_up() {
            self.set_free(id, 0);
        }
        self.machines[id as usize].gpus = gpus;
        self.refresh(id);
        self.measure(self.machines[id as usize].pool);
    }

    /// Sizes of the pool as if all its machines were up and empty.
    fn measure(&mut self, pool: PoolId) {
        let mut rack_size = vec![0; self.rack_count];
        let mut largest = [0; 3];
        for machine in self.machines.iter().filter(|m| m.pool == pool) {
            let rack_size = &mut rack_size[machine.rack as usize];
            *rack_size += machine.gpus;
            largest[0] = largest[0].max(machine.gpus);
            largest[1] = largest[1].max(*rack_size);
            largest[2] += machine.gpus;
        }
        self.pools[pool as usize].largest = largest;
    }

    pub fn pool_count(&self) -> usize {
        self.pools.len()
    }

    pub fn pool_named(&self, name: &str) -> Option<PoolId> {
        self.pool_names.iter().position(|n| n == name).map(|i| i as PoolId)
    }

    /// The pools that a job may use: its own type's, or all.
    pub fn pools_for(&self, wanted: Option<PoolId>) -> impl Iterator<Item = PoolId> + use<> {
        match wanted {
            Some(pool) => pool..pool + 1,
            None => 0..self.pools.len() as PoolId,
        }
    }

    pub fn free_gpus(&self, pool: PoolId) -> u32 {
        self.pools[pool as usize].free
    }

    pub fn free_in_rack(&self, pool: PoolId, rack: usize) -> u32 {
        self.pools[pool as usize].rack_free[rack]
    }

    /// GPUs of the type, or of the largest if any will do: no gang can be larger.
    pub fn most_gpus(&self, gpu_type: Option<&str>) -> u64 {
        let named = |name: &String| gpu_type.is_none_or(|wanted| name == wanted);
        let pools = self.pool_names.iter().zip(&self.pools).filter(|(name, _)| named(name));
        pools.map(|(_, pool)| u64::from(pool.largest[2])).max().unwrap_or(0)
    }

    pub fn free_total(&self) -> u32 {
        self.pools.iter().map(|p| p.free).sum()
    }

    /// The lowest tier at which the empty cluster holds the gang.
    pub fn best_tier(&self, gpus: u32, wanted: Option<PoolId>) -> Option<Tier> {
        self.pools_for(wanted).filter_map(|p| lowest(&self.pools[p as usize].largest, gpus)).min()
    }

    /// The largest machine, the largest rack and the size of the first pool that can hold the gang
    /// at this tier.
    pub fn largest_pool(&self, gpus: u32, wanted: Option<PoolId>, tier: Tier) -> [u32; 3] {
        let pools = self.pools_for(wanted).map(|p| self.pools[p as usize].largest);
        pools.into_iter().find(|l| lowest(l, gpus) == Some(tier)).unwrap_or_default()
    }

    /// The lowest tier at which the gang could start now in this pool.
    pub fn offer_tier(&self, gpus: u32, pool: PoolId) -> Option<Tier> {
        let pool = &self.pools[pool as usize];
        let machine = pool.machines.last().map_or(0, |&(free, _)| free);
        let rack = pool.racks.last().map_or(0, |&(free, _)| free);
        lowest(&[machine, rack, pool.free], gpus)
    }

    pub fn take(&mut self, placement: &Placement) {
        for slot in &placement.slots {
            self.machines[slot.machine as usize].taken += slot.gpus;
            self.refresh(slot.machine);
        }
    }

    /// Gives the GPUs back. Those of a machine that is not up come back with the machine.
    pub fn release(&mut self, placement: &Placement) {
        for slot in &placement.slots {
            let taken = &mut self.machines[slot.machine as usize].taken;
            *taken = taken.checked_sub(slot.gpus).expect("they were taken");
            self.refresh(slot.machine);
        }
    }

    /// The GPUs of the placement are free once the stop is carried out.
    pub(crate) fn await_stop(&mut self, stop: DecisionId, placement: &Placement) {
        for slot in &placement.slots {
            self.machines[slot.machine as usize].stopping.push((stop, slot.gpus));
        }
    }

    /// The stop is no longer in flight.
    pub(crate) fn settle_stop(&mut self, stop: DecisionId, placement: &Placement) {
        for slot in &placement.slots {
            self.machines[slot.machine as usize].stopping.retain(|&(id, _)| id != stop);
        }
    }

    /// The stops that a gang with this placement, taken just now, has to wait for: on each machine
    /// the oldest ones that free as many GPUs as the machine lacks today. Even if no later stop is
    /// ever carried out there is room for all that do not wait for it.
    pub(crate) fn stops_before(&self, placement: &Placement) -> Vec<DecisionId> {
        let mut stops = Vec::new();
        for slot in &placement.slots {
            let machine = &self.machines[slot.machine as usize];
            let stopping: u32 = machine.stopping.iter().map(|s| s.1).sum();
            let mut missing = stopping.saturating_sub(machine.free);
            for &(stop, gpus) in &machine.stopping {
                if missing == 0 {
                    break;
                }
                missing = missing.saturating_sub(gpus);
                stops.push(stop);
            }
        }
        stops.sort_unstable();
        stops.dedup();
        stops
    }

    /// Others hold so many GPUs of the machine.
    pub fn set_foreign(&mut self, id: MachineId, gpus: u32) {
        self.machines[id as usize].foreign = gpus;
        self.refresh(id);
    }

    /// A machine that is not up has no free GPUs and stands in no index.
    pub fn set_status(&mut self, id: MachineId, status: Status) {
        if !self.machines[id as usize].is_up() {
            self.index(id);
        }
        self.machines[id as usize].status = status;
        self.refresh(id);
        if status != Status::Up {
            let machine = &self.machines[id as usize];
            let pool = &mut self.pools[machine.pool as usize];
            pool.machines.remove(&(0, id));
            pool.in_rack[machine.rack as usize].remove(&(0, id));
        }
    }

    fn index(&mut self, id: MachineId) {
        let machine = &self.machines[id as usize];
        let rack = machine.rack as usize;
        let pool = &mut self.pools[machine.pool as usize];
        pool.machines.insert((0, id));
        pool.in_rack[rack].insert((0, id));
        pool.racks.insert((pool.rack_free[rack], rack as u32));
    }

    fn refresh(&mut self, id: MachineId) {
        let machine = &self.machines[id as usize];
        let free = match machine.is_up() {
            true => machine.gpus.saturating_sub(machine.foreign).saturating_sub(machine.taken),
            false => 0,
        };
        // Machines that are not up stand in no index.
        if machine.is_up() || machine.free > 0 {
            self.set_free(id, free);
        }
    }

    fn set_free(&mut self, id: MachineId, free: u32) {
        let machine = &mut self.machines[id as usize];
        let rack = machine.rack as usize;
        let before = std::mem::replace(&mut machine.free, free);
        let part = |free: u32| if free < machine.gpus { free } else { 0 };
        self.fragmented = self.fragmented + part(free) - part(before);
        let pool = &mut self.pools[machine.pool as usize];
        pool.machines.remove(&(before, id));
        pool.machines.insert((free, id));
        pool.in_rack[rack].remove(&(before, id));
        pool.in_rack[rack].insert((free, id));
        let rack_before = pool.rack_free[rack];
        let rack_free = rack_before - before + free;
        pool.racks.remove(&(rack_before, rack as u32));
        pool.racks.insert((rack_free, rack as u32));
        pool.rack_free[rack] = rack_free;
        pool.free = pool.free - before + free;
    }

    /// The tier that these slots span.
    pub fn tier_of(&self, slots: &[Slot]) -> Tier {
        let rack = |slot: &Slot| self.machines[slot.machine as usize].rack;
        match slots {
            [] | [_] => Tier::Machine,
            [first, rest @ ..] if rest.iter().all(|s| rack(s) == rack(first)) => Tier::Rack,
            _ => Tier::Network,
        }
    }
}

fn lowest(room: &[u32; 3], gpus: u32) -> Option<Tier> {
    Tier::ALL.into_iter().find(|&tier| gpus <= room[tier as usize])
}
