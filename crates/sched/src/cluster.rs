//! Which GPUs are free, and which places hold a gang. `room.rs` has the index.

use std::collections::BTreeSet;

use hither_core::topology::{LEVELS_MAX, Machine, Tier, Topology};
use serde::{Deserialize, Serialize};

use crate::event::DecisionId;
use crate::holes::Holes;
use crate::job::{Demand, Host, Split};
use crate::room::{Free, Room};

/// Index of a machine in the topology.
pub type MachineId = u32;

/// Index of a place among those of its level; at level 0 it is a machine's.
pub type PlaceId = u32;

/// Index of a GPU type in the cluster.
pub type PoolId = u16;

/// With so many splits those are forgotten that no job has.
const SPLITS_KEPT: usize = 32;

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
    /// CPUs and memory: all of them, those of others, those of our jobs, and what a job may be given.
    #[serde(default = "unknown_host")]
    pub host: Host,
    #[serde(default)]
    pub host_foreign: Host,
    #[serde(default)]
    pub host_taken: Host,
    #[serde(default = "unknown_host")]
    pub host_free: Host,
    pub status: Status,
    /// Stops in flight, and the GPUs that they will free, oldest first.
    pub stopping: Vec<(DecisionId, u32)>,
}

fn unknown_host() -> Host {
    Host::UNKNOWN
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
    /// Free room for each of the cluster's splits, in the same order.
    rooms: Vec<Room>,
}

impl Pool {
    /// Room counted in GPUs.
    fn any(&self) -> &Room {
        &self.rooms[0]
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
    /// How gangs may be split, of all that were ever admitted; the first is [`Split::ANY`].
    splits: Vec<Split>,
    pub(crate) pools: Vec<Pool>,
    /// Counts the changes of which machines there are and of their sizes.
    #[serde(default)]
    pub layout: u64,
}

impl Cluster {
    pub fn new(topology: &Topology) -> Self {
        let parents = |places: &[hither_core::topology::Place]| {
            places.iter().map(|place| place.parent).collect::<Vec<_>>()
        };
        let mut cluster = Self {
            levels: topology.levels.iter().map(|level| level.name.clone()).collect(),
            parents: topology.levels[1..].iter().map(|level| parents(&level.places)).collect(),
            splits: vec![Split::ANY],
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
            let places = self.place_counts();
            let rooms = self.splits.iter().map(|&split| Room::new(split, &places)).collect();
            self.pools.push(Pool { rooms });
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
            host: Host::UNKNOWN,
            ..MachineState::default()
        });
        self.set_status(id, Status::Up);
        pool
    }

    /// Takes over what the machines of the same numbers hold, and in what state they are.
    pub(crate) fn inherit(&mut self, before: &Self) {
        for (id, old) in (0..).zip(&before.machines) {
            let MachineState { foreign, taken, host, host_foreign, host_taken, .. } = *old;
            let machine = &mut self.machines[id as usize];
            machine.gpus = old.gpus;
            machine.stopping = old.stopping.clone();
            (machine.foreign, machine.taken, machine.host) = (foreign, taken, host);
            (machine.host_foreign, machine.host_taken) = (host_foreign, host_taken);
            self.set_status(id, old.status);
        }
        (0..self.pools.len() as PoolId).for_each(|pool| self.measure(pool));
        self.layout += before.layout;
    }

    /// The machine has so many GPUs from now on. Jobs that no longer fit keep what they have.
    pub fn resize(&mut self, id: MachineId, gpus: u32) {
        if self.machines[id as usize].is_up() {
            self.set_free(id, 0, Host::NONE);
        }
        self.machines[id as usize].gpus = gpus;
        self.refresh(id);
        self.measure(self.machines[id as usize].pool);
    }

    /// The machine has these CPUs and this memory, and others hold so much of it.
    pub fn set_host(&mut self, id: MachineId, host: Host, foreign: Host) {
        let machine = &mut self.machines[id as usize];
        let is_other = machine.host != host;
        (machine.host, machine.host_foreign) = (host, foreign);
        self.refresh(id);
        if is_other {
            self.measure(self.machines[id as usize].pool);
        }
    }

    /// Gangs that are split so may start on the machine, or may not for now. Unknown splits are left alone.
    pub fn set_closed(&mut self, id: MachineId, split: Split, is_closed: bool) {
        let Some(at) = self.splits.iter().position(|known| *known == split) else { return };
        let machine = &self.machines[id as usize];
        let room = &mut self.pools[machine.pool as usize].rooms[at];
        let before = room.of(machine);
        room.set_closed(id, is_closed);
        if machine.is_up() {
            let after = room.of(machine);
            room.change(&machine.within, before, after);
        }
    }

    /// How many places each level has, from 1 on, below the widest.
    fn place_counts(&self) -> Vec<usize> {
        (1..self.levels.len() - 1).map(|level| self.places(level)).collect()
    }

    /// Sizes of the pool as if all its machines were up and empty.
    fn measure(&mut self, pool: PoolId) {
        self.layout += 1;
        for (at, split) in self.splits.clone().into_iter().enumerate() {
            self.pools[pool as usize].rooms[at].largest = self.measured(pool, split);
        }
    }

    /// Machines that some gangs may not start on for now.
    pub fn closed(&self) -> Vec<(MachineId, Split)> {
        let rooms = self.pools.iter().flat_map(|pool| self.splits.iter().zip(&pool.rooms));
        rooms.flat_map(|(split, room)| room.closed().map(|machine| (machine, *split))).collect()
    }

    /// The same cluster with all its machines up and empty.
    pub fn emptied(&self) -> Self {
        let mut empty = self.clone();
        for id in 0..empty.machines.len() {
            let machine = &mut empty.machines[id];
            (machine.taken, machine.foreign) = (0, 0);
            (machine.host_taken, machine.host_foreign) = Default::default();
            machine.stopping.clear();
            empty.set_status(id as MachineId, Status::Up);
        }
        empty
    }

    /// By level: chunks in the largest place of the empty pool.
    fn measured(&self, pool: PoolId, split: Split) -> [u32; LEVELS_MAX] {
        let mut largest = [0; LEVELS_MAX];
        for (level, largest) in largest.iter_mut().enumerate().take(self.levels.len()) {
            let mut sizes = vec![0; self.places(level)];
            for machine in self.machines.iter().filter(|m| m.pool == pool) {
                sizes[machine.within[level] as usize] +=
                    split.chunks_on(machine.gpus, machine.host);
            }
            *largest = sizes.into_iter().max().unwrap_or(0);
        }
        largest
    }

    /// Whether it would be well to forget splits that no job has: each has an index of its own, and users
    /// may think of thousands.
    pub(crate) fn has_many_splits(&self) -> bool {
        self.splits.len() >= SPLITS_KEPT
    }

    /// Forgets the splits that are not among these.
    pub(crate) fn keep_splits(&mut self, used: &BTreeSet<Split>) {
        let is_kept = |split: &Split| *split == Split::ANY || used.contains(split);
        let keeps: Vec<bool> = self.splits.iter().map(is_kept).collect();
        for pool in &mut self.pools {
            let mut keeps = keeps.iter();
            pool.rooms.retain(|_| keeps.next().is_some_and(|keeps| *keeps));
        }
        self.splits.retain(is_kept);
    }

    /// Whether the GPUs of a placement are free, or are on machines that take no jobs.
    pub(crate) fn has_room(&self, placement: &Placement, split: Split) -> bool {
        placement.slots.iter().all(|slot| {
            let machine = &self.machines[slot.machine as usize];
            let fits =
                machine.free >= slot.gpus && split.host_of(slot.gpus).fits(machine.host_free);
            fits || !machine.is_up()
        })
    }

    /// From now on gangs that are split so can be placed.
    pub fn prepare(&mut self, split: Split) {
        if self.splits.contains(&split) {
            return;
        }
        let places = self.place_counts();
        self.splits.push(split);
        for (id, pool) in (0..).zip(&mut self.pools) {
            let mut room = Room::new(split, &places);
            for machine in self.machines.iter().filter(|m| m.pool == id && m.is_up()) {
                room.insert(&machine.within);
                let free = room.of(machine);
                room.change(&machine.within, Free::default(), free);
            }
            pool.rooms.push(room);
        }
        (0..self.pools.len() as PoolId).for_each(|pool| self.measure(pool));
    }

    /// Whether all gangs so far may be split in any way.
    pub fn splits_freely(&self) -> bool {
        self.splits.len() == 1
    }

    /// Free room of a type, for gangs that are split so. They have been prepared for.
    pub(crate) fn room(&self, pool: PoolId, split: Split) -> &Room {
        let at = self.splits.iter().position(|known| *known == split);
        &self.pools[pool as usize].rooms[at.expect("admission prepares for it")]
    }

    /// Chunks of such a gang that the machine could take now.
    pub(crate) fn chunks_on(&self, machine: MachineId, split: Split) -> u32 {
        let machine = &self.machines[machine as usize];
        self.room(machine.pool, split).of(machine).chunks
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
        self.pools[pool as usize].any().free.gpus
    }

    /// Free GPUs of a type in one place; a machine has but one type.
    pub fn free_in(&self, pool: PoolId, tier: Tier, place: PlaceId) -> u32 {
        match tier.level() {
            0 => self.machines[place as usize].free,
            level => self.pools[pool as usize].any().free_in(level, place).gpus,
        }
    }

    /// GPUs of the type, or of the largest if any will do: no gang can be larger.
    pub fn most_gpus(&self, gpu_type: Option<&str>) -> u64 {
        let named = |name: &String| gpu_type.is_none_or(|wanted| name == wanted);
        let pools = self.pool_names.iter().zip(&self.pools).filter(|(name, _)| named(name));
        pools
            .map(|(_, pool)| u64::from(pool.any().largest[self.levels.len() - 1]))
            .max()
            .unwrap_or(0)
    }

    pub fn free_total(&self) -> u32 {
        self.pools.iter().map(|p| p.any().free.gpus).sum()
    }

    /// The lowest tier at which the empty cluster holds the gang.
    pub fn best_tier(&self, gang: impl Into<Demand>, wanted: Option<PoolId>) -> Option<Tier> {
        let gang = gang.into();
        self.pools_for(wanted).filter_map(|p| self.lowest(p, gang)).min()
    }

    /// The lowest tier at which the empty pool holds the gang.
    fn lowest(&self, pool: PoolId, gang: Demand) -> Option<Tier> {
        let largest = self.largest(pool, gang.split);
        self.tiers().find(|tier| gang.chunks() <= largest[tier.level()])
    }

    /// By level: chunks in the largest place of the empty pool.
    fn largest(&self, pool: PoolId, split: Split) -> [u32; LEVELS_MAX] {
        match self.splits.contains(&split) {
            true => self.room(pool, split).largest,
            false => self.measured(pool, split),
        }
    }

    /// GPUs that the gang could have in the largest place of each level, in the first pool that can
    /// hold it at this tier.
    pub fn largest_pool(
        &self,
        gang: impl Into<Demand>,
        wanted: Option<PoolId>,
        tier: Tier,
    ) -> [u32; LEVELS_MAX] {
        let gang = gang.into();
        let mut pools = self.pools_for(wanted);
        let pool = pools.find(|&p| self.lowest(p, gang) == Some(tier));
        let chunks = pool.map_or([0; LEVELS_MAX], |p| self.largest(p, gang.split));
        chunks.map(|chunks| chunks * gang.split.chunk)
    }

    /// The lowest tier at which the gang could start now in this pool.
    pub fn offer_tier(&self, gang: impl Into<Demand>, pool: PoolId) -> Option<Tier> {
        let gang = gang.into();
        let (room, chunks) = (self.room(pool, gang.split), gang.chunks());
        let fits = |places: &Holes| places.most_chunks().is_some_and(|most| chunks <= most);
        match room.by_free.iter().position(fits) {
            Some(level) => Some(Tier(level as u8)),
            None => (chunks <= room.free.chunks).then(|| self.widest()),
        }
    }

    /// A gang that is split so gets these GPUs, and on each machine what its chunks need beside them.
    pub fn take(&mut self, placement: &Placement, split: Split) {
        for slot in &placement.slots {
            let machine = &mut self.machines[slot.machine as usize];
            machine.taken += slot.gpus;
            machine.host_taken = machine.host_taken.plus(split.host_of(slot.gpus));
            self.refresh(slot.machine);
        }
    }

    /// Gives the GPUs back. Those of a machine that is not up come back with the machine.
    pub fn release(&mut self, placement: &Placement, split: Split) {
        for slot in &placement.slots {
            let machine = &mut self.machines[slot.machine as usize];
            machine.taken = machine.taken.checked_sub(slot.gpus).expect("they were taken");
            machine.host_taken = machine.host_taken.minus(split.host_of(slot.gpus));
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
        let most = |slot: &Slot| self.machines[slot.machine as usize].stopping.len();
        let mut stops = Vec::with_capacity(placement.slots.iter().map(most).sum());
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
            let MachineState { within, pool, .. } = self.machines[id as usize];
            self.pools[pool as usize].rooms.iter_mut().for_each(|room| room.insert(&within));
        }
        self.machines[id as usize].status = status;
        self.refresh(id);
        if status != Status::Up {
            let MachineState { within, pool, .. } = self.machines[id as usize];
            self.pools[pool as usize].rooms.iter_mut().for_each(|room| room.remove(&within));
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
            let host = machine.host.minus(machine.host_foreign).minus(machine.host_taken);
            self.set_free(id, free, host);
        }
    }

    fn set_free(&mut self, id: MachineId, free: u32, host: Host) {
        let machine = &mut self.machines[id as usize];
        let before = (machine.free, machine.host_free);
        (machine.free, machine.host_free) = (free, host);
        let part = |free: u32| if free < machine.gpus { free } else { 0 };
        self.fragmented = self.fragmented + part(free) - part(before.0);
        for room in &mut self.pools[machine.pool as usize].rooms {
            let was = room.of_free(id, before.0, before.1);
            let is = room.of_free(id, free, host);
            room.change(&machine.within, was, is);
        }
    }

    /// The place of its tier that holds the placement.
    pub fn domain_of(&self, placement: &Placement) -> PlaceId {
        let first = placement.slots.first().map_or(0, |slot| slot.machine);
        self.machines[first as usize].within[placement.tier.level()]
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
