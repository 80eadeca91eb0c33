//! Clusters as CSV: one row per machine with its switches, or one row for a whole regular cluster.

use std::collections::{BTreeSet, HashMap};

use hither_core::topology::Links;

use super::{Builder, Cluster, GPUS_ASSUMED, MACHINES_MAX};
use crate::trace::Error;
use crate::trace::table::{GPUS_MAX, Others, Source, Table};

/// Lingjun's names: host, and the access, aggregation and core switch above it.
const SWITCHES: [&str; 4] = ["ip", "ASW", "PSW", "DSW"];
const SPEC: [&str; 3] = ["num_switch", "num_node_p_switch", "num_gpu_p_node"];

fn has(line: &str, names: &[&str]) -> bool {
    names.iter().all(|name| line.split(',').any(|cell| cell.trim() == *name))
}

pub(super) fn is_switches(line: &str) -> bool {
    has(line, &SWITCHES[..2])
}

pub(super) fn is_spec(line: &str) -> bool {
    has(line, &SPEC)
}

/// A machine's access switch is its rack. The levels above have no place in a tree of machine, rack
/// and network: a note says what is flattened.
pub(super) fn read_switches(source: Source<'_>, gpus: Option<u32>) -> Result<Cluster, Error> {
    let table = Table::open(source, SWITCHES, 2, Others::Ignore)?;
    let mut builder = Builder::new(source, stem(source.file), Links::default());
    let mut racks: HashMap<String, u32> = HashMap::new();
    let mut above = [BTreeSet::new(), BTreeSet::new()];
    for row in table.rows() {
        let (line, [host, access, aggregation, core]) = row?;
        let switch = access.name()?;
        let rack = match racks.get(&switch) {
            Some(&rack) => rack,
            None => {
                let rack = builder.rack(line, Some(switch.clone()))?;
                *racks.entry(switch).or_insert(rack)
            }
        };
        for (names, field) in above.iter_mut().zip([aggregation, core]) {
            let name = field.name_or_empty()?;
            names.extend((!name.is_empty()).then_some(name));
        }
        builder.machine(line, rack, Some(host.name()?), gpus.unwrap_or(GPUS_ASSUMED), "gpu")?;
    }
    let mut notes = Vec::new();
    let parts: Vec<String> = above
        .iter()
        .zip(&SWITCHES[2..])
        .filter(|(names, _)| !names.is_empty())
        .map(|(names, column)| format!("{} of {column}", names.len()))
        .collect();
    if above.iter().any(|names| names.len() > 1) {
        notes.push(format!(
            "access switches (ASW) are racks, all equally far apart: the switches above ({}) are \
             flattened",
            parts.join(", ")
        ));
    }
    let machines = builder.topology.machines.len();
    notes.extend(super::assumption(Some(machines), gpus, ""));
    builder.finish(notes)
}

/// `num_switch` racks of `num_node_p_switch` machines of `num_gpu_p_node` GPUs.
pub(super) fn read_spec(source: Source<'_>) -> Result<Cluster, Error> {
    let table = Table::open(source, SPEC, 3, Others::Ignore)?;
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
    builder.finish(Vec::new())
}

/// The file's name without directories and extension, as the cluster's name.
pub(super) fn stem(file: &str) -> &str {
    let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}
