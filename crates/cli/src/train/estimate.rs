//! How long a run still takes. Rounds differ in their steps, so the estimate rests on the time per
//! step. With `--server-steps auto` the server's steps follow from a budget: a share of the local
//! work, so its time per local step is what the rounds so far took.

use std::time::Duration;

use hither_core::record::train::Round;
use hither_gnn::correct::ServerSteps;
use hither_gnn::train::Settings;

/// The time that is left of a run, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeLeft {
    pub least_s: f64,
    pub most_s: f64,
}

/// The estimate after these rounds; none before the first.
pub fn left(settings: &Settings, rounds: &[Round]) -> Option<TimeLeft> {
    if rounds.is_empty() {
        return None;
    }
    let sum = |of: &dyn Fn(&Round) -> f64| rounds.iter().map(of).sum::<f64>();
    let per = |seconds: f64, units: f64| if units > 0.0 { seconds / units } else { 0.0 };
    let local_s = per(sum(&|r| r.time.local_s), sum(&|r| r.local_steps.into()));
    let (round_s, server_s) = server_cost(rounds);
    let evaluations = rounds.iter().filter(|round| round.test.is_some()).count() as f64;
    let evaluate_s = per(sum(&|r| r.time.evaluate_s), evaluations);
    let probes = rounds.iter().filter(|round| round.drift.is_some()).count() as f64;
    let probe_s = per(sum(&|r| r.time.probe_s), probes);

    let has_workers = rounds.iter().any(|round| round.local_steps > 0);
    let auto_s = per(sum(&|r| r.time.server_s), sum(&|r| r.local_steps.into()));
    let mut left = TimeLeft { least_s: 0.0, most_s: 0.0 };
    for round in rounds.len() as u32 + 1..=settings.rounds {
        let local = f64::from(settings.local_steps) * settings.rho.powi(round as i32 - 1);
        let steps_s = |steps: u32| round_s + f64::from(steps) * server_s;
        let mut seconds = match &settings.server_steps {
            _ if !settings.mode.corrects() => round_s,
            ServerSteps::Fixed(steps) => steps_s(*steps),
            ServerSteps::Like(taken) => {
                steps_s(taken.get(round as usize - 1).map_or(0, |(steps, _)| *steps))
            }
            ServerSteps::Auto => local * auto_s,
        };
        if has_workers {
            seconds += local * local_s;
        }
        if round.is_multiple_of(settings.evaluate_every) || round == settings.rounds {
            seconds += evaluate_s;
        }
        let is_probed = |every: u32| every > 0 && (round <= every || round.is_multiple_of(every));
        if probes > 0.0 && is_probed(settings.probe_every) {
            seconds += probe_s;
        }
        left.most_s += seconds;
    }
    left.least_s = if settings.patience.is_some() { 0.0 } else { left.most_s };
    Some(left)
}

/// Seconds of the server per round and per step: the line that fits the rounds best. Averaging and
/// judging take time in every round, however many steps follow.
fn server_cost(rounds: &[Round]) -> (f64, f64) {
    let n = rounds.len() as f64;
    let mean = |of: &dyn Fn(&Round) -> f64| rounds.iter().map(of).sum::<f64>() / n;
    let (steps, seconds) = (mean(&|r| r.server_steps.into()), mean(&|r| r.time.server_s));
    let variance = mean(&|r| (f64::from(r.server_steps) - steps).powi(2));
    let covariance = mean(&|r| (f64::from(r.server_steps) - steps) * (r.time.server_s - seconds));
    if steps == 0.0 {
        return (seconds, 0.0);
    }
    if variance == 0.0 {
        return (0.0, seconds / steps);
    }
    // Neither is negative, whatever the noise.
    let step_s = (covariance / variance).clamp(0.0, seconds / steps);
    (seconds - step_s * steps, step_s)
}

/// As people say it: `about 3 min`, `1 min to 3 min`, `at most 3 min`.
impl std::fmt::Display for TimeLeft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (least, most) = (shown(self.least_s), shown(self.most_s));
        match self.least_s {
            0.0 if self.most_s > 0.0 => write!(f, "at most {most}"),
            _ if least == most => write!(f, "about {most}"),
            _ => write!(f, "{least} to {most}"),
        }
    }
}

/// A duration with one unit: `40 s`, `12 min`, `3 h`.
pub fn shown(seconds: f64) -> String {
    match Duration::try_from_secs_f64(seconds.max(0.0)).map_or(u64::MAX, |time| time.as_secs()) {
        seconds @ 0..90 => format!("{} s", seconds.max(1)),
        seconds @ 90..5400 => format!("{} min", seconds.div_ceil(60)),
        seconds @ 5400..172_800 => format!("{} h", seconds.div_ceil(3600)),
        seconds => format!("{} days", seconds.div_ceil(86_400)),
    }
}

#[cfg(test)]
mod tests {
    use hither_core::record::train::{Bytes, CriticalPath, Machine, Times, Works};
    use hither_gnn::local::Pace;
    use hither_gnn::optim;
    use hither_gnn::sample::Fanout;
    use hither_gnn::schedule::Schedule;
    use hither_gnn::task::Task;
    use hither_gnn::train::Mode;
    use hither_gnn::update::Updates;

    use super::*;

    fn settings(server_steps: ServerSteps, rounds: u32) -> Settings {
        let pace = Pace { batch: None, fanout: Fanout::All, rate: 0.01, clip: None };
        Settings {
            task: Task::Nodes,
            mode: Mode::Llcg,
            rounds,
            local_steps: 10,
            rho: 1.0,
            local: pace.clone(),
            server: pace,
            schedule: Schedule::Constant,
            server_steps,
            server_share: 1.0,
            machine: Machine { sums_per_s: 1.0, products_per_s: 1.0, link_bytes_per_s: 1.0 },
            optimiser: optim::Method::Adam,
            decay: 0.0,
            evaluate_every: 1,
            probe_every: 0,
            patience: None,
            copies: 0.0,
            updates: Updates::Fp32,
            seed: 0,
        }
    }

    /// A local step takes 0.1 s, a server step 0.2 s, averaging 0.5 s, an evaluation 1 s.
    fn round(number: u32, server_steps: u32) -> Round {
        Round {
            round: number,
            local_steps: 10,
            kept: 1.0,
            server_steps,
            server_batch: None,
            loss: 1.0,
            valid: Some(0.5),
            test: Some(0.5),
            further: Default::default(),
            left_out: vec![],
            bytes: Bytes::default(),
            gain: None,
            drift: None,
            work: Works::default(),
            path: CriticalPath::default(),
            time: Times {
                local_s: 1.0,
                exposed_s: 0.0,
                server_s: 0.5 + 0.2 * f64::from(server_steps),
                probe_s: 0.0,
                evaluate_s: 1.0,
            },
        }
    }

    #[test]
    fn the_estimate_of_fixed_steps_is_right() {
        let settings = settings(ServerSteps::Fixed(5), 11);
        let left = left(&settings, &[round(1, 5)]).expect("an estimate");
        assert!((left.most_s - 10.0 * 3.5).abs() < 1e-9, "{left:?}");
        assert_eq!(left.to_string(), "about 35 s");
    }

    #[test]
    fn automatic_steps_take_the_time_that_they_took_so_far() {
        let settings = settings(ServerSteps::Auto, 12);
        let left = left(&settings, &[round(1, 0), round(2, 10)]).expect("an estimate");
        // Local steps and evaluation 2 s, the server 0.5 s and 2.5 s.
        assert!((left.most_s - 10.0 * 3.5).abs() < 1e-9, "{left:?}");
    }

    #[test]
    fn durations_have_one_unit() {
        let cases =
            [(0.2, "1 s"), (89.0, "89 s"), (100.0, "2 min"), (7200.0, "2 h"), (1e6, "12 days")];
        for (seconds, expected) in cases {
            assert_eq!(shown(seconds), expected);
        }
    }
}
