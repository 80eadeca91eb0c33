//! Clusters as CSV: one row per machine with its switches, or one row for a whole regular cluster.

use std::collections::{HashMap, HashSet};

use hither_core::topology::Level;

use super::{Builder, ClusterDescription, GPUS_ASSUMED, MACHINES_MAX};
use crate::read::Error;
use crate::read::table::{GPUS_MAX, Others, Source, Table};

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

/// A machine's access switch is its rack, which stands under an aggregation and a core switch where
/// those columns have any. Names of switches may be used again under another switch above.
pub(super) fn read_switches(
    source: Source<'_>,
    gpus: Option<u32>,
) -> Result<ClusterDescription, Error> {
    let table = Table::open(source, SWITCHES, 2, Others::Ignore)?;
    // (line, host, switches above it from the access switch on).
    let mut rows = Vec::new();
    for row in table.rows() {
        let (line, [host, access, aggregation, core]) = row?;
        let switches = vec![access.name()?, aggregation.name_or_empty()?, core.name_or_empty()?];
        rows.push((line, host.name()?, switches));
    }
    // Levels that have but one switch, or none, are no levels: the network is above all anyway.
    let several = |level: &usize| rows.iter().any(|row| row.2[*level] != rows[0].2[*level]);
    let height = (1..3).rev().find(several).unwrap_or(0);
    for row in &mut rows {
        row.2.truncate(height + 1);
    }
    let mut builder = Builder::new(source, stem(source.file), Level::common(height + 3));
    // By level: places by their path from the outside.
    let mut places: Vec<HashMap<Vec<String>, u32>> = vec![HashMap::new(); height + 1];
    let mut uses: Vec<HashMap<String, HashSet<Vec<String>>>> = vec![HashMap::new(); height + 1];
    for (.., switches) in &rows {
        for level in 0..=height {
            let paths = uses[level].entry(switches[level].clone()).or_default();
            paths.insert(switches[level + 1..].to_vec());
        }
    }
    for (line, host, switches) in rows {
        let mut parent = 0;
        for level in (0..=height).rev() {
            let path = switches[level..].to_vec();
            parent = match places[level].get(&path) {
                Some(&place) => place,
                None => {
                    let name = match uses[level][&switches[level]].len() {
                        1 => switches[level].clone(),
                        _ => path.iter().rev().cloned().collect::<Vec<_>>().join("-"),
                    };
                    let name = if name.is_empty() { "none".into() } else { name };
                    let place = builder.place(line, level + 1, parent, Some(name))?;
                    *places[level].entry(path).or_insert(place)
                }
            };
        }
        builder.machine(line, parent, Some(host), gpus.unwrap_or(GPUS_ASSUMED), "gpu")?;
    }
    let machines = builder.topology.machines.len();
    let notes = super::assumption(Some(machines), gpus, "").into_iter().collect();
    builder.finish(notes)
}

/// `num_switch` racks of `num_node_p_switch` machines of `num_gpu_p_node` GPUs.
pub(super) fn read_spec(source: Source<'_>) -> Result<ClusterDescription, Error> {
    let table = Table::open(source, SPEC, 3, Others::Ignore)?;
    let mut builder = Builder::new(source, stem(source.file), Level::common(3));
    for row in table.rows() {
        let (line, [racks, machines, gpus]) = row?;
        let racks = racks.whole(1, MACHINES_MAX)?;
        let machines = machines.whole(1, MACHINES_MAX)?;
        let gpus = gpus.whole(1, GPUS_MAX)?;
        builder.reserve(line, racks * machines, gpus)?;
        for _ in 0..racks {
            let rack = builder.place(line, 1, 0, None)?;
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
