//! Which GPUs are free, indexed so that the best place for a gang is found in O(log n).

use std::collections::BTreeSet;

use hither_core::topology::{Tier, Topology};

/// Index of a machine in the topology.
pub type MachineId = u32;

/// Index of a GPU type in the cluster.
pub type PoolId = u16;

/// GPUs of one machine that a placement takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    pub machine: MachineId,
    pub gpus: u32,
}

/// Where a gang runs. Machines are distinct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    pub slots: Vec<Slot>,
    pub tier: Tier,
}

#[derive(Debug, Clone)]
pub struct MachineState {
    pub rack: u32,
    pub pool: PoolId,
    pub gpus: u32,
    pub free: u32,
    pub up: bool,
}

/// All machines of one GPU type. A gang never mixes types, so each type is a cluster of its own.
#[derive(Debug, Clone, Default)]
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

#[derive(Debug, Clone, Default)]
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
        let mut cluster = Self {
            machines: Vec::with_capacity(topology.machines.len()),
            pool_names: Vec::new(),
            fragmented: 0,
            rack_count: topology.racks.len(),
            pools: Vec::new(),
        };
        let mut rack_size: Vec<Vec<u32>> = Vec::new();
        for (id, machine) in topology.machines.iter().enumerate() {
            let pool = match cluster.pool_names.iter().position(|n| *n == machine.gpu_type) {
                Some(pool) => pool,
                None => {
                    cluster.pool_names.push(machine.gpu_type.clone());
                    cluster.pools.push(Pool {
                        in_rack: vec![BTreeSet::new(); cluster.rack_count],
                        rack_free: vec![0; cluster.rack_count],
                        ..Pool::default()
                    });
                    rack_size.push(vec![0; cluster.rack_count]);
                    cluster.pools.len() - 1
                }
            };
            cluster.machines.push(MachineState {
                rack: machine.rack,
                pool: pool as PoolId,
                gpus: machine.gpus,
                free: 0,
                up: false,
            });
            rack_size[pool][machine.rack as usize] += machine.gpus;
            let largest = &mut cluster.pools[pool].largest;
            largest[0] = largest[0].max(machine.gpus);
            largest[1] = largest[1].max(rack_size[pool][machine.rack as usize]);
            largest[2] += machine.gpus;
            cluster.bring_up(id as MachineId);
        }
        cluster
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
            let free = self.machines[slot.machine as usize].free;
            assert!(slot.gpus <= free, "machine {} is overbooked", slot.machine);
            self.set_free(slot.machine, free - slot.gpus);
        }
    }

    /// Gives the GPUs back. Those of a machine that is down come back with the machine.
    pub fn release(&mut self, placement: &Placement) {
        for slot in &placement.slots {
            let machine = &self.machines[slot.machine as usize];
            if machine.up {
                self.set_free(slot.machine, machine.free + slot.gpus);
            }
        }
    }

    /// The machine's GPUs vanish; the caller has released the jobs that ran there.
    pub fn take_down(&mut self, id: MachineId) {
        self.set_free(id, 0);
        let machine = &mut self.machines[id as usize];
        machine.up = false;
        let pool = &mut self.pools[machine.pool as usize];
        pool.machines.remove(&(0, id));
        pool.in_rack[machine.rack as usize].remove(&(0, id));
    }

    /// The machine is back, empty.
    pub fn bring_up(&mut self, id: MachineId) {
        let machine = &mut self.machines[id as usize];
        machine.up = true;
        machine.free = 0;
        let (rack, gpus) = (machine.rack as usize, machine.gpus);
        let pool = &mut self.pools[machine.pool as usize];
        pool.machines.insert((0, id));
        pool.in_rack[rack].insert((0, id));
        pool.racks.insert((pool.rack_free[rack], rack as u32));
        self.set_free(id, gpus);
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
