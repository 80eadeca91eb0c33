//! Decisions in words, for the log, for `hither explain` and for the page.

use hither_core::Seconds;
use hither_sched::event::{Action, Decision, Why};
use hither_sched::state::State;

use crate::engine::Key;
use crate::journal::Said;
use crate::places::Places;

/// Sentences about jobs, and about none in particular.
pub fn notes(about_jobs: Vec<(Key, String)>, others: Vec<String>, at_s: Seconds) -> Vec<Said> {
    let others = others.into_iter().map(|text| (Key::new(), text));
    about_jobs.into_iter().chain(others).map(|(job, text)| Said { job, at_s, text }).collect()
}

/// What people want to know of the decisions. Timers are not among it.
pub fn decisions(made: &[Decision], state: &State, places: &Places, at_s: Seconds) -> Vec<Said> {
    let key = |id| state.jobs.get(id).map_or_else(String::new, |job| job.job.name.clone());
    let sentence = |decision: &Decision| {
        let why = why(decision.why, state);
        let (job, text) = match &decision.action {
            Action::Start { job, placement } => {
                let nodes: Vec<String> = placement
                    .slots
                    .iter()
                    .map(|slot| format!("{}:{}", places.name(slot.machine), slot.gpus))
                    .collect();
                let wait = match decision.after.is_empty() {
                    true => "",
                    false => " once they are free",
                };
                (*job, format!("starts on {}{wait}: {why}", nodes.join(" ")))
            }
            Action::Stop { job, .. } => (*job, format!("stops: {why}")),
            Action::Decline { job } => (*job, why),
            Action::Failed { job } => (*job, format!("waits again: {why}")),
            Action::SetTimer { .. } | Action::Tuned { .. } => return None,
        };
        Some(Said { job: key(job), at_s, text })
    };
    made.iter().filter_map(sentence).collect()
}

/// The reason in words: jobs by the engine's names, times from now on.
pub fn why(why: Why, state: &State) -> String {
    let levels = &state.cluster.levels;
    match why {
        Why::RoomFor { job } => match state.jobs.get(job) {
            Some(job) => format!("makes room for job {}, whose claim is better", job.job.name),
            None => "makes room for a job that has ended since".into(),
        },
        other => other.told(levels).to_string(),
    }
}
