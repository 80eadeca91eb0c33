//! Max-min fair sharing of links among running jobs, level by level: network cards, uplinks of racks
//! and of all larger places, and cores.
//!
//! A job communicates in bursts. Its *demand* on a link is what it would send on average if it had
//! the network to itself. Demands are filled max-min fairly; then a job's bursts run at the level
//! of the links it crosses: at least the fair share, and beyond it whatever the others leave free.

use std::collections::{BTreeMap, BTreeSet};

use hither_core::topology::LEVELS_MAX;

use crate::cluster::{Cluster, PlaceId, Placement};
use crate::job::{JobId, Profile};
use crate::network::{Network, Shape};

/// Where jobs meet on one level: the link of a part, or the core of a place.
type Spot = u32;

#[derive(Debug, Clone)]
struct Flow {
    shape: Shape,
    /// By level from 1 to the job's tier: the spots that it uses, and the load that a unit of rate
    /// puts on each.
    spots: Vec<Vec<(Spot, f64)>>,
    /// By level: bytes per second alone on the network.
    demand: [f64; LEVELS_MAX],
    /// By level: bytes per iteration; `None` if only the time of an iteration was measured.
    traffic: Option<[f64; LEVELS_MAX]>,
}

/// All jobs that use more than one machine, and where they meet.
#[derive(Debug, Clone)]
pub struct Contention {
    flows: BTreeMap<JobId, Flow>,
    /// By level from 1 on: inside machines nothing is shared.
    levels: Vec<Sharing>,
    /// Jobs on one machine that have started since bandwidth was last shared out.
    alone: Vec<(JobId, Shape)>,
}

/// What jobs share on one level of the network.
#[derive(Debug, Clone)]
struct Sharing {
    /// The links of all parts, then the cores of all places.
    capacity: Vec<f64>,
    parts: u32,
    /// By spot: the jobs that use it. One core that may fill joins all jobs: then only its own list is
    /// kept.
    jobs: Vec<Vec<JobId>>,
    joined: bool,
    /// Spots whose jobs have changed since bandwidth was last shared out.
    touched: Vec<Spot>,
    /// By spot: its number among those that are being shared, if it is.
    numbers: Vec<Option<u32>>,
}

/// One flow through some links, for [`fill`]: the links with the load that a unit of rate puts on
/// each, and the rate beyond which the flow has no use for more.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkDemand {
    pub links: Vec<(usize, f64)>,
    pub most: f64,
}

impl Contention {
    pub fn new(network: &Network) -> Self {
        let levels = network.links.iter().zip(&network.cores).skip(1);
        let levels = levels.map(|(links, cores)| Sharing::new(links, cores)).collect();
        Self { flows: BTreeMap::new(), levels, alone: Vec::new() }
    }

    /// A job starts. Many may start and stop before bandwidth is shared out anew.
    pub fn start(
        &mut self,
        id: JobId,
        profile: &Profile,
        placement: &Placement,
        cluster: &Cluster,
        network: &Network,
    ) {
        let shape = network.shape(cluster, placement);
        if shape.machines <= 1 {
            self.alone.push((id, shape));
            return;
        }
        let alone_s = network.iteration_s(profile, &shape);
        let traffic = network.traffic(profile.gradient_bytes, &shape);
        let demand = traffic.map(|t| t / alone_s);
        let traffic = profile.table.is_empty().then_some(traffic);
        let mut spots = Vec::with_capacity(shape.tier().level());
        let mut parts: Vec<PlaceId> = placement.slots.iter().map(|s| s.machine).collect();
        for (level, sharing) in self.levels.iter_mut().take(shape.tier().level()).enumerate() {
            let mut places: Vec<PlaceId> =
                parts.iter().map(|&part| cluster.around(level, part)).collect();
            places.sort_unstable();
            let used = sharing.spots(&parts, &places);
            sharing.start(id, &used);
            spots.push(used);
            places.dedup();
            parts = places;
        }
        self.flows.insert(id, Flow { shape, spots, demand, traffic });
    }

    /// A job stops.
    pub fn stop(&mut self, id: JobId) {
        self.alone.retain(|&(j, _)| j != id);
        let Some(flow) = self.flows.remove(&id) else {
            return;
        };
        for (sharing, used) in self.levels.iter_mut().zip(&flow.spots) {
            sharing.stop(id, used);
        }
    }

    /// Shares bandwidth out anew. Returns every job whose share may have changed and every job that
    /// has started since, by id, with its shape.
    pub fn settle(&mut self) -> Vec<(JobId, Shape)> {
        let mut changed = BTreeSet::new();
        for level in 1..=self.levels.len() {
            changed.append(&mut self.share(level));
        }
        let shared = changed.into_iter().map(|id| (id, self.flows[&id].shape));
        let mut settled: Vec<(JobId, Shape)> = shared.chain(self.alone.drain(..)).collect();
        settled.sort_unstable_by_key(|s| s.0);
        settled
    }

    /// A link that carries more than it can if jobs do so many iterations per second: its level, and
    /// its load as a share of its capacity. Exact up to `rounding`.
    pub fn overload(&self, rate: impl Fn(JobId) -> f64, rounding: f64) -> Option<(usize, f64)> {
        for (level, sharing) in (1..).zip(&self.levels) {
            let mut load = vec![0.0; sharing.capacity.len()];
            for (&id, flow) in &self.flows {
                let bytes = flow.traffic.map_or(0.0, |traffic| traffic[level]);
                for &(spot, weight) in flow.spots.get(level - 1).into_iter().flatten() {
                    load[spot as usize] += rate(id) * bytes * weight;
                }
            }
            let mut shares = load.iter().zip(&sharing.capacity).map(|(load, most)| load / most);
            if let Some(over) = shares.find(|&share| share > 1.0 + rounding) {
                return Some((level, over));
            }
        }
        None
    }

    /// Shares one level among the jobs at its touched spots and all that are connected with them.
    fn share(&mut self, level: usize) -> BTreeSet<JobId> {
        let sharing = &mut self.levels[level - 1];
        let mut jobs = BTreeSet::new();
        let mut capacity = Vec::new();
        let mut visited = Vec::new();
        let mut to_visit = std::mem::take(&mut sharing.touched);
        while let Some(spot) = to_visit.pop() {
            if sharing.numbers[spot as usize].is_some() {
                continue;
            }
            sharing.numbers[spot as usize] = Some(visited.len() as u32);
            visited.push(spot);
            capacity.push(sharing.capacity[spot as usize]);
            for &id in &sharing.jobs[spot as usize] {
                if jobs.insert(id) {
                    to_visit.extend(self.flows[&id].spots[level - 1].iter().map(|s| s.0));
                }
            }
        }
        let number =
            |spot: Spot| sharing.numbers[spot as usize].expect("all were visited") as usize;
        let demand = |id: &JobId| {
            let flow = &self.flows[id];
            let links = flow.spots[level - 1].iter().map(|&(s, load)| (number(s), load)).collect();
            LinkDemand { links, most: flow.demand[level] }
        };
        let demands: Vec<LinkDemand> = jobs.iter().map(demand).collect();
        for (id, burst) in jobs.iter().zip(fill(&capacity, &demands)) {
            self.flows.get_mut(id).expect("listed above").shape.share[level] = burst;
        }
        visited.into_iter().for_each(|spot| sharing.numbers[spot as usize] = None);
        jobs
    }
}

impl Sharing {
    fn new(links: &[f64], cores: &[f64]) -> Self {
        // Cores without a limit are nobody's concern.
        let cores = if cores.iter().all(|core| core.is_infinite()) { &[] } else { cores };
        let capacity: Vec<f64> = links.iter().chain(cores).copied().collect();
        Self {
            parts: links.len() as u32,
            jobs: vec![Vec::new(); capacity.len()],
            joined: cores.len() == 1,
            touched: Vec::new(),
            numbers: vec![None; capacity.len()],
            capacity,
        }
    }

    /// Where a job meets others that uses these parts; `places` has the place around each, sorted.
    fn spots(&self, parts: &[PlaceId], places: &[PlaceId]) -> Vec<(Spot, f64)> {
        let mut spots: Vec<(Spot, f64)> = parts.iter().map(|&part| (part, 1.0)).collect();
        if self.capacity.len() > self.parts as usize {
            // Each part puts its rate on the core that it shares with the others.
            let cores = places.chunk_by(|a, b| a == b);
            spots.extend(cores.map(|same| (self.parts + same[0], same.len() as f64)));
        }
        spots
    }

    /// The spots whose lists of jobs are kept.
    fn listed<'a>(&self, spots: &'a [(Spot, f64)]) -> &'a [(Spot, f64)] {
        if self.joined { &spots[spots.len() - 1..] } else { spots }
    }

    fn start(&mut self, id: JobId, spots: &[(Spot, f64)]) {
        for &(spot, _) in self.listed(spots) {
            self.jobs[spot as usize].push(id);
            self.touched.push(spot);
        }
    }

    fn stop(&mut self, id: JobId, spots: &[(Spot, f64)]) {
        for &(spot, _) in self.listed(spots) {
            self.jobs[spot as usize].retain(|&j| j != id);
            self.touched.push(spot);
        }
    }
}

/// The rate at which each flow's bursts run: `min` over its links of `max(fair level, what it has +
/// what is left)`, after demands have been filled max-min fairly. The level of a link that is not
/// full is an equal part of it, and no flow gets more of a link than it could use alone.
pub fn fill(capacity: &[f64], demands: &[LinkDemand]) -> Vec<f64> {
    let (rate, left, level) = max_min(capacity, demands);
    let mut weights = vec![0.0; capacity.len()];
    for &(link, weight) in demands.iter().flat_map(|d| &d.links) {
        weights[link] += weight;
    }
    demands
        .iter()
        .zip(&rate)
        .map(|(demand, &rate)| {
            let on_link = |&(link, weight): &(usize, f64)| {
                let fair = level[link].max(capacity[link] / weights[link]);
                (rate + left[link].max(0.0) / weight).max(fair).min(capacity[link] / weight)
            };
            demand.links.iter().map(on_link).fold(f64::INFINITY, f64::min)
        })
        .collect()
}

/// Progressive filling: all rates rise together; a flow stops when its demand is met or one of its
/// links is full. Returns the rates, what each link has left, and the level at which each full
/// link stopped its flows (0 for a link that is not full).
pub fn max_min(capacity: &[f64], demands: &[LinkDemand]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let mut rate = vec![0.0; demands.len()];
    let mut left = capacity.to_vec();
    let mut level = vec![0.0; capacity.len()];
    let mut weight = vec![0.0; capacity.len()];
    let mut rising: Vec<usize> = (0..demands.len()).collect();
    let mut used: Vec<usize> = Vec::new();
    for demand in demands {
        for &(link, w) in &demand.links {
            if weight[link] == 0.0 {
                used.push(link);
            }
            weight[link] += w;
        }
    }
    used.sort_unstable();
    let mut height = 0.0;
    while !rising.is_empty() {
        let by_link = |&l: &usize| left[l].max(0.0) / weight[l];
        let open = used.iter().filter(|&&l| weight[l] > 1e-9);
        let room = open.map(by_link).fold(f64::INFINITY, f64::min);
        let wish = rising.iter().map(|&f| demands[f].most - height).fold(f64::INFINITY, f64::min);
        let step = room.min(wish).max(0.0);
        height += step;
        for &link in &used {
            left[link] -= step * weight[link];
        }
        let full = |l: usize| left[l] <= 1e-9 * capacity[l];
        let mut kept = Vec::with_capacity(rising.len());
        for &f in &rising {
            let crossed_full = demands[f].links.iter().any(|&(l, _)| full(l));
            if crossed_full || demands[f].most <= height * (1.0 + 1e-12) {
                rate[f] = height;
                for &(link, w) in &demands[f].links {
                    weight[link] -= w;
                    if full(link) {
                        level[link] = height;
                    }
                }
            } else {
                kept.push(f);
            }
        }
        // Each step fills a link or meets a demand, to within the tolerances above.
        assert!(kept.len() < rising.len(), "progressive filling made no progress");
        rising = kept;
    }
    (rate, left, level)
}
