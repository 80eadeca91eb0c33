//! Alibaba's Lingjun trace of 2023: a table of jobs, and one of workers with their GPUs.

use std::collections::{HashMap, HashSet};

use super::{Intake, Logged, time};
use crate::read::Error;
use crate::read::table::{GPUS_MAX, Others, Source, Table};

pub(super) const JOBS: &str = "job.csv";
pub(super) const WORKERS: &str = "worker.csv";
/// The log's times are whole minutes: 0 means less than one, on average half.
const RUN_MIN_S: f64 = 30.0;

pub(super) fn read(intake: &mut Intake<'_>) -> Result<(), Error> {
    let source = intake.source;
    let Some(workers) = intake.table(WORKERS).filter(|table| table.file != source.file) else {
        let states = format!("is one of two tables: jobs are in {JOBS}, their GPUs in {WORKERS}");
        return Err(
            Error::about(source.file, states).hint("give the folder that holds both of them")
        );
    };
    let gpus = gpus_by_job(workers)?;
    let names = [
        "job_name",
        "gmt_job_submitted",
        "gmt_job_running",
        "gmt_job_finished",
        "gmt_job_stopped",
        "user_id",
        "model",
        "status",
    ];
    let table = Table::open(source, names, 4, Others::Ignore)?;
    for row in table.rows() {
        let (line, [job, submitted, running, finished, stopped, user, model, status]) = row?;
        let name = job.name()?;
        let submit_s = time::epoch_s(&submitted)?;
        let start_s = time::epoch_s(&running)?;
        let end_s = time::epoch_s(&finished)?.or(time::epoch_s(&stopped)?);
        let gpus = gpus.get(&name).copied().unwrap_or(0);
        let is_active = status.text.eq_ignore_ascii_case("Running");
        let why = match (submit_s, start_s, end_s) {
            _ if is_active => "still running",
            _ if gpus == 0 => "without GPUs",
            (Some(submit_s), Some(start_s), Some(end_s))
                if submit_s <= start_s && start_s <= end_s =>
            {
                if end_s == start_s {
                    intake.changed.add("of less than a minute (taken as 30 s)");
                }
                let run_s = if end_s == start_s { RUN_MIN_S } else { end_s - start_s };
                let user = user.name_or_empty()?;
                let logged = Logged { line, name, user, gpus, gpu_type: None, submit_s, run_s };
                let known = intake.options.library.get(&model.text).cloned();
                match known {
                    Some(profile) => intake.push_as(logged, profile)?,
                    None => intake.push_logged(logged)?,
                }
                continue;
            }
            (Some(_), Some(_), Some(_)) => "whose times are out of order",
            (_, None, _) => "that never started",
            _ => "without a submission or an end",
        };
        intake.left_out.add(why);
    }
    Ok(())
}

/// GPUs of all workers of a job. A worker that was restarted has several rows and counts once.
fn gpus_by_job(source: Source<'_>) -> Result<HashMap<String, u32>, Error> {
    let mut seen = HashSet::new();
    let mut jobs: HashMap<String, u32> = HashMap::new();
    let table = Table::open(source, ["job_name", "worker_name", "RES"], 3, Others::Ignore)?;
    for row in table.rows() {
        let (_, [job, worker, resources]) = row?;
        if time::is_absent(&resources.text) || !seen.insert((job.name()?, worker.name()?)) {
            continue;
        }
        let wrong = || resources.error("resources such as {\"nvidia.com/gpu\": \"8\"}");
        let parsed: serde_json::Value =
            serde_json::from_str(&resources.text).map_err(|_| wrong())?;
        let count = match parsed.as_object().ok_or_else(wrong)?.get("nvidia.com/gpu") {
            None => 0,
            Some(serde_json::Value::String(text)) => text.parse().map_err(|_| wrong())?,
            Some(value) => value.as_u64().ok_or_else(wrong)?,
        };
        let sum = jobs.entry(job.name()?).or_insert(0);
        *sum = u32::try_from(count)
            .ok()
            .and_then(|count| sum.checked_add(count))
            .filter(|&sum| u64::from(sum) <= GPUS_MAX)
            .ok_or_else(|| resources.error(format!("at most {GPUS_MAX} GPUs per job")))?;
    }
    Ok(jobs)
}
