//! The tree above the nodes of a Slurm cluster: switches above leaf switches, or groups of blocks.
//!
//! Slurm's switches need not be a tree of equal depth. Switches that share one below them are as near
//! to it as each other: they are one place. A switch that skips levels stands alone in a place of
//! each level that it skips.

use std::collections::HashMap;

use hither_core::topology::{LEVELS_MAX, Level};

use super::{Slurm, Upper};
use crate::topo::Builder;
use crate::trace::Error;

/// The levels, and the places above the machines.
pub(super) struct Tree {
    pub levels: Vec<Level>,
    /// By level from 1 to the last but one: (name, place around it). Level 1 has the leaves first,
    /// in their order.
    places: Vec<Vec<(String, u32)>>,
    /// Switches that are one place.
    pub notes: Vec<String>,
}

impl Tree {
    fn new(levels: usize) -> Self {
        Self {
            levels: Level::common(levels),
            places: vec![Vec::new(); levels - 2],
            notes: Vec::new(),
        }
    }

    /// Adds a place of a level and returns its index.
    fn add(&mut self, level: usize, name: &str, around: u32) -> u32 {
        let places = &mut self.places[level - 1];
        places.push((name.into(), around));
        places.len() as u32 - 1
    }

    /// Hands the places to a builder, which has the same levels.
    pub fn build(&self, builder: &mut Builder<'_>, line: u64) -> Result<(), Error> {
        for (level, places) in (1..).zip(&self.places) {
            for (name, around) in places {
                builder.place(line, level, *around, Some(name.clone()))?;
            }
        }
        Ok(())
    }
}

impl Slurm<'_> {
    pub(super) fn tree(&self) -> Result<Tree, Error> {
        match (self.has_blocks, self.leaves.is_empty()) {
            (true, _) => self.blocks(),
            (false, false) => self.switches(),
            // Only nodes: all of them around one switch.
            (false, true) => {
                let mut tree = Tree::new(3);
                tree.add(1, "rack0", 0);
                Ok(tree)
            }
        }
    }

    /// `BlockSizes=18,36,72`: two blocks in a row are a group, and two such groups in a row another.
    fn blocks(&self) -> Result<Tree, Error> {
        let fail = |found: &str| {
            let expected = "rising sizes of blocks, each a multiple of the first";
            Err(self.leaves[0].place.error(expected).key("BlockSizes").found(found))
        };
        let mut sizes: Vec<usize> = Vec::new();
        for text in &self.block_sizes {
            match text.trim().parse() {
                Ok(size) if size > 0 && sizes.last().is_none_or(|&last| size > last) => {
                    sizes.push(size);
                }
                _ => return fail(text),
            }
        }
        let base = sizes.first().copied().unwrap_or(1);
        if let Some(odd) = sizes.iter().find(|&&size| size % base != 0) {
            return fail(&odd.to_string());
        }
        // A group of all blocks is the network itself.
        let blocks = self.leaves.len();
        let groups: Vec<usize> =
            sizes.iter().skip(1).map(|size| size / base).filter(|&g| g < blocks).collect();
        if groups.len() + 3 > LEVELS_MAX {
            return fail(&self.block_sizes.join(","));
        }
        let mut tree = Tree::new(groups.len() + 3);
        tree.levels[1].name = "block".into();
        for (level, group) in (2..).zip(&groups) {
            tree.levels[level].name = format!("group{group}");
        }
        // Blocks in each place of a level.
        let held: Vec<usize> = std::iter::once(1).chain(groups).chain([usize::MAX]).collect();
        for (level, pair) in (1..).zip(held.windows(2)) {
            for first in (0..blocks).step_by(pair[0]) {
                let name = &self.leaves[first].name;
                tree.add(level, name, (first / pair[1]) as u32);
            }
        }
        Ok(tree)
    }

    fn switches(&self) -> Result<Tree, Error> {
        let groups = Groups::new(self);
        let heights = groups.heights().ok_or_else(|| {
            let upper = &self.uppers[0];
            upper.place.error("switches in the shape of a tree").found(&upper.name)
        })?;
        let leaves = self.leaves.len();
        let highest = heights.iter().copied().max().unwrap_or(1);
        let ids: Vec<usize> = groups.ids().collect();
        let roots: Vec<usize> =
            ids.iter().copied().filter(|&id| groups.around[id].is_none()).collect();
        // One switch above all others is the network. A leaf is always a rack.
        let root = roots.first().copied().filter(|&id| roots.len() == 1 && id >= leaves);
        let levels = if root.is_some() { highest + 1 } else { highest + 2 };
        if levels > LEVELS_MAX {
            let upper = &self.uppers[groups.members(ids[ids.len() - 1] - leaves)[0]];
            let expected = format!("at most {} levels of switches", LEVELS_MAX - 1);
            return Err(upper.place.error(expected).found(&levels.saturating_sub(1).to_string()));
        }
        let mut tree = Tree::new(levels);
        // From the outside in; the sort keeps leaves in their order.
        let mut order: Vec<usize> = ids.iter().copied().filter(|&id| Some(id) != root).collect();
        order.sort_by_key(|&id| std::cmp::Reverse(heights[id]));
        let mut place = vec![0; heights.len()];
        for id in order {
            let name = self.name(id);
            let around = groups.around[id].filter(|&around| Some(around) != root);
            let mut at = around.map_or(0, |around| place[around]);
            let above = around.map_or(levels - 1, |around| heights[around]);
            for level in (heights[id] + 1..above).rev() {
                at = tree.add(level, name, at);
            }
            place[id] = tree.add(heights[id], name, at);
        }
        for id in ids.into_iter().filter(|&id| id >= leaves) {
            let members = groups.members(id - leaves);
            if members.len() > 1 {
                let names: Vec<&str> =
                    members.iter().map(|&at| self.uppers[at].name.as_str()).collect();
                tree.notes.push(format!(
                    "switches that share switches below them are one place: {}",
                    crate::topo::names_shown(&names)
                ));
            }
        }
        Ok(tree)
    }

    fn name(&self, id: usize) -> &str {
        match id.checked_sub(self.leaves.len()) {
            Some(upper) => &self.uppers[upper].name,
            None => &self.leaves[id].name,
        }
    }
}

/// Leaves and upper switches, numbered through; upper switches that share one below them are one
/// group, which has the number of its first member.
struct Groups {
    leaves: usize,
    /// By upper switch: the first member of its group.
    first: Vec<usize>,
    /// By number: the group around it.
    around: Vec<Option<usize>>,
}

impl Groups {
    fn new(slurm: &Slurm<'_>) -> Self {
        let leaves = slurm.leaves.len();
        let names = slurm.leaves.iter().map(|leaf| &leaf.name);
        let names = names.chain(slurm.uppers.iter().map(|upper| &upper.name));
        let ids: HashMap<&str, usize> =
            names.enumerate().map(|(id, name)| (name.as_str(), id)).collect();
        let below = |upper: &Upper<'_>| -> Vec<usize> {
            upper.children.iter().map(|child| ids[child.as_str()]).collect()
        };
        let below: Vec<Vec<usize>> = slurm.uppers.iter().map(below).collect();
        let mut groups = Self {
            leaves,
            first: (0..below.len()).collect(),
            around: vec![None; leaves + below.len()],
        };
        while !groups.join(&below) {}
        groups
    }

    /// Finds the group around each group, and joins two that are around the same one. Returns whether
    /// there was nothing to join.
    fn join(&mut self, below: &[Vec<usize>]) -> bool {
        self.around.fill(None);
        for (upper, children) in below.iter().enumerate() {
            let group = self.first[upper];
            for &child in children {
                let child = match child.checked_sub(self.leaves) {
                    Some(upper) => self.leaves + self.first[upper],
                    None => child,
                };
                if child == self.leaves + group {
                    continue; // it stands in its own group
                }
                match self.around[child] {
                    Some(other) if other != self.leaves + group => {
                        let (a, b) = (other - self.leaves, group);
                        let (keep, drop) = (a.min(b), a.max(b));
                        self.first.iter_mut().filter(|f| **f == drop).for_each(|f| *f = keep);
                        return false;
                    }
                    _ => self.around[child] = Some(self.leaves + group),
                }
            }
        }
        true
    }

    /// Numbers of leaves and groups.
    fn ids(&self) -> impl Iterator<Item = usize> {
        let groups = self.first.iter().enumerate().filter(|(at, first)| at == *first);
        (0..self.leaves).chain(groups.map(|(at, _)| self.leaves + at))
    }

    /// Upper switches of a group.
    fn members(&self, group: usize) -> Vec<usize> {
        (0..self.first.len()).filter(|&at| self.first[at] == group).collect()
    }

    /// 1 for leaves, and for groups one more than the highest inside; `None` if one is inside itself.
    fn heights(&self) -> Option<Vec<usize>> {
        let mut heights = vec![1; self.around.len()];
        for _ in 0..=self.around.len().min(LEVELS_MAX + 2) {
            let mut changed = false;
            for (id, around) in self.around.iter().enumerate() {
                if let Some(around) = *around
                    && heights[around] <= heights[id]
                {
                    heights[around] = heights[id] + 1;
                    changed = true;
                }
            }
            if !changed {
                return Some(heights);
            }
        }
        None
    }
}
