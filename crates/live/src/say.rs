//! Decisions in words, for the log, for `hither explain` and for the page.

use hither_core::Seconds;
use hither_sched::event::{Action, Decision, Why};
use hither_sched::state::State;

use crate::journal::Said;
use crate::places::Places;

/// Sentences about no job in particular.
pub fn notes(notes: Vec<String>, at_s: Seconds) -> Vec<Said> {
    notes.into_iter().map(|text| Said { job: named(&text), at_s, text }).collect()
}

/// The job that a note is about: notes begin with its name.
fn named(note: &str) -> String {
    let mut words = note.split(' ');
    let job = (words.next() == Some("job")).then(|| words.next()).flatten();
    job.unwrap_or_default().to_owned()
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
    match why {
        Why::RoomFor { job } => {
            let key = state.jobs.get(job).map_or("one that is over", |job| &job.job.name);
            format!("makes room for job {key}, whose claim is better")
        }
        Why::HoldsOut { tier, until_s: Some(until_s), cost } => {
            let left_s = (until_s - state.now).max(0.0);
            let holds_out = Why::HoldsOut { tier, until_s: None, cost };
            let holds_out = holds_out.told(&state.cluster.levels);
            format!("{holds_out}; it takes less in {left_s:.0} s at the earliest")
        }
        other => other.told(&state.cluster.levels).to_string(),
    }
}
