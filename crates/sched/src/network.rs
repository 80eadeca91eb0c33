//! What an iteration costs on a placement: closed forms of the all-reduce over the tree of places,
//! or a table of measured step times.

use hither_core::Seconds;
use hither_core::topology::{AllReduce, LEVELS_MAX, Level, Link, Tier, Topology};

use crate::cluster::{Cluster, PlaceId, Placement};
use crate::job::Profile;

/// Bytes a second in a gigabit a second.
const GBIT: f64 = 1e9 / 8.0;

/// The links of a cluster, with background traffic taken off. All bandwidths in bytes per second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Network {
    pub all_reduce: AllReduce,
    /// By level.
    pub latency_s: Vec<Seconds>,
    /// By level: the link of each part, which is a place of the level below. All GPUs have the one
    /// link of level 0.
    pub links: Vec<Vec<f64>>,
    /// By level: what the parts of each place may exchange together; infinite where nothing limits it.
    /// Empty at level 0.
    pub cores: Vec<Vec<f64>>,
    congestion: f64,
    now: Average,
    /// The same without background traffic.
    quiet: Average,
}

/// The links of an average place, by level.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Average {
    links: [f64; LEVELS_MAX],
    cores: [f64; LEVELS_MAX],
}

/// How a placement spreads, and what bandwidth it has to itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    pub gpus: u32,
    pub machines: u32,
    /// By level: most parts that are used in one place, such as GPUs on a machine, machines in a
    /// rack. 1 above the tier of the placement.
    pub parts: [u32; LEVELS_MAX],
    /// By level: bandwidth that each part has.
    pub share: [f64; LEVELS_MAX],
}

impl Shape {
    /// The level of the lowest place that holds it.
    pub fn tier(&self) -> Tier {
        Tier(self.parts.iter().rposition(|&parts| parts > 1).unwrap_or(0) as u8)
    }

    /// The same with less bandwidth between machines.
    pub fn stretched(mut self, stretch: f64) -> Self {
        self.share[1..].iter_mut().for_each(|share| *share /= stretch);
        self
    }
}

/// The time of an iteration as a function of how much other jobs stretch its communication between
/// machines. It agrees with [`Network::iteration_s`] of the stretched shape to within rounding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IterationCost {
    compute_s: Seconds,
    /// Communication between machines, with all the bandwidth of its links.
    pub bandwidth_s: Seconds,
    /// What the all-reduce takes inside machines at the same time as that.
    inside_s: Seconds,
    /// What it takes besides.
    fixed_s: Seconds,
    exposed: Exposed,
}

/// How much of the communication an iteration waits for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Exposed {
    /// All but this time, which hides behind computing.
    Beyond(Seconds),
    /// `exposed_s` where the all-reduce takes up to `measured_s`, and in proportion beyond.
    Measured { exposed_s: Seconds, measured_s: Seconds },
}

impl IterationCost {
    pub fn iteration_s(&self, stretch: f64) -> Seconds {
        let all_reduce_s = self.fixed_s + (stretch * self.bandwidth_s).max(self.inside_s);
        self.compute_s
            + match self.exposed {
                Exposed::Beyond(hidden_s) => (all_reduce_s - hidden_s).max(0.0),
                Exposed::Measured { exposed_s, measured_s } => {
                    exposed_s * (all_reduce_s / measured_s).max(1.0)
                }
            }
    }

    /// Whether the time of an iteration was measured, so that bytes and bandwidth need not explain it.
    pub fn is_measured(&self) -> bool {
        matches!(self.exposed, Exposed::Measured { .. })
    }
}

impl Network {
    /// `congestion` divides the bandwidth of every link outside the machines.
    pub fn new(topology: &Topology, congestion: f64) -> Self {
        let mut network = Self {
            all_reduce: topology.all_reduce,
            latency_s: topology.levels.iter().map(|level| level.latency_us * 1e-6).collect(),
            links: vec![vec![bandwidth(topology.levels[0].link, 1.0, || f64::INFINITY)]],
            cores: vec![Vec::new()],
            congestion,
            ..Self::default()
        };
        // The links of what each part holds: to begin with, all GPUs of each machine together.
        let gpu = network.links[0][0] / congestion;
        let mut behind: Vec<Vec<f64>> =
            topology.machines.iter().map(|m| vec![gpu * f64::from(m.gpus)]).collect();
        let mut parents: Vec<PlaceId> = topology.machines.iter().map(|m| m.parent).collect();
        for Level { link, core, places, .. } in &topology.levels[1..] {
            let links: Vec<f64> = behind
                .iter()
                .map(|b| bandwidth(*link, congestion, || together(b, &behind)))
                .collect();
            let mut held = vec![Vec::new(); places.len()];
            links.iter().zip(&parents).for_each(|(&link, &p)| held[p as usize].push(link));
            let core = |held: &Vec<f64>| match core {
                Some(core) => bandwidth(*core, congestion, || held.iter().sum()),
                None => f64::INFINITY,
            };
            network.cores.push(held.iter().map(core).collect());
            network.links.push(links);
            parents = places.iter().map(|place| place.parent).collect();
            behind = held;
        }
        network.average();
        network
    }

    fn average(&mut self) {
        let mean = |values: &[f64], factor: f64| {
            values.iter().map(|v| v * factor).sum::<f64>() / values.len().max(1) as f64
        };
        for (average, factor) in [(&mut self.now, 1.0), (&mut self.quiet, self.congestion)] {
            average.links[0] = self.links[0][0];
            for level in 1..self.links.len() {
                let links = &self.links[level];
                average.links[level] = match links.first() {
                    // A sum would round what all machines have alike.
                    Some(&first) if level == 1 && links.iter().all(|&l| l == first) => {
                        first * factor
                    }
                    _ => mean(links, factor),
                };
                average.cores[level] = mean(&self.cores[level], factor);
            }
        }
    }

    pub fn shape(&self, cluster: &Cluster, placement: &Placement) -> Shape {
        let slots = &placement.slots;
        let mut parts = [1; LEVELS_MAX];
        let mut share = [f64::INFINITY; LEVELS_MAX];
        parts[0] = slots.iter().map(|s| s.gpus).max().unwrap_or(0);
        share[0] = self.links[0][0];
        if let [slot] = slots[..] {
            return Shape { gpus: slot.gpus, machines: 1, parts, share };
        }
        // The places that are used on a level, and how many parts of each.
        let mut used: Vec<(PlaceId, u32)> = slots.iter().map(|s| (s.machine, s.gpus)).collect();
        let mut level = 0;
        while used.len() > 1 {
            level += 1;
            let links = used.iter().map(|u| self.links[level][u.0 as usize]);
            let link = links.fold(f64::INFINITY, f64::min);
            used.iter_mut().for_each(|u| *u = (cluster.around(level - 1, u.0), 1));
            used.sort_unstable();
            used.dedup_by(|next, kept| {
                next.0 == kept.0 && {
                    kept.1 += next.1;
                    true
                }
            });
            let cores = used.iter().map(|u| self.cores[level][u.0 as usize] / f64::from(u.1));
            share[level] = link.min(cores.fold(f64::INFINITY, f64::min));
            parts[level] = used.iter().map(|u| u.1).max().unwrap_or(1);
        }
        Shape {
            gpus: slots.iter().map(|s| s.gpus).sum(),
            machines: slots.len() as u32,
            parts,
            share,
        }
    }

    /// The compact shape of a gang at a tier, for estimates before there is a placement. `largest`
    /// gives the GPUs of the largest place of each level.
    pub fn typical(&self, gpus: u32, largest: [u32; LEVELS_MAX], tier: Tier) -> Shape {
        compact(gpus, largest, tier, &self.now)
    }

    /// The same without background traffic.
    pub fn typical_quiet(&self, gpus: u32, largest: [u32; LEVELS_MAX], tier: Tier) -> Shape {
        compact(gpus, largest, tier, &self.quiet)
    }

    /// One iteration: computing, and what of the communication does not hide behind it.
    pub fn iteration_s(&self, profile: &Profile, shape: &Shape) -> Seconds {
        profile.compute_s + self.exposed_s(profile, shape)
    }

    /// Communication that an iteration waits for.
    pub fn exposed_s(&self, profile: &Profile, shape: &Shape) -> Seconds {
        if shape.gpus <= 1 {
            return 0.0;
        }
        if !profile.table.is_empty() {
            return self.exposed_by_table_s(profile, shape);
        }
        let hidden = profile.overlap * profile.backward_share * profile.compute_s;
        (self.all_reduce_s(profile.gradient_bytes, shape) - hidden).max(0.0)
    }

    /// Time to sum `bytes` over all GPUs of the shape.
    pub fn all_reduce_s(&self, bytes: f64, shape: &Shape) -> Seconds {
        let latency_s = |n: u32, level: usize| 2.0 * f64::from(n - 1) * self.latency_s[level];
        let tier = shape.tier().level();
        match self.all_reduce {
            AllReduce::Hierarchical => {
                let mut sum_s = around(shape.parts[0]) * bytes / shape.share[0];
                let mut link = f64::INFINITY;
                for level in 1..=tier {
                    // All parts of a place drive its link together: the machines of a rack its uplink.
                    let behind = f64::from(shape.parts[level - 1]) * link;
                    link = shape.share[level].min(behind);
                    sum_s += around(shape.parts[level]) * bytes / link;
                }
                (0..=tier).fold(sum_s, |sum_s, level| sum_s + latency_s(shape.parts[level], level))
            }
            AllReduce::Ring => {
                let slowest = shape.share[..=tier].iter().copied().fold(f64::INFINITY, f64::min);
                around(shape.gpus) * bytes / slowest + latency_s(shape.gpus, tier)
            }
        }
    }

    /// What an iteration costs at this shape, depending on how busy its links are.
    pub fn iteration_cost(&self, profile: &Profile, shape: &Shape) -> IterationCost {
        let bytes = profile.gradient_bytes;
        let tier = shape.tier().level();
        let all_reduce_s = self.all_reduce_s(bytes, shape);
        let (bandwidth_s, inside_s) = match self.all_reduce {
            AllReduce::Hierarchical => {
                let free = Shape { share: only_inside(shape), ..*shape };
                (all_reduce_s - self.all_reduce_s(bytes, &free), 0.0)
            }
            AllReduce::Ring => {
                let slowest = shape.share[1..=tier].iter().copied().fold(f64::INFINITY, f64::min);
                let ring_s = |share: f64| around(shape.gpus) * bytes / share;
                (ring_s(slowest), ring_s(shape.share[0]))
            }
        };
        let fixed_s = all_reduce_s - bandwidth_s.max(inside_s);
        let compute_s = profile.compute_s;
        let exposed = match profile.table.is_empty() {
            true if shape.gpus <= 1 => Exposed::Beyond(f64::INFINITY),
            true => Exposed::Beyond(profile.overlap * profile.backward_share * compute_s),
            false => {
                let (exposed_s, measured_s) = self.exposed_as_measured_s(profile, shape);
                Exposed::Measured { exposed_s, measured_s }
            }
        };
        IterationCost { compute_s, bandwidth_s, inside_s, fixed_s, exposed }
    }

    /// Bytes that an iteration sends through the link of each part, by level; none inside machines.
    pub fn traffic(&self, bytes: f64, shape: &Shape) -> [f64; LEVELS_MAX] {
        let mut traffic = [0.0; LEVELS_MAX];
        let tier = shape.tier().level();
        match self.all_reduce {
            AllReduce::Hierarchical => {
                // The parts of a place share the work of what leaves the place.
                let mut leaving = 0.0;
                for level in (1..=tier).rev() {
                    traffic[level] = around(shape.parts[level]) * bytes
                        + leaving / f64::from(shape.parts[level]);
                    leaving = traffic[level];
                }
            }
            AllReduce::Ring => {
                let once = around(shape.gpus) * bytes;
                traffic[1..=tier].fill(once);
            }
        }
        traffic
    }

    /// The measured step tells what the network cost where it was measured; the closed form says
    /// how much slower the links are here and now.
    fn exposed_by_table_s(&self, profile: &Profile, shape: &Shape) -> Seconds {
        let (exposed_s, measured_s) = self.exposed_as_measured_s(profile, shape);
        if measured_s.is_infinite() {
            return exposed_s;
        }
        exposed_s * (self.all_reduce_s(profile.gradient_bytes, shape) / measured_s).max(1.0)
    }

    /// The communication of a measured step that was waited for, and what an all-reduce took there;
    /// infinite where bandwidth does not matter.
    fn exposed_as_measured_s(&self, profile: &Profile, shape: &Shape) -> (Seconds, Seconds) {
        if shape.gpus <= 1 {
            return (0.0, f64::INFINITY);
        }
        let (step_s, _) = measured_step_s(profile, shape);
        let exposed_s = (step_s - profile.compute_s).max(0.0);
        if shape.machines <= 1 || profile.gradient_bytes <= 0.0 {
            return (exposed_s, f64::INFINITY);
        }
        // Tables were measured on machines around one switch.
        let mut switch = Shape { parts: [1; LEVELS_MAX], ..*shape };
        (switch.parts[0], switch.parts[1]) = (shape.parts[0], shape.machines);
        switch.share[1] = self.quiet.links[1];
        (exposed_s, self.all_reduce_s(profile.gradient_bytes, &switch))
    }
}

/// The bandwidth of a shape whose links between machines cost nothing.
fn only_inside(shape: &Shape) -> [f64; LEVELS_MAX] {
    let mut share = [f64::INFINITY; LEVELS_MAX];
    share[0] = shape.share[0];
    share
}

/// Times that data pass a link when n parts sum them in a ring.
fn around(n: u32) -> f64 {
    2.0 * f64::from(n - 1) / f64::from(n)
}

/// Bytes a second of a link; `behind` is what it is oversubscribed by.
fn bandwidth(link: Link, congestion: f64, behind: impl FnOnce() -> f64) -> f64 {
    match link {
        Link::Gbit(gbit) => gbit * GBIT / congestion,
        Link::Oversubscribed(factor) => behind() / factor,
    }
}

/// The links of one place's parts, together. A place without parts counts as one with a single part.
fn together(links: &[f64], all: &[Vec<f64>]) -> f64 {
    match links.first().or_else(|| all.iter().find_map(|l| l.first())) {
        Some(&first) if links.iter().all(|&l| l == first) => links.len().max(1) as f64 * first,
        _ => links.iter().sum(),
    }
}

fn compact(gpus: u32, largest: [u32; LEVELS_MAX], tier: Tier, average: &Average) -> Shape {
    let mut shape =
        Shape { gpus, machines: 1, parts: [1; LEVELS_MAX], share: [f64::INFINITY; LEVELS_MAX] };
    shape.share[0] = average.links[0];
    // Places that are used on a level; below the machines, GPUs.
    let mut used = gpus;
    for (level, &largest) in largest.iter().enumerate().take(tier.level() + 1) {
        let places = match level == tier.level() {
            true => 1,
            false => gpus.div_ceil(largest.max(1)).max(2).min(used),
        };
        shape.parts[level] = used.div_ceil(places);
        if level == 0 {
            shape.machines = places;
        } else {
            let core = average.cores[level] / f64::from(shape.parts[level]);
            shape.share[level] = average.links[level].min(core);
        }
        used = places;
    }
    shape
}

/// Step time of a table profile at this shape, and whether it lies beyond what was measured.
/// The exact spread counts first; then the same kind of spread (one machine or several),
/// interpolated linearly between the nearest numbers of GPUs.
pub fn measured_step_s(profile: &Profile, shape: &Shape) -> (Seconds, bool) {
    let even = |p: &[u32]| {
        p.len() as u32 == shape.machines
            && p.iter().sum::<u32>() == shape.gpus
            && p.iter().max() == Some(&shape.parts[0])
    };
    if let Some(row) = profile.table.iter().find(|row| even(&row.placement)) {
        return (row.step_s, false);
    }
    let spread = shape.machines > 1;
    // (GPUs, mean step over the measured spreads of that many GPUs)
    let mut points: Vec<(u32, f64, u32)> = Vec::new();
    for row in profile.table.iter().filter(|row| (row.placement.len() > 1) == spread) {
        let gpus = row.placement.iter().sum();
        match points.iter_mut().find(|p| p.0 == gpus) {
            Some(point) => (point.1, point.2) = (point.1 + row.step_s, point.2 + 1),
            None => points.push((gpus, row.step_s, 1)),
        }
    }
    points.sort_unstable_by_key(|p| p.0);
    let at = |p: &(u32, f64, u32)| (f64::from(p.0), p.1 / f64::from(p.2));
    let after = points.partition_point(|p| p.0 < shape.gpus);
    match (after.checked_sub(1).and_then(|i| points.get(i)), points.get(after)) {
        (_, Some(right)) if right.0 == shape.gpus => (at(right).1, false),
        (Some(left), Some(right)) => {
            let ((x0, y0), (x1, y1)) = (at(left), at(right));
            (y0 + (y1 - y0) * (f64::from(shape.gpus) - x0) / (x1 - x0), false)
        }
        (Some(nearest), None) | (None, Some(nearest)) => (at(nearest).1, true),
        (None, None) => (profile.compute_s, true),
    }
}
