//! Labels of runs.

use std::collections::BTreeSet;

use hither_core::record::{Header, Summary};

/// The footnote of [`marked`] policies.
pub const CLAIRVOYANT: &str =
    "† is told the true length of every job, which no real cluster can be: a bound, not a rival";

/// The policy's name, with a mark if it is clairvoyant.
pub fn marked(run: &Summary) -> String {
    if run.clairvoyant { format!("{} †", run.policy) } else { run.policy.clone() }
}

/// One label per run, unique on the page: the policy's name, followed by the settings in which its
/// group differs from the others, if there are several groups.
pub fn labels(groups: &[(&Header, Vec<String>)]) -> Vec<String> {
    let differences = differences(&groups.iter().map(|(h, _)| *h).collect::<Vec<_>>());
    let mut taken = BTreeSet::new();
    let mut labels = Vec::new();
    for ((_, policies), difference) in groups.iter().zip(&differences) {
        for policy in policies {
            let base = match difference.as_str() {
                "" => policy.clone(),
                _ => format!("{policy} @ {difference}"),
            };
            let mut label = base.clone();
            let mut n = 1;
            while !taken.insert(label.clone()) {
                n += 1;
                label = format!("{base} ({n})");
            }
            labels.push(label);
        }
    }
    labels
}

/// For each header, the facts in which not all headers agree.
fn differences(headers: &[&Header]) -> Vec<String> {
    let facts: [fn(&Header) -> String; 4] = [
        |h| h.trace.clone(),
        |h| h.cluster.name.clone(),
        |h| format!("seed {}", h.seed),
        |h| format!("congestion {}×", h.congestion),
    ];
    let differ = |fact: &dyn Fn(&Header) -> String| {
        headers.windows(2).any(|pair| fact(pair[0]) != fact(pair[1]))
    };
    let mut names: Vec<Vec<String>> = vec![Vec::new(); headers.len()];
    for fact in facts.into_iter().filter(|fact| differ(fact)) {
        names.iter_mut().zip(headers).for_each(|(name, header)| name.push(fact(header)));
    }
    let keys: BTreeSet<&String> = headers.iter().flat_map(|h| h.settings.keys()).collect();
    for key in keys {
        let setting = |h: &Header| h.settings.get(key).cloned().unwrap_or_default();
        if differ(&setting) {
            for (name, header) in names.iter_mut().zip(headers) {
                name.extend(header.settings.get(key).map(|value| format!("{key} {value}")));
            }
        }
    }
    let unnamed = headers.len() > 1 && names.iter().all(|name| name.is_empty());
    let label = |(i, name): (usize, &Vec<String>)| match unnamed {
        true => format!("#{}", i + 1),
        false => name.join(", "),
    };
    names.iter().enumerate().map(label).collect()
}

/// The notes of all runs, given by label and notes. A note that all runs share appears once.
pub fn notes<'a>(runs: impl Iterator<Item = (&'a str, &'a [String])>) -> Vec<String> {
    let runs: Vec<_> = runs.collect();
    let mut lines = Vec::new();
    for (label, notes) in &runs {
        for note in *notes {
            let common = runs.iter().all(|(_, notes)| notes.contains(note));
            lines.push(if common { note.clone() } else { format!("{label}: {note}") });
        }
    }
    let mut seen = BTreeSet::new();
    lines.retain(|line| seen.insert(line.clone()));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::record::ClusterRow;

    fn header(trace: &str, seed: u64, congestion: f64) -> Header {
        let cluster = ClusterRow { name: "lab".into(), levels: vec![], machines: vec![] };
        let settings = Default::default();
        Header { hither: "0".into(), trace: trace.into(), seed, congestion, cluster, settings }
    }

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn groups_are_told_apart_by_their_options() {
        let with = |value: &str| {
            let settings = [("dally.score".to_owned(), value.to_owned())].into();
            Header { settings, ..header("a", 1, 1.0) }
        };
        let (a, b) = (with("2d-las"), with("slowdown"));
        assert_eq!(
            labels(&[(&a, names(&["dally"])), (&b, names(&["dally"]))]),
            ["dally @ dally.score 2d-las", "dally @ dally.score slowdown"]
        );
    }

    #[test]
    fn a_single_group_needs_no_suffix() {
        let h = header("a", 1, 1.0);
        assert_eq!(labels(&[(&h, names(&["fifo", "las", "fifo"]))]), ["fifo", "las", "fifo (2)"]);
    }

    #[test]
    fn groups_are_told_apart_by_what_differs() {
        let (a, b) = (header("a", 1, 1.0), header("a", 1, 2.5));
        assert_eq!(
            labels(&[(&a, names(&["fifo"])), (&b, names(&["fifo"]))]),
            ["fifo @ congestion 1×", "fifo @ congestion 2.5×"]
        );
        let c = header("c", 2, 1.0);
        assert_eq!(
            labels(&[(&a, names(&["fifo"])), (&c, names(&["fifo"]))]),
            ["fifo @ a, seed 1", "fifo @ c, seed 2"]
        );
    }

    #[test]
    fn equal_headers_are_numbered() {
        let h = header("a", 1, 1.0);
        assert_eq!(labels(&[(&h, names(&["x"])), (&h, names(&["x"]))]), ["x @ #1", "x @ #2"]);
    }

    #[test]
    fn common_notes_are_said_once() {
        let both = ["profiles extrapolated".to_owned()];
        let one = [both[0].clone(), "no rack timers".to_owned()];
        let lines = notes([("a", &both[..]), ("b", &one[..])].into_iter());
        assert_eq!(lines, ["profiles extrapolated", "b: no rack timers"]);
    }
}
