//! Comparisons that compare nothing: no job waits, or the seed changes nothing. Nobody should have to find that out
//! from a table of equal figures.

use std::collections::BTreeMap;

use hither_core::record::Summary;
use hither_report::plural;

use crate::sweep::FinishedCell;

/// Jobs that wait less on average do not queue.
const QUEUE_MIN_S: f64 = 1.0;

fn nobody_waits(runs: &[Summary]) -> bool {
    runs.len() > 1 && runs.iter().all(|run| run.queue_s.mean < QUEUE_MIN_S)
}

const REMEDY: &str =
    "the order in which jobs start does not matter there; --load or --rate make a queue";

/// What to know of the runs of one simulation.
pub fn note_on_runs(runs: &[Summary]) -> Option<String> {
    nobody_waits(runs).then(|| format!("no job waits under any of these policies: {REMEDY}"))
}

/// What to know of the cells of a sweep.
pub fn notes_on_cells(cells: &[FinishedCell]) -> Vec<String> {
    let mut notes = Vec::new();
    let idle = cells.iter().filter(|cell| nobody_waits(&cell.runs)).count();
    if idle > 0 {
        let all = plural(cells.len(), "cell");
        notes.push(format!("in {idle} of {all} no job waits under any policy: {REMEDY}"));
    }
    // Cells that differ in the seed alone.
    let mut alike: BTreeMap<BTreeMap<String, String>, Vec<&FinishedCell>> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| cell.cell.contains_key("seed")) {
        let mut others = cell.cell.clone();
        others.remove("seed");
        alike.entry(others).or_default().push(cell);
    }
    let is_same = |cells: &Vec<&FinishedCell>| {
        cells.len() > 1 && cells.iter().all(|cell| figures(cell) == figures(cells[0]))
    };
    if !alike.is_empty() && alike.values().all(is_same) {
        notes.push(
            "the seed changes nothing, so ± is 0: the trace is fixed, and nothing else is drawn at random here"
                .into(),
        );
    }
    notes
}

/// What the seed would move.
fn figures(cell: &FinishedCell) -> Vec<(f64, f64)> {
    cell.runs.iter().map(|run| (run.jct_s.mean, run.makespan_s)).collect()
}
