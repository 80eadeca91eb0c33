//! Our own description of a cluster, in TOML.

use std::fmt::Write as _;

use hither_core::topology::{Links, Topology};
use serde::Deserialize;
use toml::Spanned;

use super::{Builder, Cluster, MACHINES_MAX, hosts, tables};
use crate::trace::Error;
use crate::trace::table::Source;

/// For files that are not TOML, and perhaps were not meant to be.
const KNOWN: &str = "other files that describe a cluster: Slurm's topology.conf, topology.yaml, \
                     slurm.conf and gres.conf, and CSV with the columns ip and ASW";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    name: Option<String>,
    #[serde(default)]
    network: Links,
    #[serde(default)]
    rack: Vec<Spanned<Rack>>,
}

/// Equal racks: either `machines` equal machines each, or a list of machines.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rack {
    /// A host list, as many names as racks; or one name, numbered where there are several racks.
    name: Option<String>,
    count: Option<u32>,
    machines: Option<u32>,
    gpus: Option<u32>,
    gpu_type: Option<String>,
    #[serde(default)]
    machine: Vec<Spanned<MachineEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineEntry {
    /// A host list with a name for every machine of the entry, in all racks of the entry.
    name: Option<String>,
    count: Option<u32>,
    gpus: u32,
    gpu_type: Option<String>,
}

pub(super) fn read(source: Source<'_>) -> Result<Cluster, Error> {
    let document: Document = toml::from_str(source.text).map_err(|error| {
        Error::toml(source.file, source.text, "a cluster of [[rack]] entries", &error).hint(KNOWN)
    })?;
    check_links(source, &document.network)?;
    let name = document.name.as_deref().unwrap_or_else(|| tables::stem(source.file));
    let mut builder = Builder::new(source, name, document.network);
    for rack in &document.rack {
        let line = line_of(source, rack);
        add_racks(&mut builder, line, rack.get_ref())?;
    }
    builder.finish(Vec::new())
}

fn line_of<T>(source: Source<'_>, value: &Spanned<T>) -> u64 {
    let before = source.text.get(..value.span().start).unwrap_or("");
    1 + before.matches('\n').count() as u64
}

fn check_links(source: Source<'_>, links: &Links) -> Result<(), Error> {
    let within = |key: &str, value: f64, min: f64, max: f64| {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(source
            .error(format!("a number from {min} to {max}"))
            .key(&format!("network.{key}"))
            .found(&value.to_string()))
    };
    within("gpu_gbit", links.gpu_gbit, 1e-6, 1e9)?;
    within("nic_gbit", links.nic_gbit, 1e-6, 1e9)?;
    within("uplink_gbit", links.uplink_gbit.unwrap_or(1.0), 1e-6, 1e12)?;
    within("core_gbit", links.core_gbit.unwrap_or(1.0), 1e-6, 1e12)?;
    within("oversubscription", links.oversubscription, 1e-3, 1e6)?;
    links.latency_us.iter().try_for_each(|&latency| within("latency_us", latency, 0.0, 1e9))
}

fn add_racks(builder: &mut Builder<'_>, line: u64, rack: &Rack) -> Result<(), Error> {
    let fail = |expected: &str| Err(builder.source.error(expected).at(line).key("rack"));
    if rack.machine.is_empty() == rack.machines.is_none() {
        return fail("either machines = N or [[rack.machine]] entries");
    }
    if rack.machines.is_some() && rack.gpus.is_none() {
        return fail("gpus beside machines");
    }
    if rack.machines.is_none() && (rack.gpus.is_some() || rack.gpu_type.is_some()) {
        return fail("gpus and gpu_type in the [[rack.machine]] entries");
    }
    let names = rack_names(builder, line, rack)?;
    let rack_count = names.len() as u64;
    let shorthand = rack.machines.zip(rack.gpus).map(|(machines, gpus)| MachineEntry {
        name: None,
        count: Some(machines),
        gpus,
        gpu_type: rack.gpu_type.clone(),
    });
    let mut entries = Vec::new();
    for (line, entry) in shorthand
        .iter()
        .map(|entry| (line, entry))
        .chain(rack.machine.iter().map(|m| (line_of(builder.source, m), m.get_ref())))
    {
        entries.push((line, entry, machine_names(builder, line, rack_count, entry)?));
    }
    for name in names {
        let index = builder.rack(line, name)?;
        for (line, entry, (count, names)) in &mut entries {
            let gpu_type = entry.gpu_type.as_deref().unwrap_or("gpu");
            for _ in 0..*count {
                builder.machine(*line, index, names.next(), entry.gpus, gpu_type)?;
            }
        }
    }
    Ok(())
}

/// One name per rack; none where racks are numbered through.
fn rack_names(builder: &Builder<'_>, line: u64, rack: &Rack) -> Result<Vec<Option<String>>, Error> {
    let wrong = |found: &str, expected: String| {
        builder.source.error(expected).at(line).key("rack.name").found(found)
    };
    let count = rack.count.unwrap_or(1);
    if !(1..=MACHINES_MAX).contains(&u64::from(count)) {
        return Err(builder
            .source
            .error(format!("a whole number from 1 to {MACHINES_MAX}"))
            .at(line)
            .key("rack.count")
            .found(&count.to_string()));
    }
    let Some(name) = &rack.name else {
        return Ok(vec![None; count as usize]);
    };
    let names = hosts::expand(name).map_err(|expected| wrong(name, expected))?;
    if names.len() == 1 && count > 1 {
        return Ok((1..=count).map(|i| Some(format!("{name}{i}"))).collect());
    }
    if rack.count.is_some_and(|count| names.len() as u64 != u64::from(count)) {
        return Err(wrong(name, format!("one name, or {count} names as count says")));
    }
    Ok(names.into_iter().map(Some).collect())
}

/// How many machines of the entry stand in each rack, and their names over all racks.
fn machine_names(
    builder: &Builder<'_>,
    line: u64,
    racks: u64,
    entry: &MachineEntry,
) -> Result<(u64, std::vec::IntoIter<String>), Error> {
    let wrong = |key: &str, found: &str, expected: String| {
        builder.source.error(expected).at(line).key(&format!("machine.{key}")).found(found)
    };
    let names = match &entry.name {
        Some(name) => hosts::expand(name).map_err(|expected| wrong("name", name, expected))?,
        None => Vec::new(),
    };
    let named = names.len() as u64;
    let count = match entry.count {
        Some(0) => return Err(wrong("count", "0", "at least one machine".into())),
        Some(count) => u64::from(count),
        None if named > 0 && named.is_multiple_of(racks) => named / racks,
        None => 1,
    };
    builder.reserve(line, racks.saturating_mul(count), u64::from(entry.gpus))?;
    if let Some(name) = entry.name.as_ref().filter(|_| named != racks * count) {
        let total = racks * count;
        return Err(wrong("name", name, format!("a host list of {total} names, one per machine")));
    }
    Ok((count, names.into_iter()))
}

/// A cluster as TOML that [`super::read`] takes back.
pub fn to_toml(topology: &Topology) -> String {
    let quoted = |text: &str| toml::Value::String(text.into()).to_string();
    let links = toml::to_string(&topology.links).expect("links are plain numbers");
    let mut text = format!("name = {}\n\n[network]\n{links}", quoted(&topology.name));
    let mut by_rack = vec![Vec::new(); topology.racks.len()];
    for machine in &topology.machines {
        by_rack[machine.rack as usize].push(machine);
    }
    for (name, machines) in topology.racks.iter().zip(by_rack) {
        if machines.is_empty() {
            continue;
        }
        write!(text, "\n[[rack]]\nname = {}\n", quoted(name)).expect("a string takes all");
        for alike in machines.chunk_by(|a, b| a.gpus == b.gpus && a.gpu_type == b.gpu_type) {
            let names: Vec<&str> = alike.iter().map(|machine| machine.name.as_str()).collect();
            write!(
                text,
                "[[rack.machine]]\nname = {}\ngpus = {}\ngpu_type = {}\n",
                quoted(&hosts::hostlist_in_order(&names)),
                alike[0].gpus,
                quoted(&alike[0].gpu_type),
            )
            .expect("a string takes all");
        }
    }
    text
}
