//! The network part of our description of a cluster: `[[level]]` entries for any number of levels, or
//! `[network]` alone for machines in racks.

use hither_core::topology::{AllReduce, LEVELS_MAX, LEVELS_MIN, Level, Link};
use serde::Deserialize;
use toml::Spanned;

use super::line_of;
use crate::read::Error;
use crate::read::table::Source;

/// Bandwidths in gigabits per second and direction, latencies in microseconds per message. All but
/// `all_reduce` are for clusters of machines, racks and a network; with `[[level]]` entries they
/// stand there.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkSection {
    gpu_gbit: Option<f64>,
    nic_gbit: Option<f64>,
    uplink_gbit: Option<f64>,
    core_gbit: Option<f64>,
    oversubscription: Option<f64>,
    latency_us: Option<[f64; 3]>,
    #[serde(default)]
    pub all_reduce: AllReduce,
}

/// One level, from the inside out.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LevelSection {
    name: String,
    gbit: Option<f64>,
    oversubscription: Option<f64>,
    core_gbit: Option<f64>,
    core_oversubscription: Option<f64>,
    latency_us: Option<f64>,
}

/// Keys of entries, which no level can be called.
const RESERVED: [&str; 5] = ["name", "count", "gpus", "gpu_type", "level"];

pub fn levels(
    source: Source<'_>,
    network: Option<&NetworkSection>,
    entries: &[Spanned<LevelSection>],
) -> Result<Vec<Level>, Error> {
    if entries.is_empty() {
        return three_levels(source, network);
    }
    if let Some(key) = network.and_then(given) {
        return Err(source
            .error("only all_reduce beside [[level]] entries")
            .key(&format!("network.{key}"))
            .hint("links are described by gbit, oversubscription and latency_us of the levels"));
    }
    if !(LEVELS_MIN..=LEVELS_MAX).contains(&entries.len()) {
        return Err(source
            .error(format!("from {LEVELS_MIN} to {LEVELS_MAX} levels"))
            .at(line_of(source, &entries[0]))
            .key("level")
            .found(&entries.len().to_string()));
    }
    let mut levels = Level::common(entries.len());
    for at in 0..entries.len() {
        let (before, rest) = levels.split_at_mut(at);
        let last = at + 1 == entries.len();
        set(source, before, &mut rest[0], &entries[at], last)?;
    }
    Ok(levels)
}

fn set(
    source: Source<'_>,
    inside: &[Level],
    level: &mut Level,
    entry: &Spanned<LevelSection>,
    last: bool,
) -> Result<(), Error> {
    let (line, entry) = (line_of(source, entry), entry.get_ref());
    let wrong = |key: &str, found: &str, expected: &str| {
        source.error(expected).at(line).key(&format!("level.{key}")).found(found)
    };
    let name = entry.name.as_str();
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    if name.is_empty() || !name.chars().all(fits) || RESERVED.contains(&name) {
        let expected = "a word of small letters, digits and dashes that is no key";
        return Err(wrong("name", name, expected));
    }
    if name == "network" && !last {
        return Err(wrong("name", name, "network as the name of the last level only"));
    }
    if inside.iter().any(|level| level.name == name) {
        return Err(wrong("name", name, "levels of different names"));
    }
    let between = |key: &str, value: f64, min: f64, max: f64| {
        within(source, &format!("level.{key}"), value, min, max).map_err(|error| error.at(line))
    };
    let link = |prefix: &str, gbit: Option<f64>, factor: Option<f64>| match (gbit, factor) {
        (Some(_), Some(_)) => {
            let expected = "either a number of gbit or an oversubscription, not both";
            Err(wrong(&format!("{prefix}gbit"), name, expected))
        }
        (Some(gbit), None) => {
            between(&format!("{prefix}gbit"), gbit, 1e-6, 1e12)?;
            Ok(Some(Link::Gbit(gbit)))
        }
        (None, Some(factor)) => {
            between(&format!("{prefix}oversubscription"), factor, 1e-3, 1e6)?;
            Ok(Some(Link::Oversubscribed(factor)))
        }
        (None, None) => Ok(None),
    };
    level.name = name.into();
    if let Some(link) = link("", entry.gbit, entry.oversubscription)? {
        level.link = link;
    }
    level.core = link("core_", entry.core_gbit, entry.core_oversubscription)?;
    if let Some(latency_us) = entry.latency_us {
        between("latency_us", latency_us, 0.0, 1e9)?;
        level.latency_us = latency_us;
    }
    if inside.is_empty() && (level.core.is_some() || matches!(level.link, Link::Oversubscribed(_)))
    {
        let expected = "gbit between the GPUs of the first level, and nothing else";
        return Err(wrong("gbit", name, expected));
    }
    Ok(())
}

/// Machines, racks and a network.
fn three_levels(source: Source<'_>, network: Option<&NetworkSection>) -> Result<Vec<Level>, Error> {
    let mut levels = Level::common(3);
    let Some(network) = network else { return Ok(levels) };
    let set = |key: &str, value: Option<f64>, min: f64, max: f64, change: &mut dyn FnMut(f64)| {
        let Some(value) = value else { return Ok(()) };
        change(value);
        within(source, &format!("network.{key}"), value, min, max)
    };
    let gbit = Link::Gbit;
    set("gpu_gbit", network.gpu_gbit, 1e-6, 1e9, &mut |v| levels[0].link = gbit(v))?;
    set("nic_gbit", network.nic_gbit, 1e-6, 1e9, &mut |v| levels[1].link = gbit(v))?;
    let factor = network.oversubscription;
    let oversubscribed = Link::Oversubscribed;
    set("oversubscription", factor, 1e-3, 1e6, &mut |v| levels[2].link = oversubscribed(v))?;
    set("uplink_gbit", network.uplink_gbit, 1e-6, 1e12, &mut |v| levels[2].link = gbit(v))?;
    set("core_gbit", network.core_gbit, 1e-6, 1e12, &mut |v| levels[2].core = Some(gbit(v)))?;
    for (level, latency_us) in network.latency_us.iter().flatten().enumerate() {
        let latency_us = Some(*latency_us);
        set("latency_us", latency_us, 0.0, 1e9, &mut |v| levels[level].latency_us = v)?;
    }
    Ok(levels)
}

/// The first key of `[network]` that describes links.
fn given(network: &NetworkSection) -> Option<&'static str> {
    let NetworkSection {
        gpu_gbit,
        nic_gbit,
        uplink_gbit,
        core_gbit,
        oversubscription,
        latency_us,
        ..
    } = network;
    let keys = [
        ("gpu_gbit", gpu_gbit.is_some()),
        ("nic_gbit", nic_gbit.is_some()),
        ("uplink_gbit", uplink_gbit.is_some()),
        ("core_gbit", core_gbit.is_some()),
        ("oversubscription", oversubscription.is_some()),
        ("latency_us", latency_us.is_some()),
    ];
    keys.into_iter().find(|(_, is_given)| *is_given).map(|(key, _)| key)
}

fn within(source: Source<'_>, key: &str, value: f64, min: f64, max: f64) -> Result<(), Error> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(source.error(format!("a number from {min} to {max}")).key(key).found(&value.to_string()))
}
