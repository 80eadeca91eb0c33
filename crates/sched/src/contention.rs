//! Max-min fair sharing of network cards, rack uplinks and the core among running jobs.
//!
//! A job communicates in bursts. Its *demand* on a link is what it would send on average if it had
//! the network to itself. Demands are filled max-min fairly; then a job's bursts run at the level
//! of the links it crosses: at least the fair share, and beyond it whatever the others leave free.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::{Cluster, MachineId, Placement};
use crate::job::{JobId, Profile};
use crate::network::{Network, Shape, Share};

#[derive(Debug, Clone)]
struct Flow {
    shape: Shape,
    machines: Vec<MachineId>,
    racks: Vec<u32>,
    demand: Share,
}

/// All jobs that use more than one machine, and where they meet.
#[derive(Debug, Clone)]
pub struct Contention {
    flows: BTreeMap<JobId, Flow>,
    on_machine: Vec<Vec<JobId>>,
    across_racks: BTreeSet<JobId>,
    /// What has changed since bandwidth was last shared out: machines, whether uplinks, and jobs on
    /// one machine, which share nothing.
    touched: Vec<MachineId>,
    uplinks_touched: bool,
    alone: Vec<(JobId, Shape)>,
}

/// One flow through some links, for [`fill`]: the links with the load that a unit of rate puts on
/// each, and the rate beyond which the flow has no use for more.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    pub links: Vec<(usize, f64)>,
    pub most: f64,
}

impl Contention {
    pub fn new(machines: usize) -> Self {
        Self {
            flows: BTreeMap::new(),
            on_machine: vec![Vec::new(); machines],
            across_racks: BTreeSet::new(),
            touched: Vec::new(),
            uplinks_touched: false,
            alone: Vec::new(),
        }
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
        let traffic = network.traffic(profile.gradient_bytes, &shape);
        let alone_s = network.iteration_s(profile, &shape);
        let demand = Share { nic: traffic.nic / alone_s, uplink: traffic.uplink / alone_s };
        let mut racks: Vec<u32> =
            placement.slots.iter().map(|s| cluster.machines[s.machine as usize].rack).collect();
        racks.sort_unstable();
        racks.dedup();
        let machines: Vec<MachineId> = placement.slots.iter().map(|s| s.machine).collect();
        for &machine in &machines {
            self.on_machine[machine as usize].push(id);
        }
        self.touched.extend(&machines);
        if shape.racks > 1 {
            self.across_racks.insert(id);
            self.uplinks_touched = true;
        }
        self.flows.insert(id, Flow { shape, machines, racks, demand });
    }

    /// A job stops.
    pub fn stop(&mut self, id: JobId) {
        self.alone.retain(|&(j, _)| j != id);
        let Some(flow) = self.flows.remove(&id) else {
            return;
        };
        for &machine in &flow.machines {
            self.on_machine[machine as usize].retain(|&j| j != id);
        }
        self.touched.extend(flow.machines);
        self.uplinks_touched |= self.across_racks.remove(&id);
    }

    /// Shares bandwidth out anew. Returns every job whose share may have changed and every job that
    /// has started since, by id, with its shape.
    pub fn settle(&mut self, network: &Network) -> Vec<(JobId, Shape)> {
        let machines = std::mem::take(&mut self.touched);
        let mut changed = self.share_cards(machines, network);
        if std::mem::take(&mut self.uplinks_touched) {
            changed.extend(self.share_uplinks(network));
        }
        let shared = changed.into_iter().map(|id| (id, self.flows[&id].shape));
        let mut settled: Vec<(JobId, Shape)> = shared.chain(self.alone.drain(..)).collect();
        settled.sort_unstable_by_key(|s| s.0);
        settled
    }

    /// Shares the cards of these machines and of all that jobs connect them with.
    fn share_cards(&mut self, machines: Vec<MachineId>, network: &Network) -> BTreeSet<JobId> {
        let mut jobs = BTreeSet::new();
        let mut links: BTreeMap<MachineId, usize> = BTreeMap::new();
        let mut to_visit = machines;
        while let Some(machine) = to_visit.pop() {
            if links.contains_key(&machine) {
                continue;
            }
            links.insert(machine, links.len());
            for &id in &self.on_machine[machine as usize] {
                if jobs.insert(id) {
                    to_visit.extend(&self.flows[&id].machines);
                }
            }
        }
        let demands: Vec<Demand> = jobs
            .iter()
            .map(|id| {
                let flow = &self.flows[id];
                let links = flow.machines.iter().map(|m| (links[m], 1.0)).collect();
                Demand { links, most: flow.demand.nic }
            })
            .collect();
        let bursts = fill(&vec![network.nic; links.len()], &demands);
        for (id, burst) in jobs.iter().zip(bursts) {
            self.flows.get_mut(id).expect("listed above").shape.share.nic = burst;
        }
        jobs
    }

    /// Shares the uplinks and the core among all jobs that span racks.
    fn share_uplinks(&mut self, network: &Network) -> BTreeSet<JobId> {
        let core = network.uplinks.len();
        let mut capacity = network.uplinks.clone();
        capacity.push(network.core);
        let demands: Vec<Demand> = self
            .across_racks
            .iter()
            .map(|id| {
                let flow = &self.flows[id];
                let mut links: Vec<_> = flow.racks.iter().map(|&r| (r as usize, 1.0)).collect();
                links.push((core, flow.racks.len() as f64));
                Demand { links, most: flow.demand.uplink }
            })
            .collect();
        let bursts = fill(&capacity, &demands);
        for (id, burst) in self.across_racks.iter().zip(bursts) {
            self.flows.get_mut(id).expect("kept in step").shape.share.uplink = burst;
        }
        self.across_racks.clone()
    }
}

/// The rate at which each flow's bursts run: `min` over its links of `max(fair level, what it has +
/// what is left)`, after demands have been filled max-min fairly. The level of a link that is not
/// full is an equal part of it, and no flow gets more of a link than it could use alone.
pub fn fill(capacity: &[f64], demands: &[Demand]) -> Vec<f64> {
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
pub fn max_min(capacity: &[f64], demands: &[Demand]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
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
