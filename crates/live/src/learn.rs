//! What jobs have shown of themselves: the pace that a job reports, and the iteration times of earlier jobs of
//! the same user and name by placement.

use std::collections::{BTreeMap, HashMap};

use hither_core::Seconds;
use hither_sched::job::{Measured, Profile};
use serde::{Deserialize, Serialize};

/// Names that are remembered; the least recently used are forgotten first.
const NAMES_MAX: usize = 4096;
/// A later report counts this much against the mean of the earlier ones.
const NEW_SHARE: f64 = 0.3;
/// Placements that are remembered of one name.
const PLACEMENTS_MAX: usize = 64;
/// Reported paces outside of this range are mistakes.
const STEP_S: std::ops::RangeInclusive<Seconds> = 1e-6..=1e6;

/// The name under which a job learns and is known: what its user calls the model, or else user and job. Many
/// people call their job `train.sh`, and each means another model.
pub fn model_name(user: &str, job: &str, model: Option<&str>) -> String {
    model.map_or_else(|| format!("{user}/{job}"), ToOwned::to_owned)
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Learnt {
    /// By name of model or job.
    names: BTreeMap<String, Steps>,
    /// Counts reports, to tell which names were used last.
    clock: u64,
    /// The last two reports of running jobs by key.
    #[serde(skip)]
    reports: HashMap<String, [Option<(f64, Seconds)>; 2]>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Steps {
    used: u64,
    /// Iteration time by GPUs taken on each machine, largest first.
    step_s: Vec<Measured>,
}

impl Learnt {
    /// Whether the job has not reported this before.
    pub fn is_new(&self, key: &str, done: f64, at_s: Seconds) -> bool {
        let last = self.reports.get(key).and_then(|reports| reports[1]);
        last != Some((done, at_s))
    }

    /// Iterations per second between the last report and this one.
    pub fn rate(&self, key: &str, done: f64, at_s: Seconds) -> Option<f64> {
        let reports = self.reports.get(key)?;
        let [before, last] = reports;
        let (done_0, at_0_s) = last.filter(|l| *l != (done, at_s)).or(*before)?;
        let rate = (done - done_0) / (at_s - at_0_s);
        Some(rate).filter(|rate| rate.is_finite() && *rate > 0.0)
    }

    /// A running job of this model reported, on so many GPUs of each machine. The same report is seen again
    /// at every look, and counts once.
    pub fn report(&mut self, key: &str, model: &str, placement: &[u32], done: f64, at_s: Seconds) {
        if !self.is_new(key, done, at_s) {
            return;
        }
        let rate = self.rate(key, done, at_s);
        let reports = self.reports.entry(key.to_owned()).or_default();
        *reports = [reports[1], Some((done, at_s))];
        let Some(step_s) = rate.map(|rate| 1.0 / rate).filter(|s| STEP_S.contains(s)) else {
            return;
        };
        self.clock += 1;
        let steps = self.names.entry(model.to_owned()).or_default();
        steps.used = self.clock;
        let mut placement = placement.to_vec();
        placement.sort_unstable_by(|a, b| b.cmp(a));
        match steps.step_s.iter_mut().find(|m| m.placement == placement) {
            Some(known) => known.step_s += NEW_SHARE * (step_s - known.step_s),
            None => {
                if steps.step_s.len() == PLACEMENTS_MAX {
                    steps.step_s.remove(0);
                }
                steps.step_s.push(Measured { placement, step_s });
            }
        }
        if self.names.len() > NAMES_MAX {
            let oldest = self.names.iter().min_by_key(|(_, steps)| steps.used);
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.and_then(|name| self.names.remove(&name));
        }
    }

    /// The job's run is over: its next reports are another run's.
    pub fn forget_run(&mut self, key: &str) {
        self.reports.remove(key);
    }

    /// The profile that earlier jobs of this name have shown; unknown where none has.
    pub fn profile(&self, name: &str) -> Profile {
        let unknown = Profile {
            name: name.to_owned(),
            compute_s: 0.0,
            gradient_bytes: 0.0,
            backward_share: Profile::default_backward_share(),
            overlap: Profile::default_overlap(),
            restart_s: Profile::default_restart_s(),
            restart_gpu_s: 0.0,
            checkpoint_bytes: 0.0,
            skew: 0.0,
            table: Vec::new(),
            source: String::new(),
        };
        let Some(steps) = self.names.get(name) else { return unknown };
        let table = steps.step_s.clone();
        // The fastest step seen is all that is known of computing alone.
        let compute_s = table.iter().map(|m| m.step_s).fold(f64::INFINITY, f64::min);
        Profile { compute_s, table, source: "reported by earlier jobs".into(), ..unknown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_become_a_profile() {
        let mut learnt = Learnt::default();
        assert!(!learnt.profile("mine").is_known());
        for (done, at_s) in [(0.0, 100.0), (50.0, 110.0), (50.0, 110.0), (100.0, 120.0)] {
            learnt.report("7", "mine", &[2, 4], done, at_s);
        }
        learnt.report("8", "mine", &[4], 10.0, 10.0);
        learnt.report("8", "mine", &[4], 20.0, 11.0);
        let profile = learnt.profile("mine");
        assert_eq!(profile.compute_s, 0.1);
        let spread = profile.table.iter().find(|m| m.placement == [4, 2]).unwrap();
        assert!((spread.step_s - 0.2).abs() < 1e-12);
        assert!(!learnt.profile("other").is_known());
    }

    #[test]
    fn a_report_counts_once_however_often_it_is_seen() {
        let mut learnt = Learnt::default();
        let step_s = |learnt: &Learnt| learnt.profile("mine").table[0].step_s;
        for (done, at_s) in [(0.0, 0.0), (10.0, 10.0)] {
            learnt.report("7", "mine", &[4], done, at_s);
        }
        assert_eq!(step_s(&learnt), 1.0);
        (0..10).for_each(|_| learnt.report("7", "mine", &[4], 20.0, 40.0));
        assert!((step_s(&learnt) - 1.6).abs() < 1e-12, "{}", step_s(&learnt));
    }

    #[test]
    fn paces_that_cannot_be_are_not_learned() {
        let mut learnt = Learnt::default();
        for (done, at_s) in [(0.0, 0.0), (1e-310, 10.0), (1e300, 20.0)] {
            learnt.report("7", "mine", &[4], done, at_s);
        }
        assert!(!learnt.profile("mine").is_known());
    }

    #[test]
    fn everybodys_script_is_a_model_of_its_own() {
        assert_ne!(model_name("ada", "train.sh", None), model_name("bob", "train.sh", None));
        assert_eq!(model_name("ada", "train.sh", Some("bert")), "bert");
    }

    #[test]
    fn a_requeued_job_starts_its_reports_anew() {
        let mut learnt = Learnt::default();
        learnt.report("7", "mine", &[4], 10.0, 10.0);
        learnt.forget_run("7");
        assert_eq!(learnt.rate("7", 20.0, 1000.0), None);
        assert!(learnt.is_new("7", 20.0, 1000.0));
    }
}
