//! Where jobs live. Machines are set aside by job size, and GPUs may be promised to several jobs,
//! which then take turns.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use hither_core::topology::Tier;
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, MachineId, Placement, PoolId};
use crate::job::{Demand, JobId};
use crate::order::SortKey;

/// The GPUs that each job uses, alone or in turns.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Homes {
    by_job: BTreeMap<JobId, Placement>,
    machines: Vec<Room>,
    /// Jobs on several machines.
    spread: BTreeSet<JobId>,
}

/// What lives on a machine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Room {
    /// GPUs promised: more than the machine has where jobs take turns.
    pub promised: u32,
    /// Size of the jobs that the machine is set aside for.
    pub size: Option<u32>,
    /// The jobs that live here, and the GPUs that each uses of the machine.
    pub jobs: Vec<(JobId, u32)>,
}

/// A machine and the GPUs of it that a gang may have.
type Hole = (u32, MachineId);

impl Homes {
    /// Machines may have joined the cluster.
    pub fn resize(&mut self, cluster: &Cluster) {
        self.machines.resize(cluster.machines.len(), Room::default());
    }

    pub fn get(&self, id: JobId) -> Option<&Placement> {
        self.by_job.get(&id)
    }

    /// The jobs that have a home.
    pub fn jobs(&self) -> Vec<JobId> {
        self.by_job.keys().copied().collect()
    }

    pub fn room(&self, machine: MachineId) -> &Room {
        &self.machines[machine as usize]
    }

    pub fn machine_count(&self) -> usize {
        self.machines.len()
    }

    /// Up to so many jobs on several machines: those after the job `last`, then from the first on.
    pub fn spread_after(&self, last: JobId, most: usize) -> Vec<JobId> {
        let after = self.spread.range(last + 1..).chain(self.spread.range(..=last));
        after.take(most).copied().collect()
    }

    /// The job lives there from now on.
    pub fn settle(&mut self, id: JobId, home: Placement, size: u32) {
        self.unsettle(id);
        for slot in &home.slots {
            let room = &mut self.machines[slot.machine as usize];
            room.promised += slot.gpus;
            room.size.get_or_insert(size);
            room.jobs.push((id, slot.gpus));
        }
        if home.slots.len() > 1 {
            self.spread.insert(id);
        }
        self.by_job.insert(id, home);
    }

    pub fn unsettle(&mut self, id: JobId) {
        let Some(home) = self.by_job.remove(&id) else { return };
        self.spread.remove(&id);
        for slot in &home.slots {
            let room = &mut self.machines[slot.machine as usize];
            room.promised -= slot.gpus;
            room.jobs.retain(|job| job.0 != id);
            if room.jobs.is_empty() {
                room.size = None;
            }
        }
    }

    /// Where a job should live: on machines of its size that have room, else on empty ones, else
    /// wherever there is room; and if there is none, in turns on the least loaded machines of its
    /// size. As the last resort it takes turns on any machines. The paper lets it wait there, but a
    /// gang of many machines would wait for ever in a cluster whose GPUs are never idle.
    pub fn find(
        &self,
        cluster: &Cluster,
        gang: Demand,
        pool: PoolId,
        racks: bool,
    ) -> Option<Placement> {
        let is_own = |m: MachineId| self.room(m).size == Some(gang.gpus);
        let is_empty = |m: MachineId| self.room(m).size.is_none();
        let unpromised =
            |m: MachineId| cluster.machines[m as usize].gpus.saturating_sub(self.room(m).promised);
        let all = machines(cluster, pool);
        let pack = |is_wanted: &dyn Fn(MachineId) -> bool| {
            let holes = all.iter().filter(|&&m| is_wanted(m)).map(|&m| (unpromised(m), m));
            pack(cluster, gang, holes.collect(), racks)
        };
        let share = |is_wanted: &dyn Fn(MachineId) -> bool| {
            let wanted = all.iter().copied().filter(|&m| is_wanted(m));
            self.share(cluster, gang, wanted.collect(), racks)
        };
        pack(&is_own)
            .or_else(|| pack(&is_empty))
            .or_else(|| pack(&|_| true))
            .or_else(|| share(&is_own))
            .or_else(|| share(&|_| true))
    }

    /// Where a gang for which enough GPUs are free now goes: to machines of its size or empty ones if
    /// they suffice.
    pub fn find_free(
        &self,
        cluster: &Cluster,
        gang: Demand,
        pool: PoolId,
        racks: bool,
    ) -> Option<Placement> {
        let free = |&m: &MachineId| (cluster.machines[m as usize].free, m);
        let is_own = |m: &MachineId| self.room(*m).size.is_none_or(|size| size == gang.gpus);
        // The tightest hole of all is found at once, and is mostly one of those.
        let tightest = cluster.place_at(gang, pool, Tier::MACHINE);
        if let Some(place) = tightest.filter(|place| is_own(&place.slots[0].machine)) {
            return Some(place);
        }
        let all = machines(cluster, pool);
        let own = all.iter().filter(|m| is_own(m)).map(free).collect();
        pack(cluster, gang, own, racks)
            .or_else(|| pack(cluster, gang, all.iter().map(free).collect(), racks))
    }

    /// The least loaded of these machines, in turns with those who live there.
    fn share(
        &self,
        cluster: &Cluster,
        gang: Demand,
        mut machines: Vec<MachineId>,
        racks: bool,
    ) -> Option<Placement> {
        let gpus = |m: MachineId| cluster.machines[m as usize].gpus;
        let load = |m: MachineId| SortKey(f64::from(self.room(m).promised) / f64::from(gpus(m)));
        let fitting = machines.iter().copied().filter(|&m| gang.fits_in(gpus(m)));
        if let Some(machine) = fitting.min_by_key(|&m| (load(m), m)) {
            return cluster.gather(gang, std::iter::once((gang.gpus, machine)));
        }
        machines.sort_unstable_by_key(|&m| (load(m), m));
        let holes: Vec<Hole> = machines.into_iter().map(|m| (gpus(m), m)).collect();
        // The place whose machines are promised least.
        let burden = |inside: &[Hole]| {
            let promised: u32 = inside.iter().map(|hole| self.room(hole.1).promised).sum();
            let gpus: u32 = inside.iter().map(|hole| hole.0).sum();
            SortKey(f64::from(promised) / f64::from(gpus))
        };
        gather_within(cluster, gang, &holes, racks, burden)
    }
}

/// Machines of the type that are up.
fn machines(cluster: &Cluster, pool: PoolId) -> Vec<MachineId> {
    let all = (0..).zip(&cluster.machines);
    all.filter(|(_, m)| m.pool == pool && m.is_up()).map(|(id, _)| id).collect()
}

/// The tightest hole that holds the gang; if none does, the fewest holes.
fn pack(cluster: &Cluster, gang: Demand, mut holes: Vec<Hole>, racks: bool) -> Option<Placement> {
    let fitting = holes.iter().copied().filter(|hole| gang.fits_in(hole.0));
    if let Some((_, machine)) = fitting.min() {
        return cluster.gather(gang, std::iter::once((gang.gpus, machine)));
    }
    holes.retain(|hole| hole.0 > 0);
    holes.sort_unstable_by_key(|&(room, m)| (Reverse(room), m));
    let room = |inside: &[Hole]| inside.iter().map(|hole| hole.0).sum::<u32>();
    gather_within(cluster, gang, &holes, racks, room)
}

/// Takes from these holes, in this order. Where racks count, from those of the lowest place that
/// holds the gang, and among such places from the one with the least `rank`.
fn gather_within<K: Ord>(
    cluster: &Cluster,
    gang: Demand,
    holes: &[Hole],
    racks: bool,
    rank: impl Fn(&[Hole]) -> K,
) -> Option<Placement> {
    let between = |tier: &Tier| *tier > Tier::MACHINE && *tier < cluster.widest();
    for tier in cluster.tiers().filter(|tier| racks && between(tier)) {
        let mut inside: BTreeMap<u32, Vec<Hole>> = BTreeMap::new();
        for &hole in holes {
            let place = cluster.machines[hole.1 as usize].within[tier.level()];
            inside.entry(place).or_default().push(hole);
        }
        let gathered = inside
            .values()
            .filter_map(|holes| Some((rank(holes), cluster.gather(gang, holes.iter().copied())?)));
        if let Some((_, placement)) = gathered.min_by(|a, b| a.0.cmp(&b.0)) {
            return Some(placement);
        }
    }
    cluster.gather(gang, holes.iter().copied())
}
