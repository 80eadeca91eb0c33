//! Slurm's `topology.conf`, and the `NodeName` lines of `slurm.conf` for what a node holds.

use std::collections::{HashMap, HashSet};

use hither_core::topology::{Links, Topology};

use super::{Builder, MACHINES_MAX, hosts, tables};
use crate::trace::Error;
use crate::trace::table::{GPUS_MAX, Source};

/// Reads `topology.conf`: leaf switches are racks. `nodes` is a second file with `NodeName` lines
/// (bytes and display name); they may also stand in the first. Nodes without such a line have
/// `gpus_per_machine` GPUs; nodes whose line has no GPUs are left out.
pub fn read_slurm(
    bytes: &[u8],
    file: &str,
    nodes: Option<(&[u8], &str)>,
    gpus_per_machine: u32,
) -> Result<Topology, Error> {
    let source = Source::new(bytes, file)?;
    let mut found = Found::default();
    found.read(source)?;
    if let Some((bytes, file)) = nodes {
        found.read(Source::new(bytes, file)?)?;
    }
    found.check_switches(source)?;
    let mut builder = Builder::new(source, tables::stem(file), Links::default());
    let unsaid = Gpus { count: gpus_per_machine, gpu_type: "gpu".into() };
    for leaf in &found.leaves {
        let rack = builder.rack(leaf.line, Some(leaf.name.clone()))?;
        for name in &leaf.nodes {
            let gpus = match found.nodes.get(name) {
                Some((_, None)) => continue,
                Some((_, Some(gpus))) => gpus,
                None => &unsaid,
            };
            builder.machine(leaf.line, rack, Some(name.clone()), gpus.count, &gpus.gpu_type)?;
        }
    }
    if found.leaves.is_empty() {
        // Only nodes: a cluster on one switch.
        let rack = builder.rack(1, None)?;
        for name in &found.order {
            if let Some((line, Some(gpus))) = found.nodes.get(name) {
                builder.machine(*line, rack, Some(name.clone()), gpus.count, &gpus.gpu_type)?;
            }
        }
    } else if let Some((name, line)) = found.homeless() {
        return Err(source.error("every node with GPUs under a switch").at(line).found(name));
    }
    builder.finish()
}

#[derive(Clone)]
struct Gpus {
    count: u32,
    gpu_type: String,
}

struct Leaf {
    line: u64,
    name: String,
    nodes: Vec<String>,
}

/// What the lines say, before it is put together.
#[derive(Default)]
struct Found {
    leaves: Vec<Leaf>,
    switches: HashSet<String>,
    /// Switches that a higher one names, with the line.
    below: Vec<(String, u64)>,
    /// None: a node without GPUs.
    nodes: HashMap<String, (u64, Option<Gpus>)>,
    order: Vec<String>,
    default_gpus: Option<Gpus>,
}

impl Found {
    fn read(&mut self, source: Source<'_>) -> Result<(), Error> {
        for (line, text) in logical_lines(source) {
            let mut words = Vec::new();
            for word in text.split_whitespace() {
                let pair = word.split_once('=').ok_or_else(|| {
                    source.error("Key=Value words, as in Slurm's files").at(line).found(word)
                })?;
                words.push(pair);
            }
            // Other lines of slurm.conf say nothing about places.
            match words.first() {
                Some((key, _)) if key.eq_ignore_ascii_case("SwitchName") => {
                    self.switch(source, line, &words)?;
                }
                Some((key, _)) if key.eq_ignore_ascii_case("NodeName") => {
                    self.node(source, line, &words)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn switch(
        &mut self,
        source: Source<'_>,
        line: u64,
        words: &[(&str, &str)],
    ) -> Result<(), Error> {
        let name = words[0].1;
        if !self.switches.insert(name.to_string()) {
            return Err(source.error("each switch once").at(line).found(name));
        }
        match (value(words, "Nodes"), value(words, "Switches")) {
            (Some(list), None) => {
                let nodes = names(source, line, "Nodes", list)?;
                let so_far: usize = self.leaves.iter().map(|leaf| leaf.nodes.len()).sum();
                bound(source, line, so_far + nodes.len())?;
                self.leaves.push(Leaf { line, name: name.into(), nodes });
            }
            (None, Some(list)) => {
                let switches = names(source, line, "Switches", list)?;
                bound(source, line, self.below.len() + switches.len())?;
                self.below.extend(switches.into_iter().map(|name| (name, line)));
            }
            _ => {
                return Err(source
                    .error("either Nodes= or Switches= on a SwitchName line")
                    .at(line)
                    .found(name));
            }
        }
        Ok(())
    }

    fn node(&mut self, source: Source<'_>, line: u64, words: &[(&str, &str)]) -> Result<(), Error> {
        let list = words[0].1;
        let gpus = match value(words, "Gres") {
            Some(gres) => gpus_of(source, line, gres)?,
            None => self.default_gpus.clone(),
        };
        if list.eq_ignore_ascii_case("DEFAULT") {
            self.default_gpus = gpus;
            return Ok(());
        }
        let nodes = names(source, line, "NodeName", list)?;
        bound(source, line, self.order.len() + nodes.len())?;
        for name in nodes {
            if self.nodes.insert(name.clone(), (line, gpus.clone())).is_some() {
                return Err(source.error("each node on one NodeName line").at(line).found(&name));
            }
            self.order.push(name);
        }
        Ok(())
    }

    fn check_switches(&self, source: Source<'_>) -> Result<(), Error> {
        match self.below.iter().find(|(name, _)| !self.switches.contains(name)) {
            Some((name, line)) => {
                Err(source.error("a switch that has a line of its own").at(*line).found(name))
            }
            None => Ok(()),
        }
    }

    /// A node with GPUs that is under no switch.
    fn homeless(&self) -> Option<(&str, u64)> {
        let housed: HashSet<&String> = self.leaves.iter().flat_map(|leaf| &leaf.nodes).collect();
        self.order.iter().filter(|name| !housed.contains(name)).find_map(|name| {
            let (line, gpus) = &self.nodes[name];
            gpus.as_ref().map(|_| (name.as_str(), *line))
        })
    }
}

fn value<'a>(words: &[(&str, &'a str)], key: &str) -> Option<&'a str> {
    words.iter().find(|(word, _)| word.eq_ignore_ascii_case(key)).map(|&(_, value)| value)
}

fn bound(source: Source<'_>, line: u64, count: usize) -> Result<(), Error> {
    if count as u64 <= MACHINES_MAX {
        return Ok(());
    }
    Err(source
        .error(format!("at most {MACHINES_MAX} names in all"))
        .at(line)
        .found(&count.to_string()))
}

fn names(source: Source<'_>, line: u64, key: &str, list: &str) -> Result<Vec<String>, Error> {
    hosts::expand(list).map_err(|expected| source.error(expected).at(line).column(key).found(list))
}

/// The GPUs of `gpu:a100:4`, `gpu:4` or `gpu`, which may be one of several resources.
fn gpus_of(source: Source<'_>, line: u64, gres: &str) -> Result<Option<Gpus>, Error> {
    let mut total: Option<Gpus> = None;
    for item in gres.split(',') {
        // `(S:0-1)` says which sockets; it may hold commas, so that only `gpu…` items count.
        let item = item.split('(').next().unwrap_or(item);
        let mut parts = item.split(':');
        if !parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("gpu")) {
            continue;
        }
        let parts: Vec<&str> = parts.collect();
        let (gpu_type, count) = match parts[..] {
            [] => ("gpu", Some(1)),
            [last] => match last.parse::<u32>() {
                Ok(count) => ("gpu", Some(count)),
                Err(_) => (last, Some(1)),
            },
            [gpu_type, count] => (gpu_type, count.parse().ok()),
            _ => ("gpu", None),
        };
        let count = count.filter(|&count| u64::from(count) <= GPUS_MAX).ok_or_else(|| {
            source.error("GPUs such as gpu:a100:4").at(line).column("Gres").found(item)
        })?;
        if total.as_ref().is_some_and(|gpus| gpus.gpu_type != gpu_type) {
            return Err(source.error("one type of GPU a node").at(line).column("Gres").found(gres));
        }
        let before = total.map_or(0, |gpus| gpus.count);
        total = Some(Gpus { count: before + count, gpu_type: gpu_type.into() });
    }
    Ok(total.filter(|gpus| gpus.count > 0))
}

/// Lines without comments; a backslash at the end joins the next line. Numbered by their first.
fn logical_lines(source: Source<'_>) -> Vec<(u64, String)> {
    let mut lines = Vec::new();
    let mut open: Option<(u64, String)> = None;
    for (number, line) in source.lines() {
        let line = line.split('#').next().unwrap_or("").trim_end();
        let (line, continues) = match line.strip_suffix('\\') {
            Some(line) => (line, true),
            None => (line, false),
        };
        let (_, text) = open.get_or_insert_with(|| (number, String::new()));
        text.push_str(line);
        // Where the value itself goes on, the next line must join without a blank.
        if !continues && let Some(line) = open.take() {
            lines.push(line);
        }
    }
    lines.extend(open);
    lines.retain(|(_, text)| !text.trim().is_empty());
    lines
}
