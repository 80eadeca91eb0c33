//! Clusters from files: our TOML, Slurm's files, and two kinds of CSV.
//!
//! Whatever the origin, machines and places stand grouped by the place around them, names of a level
//! differ, and the sizes are bounded before anything is expanded.

mod config;
mod hosts;
mod slurm;
mod tables;
mod yaml;

use std::collections::HashSet;

use hither_core::topology::{AllReduce, Level, Machine, Place, Topology};

use crate::read::Error;
use crate::read::table::{GPUS_MAX, Source};

pub use config::to_toml;
pub use hosts::{expand, hostlist};
pub use slurm::includes;

pub const MACHINES_MAX: u64 = 1_000_000;
pub const CLUSTER_GPUS_MAX: u64 = 10_000_000;
/// GPUs of a machine where nothing says how many it has.
pub const GPUS_ASSUMED: u32 = 8;

/// A cluster, and what its reader had to decide.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterDescription {
    pub topology: Topology,
    /// GPUs assumed, nodes left out, switches joined.
    pub notes: Vec<String>,
}

/// Reads a cluster from one file, or from several of Slurm's, each with its display name; the form is
/// recognised from the content. `gpus_per_machine` is for forms that do not say how many GPUs a
/// machine has; none: [`GPUS_ASSUMED`], with a note.
pub fn read(
    files: &[(&[u8], &str)],
    gpus_per_machine: Option<u32>,
) -> Result<ClusterDescription, Error> {
    let sources: Vec<Source<'_>> =
        files.iter().map(|(bytes, file)| Source::new(bytes, file)).collect::<Result<_, _>>()?;
    let (slurm, others): (Vec<Source<'_>>, Vec<Source<'_>>) =
        sources.iter().partition(|source| yaml::is_yaml(**source) || slurm::is_slurm(**source));
    if !slurm.is_empty() {
        if let Some(other) = others.iter().find(|other| is_whole_cluster(**other)) {
            return Err(Error::about(other.file, "describes a whole cluster by itself")
                .hint("give it alone, or only files of Slurm together"));
        }
        let mut cluster = slurm::read(&slurm, gpus_per_machine)?;
        // Parts of slurm.conf that are about other things, in files of their own.
        cluster.notes.extend(others.iter().map(|other| {
            format!("{} is not used: it names no switches, blocks, nodes or GPUs", other.file)
        }));
        return Ok(cluster);
    }
    if let Some(other) = sources.get(1) {
        return Err(Error::about(other.file, "is a second cluster")
            .hint("only files of Slurm can be given together"));
    }
    let source = sources[0];
    let Some((_, first)) = source.lines().next() else {
        return Err(
            Error::about(source.file, "is empty").hint("a description of a cluster is needed")
        );
    };
    if tables::is_switches(first) {
        return tables::read_switches(source, gpus_per_machine);
    }
    let mut cluster = match tables::is_spec(first) {
        true => tables::read_spec(source)?,
        false => config::read(source)?,
    };
    cluster.notes.extend(assumption(None, gpus_per_machine, ""));
    Ok(cluster)
}

/// Whether a file other than Slurm's describes a cluster: our TOML, or one of the tables.
fn is_whole_cluster(source: Source<'_>) -> bool {
    let is_table = |(_, first): (u64, &str)| tables::is_switches(first) || tables::is_spec(first);
    source.lines().next().is_some_and(is_table) || config::read(source).is_ok()
}

/// A note that GPUs were assumed on so many machines, or that the flag was of no use.
fn assumption(machines: Option<usize>, given: Option<u32>, better: &str) -> Option<String> {
    match (machines, given) {
        (Some(count), None) => Some(format!(
            "assuming {GPUS_ASSUMED} GPUs on each of {count} machines, because no file says how many \
             they have; give --gpus-per-machine N{better}"
        )),
        (None, Some(gpus)) => Some(format!(
            "--gpus-per-machine {gpus} is not used: the cluster's files give the GPUs of every \
             machine"
        )),
        _ => None,
    }
}

/// A few names, and how many more there are.
fn names_shown(names: &[&str]) -> String {
    const SHOWN: usize = 3;
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{} and {more} more", names[..SHOWN].join(", ")),
        _ => names.join(", "),
    }
}

/// A topology in the making, which checks as it grows.
struct Builder<'a> {
    source: Source<'a>,
    topology: Topology,
    /// Names that are taken, by level; the first are those of machines.
    names: Vec<HashSet<String>>,
    gpus: u64,
}

impl<'a> Builder<'a> {
    /// The levels have no places yet. The last one gets its one place here.
    fn new(source: Source<'a>, name: &str, mut levels: Vec<Level>) -> Self {
        let names = vec![HashSet::new(); levels.len()];
        let network = levels.last_mut().expect("there are levels");
        network.places = vec![Place { name: network.name.clone(), parent: 0 }];
        let (name, all_reduce) = (name.into(), AllReduce::default());
        let topology = Topology { name, levels, machines: Vec::new(), all_reduce };
        Self { source, topology, names, gpus: 0 }
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
                .error(format!("from 1 to {GPUS_MAX} GPUs per machine"))
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

    /// Adds a place above the machines, inside the place `parent` of the next level, and returns its
    /// index. None: `rack0`, `rack1` and so on.
    fn place(
        &mut self,
        line: u64,
        level: usize,
        parent: u32,
        name: Option<String>,
    ) -> Result<u32, Error> {
        let kind = &self.topology.levels[level].name;
        let index = self.topology.levels[level].places.len();
        let name = name.unwrap_or_else(|| format!("{kind}{index}"));
        self.check_name(line, &name)?;
        if !self.names[level].insert(name.clone()) {
            let expected = format!("{kind}s of different names");
            return Err(self.source.error(expected).at(line).found(&name));
        }
        self.topology.levels[level].places.push(Place { name, parent });
        Ok(index as u32)
    }

    /// Adds a machine inside the place `parent` of level 1. None: `gpu001`, `gpu002` and so on.
    fn machine(
        &mut self,
        line: u64,
        parent: u32,
        name: Option<String>,
        gpus: u32,
        gpu_type: &str,
    ) -> Result<(), Error> {
        self.reserve(line, 1, u64::from(gpus))?;
        let index = self.topology.machines.len();
        let name = name.unwrap_or_else(|| format!("gpu{:03}", index + 1));
        self.check_name(line, &name)?;
        self.check_name(line, gpu_type)?;
        if !self.names[0].insert(name.clone()) {
            return Err(self.source.error("machines of different names").at(line).found(&name));
        }
        self.gpus += u64::from(gpus);
        self.topology.machines.push(Machine { name, parent, gpus, gpu_type: gpu_type.into() });
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

    /// Puts the places of each level in the order of the places around them, and the machines too.
    fn finish(mut self, notes: Vec<String>) -> Result<ClusterDescription, Error> {
        if self.topology.machines.is_empty() {
            return Err(self.source.error("at least one machine with GPUs"));
        }
        let Topology { levels, machines, .. } = &mut self.topology;
        // By place of the level above: its index before, and after.
        let mut moved: Vec<u32> = vec![0];
        for level in levels[1..].iter_mut().rev().skip(1) {
            level.places.iter_mut().for_each(|place| place.parent = moved[place.parent as usize]);
            let mut order: Vec<usize> = (0..level.places.len()).collect();
            order.sort_by_key(|&at| level.places[at].parent);
            moved = vec![0; order.len()];
            (0..).zip(&order).for_each(|(to, &from)| moved[from] = to);
            level.places = order.iter().map(|&from| level.places[from].clone()).collect();
        }
        machines.iter_mut().for_each(|machine| machine.parent = moved[machine.parent as usize]);
        machines.sort_by_key(|machine| machine.parent);
        Ok(ClusterDescription { topology: self.topology, notes })
    }
}
