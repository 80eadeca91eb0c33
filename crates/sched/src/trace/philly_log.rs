//! Philly's own log, `cluster_job_log`: a JSON array of jobs, each with the attempts to run it.

use serde::Deserialize;

use super::{Intake, Logged, time};
use crate::read::Error;
use crate::read::table::Field;

#[derive(Deserialize)]
struct Record {
    jobid: String,
    submitted_time: Option<String>,
    #[serde(default)]
    user: Option<String>,
    attempts: Vec<Attempt>,
}

#[derive(Deserialize)]
struct Attempt {
    start_time: Option<String>,
    end_time: Option<String>,
    #[serde(default)]
    detail: Vec<Machine>,
}

#[derive(Deserialize)]
struct Machine {
    #[serde(default)]
    gpus: Vec<serde::de::IgnoredAny>,
}

/// A JSON array whose first object has one of the log's own keys. `text` may be cut off.
pub(super) fn is_text(text: &str) -> bool {
    text.trim_start().strip_prefix('[').is_some_and(|rest| {
        rest.trim_start().starts_with('{')
            && ["\"attempts\"", "\"submitted_time\"", "\"jobid\""].iter().any(|k| rest.contains(k))
    })
}

pub(super) fn read(intake: &mut Intake<'_>) -> Result<(), Error> {
    let source = intake.source;
    let what = "an array of jobs with jobid, submitted_time, user and attempts";
    let records: Vec<Record> = serde_json::from_str(source.text)
        .map_err(|error| Error::json(source.file, what, &error))?;
    for record in &records {
        // Serde keeps no lines: they are looked up for an error alone.
        let place = |error: Error| error.at(line_of(source.text, &record.jobid));
        if let Some(job) = job(intake, record).map_err(place)? {
            intake.push_logged(job).map_err(place)?;
        }
    }
    Ok(())
}

/// None where the job is left out, and counted.
fn job(intake: &mut Intake<'_>, record: &Record) -> Result<Option<Logged>, Error> {
    let file = intake.source.file;
    let field = |column: &'static str, text: &str| Field {
        file,
        line: 0,
        column,
        text: text.to_owned().into(),
    };
    let epoch_s = |column: &'static str, text: &Option<String>| match text {
        Some(text) => time::epoch_s(&field(column, text)),
        None => Ok(None),
    };
    let Some(submit_s) = epoch_s("submitted_time", &record.submitted_time)? else {
        intake.left_out.add("without a time of submission");
        return Ok(None);
    };
    let Some(last) = record.attempts.last() else {
        intake.left_out.add("that never started");
        return Ok(None);
    };
    // The log's own rule: no end of the last attempt means that the job was still running.
    if epoch_s("end_time", &last.end_time)?.is_none() {
        intake.left_out.add("still running");
        return Ok(None);
    }
    let (mut run_s, mut gpus) = (0.0, 0u64);
    for attempt in &record.attempts {
        let begin_s = epoch_s("start_time", &attempt.start_time)?;
        let end_s = epoch_s("end_time", &attempt.end_time)?;
        if let Some((begin_s, end_s)) = begin_s.zip(end_s) {
            run_s += (end_s - begin_s).max(0.0);
            let held: usize = attempt.detail.iter().map(|machine| machine.gpus.len()).sum();
            gpus = if held > 0 { held as u64 } else { gpus };
        }
    }
    if gpus == 0 {
        intake.left_out.add("without the GPUs or the times of an attempt");
        return Ok(None);
    }
    if record.attempts.len() > 1 {
        intake.changed.add("with several attempts (taken as their sum)");
    }
    if run_s == 0.0 {
        intake.changed.add("of less than a second (taken as 1 s)");
    }
    Ok(Some(Logged {
        line: 0,
        name: field("jobid", &record.jobid).name()?,
        user: field("user", record.user.as_deref().unwrap_or("")).name_or_empty()?,
        gpus: field("gpus", &gpus.to_string()).gpus()?,
        gpu_type: None,
        submit_s,
        run_s: if run_s == 0.0 { 1.0 } else { run_s },
    }))
}

/// The line on which a job's id stands; 1 if it is written in another way, with escapes.
fn line_of(text: &str, id: &str) -> u64 {
    let at = text.find(&format!("\"{id}\"")).unwrap_or(0);
    1 + text[..at].matches('\n').count() as u64
}
