//! The job logs of the Helios and Acme clusters: one row per job of any state, CPU jobs included.
//! Both share their columns; Helios has virtual clusters, Acme has types of work.

use super::{Intake, Logged, time};
use crate::read::Error;
use crate::read::table::{Others, TIME_MAX_S, Table};

pub(super) const HELIOS: [&str; 5] = ["job_id", "vc", "gpu_num", "submit_time", "duration"];
pub(super) const ACME: [&str; 4] = ["job_id", "gpu_num", "submit_time", "duration"];
const COLUMNS: [&str; 6] = ["job_id", "gpu_num", "submit_time", "duration", "user", "state"];

pub(super) fn read(intake: &mut Intake<'_>) -> Result<(), Error> {
    let table = Table::open(intake.source, COLUMNS, ACME.len(), Others::Ignore)?;
    for row in table.rows() {
        let (line, [id, gpus, submit, duration, user, state]) = row?;
        if time::is_absent(&gpus.text) || gpus.number(0.0, 1e9)? == 0.0 {
            intake.left_out.add("without GPUs");
            continue;
        }
        let gpus = gpus.gpus()?;
        if ["RUNNING", "PENDING"].contains(&&*state.text) {
            intake.left_out.add("still running or pending");
            continue;
        }
        let run_s = match time::is_absent(&duration.text) {
            true => 0.0,
            false => duration.number(-TIME_MAX_S, TIME_MAX_S)?,
        };
        if run_s < 0.0 || (run_s == 0.0 && (duration.is_empty() || state.text == "CANCELLED")) {
            intake.left_out.add("that never started");
            continue;
        }
        if run_s == 0.0 {
            intake.changed.add("with a duration of 0 (taken as 1 s)");
        }
        intake.push_logged(Logged {
            line,
            name: id.name()?,
            user: user.name_or_empty()?,
            gpus,
            gpu_type: None,
            submit_s: time::known_epoch_s(&submit)?,
            run_s: if run_s == 0.0 { 1.0 } else { run_s },
        })?;
    }
    Ok(())
}
