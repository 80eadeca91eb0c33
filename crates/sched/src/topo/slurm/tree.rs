//! The tree above the nodes of a Slurm cluster: switches above leaf switches, or groups of blocks.
//!
//! Slurm's switches need not be a tree of equal depth. Switches that share one below them are as near
//! to it as each other: they are one place. A switch that skips levels stands alone in a place of
//! each level that it skips.

use std::collections::{BTreeMap, HashMap};

use hither_core::topology::{LEVELS_MAX, Level};

use super::{Slurm, Upper};
use crate::read::Error;
use crate::topo::Builder;

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
        let mut groups = Groups::new(self);
        let heights = groups.heights().ok_or_else(|| {
            let upper = &self.uppers[0];
            upper.place.error("switches in the shape of a tree").found(&upper.name)
        })?;
        let leaves = self.leaves.len();
        let highest = heights.iter().copied().max().unwrap_or(1);
        let ids = groups.ids();
        let roots: Vec<usize> =
            ids.iter().copied().filter(|&id| groups.around[id].is_none()).collect();
        // One switch above all others is the network. A leaf is always a rack.
        let root = roots.first().copied().filter(|&id| roots.len() == 1 && id >= leaves);
        let levels = if root.is_some() { highest + 1 } else { highest + 2 };
        if levels > LEVELS_MAX {
            let upper = &self.uppers[ids[ids.len() - 1] - leaves];
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
        for members in groups.members().values().filter(|members| members.len() > 1) {
            let names: Vec<&str> =
                members.iter().map(|&at| self.uppers[at].name.as_str()).collect();
            tree.notes.push(format!(
                "switches that share switches below them are one place: {}",
                crate::topo::names_shown(&names)
            ));
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
    /// By upper switch: an earlier member of its group, or itself if it is the first.
    earlier: Vec<usize>,
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
            earlier: (0..below.len()).collect(),
            around: vec![None; leaves + below.len()],
        };
        while groups.join(&below) {}
        groups
    }

    /// The number of the group of an upper switch.
    fn group(&mut self, upper: usize) -> usize {
        let mut at = upper;
        while self.earlier[at] != at {
            self.earlier[at] = self.earlier[self.earlier[at]];
            at = self.earlier[at];
        }
        self.leaves + at
    }

    /// Finds the group around each group, and joins those that are around the same one. Returns
    /// whether there were any to join.
    fn join(&mut self, below: &[Vec<usize>]) -> bool {
        self.around.fill(None);
        let mut joined = false;
        for (upper, children) in below.iter().enumerate() {
            for &child in children {
                let group = self.group(upper);
                let child = match child.checked_sub(self.leaves) {
                    Some(upper) => self.group(upper),
                    None => child,
                };
                let other = self.around[child].map(|other| self.group(other - self.leaves));
                match other {
                    _ if child == group => {} // it stands in its own group
                    Some(other) if other != group => {
                        let (first, second) = (other.min(group), other.max(group));
                        self.earlier[second - self.leaves] = first - self.leaves;
                        joined = true;
                    }
                    _ => self.around[child] = Some(group),
                }
            }
        }
        joined
    }

    /// Numbers of leaves and groups.
    fn ids(&self) -> Vec<usize> {
        let groups = (0..self.earlier.len()).filter(|&at| self.earlier[at] == at);
        (0..self.leaves).chain(groups.map(|at| self.leaves + at)).collect()
    }

    /// Upper switches by group.
    fn members(&mut self) -> BTreeMap<usize, Vec<usize>> {
        let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for upper in 0..self.earlier.len() {
            members.entry(self.group(upper)).or_default().push(upper);
        }
        members
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
