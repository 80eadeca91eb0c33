//! Slurm's files, one or several at once: `topology.conf` and `topology.yaml` for the network,
//! `slurm.conf` and `gres.conf` for what a node holds.

mod tree;

use std::collections::{HashMap, HashSet};

use hither_core::topology::LEVELS_MAX;

use super::{
    Builder, ClusterDescription, GPUS_ASSUMED, MACHINES_MAX, hosts, names_shown, tables, yaml,
};
use crate::read::Error;
use crate::read::table::{GPUS_MAX, Source};

/// The first words of lines that say something about places or GPUs.
const KEYS: [&str; 6] = ["SwitchName", "BlockName", "BlockSizes", "NodeName", "Name", "AutoDetect"];

/// Whether any line is one that this reader understands.
pub(super) fn is_slurm(source: Source<'_>) -> bool {
    source.lines().any(|(_, line)| {
        let key = line.trim_start().split('=').next().unwrap_or("").trim();
        // TOML has blanks around its equals signs, or quoted values: `name = "x"`.
        let value = line.split_once('=').map_or("", |(_, value)| value);
        KEYS.iter().any(|known| key.eq_ignore_ascii_case(known))
            && !value.starts_with([' ', '"', '\''])
    })
}

/// The files that `Include` lines name, as written there.
pub fn includes(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let (word, rest) = line.split('#').next()?.trim().split_once(char::is_whitespace)?;
        word.eq_ignore_ascii_case("Include").then(|| rest.trim())
    })
}

/// Leaf switches are racks, and switches above them are places of further levels. A node that no line gives GPUs has `gpus_per_machine`, or
/// [`GPUS_ASSUMED`] with a note.
pub(super) fn read(
    sources: &[Source<'_>],
    gpus_per_machine: Option<u32>,
) -> Result<ClusterDescription, Error> {
    let mut slurm = Slurm::default();
    for &source in sources {
        if yaml::is_yaml(source) {
            yaml::read(source, &mut slurm)?;
        } else {
            slurm.read(source)?;
        }
    }
    slurm.check()?;
    slurm.build(sources[0], gpus_per_machine)
}

#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub source: Source<'a>,
    pub line: u64,
}

impl Place<'_> {
    fn error(self, expected: impl Into<Box<str>>) -> Error {
        self.source.error(expected).at(self.line)
    }
}

#[derive(Clone)]
struct Gpus {
    count: u32,
    /// None where no line names a type.
    gpu_type: Option<String>,
}

/// A leaf switch or a block.
struct Leaf<'a> {
    place: Place<'a>,
    name: String,
    nodes: Vec<String>,
}

/// A switch above others.
struct Upper<'a> {
    place: Place<'a>,
    name: String,
    children: Vec<String>,
}

/// The content of all files, before racks and machines are built from it.
#[derive(Default)]
pub(super) struct Slurm<'a> {
    leaves: Vec<Leaf<'a>>,
    uppers: Vec<Upper<'a>>,
    switches: HashSet<String>,
    has_blocks: bool,
    pub block_sizes: Vec<String>,
    /// `NodeName` lines of slurm.conf. None: a node without GPUs.
    nodes: HashMap<String, (Place<'a>, Option<Gpus>)>,
    /// Lines of gres.conf by node, and those without a node.
    gres: HashMap<String, Gpus>,
    gres_of_all: Option<Gpus>,
    /// Nodes of slurm.conf and gres.conf, each once, in order.
    order: Vec<(String, Place<'a>)>,
    default_gpus: Option<Gpus>,
    names: usize,
    pub notes: Vec<String>,
}

impl<'a> Slurm<'a> {
    fn read(&mut self, source: Source<'a>) -> Result<(), Error> {
        for (line, text) in logical_lines(source) {
            let place = Place { source, line };
            let words = words(&text);
            let value = |key: &str| {
                words.iter().find(|(word, _)| word.eq_ignore_ascii_case(key)).map(|&(_, v)| v)
            };
            let Some(&(first, name)) = words.first() else { continue };
            let first_is = |key: &str| first.eq_ignore_ascii_case(key);
            // All other lines of slurm.conf say nothing about places.
            if first_is("SwitchName") {
                let list = |key: &str| value(key).map(str::to_owned);
                self.switch(place, name, list("Nodes"), list("Switches"))?;
            } else if first_is("BlockName") {
                self.block(place, name, value("Nodes").map(str::to_owned))?;
            } else if first_is("BlockSizes") {
                self.block_sizes = name.split(',').map(str::to_owned).collect();
            } else if let Some(kind) =
                value("Name").filter(|_| first_is("Name") || first_is("NodeName"))
            {
                if kind.eq_ignore_ascii_case("gpu") {
                    let devices = value("File").or(value("MultipleFiles"));
                    self.gres(place, value("NodeName"), value("Type"), value("Count"), devices)?;
                }
            } else if first_is("NodeName") {
                self.node(place, name, value("Gres"))?;
            }
        }
        Ok(())
    }

    pub fn switch(
        &mut self,
        place: Place<'a>,
        name: &str,
        nodes: Option<String>,
        children: Option<String>,
    ) -> Result<(), Error> {
        self.claim(place, name)?;
        match (nodes, children) {
            (Some(list), None) => {
                let nodes = self.expand(place, "Nodes", &list)?;
                self.leaves.push(Leaf { place, name: name.into(), nodes });
            }
            (None, Some(list)) => {
                let children = self.expand(place, "Switches", &list)?;
                self.uppers.push(Upper { place, name: name.into(), children });
            }
            _ => {
                return Err(place.error("either nodes or switches below a switch").found(name));
            }
        }
        Ok(())
    }

    pub fn block(
        &mut self,
        place: Place<'a>,
        name: &str,
        nodes: Option<String>,
    ) -> Result<(), Error> {
        self.claim(place, name)?;
        self.has_blocks = true;
        let list = nodes.ok_or_else(|| place.error("the nodes of a block").found(name))?;
        let nodes = self.expand(place, "Nodes", &list)?;
        self.leaves.push(Leaf { place, name: name.into(), nodes });
        Ok(())
    }

    /// Switches and blocks share their names.
    fn claim(&mut self, place: Place<'a>, name: &str) -> Result<(), Error> {
        if self.switches.insert(name.to_owned()) {
            return Ok(());
        }
        Err(place.error("each switch and each block once").found(name))
    }

    fn node(&mut self, place: Place<'a>, list: &str, gres: Option<&str>) -> Result<(), Error> {
        let gpus = match gres {
            Some(gres) => gpus_of(place, gres)?,
            None => self.default_gpus.clone(),
        };
        if list.eq_ignore_ascii_case("DEFAULT") {
            self.default_gpus = gpus;
            return Ok(());
        }
        for name in self.expand(place, "NodeName", list)? {
            if self.nodes.insert(name.clone(), (place, gpus.clone())).is_some() {
                return Err(place.error("each node on one NodeName line").found(&name));
            }
            if !self.gres.contains_key(&name) {
                self.order.push((name, place));
            }
        }
        Ok(())
    }

    /// A line of gres.conf; several lines of a node add up.
    fn gres(
        &mut self,
        place: Place<'a>,
        nodes: Option<&str>,
        gpu_type: Option<&str>,
        count: Option<&str>,
        devices: Option<&str>,
    ) -> Result<(), Error> {
        let count = match (count, devices) {
            (Some(text), _) => text
                .parse()
                .ok()
                .filter(|&count| u64::from(count) <= GPUS_MAX)
                .ok_or_else(|| place.error("a number of GPUs").key("Count").found(text))?,
            (None, Some(list)) => self.expand(place, "File", list)?.len() as u32,
            (None, None) => 1,
        };
        let gpus = Gpus { count, gpu_type: gpu_type.map(Into::into) };
        let Some(list) = nodes else {
            return add(place, &mut self.gres_of_all, gpus);
        };
        for name in self.expand(place, "NodeName", list)? {
            let mut sum = self.gres.remove(&name);
            if sum.is_none() && !self.nodes.contains_key(&name) {
                self.order.push((name.clone(), place));
            }
            add(place, &mut sum, gpus.clone())?;
            self.gres.extend(sum.map(|sum| (name, sum)));
        }
        Ok(())
    }

    /// Expands a host list. All lists together are bounded.
    fn expand(&mut self, place: Place<'_>, key: &str, list: &str) -> Result<Vec<String>, Error> {
        let names =
            hosts::expand(list).map_err(|expected| place.error(expected).key(key).found(list))?;
        self.names += names.len();
        if self.names as u64 > 4 * MACHINES_MAX {
            return Err(place.error(format!("at most {MACHINES_MAX} nodes in all")).key(key));
        }
        Ok(names)
    }

    fn check(&self) -> Result<(), Error> {
        if self.has_blocks && self.switches.len() > self.leaves.len() {
            let upper = &self.uppers[0];
            return Err(upper.place.error("either blocks or switches").found(&upper.name));
        }
        for upper in &self.uppers {
            if let Some(name) = upper.children.iter().find(|name| !self.switches.contains(*name)) {
                return Err(upper.place.error("a switch that has a line of its own").found(name));
            }
        }
        self.check_cycles()
    }

    /// Takes away switches whose switches below are all taken away, until none is left.
    fn check_cycles(&self) -> Result<(), Error> {
        let mut done: HashSet<&str> = self.leaves.iter().map(|leaf| leaf.name.as_str()).collect();
        let mut left: Vec<&Upper<'_>> = self.uppers.iter().collect();
        // Deeper trees are refused anyway.
        for _ in 0..=LEVELS_MAX {
            let before = left.len();
            let is_done =
                |upper: &&Upper<'_>| upper.children.iter().all(|c| done.contains(c.as_str()));
            let (ready, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(is_done);
            done.extend(ready.iter().map(|upper| upper.name.as_str()));
            left = rest;
            match left.first() {
                None => return Ok(()),
                Some(upper) if left.len() == before => {
                    return Err(upper.place.error("no switch below itself").found(&upper.name));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn build(
        mut self,
        first: Source<'a>,
        gpus_per_machine: Option<u32>,
    ) -> Result<ClusterDescription, Error> {
        let mut notes = std::mem::take(&mut self.notes);
        let tree = self.tree()?;
        let mut builder = Builder::new(first, tables::stem(first.file), tree.levels.clone());
        let line = self.leaves.first().map_or(1, |leaf| leaf.place.line);
        tree.build(&mut builder, line)?;
        notes.extend(tree.notes);
        let (mut assumed, mut without) = (Vec::new(), Vec::new());
        if self.leaves.is_empty() {
            for (name, place) in &self.order {
                builder.source = place.source;
                match self.gpus(name) {
                    Known::Gpus(gpus) => add_machine(&mut builder, place.line, 0, name, gpus)?,
                    Known::NoGpus | Known::Unnamed => without.push(name.as_str()),
                }
            }
        }
        for (leaf, at) in self.leaves.iter().zip(0..) {
            builder.source = leaf.place.source;
            for name in &leaf.nodes {
                let gpus = match self.gpus(name) {
                    Known::Gpus(gpus) => gpus,
                    Known::NoGpus => {
                        without.push(name);
                        continue;
                    }
                    Known::Unnamed => {
                        assumed.push(name.as_str());
                        let count = gpus_per_machine.unwrap_or(GPUS_ASSUMED);
                        Gpus { count, gpu_type: None }
                    }
                };
                add_machine(&mut builder, leaf.place.line, at, name, gpus)?;
            }
        }
        if let Some((name, place)) = self.homeless() {
            return Err(place
                .error("every node with GPUs under a switch or in a block")
                .found(name)
                .hint("add it to topology.conf, or give that file too"));
        }
        builder.source = first;
        if !without.is_empty() {
            let count = without.len();
            let names = names_shown(&without);
            notes.push(format!("nodes without GPUs are left out: {count} ({names})"));
        }
        let said = (!assumed.is_empty()).then_some(assumed.len());
        notes.extend(super::assumption(
            said,
            gpus_per_machine,
            ", or slurm.conf and gres.conf too",
        ));
        builder.finish(notes)
    }

    /// The count of slurm.conf wins, as in Slurm itself; gres.conf adds the type.
    fn gpus(&self, name: &str) -> Known {
        let beside = self.gres.get(name);
        match self.nodes.get(name) {
            Some((_, Some(gpus))) => {
                let other = beside.or(self.gres_of_all.as_ref());
                let gpu_type =
                    gpus.gpu_type.clone().or_else(|| other.and_then(|gpus| gpus.gpu_type.clone()));
                Known::Gpus(Gpus { count: gpus.count, gpu_type })
            }
            Some((_, None)) => beside.cloned().map_or(Known::NoGpus, Known::Gpus),
            None => {
                let other = beside.or(self.gres_of_all.as_ref());
                other.cloned().map_or(Known::Unnamed, Known::Gpus)
            }
        }
    }

    /// A node with GPUs that is under no switch, where there are switches.
    fn homeless(&self) -> Option<(&str, Place<'a>)> {
        if self.leaves.is_empty() {
            return None;
        }
        let housed: HashSet<&String> = self.leaves.iter().flat_map(|leaf| &leaf.nodes).collect();
        let lost = self.order.iter().filter(|(name, _)| !housed.contains(name));
        let with_gpus =
            |(name, _): &&(String, Place<'a>)| matches!(self.gpus(name), Known::Gpus(_));
        lost.filter(with_gpus).map(|(name, place)| (name.as_str(), *place)).next()
    }
}

/// The GPUs of a node according to the files.
enum Known {
    Gpus(Gpus),
    /// It has a line, and no GPUs.
    NoGpus,
    /// No line names the node.
    Unnamed,
}

fn add_machine(
    builder: &mut Builder<'_>,
    line: u64,
    parent: u32,
    name: &str,
    gpus: Gpus,
) -> Result<(), Error> {
    let gpu_type = gpus.gpu_type.as_deref().unwrap_or("gpu");
    builder.machine(line, parent, Some(name.into()), gpus.count, gpu_type)
}

fn add(place: Place<'_>, sum: &mut Option<Gpus>, more: Gpus) -> Result<(), Error> {
    let count = match sum {
        Some(known) if known.gpu_type != more.gpu_type => {
            let types = [known.gpu_type.as_deref(), more.gpu_type.as_deref()]
                .map(|gpu_type| gpu_type.unwrap_or("no type"));
            return Err(place.error("one type of GPU per node").found(&types.join(" and ")));
        }
        Some(known) => known.count.saturating_add(more.count),
        None => more.count,
    };
    *sum = Some(Gpus { count, ..more });
    Ok(())
}

/// The GPUs of `gpu:a100:4`, `gpu:4` or `gpu`, which may be one of several resources.
fn gpus_of(place: Place<'_>, gres: &str) -> Result<Option<Gpus>, Error> {
    let mut total: Option<Gpus> = None;
    for item in gres.split(',') {
        // `(S:0-1)` says which sockets; it may hold commas, so that only `gpu…` items count.
        let item = item.split('(').next().unwrap_or(item);
        let mut parts = item.split(':');
        if !parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("gpu")) {
            continue;
        }
        let parts: Vec<&str> = parts.filter(|part| *part != "no_consume").collect();
        let (gpu_type, count) = match parts[..] {
            [] => (None, Some(1)),
            [last] => match last.parse::<u32>() {
                Ok(count) => (None, Some(count)),
                Err(_) => (Some(last), Some(1)),
            },
            [gpu_type, count] => (Some(gpu_type), count.parse().ok()),
            _ => (None, None),
        };
        let count = count
            .filter(|&count| u64::from(count) <= GPUS_MAX)
            .ok_or_else(|| place.error("GPUs such as gpu:a100:4").key("Gres").found(item))?;
        add(place, &mut total, Gpus { count, gpu_type: gpu_type.map(Into::into) })?;
    }
    Ok(total.filter(|gpus| gpus.count > 0))
}

/// The `Key=Value` words of a line; a value in quotes may hold blanks. Other words are passed over:
/// lines that matter here have none.
fn words(text: &str) -> Vec<(&str, &str)> {
    let mut words = Vec::new();
    let mut is_quoted = false;
    let at_blank = |c: char| {
        is_quoted ^= c == '"';
        c.is_whitespace() && !is_quoted
    };
    for word in text.split(at_blank) {
        if let Some((key, value)) = word.split_once('=') {
            words.push((key, value.trim_matches('"')));
        }
    }
    words
}

/// Lines without comments; a backslash at the end joins the next line, even a blank one. Numbered by
/// their first.
fn logical_lines(source: Source<'_>) -> Vec<(u64, String)> {
    let mut lines = Vec::new();
    let mut open: Option<(u64, String)> = None;
    for (number, line) in (1..).zip(source.text.lines()) {
        let line = line.split('#').next().unwrap_or("").trim_end();
        let (line, continues) = match line.strip_suffix('\\') {
            Some(line) => (line, true),
            None => (line, false),
        };
        let (_, text) = open.get_or_insert_with(|| (number, String::new()));
        // Where the value itself goes on, the next line must join without a blank.
        text.push_str(line);
        if !continues {
            lines.extend(open.take());
        }
    }
    lines.extend(open);
    lines.retain(|(_, text)| !text.trim().is_empty());
    lines
}
