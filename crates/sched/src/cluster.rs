//! Which GPUs are free, indexed so that the best place for a gang is found in O(log n).

use std::collections::BTreeSet;

use hither_core::topology::{LEVELS_MAX, Machine, Tier, Topology};
use serde::{Deserialize, Serialize};

use crate::event::DecisionId;

/// Index of a machine in the topology.
pub type MachineId = u32;

/// Index of a place among those of its level; at level 0 it is a machine's.
pub type PlaceId = u32;

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
    /// The place of each level that holds the machine; the first is the machine itself.
    pub within: [PlaceId; LEVELS_MAX],
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
    /// By level below the widest: (free GPUs, place) of all places with machines of the type. At
    /// level 0 of those that are up.
    pub by_free: Vec<BTreeSet<(u32, PlaceId)>>,
    /// By level: (free GPUs, part) of the parts of each place. Empty at level 0, which has no parts,
    /// and at the widest, whose parts are all places of the level below.
    parts: Vec<Vec<BTreeSet<(u32, PlaceId)>>>,
    /// By level from 1 on, below the widest: free GPUs in each place.
    place_free: Vec<Vec<u32>>,
    pub free: u32,
    /// By level: GPUs in its largest place, all machines up and empty.
    pub largest: [u32; LEVELS_MAX],
}

impl Pool {
    /// (Free GPUs, part) of the parts of a place.
    pub fn parts_of(&self, level: usize, place: PlaceId) -> &BTreeSet<(u32, PlaceId)> {
        match level == self.by_free.len() {
            true => &self.by_free[level - 1],
            false => &self.parts[level][place as usize],
        }
    }

    /// Makes room for so many places on each level from 1 on, below the widest.
    fn resize(&mut self, places: &[usize]) {
        let levels = places.len() + 1;
        self.by_free.resize(levels, BTreeSet::new());
        self.parts.resize(levels, Vec::new());
        self.place_free.resize(levels, Vec::new());
        for (level, &count) in (1..).zip(places) {
            self.parts[level].resize(count, BTreeSet::new());
            self.place_free[level].resize(count, 0);
        }
    }
}

/// The books of all GPUs: which are free, taken, promised or foreign.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Cluster {
    /// Names of the levels, from the machine outward.
    pub levels: Vec<String>,
    /// By level from 1 on: the place around each place, on the next level.
    parents: Vec<Vec<PlaceId>>,
    pub machines: Vec<MachineState>,
    pub pool_names: Vec<String>,
    /// Free GPUs on machines that also have busy ones: too small for whole-machine gangs.
    pub fragmented: u32,
    pub(crate) pools: Vec<Pool>,
}

impl Cluster {
    pub fn new(topology: &Topology) -> Self {
        let parents = |places: &[hither_core::topology::Place]| {
            places.iter().map(|place| place.parent).collect::<Vec<_>>()
        };
        let mut cluster = Self {
            levels: topology.levels.iter().map(|level| level.name.clone()).collect(),
            parents: topology.levels[1..].iter().map(|level| parents(&level.places)).collect(),
            ..Self::default()
        };
        for machine in &topology.machines {
            cluster.add(machine);
        }
        for pool in 0..cluster.pools.len() {
            cluster.measure(pool as PoolId);
        }
        cluster
    }

    /// The widest tier: the whole network.
    pub fn widest(&self) -> Tier {
        Tier(self.levels.len() as u8 - 1)
    }

    /// All tiers, from the machine outward.
    pub fn tiers(&self) -> impl DoubleEndedIterator<Item = Tier> + Clone + use<> {
        Tier::all(self.levels.len())
    }

    /// How many places a level has.
    pub fn places(&self, level: usize) -> usize {
        match level {
            0 => self.machines.len(),
            _ => self.parents[level - 1].len(),
        }
    }

    /// The place around a place of this level, on the next level.
    pub fn around(&self, level: usize, place: PlaceId) -> PlaceId {
        match level {
            0 => self.machines[place as usize].within[1],
            _ => self.parents[level - 1][place as usize],
        }
    }

    /// A machine joins, up and empty. The caller measures its pool when all have joined.
    fn add(&mut self, machine: &Machine) -> PoolId {
        let id = self.machines.len() as MachineId;
        let pool = self.pool_named(&machine.gpu_type).unwrap_or_else(|| {
            self.pool_names.push(machine.gpu_type.clone());
            self.pools.push(Pool::default());
            let places: Vec<usize> =
                (1..self.levels.len() - 1).map(|level| self.places(level)).collect();
            self.pools.last_mut().expect("just added").resize(&places);
            (self.pools.len() - 1) as PoolId
        });
        let mut within = [0; LEVELS_MAX];
        within[0] = id;
        let mut place = machine.parent;
        for (level, parents) in (1..).zip(&self.parents) {
            within[level] = place;
            place = parents[place as usize];
        }
        self.machines.push(MachineState {
            within,
            pool,
            gpus: machine.gpus,
            ..MachineState::default()
        });
        self.set_status(id, Status::Up);
        pool
    }

    /// Whether a machine could join there: in a known place, or in the next new one of level 1, which
    /// stands in a place of level 2.
    pub(crate) fn could_join(&self, machine: &Machine, around: PlaceId) -> bool {
        let (at, known) = (machine.parent as usize, self.places(1));
        let is_new = at == known && self.levels.len() > 2 && (around as usize) < self.places(2);
        at < known || is_new
    }

    /// A machine joins the running cluster. A new place of level 1 stands in the place `around` of
    /// level 2.
    pub fn join(&mut self, machine: &Machine, around: PlaceId) {
        if machine.parent as usize == self.places(1) {
            self.parents[0].push(around);
            let places: Vec<usize> =
                (1..self.levels.len() - 1).map(|level| self.places(level)).collect();
            self.pools.iter_mut().for_each(|pool| pool.resize(&places));
        }
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
        let mut largest = [0; LEVELS_MAX];
        for (level, largest) in largest.iter_mut().enumerate().take(self.levels.len()) {
            let mut sizes = vec![0; self.places(level)];
            for machine in self.machines.iter().filter(|m| m.pool == pool) {
                sizes[machine.within[level] as usize] += machine.gpus;
            }
            *largest = sizes.into_iter().max().unwrap_or(0);
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

    /// Free GPUs of a type in one place; a machine has but one type.
    pub fn free_in(&self, pool: PoolId, tier: Tier, place: PlaceId) -> u32 {
        match tier.level() {
            0 => self.machines[place as usize].free,
            level => {
                let places = self.pools[pool as usize].place_free.get(level);
                places.map_or(self.free_gpus(pool), |free| free[place as usize])
            }
        }
    }

    /// GPUs of the type, or of the largest if any will do: no gang can be larger.
    pub fn most_gpus(&self, gpu_type: Option<&str>) -> u64 {
        let named = |name: &String| gpu_type.is_none_or(|wanted| name == wanted);
        let pools = self.pool_names.iter().zip(&self.pools).filter(|(name, _)| named(name));
        pools.map(|(_, pool)| u64::from(pool.largest[self.levels.len() - 1])).max().unwrap_or(0)
    }

    pub fn free_total(&self) -> u32 {
        self.pools.iter().map(|p| p.free).sum()
    }

    /// The lowest tier at which the empty cluster holds the gang.
    pub fn best_tier(&self, gpus: u32, wanted: Option<PoolId>) -> Option<Tier> {
        self.pools_for(wanted).filter_map(|p| self.lowest(p, gpus)).min()
    }

    /// The lowest tier at which the empty pool holds the gang.
    fn lowest(&self, pool: PoolId, gpus: u32) -> Option<Tier> {
        let largest = &self.pools[pool as usize].largest;
        self.tiers().find(|tier| gpus <= largest[tier.level()])
    }

    /// GPUs of the largest place of each level, in the first pool that can hold the gang at this tier.
    pub fn largest_pool(&self, gpus: u32, wanted: Option<PoolId>, tier: Tier) -> [u32; LEVELS_MAX] {
        let mut pools = self.pools_for(wanted);
        let pool = pools.find(|&p| self.lowest(p, gpus) == Some(tier));
        pool.map_or([0; LEVELS_MAX], |p| self.pools[p as usize].largest)
    }

    /// The lowest tier at which the gang could start now in this pool.
    pub fn offer_tier(&self, gpus: u32, pool: PoolId) -> Option<Tier> {
        let pool = &self.pools[pool as usize];
        let fits = |places: &BTreeSet<(u32, PlaceId)>| places.last().is_some_and(|p| gpus <= p.0);
        match pool.by_free.iter().position(fits) {
            Some(level) => Some(Tier(level as u8)),
            None => (gpus <= pool.free).then(|| self.widest()),
        }
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
            pool.by_free[0].remove(&(0, id));
            if let Some(parts) = pool.parts[1..].first_mut() {
                parts[machine.within[1] as usize].remove(&(0, id));
            }
        }
    }

    /// A machine that comes up stands in every index, without free GPUs as yet.
    fn index(&mut self, id: MachineId) {
        let machine = &self.machines[id as usize];
        let pool = &mut self.pools[machine.pool as usize];
        pool.by_free[0].insert((0, id));
        let mut part = (0, id);
        for level in 1..pool.by_free.len() {
            let place = machine.within[level];
            pool.parts[level][place as usize].insert(part);
            part = (pool.place_free[level][place as usize], place);
            pool.by_free[level].insert(part);
        }
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
        let before = std::mem::replace(&mut machine.free, free);
        let part = |free: u32| if free < machine.gpus { free } else { 0 };
        self.fragmented = self.fragmented + part(free) - part(before);
        let pool = &mut self.pools[machine.pool as usize];
        let (mut was, mut is) = ((before, id), (free, id));
        for level in 0..pool.by_free.len() {
            if level > 0 {
                let place = machine.within[level];
                let parts = &mut pool.parts[level][place as usize];
                parts.remove(&was);
                parts.insert(is);
                let place_free = &mut pool.place_free[level][place as usize];
                was = (*place_free, place);
                *place_free = *place_free - before + free;
                is = (*place_free, place);
            }
            pool.by_free[level].remove(&was);
            pool.by_free[level].insert(is);
        }
        pool.free = pool.free - before + free;
    }

    /// The tier that these slots span.
    pub fn tier_of(&self, slots: &[Slot]) -> Tier {
        let [first, rest @ ..] = slots else { return Tier::MACHINE };
        let within =
            |slot: &Slot, tier: Tier| self.machines[slot.machine as usize].within[tier.level()];
        let holds_all = |&tier: &Tier| rest.iter().all(|s| within(s, tier) == within(first, tier));
        self.tiers().find(holds_all).expect("the network holds all")
    }
}
