//! Why a job waits, runs where it runs, or was moved.

use serde::{Deserialize, Serialize};

use crate::engine::{Seen, Stands, Wants};
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

/// `None`: neither the scheduler nor the cluster knows the job.
pub fn explain(
    status: &Status,
    journal: &Journal,
    seen: Option<&Seen>,
    job: &str,
) -> Result<Option<Explanation>, Error> {
    let past = journal.about(job, SENTENCES_MAX)?;
    let row = status.jobs.iter().find(|row| row.job == job).cloned();
    let now = match (&row, seen.and_then(|seen| seen.jobs.get(job))) {
        (Some(row), _) => standing(row),
        (None, Some(seen)) => match (&seen.wants, seen.stands) {
            (_, Stands::Over(_)) => "is over".into(),
            _ if !seen.managed => "is in a partition that Hither does not manage".into(),
            (Wants::Nothing, _) => "asks for no GPUs: Slurm places it".into(),
            (Wants::Other(words), _) => {
                format!("asks for {words}, which Hither cannot place: Slurm does")
            }
            _ if seen.is_early => "waits for its dependency or its begin time".into(),
            _ => "is left to Slurm".into(),
        },
        (None, None) if past.is_empty() => return Ok(None),
        (None, None) => "is over".into(),
    };
    Ok(Some(Explanation { job: job.into(), now, row, past }))
}

fn standing(row: &JobRow) -> String {
    let nodes: Vec<String> =
        row.nodes.iter().map(|(node, gpus)| format!("{node}:{gpus}")).collect();
    let nodes = nodes.join(" ");
    match row.phase.as_str() {
        "waiting" => format!("has waited for {:.0} s: {}", row.since_s, row.why),
        "running" => {
            format!("has run on {nodes} ({}) for {:.0} s: {}", row.tier, row.since_s, row.why)
        }
        "starting" => format!("is about to start on {nodes} ({}): {}", row.tier, row.why),
        _ => format!("is being stopped: {}", row.why),
    }
}
