//! Our own description of a cluster, in TOML. Its entries nest as the levels of the cluster do, and are
//! named after them: `[[rack]]` with `[[rack.machine]]`, or `[[pod]]` with `[[pod.rack]]`.

mod links;

use std::fmt;

use hither_core::topology::{Level, Link, Topology};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt::Write as _;
use toml::Spanned;

use super::{Builder, ClusterDescription, MACHINES_MAX, hosts, tables};
use crate::read::Error;
use crate::read::table::Source;

/// For files that are not TOML, and perhaps were not meant to be.
const KNOWN: &str = "other files that describe a cluster: Slurm's topology.conf, topology.yaml, \
                     slurm.conf and gres.conf, and CSV with the columns ip and ASW";

/// One or several equal places, or machines. At the root of the file: the whole cluster.
#[derive(Default)]
struct PlaceSection {
    /// A host list with a name for every place of the entry; or one name, numbered where there are
    /// several places.
    name: Option<String>,
    count: Option<u32>,
    gpus: Option<u32>,
    gpu_type: Option<String>,
    /// Keys named after levels: the entries inside, or their number.
    parts: Vec<(Spanned<String>, Parts)>,
    // At the root only:
    network: Option<links::NetworkSection>,
    level: Vec<Spanned<links::LevelSection>>,
}

enum Parts {
    Number(u32),
    Entries(Vec<Spanned<PlaceSection>>),
}

impl<'de> Deserialize<'de> for PlaceSection {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = PlaceSection;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an entry with keys")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PlaceSection, A::Error> {
                let mut entry = PlaceSection::default();
                while let Some(key) = map.next_key::<Spanned<String>>()? {
                    match key.get_ref().as_str() {
                        "name" => entry.name = Some(map.next_value()?),
                        "count" => entry.count = Some(map.next_value()?),
                        "gpus" => entry.gpus = Some(map.next_value()?),
                        "gpu_type" => entry.gpu_type = Some(map.next_value()?),
                        "network" => entry.network = Some(map.next_value()?),
                        "level" => entry.level = map.next_value()?,
                        _ => entry.parts.push((key, map.next_value()?)),
                    }
                }
                Ok(entry)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

impl<'de> Deserialize<'de> for Parts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrEntries;
        impl<'de> Visitor<'de> for NumberOrEntries {
            type Value = Parts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of parts, or entries in double brackets")
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Parts, E> {
                u32::try_from(number).map(Parts::Number).map_err(|_| {
                    E::invalid_value(
                        serde::de::Unexpected::Signed(number),
                        &"a number from 0 to 2^32",
                    )
                })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Parts, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = seq.next_element()? {
                    entries.push(entry);
                }
                Ok(Parts::Entries(entries))
            }
        }
        deserializer.deserialize_any(NumberOrEntries)
    }
}

pub(super) fn read(source: Source<'_>) -> Result<ClusterDescription, Error> {
    let root: PlaceSection = toml::from_str(source.text).map_err(|error| {
        Error::toml(source.file, source.text, "a cluster of [[rack]] entries", &error).hint(KNOWN)
    })?;
    let levels = links::levels(source, root.network.as_ref(), &root.level)?;
    let name = root.name.as_deref().unwrap_or_else(|| tables::stem(source.file));
    let mut builder = Builder::new(source, name, levels);
    builder.topology.all_reduce = root.network.as_ref().map(|n| n.all_reduce).unwrap_or_default();
    let top = builder.topology.levels.len() - 1;
    if let Some(key) = root
        .parts
        .iter()
        .map(|(key, _)| key)
        .find(|key| *key.get_ref() != builder.topology.levels[top - 1].name)
    {
        return Err(unknown(&builder, top, key));
    }
    for (_, parts) in &root.parts {
        let Parts::Entries(entries) = parts else {
            let kind = &builder.topology.levels[top - 1].name;
            return Err(source.error(format!("entries such as [[{kind}]]")).key(kind).hint(KNOWN));
        };
        for entry in entries {
            let mut plan = plan(&builder, top - 1, 1, entry)?;
            add(&mut builder, &mut plan, 0)?;
        }
    }
    builder.finish(Vec::new())
}

fn line_of<T>(source: Source<'_>, value: &Spanned<T>) -> u64 {
    let before = source.text.get(..value.span().start).unwrap_or("");
    1 + before.matches('\n').count() as u64
}

/// A key that is no option of an entry and no level inside it.
fn unknown(builder: &Builder<'_>, level: usize, key: &Spanned<String>) -> Error {
    let levels = &builder.topology.levels;
    let mut known = vec!["name".to_owned()];
    match level + 1 == levels.len() {
        true => known.extend(["network".into(), "level".into()]),
        false => known.push("count".into()),
    }
    if level > 0 {
        known.push(format!("[[{}]]", levels[level - 1].name));
    }
    builder
        .source
        .error(format!("one of {}", known.join(", ")))
        .at(line_of(builder.source, key))
        .found(key.get_ref())
        .hint(KNOWN)
}

/// An entry that has been checked: how many places it stands for, and what is in them.
struct Plan {
    line: u64,
    level: usize,
    /// In each place around.
    count: u64,
    /// In all places around; none where places are numbered through.
    names: Option<std::vec::IntoIter<String>>,
    inside: Inside,
}

enum Inside {
    Gpus(u32, String),
    Parts(Vec<Plan>),
}

/// Checks an entry of a level. `around` is the number of places that it stands in.
fn plan(
    builder: &Builder<'_>,
    level: usize,
    around: u64,
    entry: &Spanned<PlaceSection>,
) -> Result<Plan, Error> {
    let (line, entry) = (line_of(builder.source, entry), entry.get_ref());
    let levels = &builder.topology.levels;
    let kind = levels[level].name.as_str();
    let fail = |expected: String| Err(builder.source.error(expected).at(line).key(kind));
    if entry.network.is_some() || !entry.level.is_empty() {
        return fail("[network] and [[level]] at the root of the file".into());
    }
    let (count, names) = numbers_and_names(builder, line, level, around, entry)?;
    let all = around.saturating_mul(count);
    let gpu_type = entry.gpu_type.as_deref().unwrap_or("gpu");
    let inside = match (level, entry.gpus, &entry.parts[..]) {
        (0, Some(gpus), []) => {
            builder.reserve(line, all, u64::from(gpus))?;
            Inside::Gpus(gpus, gpu_type.into())
        }
        (0, None, []) => return fail("gpus of a machine".into()),
        (0, _, [(key, _), ..]) => return Err(unknown(builder, level, key)),
        (_, None, [(key, Parts::Entries(entries))]) if *key.get_ref() == levels[level - 1].name => {
            if entry.gpu_type.is_some() {
                return fail(format!("gpu_type in the [[…{}]] entries", levels[0].name));
            }
            let parts = entries.iter().map(|part| plan(builder, level - 1, all, part));
            Inside::Parts(parts.collect::<Result<_, _>>()?)
        }
        _ => equal_parts(builder, line, level, all, entry)?,
    };
    Ok(Plan { line, level, count, names, inside })
}

/// What is in the places of an entry that gives one number for each level inside: `machines = 8`.
fn equal_parts(
    builder: &Builder<'_>,
    line: u64,
    level: usize,
    around: u64,
    entry: &PlaceSection,
) -> Result<Inside, Error> {
    let levels = &builder.topology.levels;
    let kind = levels[level].name.as_str();
    let fail = |expected: String| Err(builder.source.error(expected).at(line).key(kind));
    let key_of = |level: usize| format!("{}s", levels[level].name);
    for (key, parts) in &entry.parts {
        let inner = (0..level).find(|&l| [&levels[l].name, &key_of(l)].contains(&key.get_ref()));
        match (inner, parts) {
            (None, _) => return Err(unknown(builder, level, key)),
            (Some(inner), Parts::Entries(_)) => {
                return match entry.gpus.is_some() || entry.parts.len() > 1 {
                    true => {
                        fail(format!("gpus and numbers in the [[…{}]] entries", levels[0].name))
                    }
                    false => fail(format!(
                        "[[…{}]] around [[…{}]]",
                        levels[inner + 1].name,
                        key.get_ref()
                    )),
                };
            }
            (Some(_), Parts::Number(_)) => {}
        }
    }
    let number = |level: usize| {
        let key = key_of(level);
        let named = entry.parts.iter().find(|(k, _)| *k.get_ref() == key);
        named.and_then(|(_, parts)| if let Parts::Number(n) = parts { Some(*n) } else { None })
    };
    let mut counts = Vec::new();
    for inner in (0..level).rev() {
        let inside = &levels[inner].name;
        match number(inner) {
            Some(0) => return fail(format!("at least one {inside}")),
            Some(count) => counts.push(u64::from(count)),
            None => return fail(format!("either {inside}s = N or [[{kind}.{inside}]] entries")),
        }
    }
    let Some(gpus) = entry.gpus else { return fail(format!("gpus beside {}", key_of(0))) };
    let machines = counts.iter().fold(around, |all, count| all.saturating_mul(*count));
    builder.reserve(line, machines, u64::from(gpus))?;
    let gpu_type = entry.gpu_type.as_deref().unwrap_or("gpu");
    let mut inside = Inside::Gpus(gpus, gpu_type.into());
    for (level, count) in counts.into_iter().rev().enumerate() {
        inside = Inside::Parts(vec![Plan { line, level, count, names: None, inside }]);
    }
    Ok(inside)
}

/// How many places of an entry lie in each place around, and the names of all of them.
fn numbers_and_names(
    builder: &Builder<'_>,
    line: u64,
    level: usize,
    around: u64,
    entry: &PlaceSection,
) -> Result<(u64, Option<std::vec::IntoIter<String>>), Error> {
    let kind = &builder.topology.levels[level].name;
    let wrong = |key: &str, found: &str, expected: String| {
        Err(builder.source.error(expected).at(line).key(&format!("{kind}.{key}")).found(found))
    };
    let names = match &entry.name {
        Some(list) => match hosts::expand(list) {
            Ok(names) => names,
            Err(expected) => return wrong("name", list, expected),
        },
        None => Vec::new(),
    };
    let named = names.len() as u64;
    let count = match entry.count {
        Some(count) => u64::from(count),
        None if named > 0 && named.is_multiple_of(around) => named / around,
        None => 1,
    };
    let all = around.saturating_mul(count);
    if !(1..=MACHINES_MAX).contains(&all) {
        let expected = format!("a whole number from 1 to {}", MACHINES_MAX / around.max(1));
        return wrong("count", &count.to_string(), expected);
    }
    match &entry.name {
        None => Ok((count, None)),
        Some(_) if named == all => Ok((count, Some(names.into_iter()))),
        // One name for several places is numbered; machines want names of their own.
        Some(name) if named == 1 && level > 0 => {
            let numbered: Vec<String> = (1..=all).map(|at| format!("{name}{at}")).collect();
            Ok((count, Some(numbered.into_iter())))
        }
        Some(name) if level > 0 => wrong("name", name, format!("one name, or {all} names")),
        Some(name) => wrong("name", name, format!("a host list of {all} names, one per {kind}")),
    }
}

fn add(builder: &mut Builder<'_>, plan: &mut Plan, parent: u32) -> Result<(), Error> {
    for _ in 0..plan.count {
        let name = plan.names.as_mut().and_then(Iterator::next);
        match &mut plan.inside {
            Inside::Gpus(gpus, gpu_type) => {
                builder.machine(plan.line, parent, name, *gpus, gpu_type)?;
            }
            Inside::Parts(parts) => {
                let place = builder.place(plan.line, plan.level, parent, name)?;
                for part in parts {
                    add(builder, part, place)?;
                }
            }
        }
    }
    Ok(())
}

/// A cluster as TOML that [`super::read`] takes back.
pub fn to_toml(topology: &Topology) -> String {
    let mut text = format!("name = {}\n\n[network]\n", quoted(&topology.name));
    let all_reduce = toml::Value::try_from(topology.all_reduce).expect("a word");
    writeln!(text, "all_reduce = {all_reduce}").expect("a string takes all");
    for Level { name, link, core, latency_us, .. } in &topology.levels {
        let number = |value: f64| toml::Value::Float(value).to_string();
        let mut put = |key: &str, value: String| {
            writeln!(text, "{key} = {value}").expect("a string takes all");
        };
        put("\n[[level]]\nname", quoted(name));
        match *link {
            Link::Gbit(gbit) => put("gbit", number(gbit)),
            Link::Oversubscribed(factor) => put("oversubscription", number(factor)),
        }
        match *core {
            Some(Link::Gbit(gbit)) => put("core_gbit", number(gbit)),
            Some(Link::Oversubscribed(factor)) => put("core_oversubscription", number(factor)),
            None => {}
        }
        put("latency_us", number(*latency_us));
    }
    write_places(&mut text, topology, topology.levels.len() - 1, "", 0..topology.machines.len());
    text
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

/// The parts of a place, which holds these machines. Empty places are left out.
fn write_places(
    text: &mut String,
    topology: &Topology,
    level: usize,
    path: &str,
    machines: std::ops::Range<usize>,
) {
    let path = format!("{path}{}", topology.levels[level - 1].name);
    let all = &topology.machines;
    if level == 1 {
        let alike = |a: &hither_core::topology::Machine, b: &hither_core::topology::Machine| {
            a.gpus == b.gpus && a.gpu_type == b.gpu_type
        };
        for alike in all[machines].chunk_by(alike) {
            let names: Vec<&str> = alike.iter().map(|machine| machine.name.as_str()).collect();
            write!(
                text,
                "[[{path}]]\nname = {}\ngpus = {}\ngpu_type = {}\n",
                quoted(&hosts::hostlist_in_order(&names)),
                alike[0].gpus,
                quoted(&alike[0].gpu_type),
            )
            .expect("a string takes all");
        }
        return;
    }
    let part_of = |machine: usize| topology.within(machine)[level - 1];
    let mut from = machines.start;
    while from < machines.end {
        let part = part_of(from);
        let to = (from..machines.end).find(|&m| part_of(m) != part).unwrap_or(machines.end);
        let name = &topology.levels[level - 1].places[part as usize].name;
        write!(text, "\n[[{path}]]\nname = {}\n", quoted(name)).expect("a string takes all");
        write_places(text, topology, level - 1, &format!("{path}."), from..to);
        from = to;
    }
}
