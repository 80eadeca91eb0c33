//! Free room of one GPU type, counted in chunks and indexed so that the best place for a gang is
//! found in O(log n). There is one such index for each way in which gangs of the cluster may be
//! split; where any split will do, a chunk is a GPU.

use std::collections::BTreeSet;

use hither_core::topology::LEVELS_MAX;
use serde::{Deserialize, Serialize};

use crate::cluster::{MachineId, MachineState, PlaceId, Slot};
use crate::holes::{Hole, Holes};
use crate::job::{Host, Split};

/// Room in a machine, or in all machines of a place together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Free {
    pub chunks: u32,
    pub gpus: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Room {
    split: Split,
    /// By level below the widest: all places with machines of the type. At level 0 those that are up.
    pub by_free: Vec<Holes>,
    /// By level: the parts of each place. Empty at level 0, which has no parts, and at the widest,
    /// whose parts are all places of the level below.
    parts: Vec<Vec<Holes>>,
    /// By level from 1 on, below the widest: free room in each place.
    place_free: Vec<Vec<Free>>,
    pub free: Free,
    /// Machines that do not take such gangs for now.
    #[serde(default)]
    closed: BTreeSet<MachineId>,
    /// By level: chunks in its largest place, all machines up and empty.
    pub largest: [u32; LEVELS_MAX],
}

impl Room {
    /// An empty index of a cluster with so many places on each level from 1 on, below the widest.
    pub fn new(split: Split, places: &[usize]) -> Self {
        let (free, largest) = (Free::default(), [0; LEVELS_MAX]);
        let (by_free, parts, place_free) = Default::default();
        let closed = BTreeSet::new();
        let mut room = Self { split, by_free, parts, place_free, free, closed, largest };
        room.resize(places);
        room
    }

    /// Makes room for so many places on each level from 1 on, below the widest.
    pub fn resize(&mut self, places: &[usize]) {
        let levels = places.len() + 1;
        self.by_free.resize(levels, Holes::default());
        self.parts.resize(levels, Vec::new());
        self.place_free.resize(levels, Vec::new());
        for (level, &count) in (1..).zip(places) {
            self.parts[level].resize(count, Holes::default());
            self.place_free[level].resize(count, Free::default());
        }
    }

    /// Free room in a place of a level.
    pub fn free_in(&self, level: usize, place: PlaceId) -> Free {
        self.place_free.get(level).map_or(self.free, |free| free[place as usize])
    }

    /// Room in a machine.
    pub fn of(&self, machine: &MachineState) -> Free {
        self.of_free(machine.within[0], machine.free, machine.host_free)
    }

    /// Room in a machine with so much free.
    pub fn of_free(&self, machine: MachineId, gpus: u32, host: Host) -> Free {
        let is_closed = self.closed.contains(&machine);
        let chunks = if is_closed { 0 } else { self.split.chunks_on(gpus, host) };
        Free { chunks, gpus }
    }

    pub fn closed(&self) -> impl Iterator<Item = MachineId> + '_ {
        self.closed.iter().copied()
    }

    pub fn set_closed(&mut self, machine: MachineId, is_closed: bool) {
        match is_closed {
            true => self.closed.insert(machine),
            false => self.closed.remove(&machine),
        };
    }

    fn hole(&self, free: Free, place: PlaceId) -> Hole {
        let left_over = free.gpus - free.chunks * self.split.chunk;
        Hole { chunks: free.chunks, tightness: u32::MAX - left_over, place }
    }

    /// A machine that comes up stands in every index, without free GPUs as yet. `within` are the
    /// places that hold it, by level; the first is the machine itself.
    pub fn insert(&mut self, within: &[PlaceId]) {
        let mut part = self.hole(Free::default(), within[0]);
        self.by_free[0].insert(part);
        for (level, &place) in within.iter().enumerate().take(self.by_free.len()).skip(1) {
            self.parts[level][place as usize].insert(part);
            part = self.hole(self.place_free[level][place as usize], place);
            self.by_free[level].insert(part);
        }
    }

    /// A machine without free GPUs leaves the index.
    pub fn remove(&mut self, within: &[PlaceId]) {
        let hole = self.hole(Free::default(), within[0]);
        self.by_free[0].remove(hole);
        if let Some(parts) = self.parts[1..].first_mut() {
            parts[within[1] as usize].remove(hole);
        }
    }

    /// The room in a machine is another.
    pub fn change(&mut self, within: &[PlaceId], before: Free, after: Free) {
        if before == after {
            return;
        }
        let changed = |free: Free| Free {
            chunks: free.chunks - before.chunks + after.chunks,
            gpus: free.gpus - before.gpus + after.gpus,
        };
        let (mut was, mut is) = (self.hole(before, within[0]), self.hole(after, within[0]));
        for (level, &place) in within.iter().enumerate().take(self.by_free.len()) {
            if level > 0 {
                self.parts[level][place as usize].replace(was, is);
                let free = self.place_free[level][place as usize];
                self.place_free[level][place as usize] = changed(free);
                (was, is) = (self.hole(free, place), self.hole(changed(free), place));
            }
            self.by_free[level].replace(was, is);
        }
        self.free = changed(self.free);
    }

    /// Takes `chunks` from a place that holds as many: whole parts from the emptiest on, and for the
    /// rest the part that it fits best.
    pub fn fill(&self, level: usize, place: PlaceId, chunks: u32, slots: &mut Vec<Slot>) {
        if level == 0 {
            slots.push(Slot { machine: place, gpus: chunks * self.split.chunk });
            return;
        }
        let parts = match level == self.by_free.len() {
            true => &self.by_free[level - 1],
            false => &self.parts[level][place as usize],
        };
        let mut left = chunks;
        for hole in parts.descending() {
            if hole.chunks >= left {
                // Those taken so far come after this one in the set's order.
                let fitting = parts.best_fit(left, hole).expect("this one fits");
                return self.fill(level - 1, fitting, left, slots);
            }
            self.fill(level - 1, hole.place, hole.chunks, slots);
            left -= hole.chunks;
        }
        debug_assert_eq!(left, 0, "the place was said to hold the gang");
    }
}
