//! Groups runs that are repetitions of each other, and gives each group a label, colour and dash.

use hither_core::record::train::{Header, RunRecord};

use crate::format::{count, plural};
use crate::page::distinct;

/// A mode's colour (`--c0` and on in report.css) and dash, the same on every page. Neighbours in
/// colour differ in dash, so that no reader has to tell them by hue alone.
const LOOKS: [(&str, usize, usize); 7] = [
    ("single", 7, 1),
    ("psgd-pa", 1, 0),
    ("llcg", 0, 0),
    ("llcg-stale", 5, 1),
    ("ggs", 2, 0),
    ("psgd-sa", 4, 3),
    ("server-only", 3, 2),
];
const OTHER_COLOUR: usize = 6;

/// Runs that differ only in their seed; at least one.
pub struct ModeGroup<'a> {
    pub label: String,
    pub colour: usize,
    pub dash: usize,
    pub runs: Vec<&'a RunRecord>,
}

impl ModeGroup<'_> {
    pub fn header(&self) -> &Header {
        &self.runs[0].header
    }

    /// The mean over runs, of those that have the figure.
    pub fn mean(&self, read: impl Fn(&RunRecord) -> f64) -> Option<f64> {
        let values = self.runs.iter().map(|run| read(run)).filter(|v| v.is_finite());
        let (sum, n) = values.fold((0.0, 0), |(sum, n), v| (sum + v, n + 1));
        (n > 0).then(|| sum / f64::from(n))
    }

    /// Whether the figures of two groups can be compared.
    pub fn same_task(&self, other: &Self) -> bool {
        let task = |h: &Header| (h.dataset.clone(), h.model.clone(), h.parameters);
        task(self.header()) == task(other.header())
    }
}

type Fact = fn(&Header) -> Option<String>;

/// Facts, other than the seed, in which runs of the same mode can differ. The cut does not count in
/// modes that do not work on parts.
const FACTS: [Fact; 5] = [
    |h| Some(h.dataset.clone()),
    |h| Some(h.model.clone()),
    |h| Some(format!("{} parameters", count(h.parameters))),
    |h| is_cut(h).then(|| plural(h.parts as usize, "part")),
    |h| is_cut(h).then(|| h.partition.clone()),
];

pub fn is_cut(header: &Header) -> bool {
    !matches!(header.mode.as_str(), "single" | "server-only")
}

/// Groups runs that differ only in their seed, in the order of their first runs.
pub fn groups(runs: &[RunRecord]) -> Vec<ModeGroup<'_>> {
    type Key<'a> = (&'a str, [Option<String>; 5]);
    let mut found: Vec<(Key, Vec<&RunRecord>)> = Vec::new();
    for run in runs {
        let key = (run.header.mode.as_str(), FACTS.map(|fact| fact(&run.header)));
        match found.iter_mut().find(|(known, _)| *known == key) {
            Some((_, runs)) => runs.push(run),
            None => found.push((key, vec![run])),
        }
    }
    // Facts in which all groups agree are left out of labels.
    let telling: Vec<Fact> = FACTS
        .into_iter()
        .filter(|fact| distinct(runs.iter().filter_map(|run| fact(&run.header))).len() > 1)
        .collect();
    let mut groups: Vec<ModeGroup> = Vec::new();
    for ((mode, _), runs) in found {
        let facts: Vec<String> = telling.iter().filter_map(|fact| fact(&runs[0].header)).collect();
        let label = match facts.as_slice() {
            [] => mode.to_owned(),
            facts => format!("{mode} @ {}", facts.join(", ")),
        };
        let (colour, dash) = look(mode);
        let alike = groups.iter().filter(|group| group.colour == colour).count();
        groups.push(ModeGroup { label, colour, dash: dash + alike, runs });
    }
    groups
}

/// A mode with something after its name, as in `llcg auto`, keeps its colour.
fn look(mode: &str) -> (usize, usize) {
    let known = LOOKS.iter().filter(|(name, ..)| mode.starts_with(name));
    let nearest = known.max_by_key(|(name, ..)| name.len());
    nearest.map_or((OTHER_COLOUR, 0), |&(_, colour, dash)| (colour, dash))
}
