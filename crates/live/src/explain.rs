//! Why a job waits, runs where it runs, or was moved.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::engine::{Key, Seen, Stands, Wants};
use crate::journal::{Error, Journal, Said};
use crate::status::{JobRow, Status};

/// Sentences of a job's past that are told.
const SENTENCES_MAX: usize = 50;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    pub job: String,
    /// One sentence: where it stands and why.
    pub now: String,
    pub row: Option<JobRow>,
    /// What was decided about it, oldest first.
    pub past: Vec<Said>,
}

/// What a running scheduler sees.
#[derive(Debug, Clone, Copy)]
pub struct Look<'a> {
    pub engine: &'a str,
    pub seen: &'a Seen,
    /// Why jobs may not start now, or are left to the engine.
    pub bars: &'a HashMap<Key, String>,
}

/// `None`: neither the scheduler nor the cluster knows the job.
pub fn explain(
    status: &Status,
    journal: &Journal,
    look: Option<Look<'_>>,
    job: &str,
) -> Result<Option<Explanation>, Error> {
    let past = journal.about(job, SENTENCES_MAX)?;
    let row = status.jobs.iter().find(|row| row.job == job).cloned();
    let shown = look.and_then(|look| Some((look, look.seen.jobs.get(job)?)));
    let now = match (&row, shown) {
        (Some(row), _) => standing(row),
        (None, Some((look, seen))) => match (&seen.wants, seen.stands) {
            (_, Stands::Over(_)) => "is over".into(),
            _ if !seen.managed => "is not one that Hither decides about".into(),
            (Wants::Nothing, _) => format!("asks for no GPUs: {} places it", look.engine),
            (Wants::Other(words), _) => {
                format!("asks for {words}, which Hither cannot place: {} does", look.engine)
            }
            _ => match look.bars.get(job) {
                Some(why) => format!("is left to {}: {why}", look.engine),
                None => format!("is left to {}", look.engine),
            },
        },
        (None, None) if past.is_empty() => match tasks(look, job) {
            tasks if tasks.is_empty() => return Ok(None),
            tasks => format!("is an array: ask for one of its tasks, such as {}", tasks.join(", ")),
        },
        (None, None) => "is over".into(),
    };
    Ok(Some(Explanation { job: job.into(), now, row, past }))
}

/// Some tasks of an array.
fn tasks(look: Option<Look<'_>>, job: &str) -> Vec<String> {
    let prefix = format!("{job}_");
    let keys = look.into_iter().flat_map(|look| look.seen.jobs.keys());
    keys.filter(|key| key.starts_with(&prefix)).take(3).cloned().collect()
}

fn standing(row: &JobRow) -> String {
    let nodes: Vec<String> =
        row.nodes.iter().map(|(node, gpus)| format!("{node}:{gpus}")).collect();
    let nodes = nodes.join(" ");
    match row.phase.as_str() {
        "waiting" | "barred" => format!("has waited for {:.0} s: {}", row.since_s, row.why),
        "running" => {
            format!("has run on {nodes} ({}) for {:.0} s: {}", row.tier, row.since_s, row.why)
        }
        "starting" => format!("is about to start on {nodes} ({}): {}", row.tier, row.why),
        _ => format!("is being stopped: {}", row.why),
    }
}
