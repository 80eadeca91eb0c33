//! Learning rates that change over a run. They follow from the round alone, so that a resumed run goes on as
//! if it had never stopped.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How the learning rates of workers and server change from round to round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    #[default]
    Constant,
    /// Half a cosine, from the full rate in the first round to nearly 0 in the last.
    Cosine,
    /// A straight line, from the full rate in the first round to nearly 0 in the last.
    Linear,
    /// Times `factor` after every `rounds` rounds.
    Step { rounds: u32, factor: f32 },
}

impl Schedule {
    /// The share of the learning rate in a round, counted from 1, of a run of so many.
    pub fn factor(self, round: u32, rounds: u32) -> f32 {
        // Rounds after the last, which a lengthened run may have, keep its rate.
        let done = f64::from(round.min(rounds).saturating_sub(1)) / f64::from(rounds.max(1));
        let factor = match self {
            Self::Constant => 1.0,
            Self::Cosine => (1.0 + (std::f64::consts::PI * done).cos()) / 2.0,
            Self::Linear => 1.0 - done,
            Self::Step { rounds, factor } => {
                f64::from(factor).powi((round.saturating_sub(1) / rounds.max(1)) as i32)
            }
        };
        factor as f32
    }

    /// Whether the length of the run changes what a round does.
    pub fn depends_on_length(self) -> bool {
        matches!(self, Self::Cosine | Self::Linear)
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let step = |text: &str| {
            let (rounds, factor) = text.strip_prefix("step:")?.split_once(',')?;
            let (rounds, factor) = (rounds.parse().ok()?, factor.parse().ok()?);
            let is_possible = rounds > 0 && 0.0 < factor && factor <= 1.0;
            is_possible.then_some(Self::Step { rounds, factor })
        };
        match text {
            "constant" => Ok(Self::Constant),
            "cosine" => Ok(Self::Cosine),
            "linear" => Ok(Self::Linear),
            _ => step(text).ok_or_else(|| {
                "expected constant, cosine, linear, or step:N,F, such as step:20,0.5".into()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Schedule;

    #[test]
    fn rates_fall_as_their_names_say() {
        let factors = |schedule: &str, rounds: [u32; 3]| {
            let schedule: Schedule = schedule.parse().expect("a schedule");
            rounds.map(|round| schedule.factor(round, 10))
        };
        assert_eq!(factors("constant", [1, 5, 10]), [1.0, 1.0, 1.0]);
        assert_eq!(factors("linear", [1, 6, 11]), [1.0, 0.5, 0.1]);
        assert_eq!(factors("cosine", [1, 6, 1]), [1.0, 0.5, 1.0]);
        assert!(factors("cosine", [10, 1, 1])[0] > 0.0);
        assert_eq!(factors("step:3,0.5", [3, 4, 7]), [1.0, 0.5, 0.25]);
    }

    #[test]
    fn impossible_schedules_are_refused() {
        for text in ["", "step", "step:0,0.5", "step:3,0", "step:3,2", "step:3", "step:3,nan"] {
            assert!(text.parse::<Schedule>().is_err(), "{text}");
        }
    }
}
