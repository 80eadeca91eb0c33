//! Clusters from files: our TOML, Slurm's `topology.conf`, and two kinds of CSV.
//!
//! Whatever the origin, machines stand grouped by rack, names differ, and the sizes are bounded
//! before anything is expanded.

mod config;
mod hosts;
mod slurm;
mod tables;

use std::collections::HashSet;

use hither_core::topology::{Links, Machine, Topology};

use crate::trace::Error;
use crate::trace::table::{GPUS_MAX, Source};

pub use config::to_toml;
pub use hosts::{expand, hostlist};
pub use slurm::read_slurm;

pub const MACHINES_MAX: u64 = 1_000_000;
pub const CLUSTER_GPUS_MAX: u64 = 10_000_000;

/// Reads a cluster in whichever form its content shows. `gpus_per_machine` is for forms that do
/// not say how many GPUs a machine has.
pub fn read(bytes: &[u8], file: &str, gpus_per_machine: u32) -> Result<Topology, Error> {
    let source = Source::new(bytes, file)?;
    let is_slurm = |line: &str| {
        let key = line.trim_start().split('=').next().unwrap_or("").trim();
        ["SwitchName", "NodeName"].iter().any(|known| key.eq_ignore_ascii_case(known))
    };
    let Some((_, first)) = source.lines().next() else {
        return Err(source.error("a description of a cluster").found(""));
    };
    if tables::is_switches(first) {
        tables::read_switches(source, gpus_per_machine)
    } else if tables::is_spec(first) {
        tables::read_spec(source)
    } else if source.lines().any(|(_, line)| is_slurm(line)) {
        read_slurm(bytes, file, None, gpus_per_machine)
    } else {
        config::read(source)
    }
}

/// A topology in the making, which checks as it grows.
struct Builder<'a> {
    source: Source<'a>,
    topology: Topology,
    rack_names: HashSet<String>,
    machine_names: HashSet<String>,
    gpus: u64,
}

impl<'a> Builder<'a> {
    fn new(source: Source<'a>, name: &str, links: Links) -> Self {
        let topology =
            Topology { name: name.into(), racks: Vec::new(), machines: Vec::new(), links };
        Self {
            source,
            topology,
            rack_names: HashSet::new(),
            machine_names: HashSet::new(),
            gpus: 0,
        }
    }

    /// Whether so many more machines with so many GPUs each stay within the bounds; asked before
    /// they are made.
    fn reserve(&self, line: u64, machines: u64, gpus_each: u64) -> Result<(), Error> {
        let machines_all = machines.saturating_add(self.topology.machines.len() as u64);
        if machines_all > MACHINES_MAX {
            return Err(self
                .source
                .error(format!("at most {MACHINES_MAX} machines in all"))
                .at(line)
                .found(&machines_all.to_string()));
        }
        if !(1..=GPUS_MAX).contains(&gpus_each) {
            return Err(self
                .source
                .error(format!("from 1 to {GPUS_MAX} GPUs a machine"))
                .at(line)
                .found(&gpus_each.to_string()));
        }
        let gpus_all = machines.saturating_mul(gpus_each).saturating_add(self.gpus);
        if gpus_all > CLUSTER_GPUS_MAX {
            return Err(self
                .source
                .error(format!("at most {CLUSTER_GPUS_MAX} GPUs in all"))
                .at(line)
                .found(&gpus_all.to_string()));
        }
        Ok(())
    }

    /// Adds a rack and returns its index. None: `rack0`, `rack1` and so on.
    fn rack(&mut self, line: u64, name: Option<String>) -> Result<u32, Error> {
        let index = self.topology.racks.len();
        let name = name.unwrap_or_else(|| format!("rack{index}"));
        self.check_name(line, &name)?;
        if !self.rack_names.insert(name.clone()) {
            return Err(self.source.error("racks of different names").at(line).found(&name));
        }
        self.topology.racks.push(name);
        Ok(index as u32)
    }

    /// Adds a machine. None: `gpu001`, `gpu002` and so on.
    fn machine(
        &mut self,
        line: u64,
        rack: u32,
        name: Option<String>,
        gpus: u32,
        gpu_type: &str,
    ) -> Result<(), Error> {
        self.reserve(line, 1, u64::from(gpus))?;
        let index = self.topology.machines.len();
        let name = name.unwrap_or_else(|| format!("gpu{:03}", index + 1));
        self.check_name(line, &name)?;
        self.check_name(line, gpu_type)?;
        if !self.machine_names.insert(name.clone()) {
            return Err(self.source.error("machines of different names").at(line).found(&name));
        }
        self.gpus += u64::from(gpus);
        self.topology.machines.push(Machine { name, rack, gpus, gpu_type: gpu_type.into() });
        Ok(())
    }

    fn check_name(&self, line: u64, name: &str) -> Result<(), Error> {
        let unfit = |c: char| c.is_control() || c.is_whitespace() || matches!(c, ',' | '[' | ']');
        if name.is_empty() || name.len() > 200 || name.contains(unfit) {
            return Err(self
                .source
                .error("a name of at most 200 bytes without blanks, commas and brackets")
                .at(line)
                .found(name));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Topology, Error> {
        if self.topology.machines.is_empty() {
            return Err(self.source.error("at least one machine with GPUs"));
        }
        self.topology.machines.sort_by_key(|machine| machine.rack);
        Ok(self.topology)
    }
}
