//! Labels of runs.

use std::collections::BTreeSet;

use hither_core::record::Header;

/// One label per run, unique on the page: the policy's name, followed by the settings in which its
/// group differs from the others, if there are several groups.
pub fn labels(groups: &[(&Header, Vec<&str>)]) -> Vec<String> {
    let differences = differences(&groups.iter().map(|(h, _)| *h).collect::<Vec<_>>());
    let mut taken = BTreeSet::new();
    let mut labels = Vec::new();
    for ((_, policies), difference) in groups.iter().zip(&differences) {
        for policy in policies {
            let base = match difference.as_str() {
                "" => (*policy).to_owned(),
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
    let telling: Vec<_> = facts
        .into_iter()
        .filter(|fact| headers.windows(2).any(|pair| fact(pair[0]) != fact(pair[1])))
        .collect();
    let name = |(i, header): (usize, &&Header)| match (telling.is_empty(), headers.len()) {
        (false, _) => telling.iter().map(|fact| fact(header)).collect::<Vec<_>>().join(", "),
        (true, 0 | 1) => String::new(),
        (true, _) => format!("#{}", i + 1),
    };
    headers.iter().enumerate().map(name).collect()
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
        Header { hither: "0".into(), trace: trace.into(), seed, congestion, cluster }
    }

    #[test]
    fn a_single_group_needs_no_suffix() {
        let h = header("a", 1, 1.0);
        assert_eq!(labels(&[(&h, vec!["fifo", "las", "fifo"])]), ["fifo", "las", "fifo (2)"]);
    }

    #[test]
    fn groups_are_told_apart_by_what_differs() {
        let (a, b) = (header("a", 1, 1.0), header("a", 1, 2.5));
        assert_eq!(
            labels(&[(&a, vec!["fifo"]), (&b, vec!["fifo"])]),
            ["fifo @ congestion 1×", "fifo @ congestion 2.5×"]
        );
        let c = header("c", 2, 1.0);
        assert_eq!(
            labels(&[(&a, vec!["fifo"]), (&c, vec!["fifo"])]),
            ["fifo @ a, seed 1", "fifo @ c, seed 2"]
        );
    }

    #[test]
    fn equal_headers_are_numbered() {
        let h = header("a", 1, 1.0);
        assert_eq!(labels(&[(&h, vec!["x"]), (&h, vec!["x"])]), ["x @ #1", "x @ #2"]);
    }

    #[test]
    fn common_notes_are_said_once() {
        let both = ["profiles extrapolated".to_owned()];
        let one = [both[0].clone(), "no rack timers".to_owned()];
        let lines = notes([("a", &both[..]), ("b", &one[..])].into_iter());
        assert_eq!(lines, ["profiles extrapolated", "b: no rack timers"]);
    }
}
