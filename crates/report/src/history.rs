//! What happened to each job, with the policy's reasons, for the page's search.

use std::collections::HashMap;

use hither_core::record::{EventRow, Happening};

use crate::curve::bounds;
use crate::pack;

/// Upper bound on rows; a page with more would be too large to open. Later ones are dropped.
const ROWS_MAX: usize = 2_000_000;

/// Kinds of rows, as `HAPPENINGS` in assets/js/history.js names them.
fn kind(what: &Happening) -> Option<(i64, u32, Option<&str>)> {
    match what {
        Happening::Arrive { job, .. } => Some((0, *job, None)),
        Happening::Start { job, why, .. } => Some((1, *job, why.as_deref())),
        Happening::Decline { job, why } => Some((2, *job, Some(why))),
        Happening::Preempt { job, why, .. } => Some((3, *job, why.as_deref())),
        Happening::Finish { job } => Some((4, *job, None)),
        Happening::Cancel { job } => Some((5, *job, None)),
        Happening::MachineDown { .. }
        | Happening::MachineUp { .. }
        | Happening::Timers { .. }
        | Happening::Links { .. } => None,
    }
}

/// Two packed blocks: columns of job, time in ms, kind and index of the reason, sorted by job and
/// time; and the reasons, each once. Index 0 is no reason.
pub fn blocks(events: &[EventRow], position: &HashMap<u32, u32>) -> (String, String) {
    let start = bounds(events).map_or(0.0, |(start, _)| start);
    let mut reasons: Vec<&str> = vec![""];
    let mut known: HashMap<&str, i64> = HashMap::from([("", 0)]);
    let mut rows: Vec<[i64; 4]> = Vec::new();
    for event in events.iter().filter(|event| event.t.is_finite()).take(ROWS_MAX) {
        let Some((kind, job, why)) = kind(&event.what) else { continue };
        let Some(&job) = position.get(&job) else { continue };
        let reason = *known.entry(why.unwrap_or("")).or_insert_with_key(|why| {
            reasons.push(why);
            reasons.len() as i64 - 1
        });
        rows.push([i64::from(job), ((event.t - start) * 1000.0).round() as i64, kind, reason]);
    }
    // Stable: what happens to a job at one moment stays in order.
    rows.sort_by_key(|row| row[0]);
    let columns = [0, 1, 2, 3].map(|column| rows.iter().map(|row| row[column]).collect());
    (pack::columns(&columns), pack::lines(reasons.into_iter()))
}
