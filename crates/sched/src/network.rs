//! What an iteration costs on a placement: closed forms of the all-reduce over the tree of places,
//! or a table of measured step times.

use hither_core::Seconds;
use hither_core::topology::{AllReduce, Links, Tier, Topology};

use crate::cluster::{Cluster, Placement};
use crate::job::Profile;

/// Bytes a second in a gigabit a second.
const GBIT: f64 = 1e9 / 8.0;

/// The links of a cluster, with background traffic taken off. All bandwidths in bytes a second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Network {
    pub all_reduce: AllReduce,
    pub gpu: f64,
    pub nic: f64,
    /// By rack.
    pub uplinks: Vec<f64>,
    pub core: f64,
    pub latency_s: [Seconds; 3],
    congestion: f64,
}

/// How a placement spreads, and what bandwidth it has to itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    pub gpus: u32,
    /// Most GPUs on one machine, most machines in one rack, racks.
    pub machine_gpus: u32,
    pub rack_machines: u32,
    pub racks: u32,
    pub machines: u32,
    pub share: Share,
}

/// Bandwidth that a job gets on each kind of shared link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    pub nic: f64,
    pub uplink: f64,
}

impl Network {
    /// `congestion` divides the bandwidth of every link outside the machines.
    pub fn new(topology: &Topology, congestion: f64) -> Self {
        let Links { gpu_gbit, nic_gbit, uplink_gbit, core_gbit, .. } = topology.links;
        let nic = nic_gbit * GBIT / congestion;
        let mut machines = vec![0u32; topology.racks.len()];
        for machine in &topology.machines {
            machines[machine.rack as usize] += 1;
        }
        let uplinks: Vec<f64> = machines
            .iter()
            .map(|&count| match uplink_gbit {
                Some(gbit) => gbit * GBIT / congestion,
                None => f64::from(count.max(1)) * nic / topology.links.oversubscription,
            })
            .collect();
        let core = match core_gbit {
            Some(gbit) => gbit * GBIT / congestion,
            None => uplinks.iter().sum::<f64>() / 2.0,
        };
        Self {
            all_reduce: topology.links.all_reduce,
            gpu: gpu_gbit * GBIT,
            nic,
            uplinks,
            core,
            latency_s: topology.links.latency_us.map(|us| us * 1e-6),
            congestion,
        }
    }

    /// So many racks from now on; new ones get the uplink of an average one.
    pub(crate) fn grow(&mut self, racks: usize) {
        let mean = self.uplinks.iter().sum::<f64>() / self.uplinks.len().max(1) as f64;
        self.uplinks.resize(racks.max(self.uplinks.len()), mean);
    }

    /// The same network without background traffic.
    pub fn quiet(&self) -> Self {
        Self {
            nic: self.nic * self.congestion,
            uplinks: self.uplinks.iter().map(|u| u * self.congestion).collect(),
            core: self.core * self.congestion,
            congestion: 1.0,
            ..self.clone()
        }
    }

    pub fn shape(&self, cluster: &Cluster, placement: &Placement) -> Shape {
        let slots = &placement.slots;
        let mut racks: Vec<(u32, u32)> = Vec::with_capacity(slots.len());
        for slot in slots {
            racks.push((cluster.machines[slot.machine as usize].rack, 1));
        }
        racks.sort_unstable();
        racks.dedup_by(|next, kept| {
            next.0 == kept.0 && {
                kept.1 += next.1;
                true
            }
        });
        let uplink = racks.iter().map(|r| self.uplinks[r.0 as usize]).fold(f64::INFINITY, f64::min);
        Shape {
            gpus: slots.iter().map(|s| s.gpus).sum(),
            machine_gpus: slots.iter().map(|s| s.gpus).max().unwrap_or(0),
            rack_machines: racks.iter().map(|r| r.1).max().unwrap_or(0),
            racks: racks.len() as u32,
            machines: slots.len() as u32,
            share: Share { nic: self.nic, uplink: uplink.min(self.core / racks.len() as f64) },
        }
    }

    /// The compact shape of a gang at a tier, for estimates before there is a placement. `largest`
    /// gives the GPUs of a machine and of a rack.
    pub fn typical(&self, gpus: u32, largest: [u32; 3], tier: Tier) -> Shape {
        let machine_gpus = gpus.min(largest[0]).max(1);
        let machines = match tier {
            Tier::Machine => 1,
            _ => gpus.div_ceil(machine_gpus).max(2.min(gpus)),
        };
        let racks = match tier {
            Tier::Network => gpus.div_ceil(largest[1].max(1)).max(2).min(machines),
            _ => 1,
        };
        let uplink = self.uplinks.iter().sum::<f64>() / self.uplinks.len().max(1) as f64;
        Shape {
            gpus,
            machine_gpus: gpus.div_ceil(machines),
            rack_machines: machines.div_ceil(racks),
            racks,
            machines,
            share: Share { nic: self.nic, uplink: uplink.min(self.core / f64::from(racks)) },
        }
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
        let around = |n: u32| 2.0 * f64::from(n - 1) / f64::from(n);
        let (d, m, k) = (shape.machine_gpus, shape.rack_machines, shape.racks);
        let latency = |n: u32, tier: Tier| 2.0 * f64::from(n - 1) * self.latency_s[tier as usize];
        // All GPUs of a machine drive its card together, and all machines of a rack its uplink.
        let uplink = shape.share.uplink.min(f64::from(m) * shape.share.nic);
        match self.all_reduce {
            AllReduce::Hierarchical => {
                around(d) * bytes / self.gpu
                    + around(m) * bytes / shape.share.nic
                    + around(k) * bytes / uplink
                    + latency(d, Tier::Machine)
                    + latency(m, Tier::Rack)
                    + latency(k, Tier::Network)
            }
            AllReduce::Ring => {
                let (slowest, tier) = match (shape.machines, k) {
                    (1, _) => (self.gpu, Tier::Machine),
                    (_, 1) => (self.gpu.min(shape.share.nic), Tier::Rack),
                    _ => (self.gpu.min(shape.share.nic).min(shape.share.uplink), Tier::Network),
                };
                around(shape.gpus) * bytes / slowest + latency(shape.gpus, tier)
            }
        }
    }

    /// Bytes that an iteration sends through each machine's card and each rack's uplink.
    pub fn traffic(&self, bytes: f64, shape: &Shape) -> Share {
        let around = |n: u32| 2.0 * f64::from(n - 1) / f64::from(n);
        let (m, k) = (shape.rack_machines, shape.racks);
        match self.all_reduce {
            AllReduce::Hierarchical => Share {
                nic: around(m) * bytes + around(k) * bytes / f64::from(m),
                uplink: around(k) * bytes,
            },
            AllReduce::Ring => {
                let once = around(shape.gpus) * bytes;
                Share { nic: once, uplink: if k > 1 { once } else { 0.0 } }
            }
        }
    }

    /// The measured step tells what the network cost where it was measured; the closed form says
    /// how much slower the links are here and now.
    fn exposed_by_table_s(&self, profile: &Profile, shape: &Shape) -> Seconds {
        let (step_s, _) = measured_step_s(profile, shape);
        let exposed_s = (step_s - profile.compute_s).max(0.0);
        if shape.machines <= 1 || profile.gradient_bytes <= 0.0 {
            return exposed_s;
        }
        let one_rack = Shape {
            rack_machines: shape.machines,
            racks: 1,
            share: Share { nic: self.nic * self.congestion, uplink: f64::INFINITY },
            ..*shape
        };
        let measured_s = self.all_reduce_s(profile.gradient_bytes, &one_rack);
        exposed_s * (self.all_reduce_s(profile.gradient_bytes, shape) / measured_s).max(1.0)
    }
}

/// Step time of a table profile at this shape, and whether it lies beyond what was measured.
/// The exact spread counts first; then the same kind of spread (one machine or several),
/// interpolated linearly between the nearest numbers of GPUs.
pub fn measured_step_s(profile: &Profile, shape: &Shape) -> (Seconds, bool) {
    let even = |p: &[u32]| {
        p.len() as u32 == shape.machines
            && p.iter().sum::<u32>() == shape.gpus
            && p.iter().max() == Some(&shape.machine_gpus)
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
