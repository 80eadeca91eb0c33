//! Clusters as CSV: a line a machine with its switches, or one line for a whole regular cluster.

use std::collections::HashMap;

use hither_core::topology::{Links, Topology};

use super::{Builder, MACHINES_MAX};
use crate::trace::Error;
use crate::trace::table::{GPUS_MAX, Source, Table};

const SWITCHES: [&str; 2] = ["ip", "ASW"];
const SPEC: [&str; 3] = ["num_switch", "num_node_p_switch", "num_gpu_p_node"];

fn has(line: &str, names: &[&str]) -> bool {
    names.iter().all(|name| line.split(',').any(|cell| cell.trim() == *name))
}

pub(super) fn is_switches(line: &str) -> bool {
    has(line, &SWITCHES)
}

pub(super) fn is_spec(line: &str) -> bool {
    has(line, &SPEC)
}

/// A machine's access switch is its rack. The levels above (PSW, DSW) have no place in a tree of
/// three tiers and are not read.
pub(super) fn read_switches(source: Source<'_>, gpus: u32) -> Result<Topology, Error> {
    let table = Table::open(source, SWITCHES, 2, false)?;
    let mut builder = Builder::new(source, stem(source.file), Links::default());
    let mut racks: HashMap<String, u32> = HashMap::new();
    for row in table.rows() {
        let (line, [host, switch]) = row?;
        let switch = switch.name()?;
        let rack = match racks.get(&switch) {
            Some(&rack) => rack,
            None => {
                let rack = builder.rack(line, Some(switch.clone()))?;
                *racks.entry(switch).or_insert(rack)
            }
        };
        builder.machine(line, rack, Some(host.name()?), gpus, "gpu")?;
    }
    builder.finish()
}

/// `num_switch` racks of `num_node_p_switch` machines of `num_gpu_p_node` GPUs.
pub(super) fn read_spec(source: Source<'_>) -> Result<Topology, Error> {
    let table = Table::open(source, SPEC, 3, false)?;
    let mut builder = Builder::new(source, stem(source.file), Links::default());
    for row in table.rows() {
        let (line, [racks, machines, gpus]) = row?;
        let racks = racks.whole(1, MACHINES_MAX)?;
        let machines = machines.whole(1, MACHINES_MAX)?;
        let gpus = gpus.whole(1, GPUS_MAX)?;
        builder.reserve(line, racks * machines, gpus)?;
        for _ in 0..racks {
            let rack = builder.rack(line, None)?;
            for _ in 0..machines {
                builder.machine(line, rack, None, gpus as u32, "gpu")?;
            }
        }
    }
    builder.finish()
}

/// The file's name without directories and extension, as the cluster's name.
pub(super) fn stem(file: &str) -> &str {
    let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}
