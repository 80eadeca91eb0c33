//! A tree of places. GPUs stand in machines, machines in racks, racks perhaps in pods, and all of them
//! in one network. The *levels* of the tree have names and numbers: 0 is the machine, the last is the
//! network, and there are [`LEVELS_MIN`] to [`LEVELS_MAX`] of them.
//!
//! Two questions are asked of it. How far apart is a placement? That is its [`Tier`]: the level of
//! the lowest place that holds all its GPUs. How fast do its parts reach each other? A [`Level`]
//! says how the parts of one of its places are linked: the GPUs of a machine, the machines of a
//! rack, the racks of the network.

use serde::{Deserialize, Serialize};

/// A machine, and the network around it.
pub const LEVELS_MIN: usize = 2;
pub const LEVELS_MAX: usize = 6;

/// The level of the lowest place that holds all of a placement; 0 is a single machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tier(pub u8);

impl Tier {
    pub const MACHINE: Tier = Tier(0);

    /// The number of the level, as an index.
    pub const fn level(self) -> usize {
        self.0 as usize
    }

    /// The tier around this one.
    pub const fn wider(self) -> Tier {
        Tier(self.0 + 1)
    }

    /// The tiers of a tree with so many levels, from the inside out.
    pub fn all(levels: usize) -> impl DoubleEndedIterator<Item = Tier> + Clone {
        (0..levels as u8).map(Tier)
    }
}

/// A cluster: its levels from the inside out, and the machines at the bottom.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    pub name: String,
    pub levels: Vec<Level>,
    pub machines: Vec<Machine>,
    pub all_reduce: AllReduce,
}

/// What all places of one level have in common, and the places.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// What a place of the level is called: machine, rack, pod, network.
    pub name: String,
    /// The link by which each part of a place reaches the other parts: a GPU's inside a machine, a
    /// machine's network card inside a rack, a rack's uplink inside the network.
    pub link: Link,
    /// What all parts of one place may exchange at a time. `None`: as much as their links carry.
    pub core: Option<Link>,
    /// Latency of a message between two parts, in microseconds.
    pub latency_us: f64,
    /// Empty at level 0, whose places are [`Topology::machines`]. The last level has one place.
    pub places: Vec<Place>,
}

/// The bandwidth of a link, in each direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Link {
    /// In gigabits per second.
    Gbit(f64),
    /// The links of all that is behind it, together, divided by this factor.
    Oversubscribed(f64),
}

/// A rack, a pod, or whatever the level's name says.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    pub name: String,
    /// Index of the place around it, among those of the next level; 0 at the last level.
    pub parent: u32,
}

/// A machine with GPUs of one type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub name: String,
    /// Index of the place around it, among those of level 1.
    pub parent: u32,
    pub gpus: u32,
    pub gpu_type: String,
}

/// How gradients are summed over a job's GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AllReduce {
    /// Inside each machine, then inside each place of level 1, and so on outward.
    #[default]
    Hierarchical,
    /// One ring over all GPUs, as fast as its slowest link.
    Ring,
}

impl Level {
    /// So many levels of a common cluster, still without places: NVLink inside machines of 8 GPUs, a
    /// card of 100 Gbit/s per machine, 4:1 uplinks of racks, 2:1 uplinks of all that is larger, and
    /// cores that never block.
    pub fn common(levels: usize) -> Vec<Self> {
        const NAMES: [&str; LEVELS_MAX - 1] = ["machine", "rack", "pod", "hall", "site"];
        let level = |at: usize| Self {
            name: if at + 1 == levels { "network" } else { NAMES[at] }.into(),
            link: match at {
                0 => Link::Gbit(1200.0),
                1 => Link::Gbit(100.0),
                2 => Link::Oversubscribed(4.0),
                _ => Link::Oversubscribed(2.0),
            },
            core: None,
            latency_us: [1.0, 5.0, 15.0, 25.0, 35.0, 45.0][at],
            places: Vec::new(),
        };
        (0..levels).map(level).collect()
    }
}

impl Topology {
    /// `racks` equal racks of `machines` machines of `gpus` GPUs each.
    pub fn uniform(racks: u32, machines: u32, gpus: u32) -> Self {
        Self::regular(&[racks, machines, gpus])
    }

    /// A common cluster in which all places of a level are alike. `parts` has one number for every
    /// level, from the outside in: the parts of the network, down to the GPUs of a machine.
    pub fn regular(parts: &[u32]) -> Self {
        let name = parts.iter().map(u32::to_string).collect::<Vec<_>>().join("x");
        let (&gpus, around) = parts.split_last().expect("a machine has GPUs");
        let mut levels = Level::common(parts.len());
        // Places of the level, and how many of them lie in each place around.
        let (mut count, mut each) = (1, 1);
        for (level, &parts) in levels.iter_mut().skip(1).rev().zip(around) {
            let place = |at: u32| Place { name: format!("{}{at}", level.name), parent: at / each };
            level.places = (0..count).map(place).collect();
            (count, each) = (count * parts, parts);
        }
        levels[parts.len() - 1].places[0].name = "network".into();
        let machine = |at: u32| Machine {
            name: format!("gpu{:03}", at + 1),
            parent: at / each,
            gpus,
            gpu_type: "gpu".into(),
        };
        let machines = (0..count).map(machine).collect();
        Self { name, levels, machines, all_reduce: AllReduce::default() }
    }

    /// The widest tier: the whole network.
    pub fn widest(&self) -> Tier {
        Tier(self.levels.len() as u8 - 1)
    }

    pub fn gpus(&self) -> u64 {
        self.machines.iter().map(|m| u64::from(m.gpus)).sum()
    }

    /// The place of each level that holds the machine, level by level; the first is the machine.
    pub fn within(&self, machine: usize) -> Vec<u32> {
        let mut path = vec![machine as u32];
        let mut at = self.machines[machine].parent;
        for level in &self.levels[1..] {
            path.push(at);
            at = level.places[at as usize].parent;
        }
        path
    }

    /// The lowest tier in which the empty cluster has room for `gpus` GPUs; `None` if it has no room at
    /// all. `gpu_type` restricts the machines.
    pub fn best_tier(&self, gpus: u32, gpu_type: Option<&str>) -> Option<Tier> {
        let fits = |room: &[u64]| room.iter().any(|&r| u64::from(gpus) <= r);
        let of_type = |m: &Machine| gpu_type.is_none_or(|t| t == m.gpu_type);
        // GPUs in each place of a level, and the place around each.
        let mut room: Vec<u64> =
            self.machines.iter().map(|m| if of_type(m) { m.gpus.into() } else { 0 }).collect();
        let mut parents: Vec<u32> = self.machines.iter().map(|m| m.parent).collect();
        for (tier, level) in Tier::all(self.levels.len()).zip(self.levels.iter().skip(1)) {
            if fits(&room) {
                return Some(tier);
            }
            let mut around = vec![0; level.places.len()];
            room.iter().zip(&parents).for_each(|(r, &p)| around[p as usize] += r);
            parents = level.places.iter().map(|place| place.parent).collect();
            room = around;
        }
        fits(&room).then(|| self.widest())
    }
}
