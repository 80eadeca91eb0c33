//! A tree of places: GPU < machine < rack < network, and how fast they reach each other.

use serde::{Deserialize, Serialize};

/// The lowest domain that holds all of a placement: 0 a machine, 1 a rack, 2 the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tier {
    Machine = 0,
    Rack = 1,
    Network = 2,
}

impl Tier {
    pub const ALL: [Tier; 3] = [Tier::Machine, Tier::Rack, Tier::Network];
}

#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    pub name: String,
    pub racks: Vec<String>,
    pub machines: Vec<Machine>,
    pub links: Links,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub name: String,
    /// Index into [`Topology::racks`].
    pub rack: u32,
    pub gpus: u32,
    pub gpu_type: String,
}

/// Bandwidths in gigabits per second and direction, latencies in microseconds per message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Links {
    /// Bandwidth between two GPUs of a machine.
    pub gpu_gbit: f64,
    /// Bandwidth of a machine's network card.
    pub nic_gbit: f64,
    /// Bandwidth of a rack's uplink. `None`: the sum of its machines' cards divided by `oversubscription`.
    pub uplink_gbit: Option<f64>,
    /// Bandwidth of the core that joins the racks. `None`: half of the sum of the uplinks.
    pub core_gbit: Option<f64>,
    pub oversubscription: f64,
    /// Latency inside a machine, inside a rack, and across racks.
    pub latency_us: [f64; 3],
    pub all_reduce: AllReduce,
}

/// How gradients are summed over a job's GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AllReduce {
    /// Inside each machine, then inside each rack, then across racks.
    #[default]
    Hierarchical,
    /// One ring over all GPUs, as fast as its slowest link.
    Ring,
}

impl Default for Links {
    /// A common cluster of 8-GPU machines: NVLink, a 100 Gbit/s card per machine, 4:1 uplinks.
    fn default() -> Self {
        Self {
            gpu_gbit: 1200.0,
            nic_gbit: 100.0,
            uplink_gbit: None,
            core_gbit: None,
            oversubscription: 4.0,
            latency_us: [1.0, 5.0, 15.0],
            all_reduce: AllReduce::Hierarchical,
        }
    }
}

impl Topology {
    /// `racks` equal racks of `machines` machines of `gpus` GPUs each.
    pub fn uniform(racks: u32, machines: u32, gpus: u32) -> Self {
        let mut topology = Self {
            name: format!("{racks}x{machines}x{gpus}"),
            racks: (0..racks).map(|r| format!("rack{r}")).collect(),
            machines: Vec::new(),
            links: Links::default(),
        };
        for rack in 0..racks {
            for _ in 0..machines {
                topology.machines.push(Machine {
                    name: format!("gpu{:03}", topology.machines.len() + 1),
                    rack,
                    gpus,
                    gpu_type: "gpu".into(),
                });
            }
        }
        topology
    }

    pub fn gpus(&self) -> u64 {
        self.machines.iter().map(|m| u64::from(m.gpus)).sum()
    }

    /// The lowest tier in which the empty cluster has room for `gpus` GPUs; `None` if it has no room at all.
    /// `gpu_type` restricts the machines.
    pub fn best_tier(&self, gpus: u32, gpu_type: Option<&str>) -> Option<Tier> {
        let mut rack_gpus = vec![0u64; self.racks.len()];
        let mut machine_max = 0;
        for machine in &self.machines {
            if gpu_type.is_none_or(|t| t == machine.gpu_type) {
                machine_max = machine_max.max(u64::from(machine.gpus));
                rack_gpus[machine.rack as usize] += u64::from(machine.gpus);
            }
        }
        let wanted = u64::from(gpus);
        if wanted <= machine_max {
            Some(Tier::Machine)
        } else if rack_gpus.iter().any(|&g| wanted <= g) {
            Some(Tier::Rack)
        } else if wanted <= rack_gpus.iter().sum() {
            Some(Tier::Network)
        } else {
            None
        }
    }
}
