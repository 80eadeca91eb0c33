//! How long the server waits for its workers, and when it goes on without some of them.

use std::fmt;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use hither_core::Seconds;

/// No worker is late before this, whatever the factor: in rounds of a few milliseconds the scheduling of the
/// machine decides who is first.
const GRACE_S: Seconds = 0.1;
/// Silence after which a process counts as lost, unless another time is given.
const SILENT_S: Seconds = 10.0;
/// Longest pause between two looks for messages. MPI itself would spin, and take a core from the processes
/// that compute.
const PAUSE_MAX: Duration = Duration::from_millis(1);
const PAUSE_MIN: Duration = Duration::from_micros(10);

/// What the server does about workers that do not answer. The result of a run that goes on without some of
/// them depends on timing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Patience {
    pub straggler: Straggler,
    pub lost: Lost,
}

/// What happens to a worker that takes much longer than the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Straggler {
    /// All wait for it.
    #[default]
    Wait,
    /// The server waits so many times as long as for the median worker, then leaves it out of the round.
    Skip { factor: f64 },
}

/// What happens if nothing is heard of a process any more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Lost {
    /// The server waits for it; the launcher ends the job if it has died.
    #[default]
    Wait,
    /// After so many seconds of silence its workers are left out until it is heard again.
    Skip { silent_s: Seconds },
}

impl Straggler {
    /// Longest wait for the last of `asked` workers, once the fastest have taken these times, in ascending
    /// order; `None`: no limit is known yet.
    pub fn limit_s(self, asked: usize, taken_s: &[Seconds]) -> Option<Seconds> {
        let Self::Skip { factor } = self else { return None };
        let median_s = taken_s.get(asked.div_ceil(2).saturating_sub(1))?;
        Some((factor * median_s).max(GRACE_S))
    }
}

impl Lost {
    /// Silence after which a process is lost; `None`: never.
    pub fn silent_s(self) -> Option<Seconds> {
        match self {
            Self::Wait => None,
            Self::Skip { silent_s } => Some(silent_s),
        }
    }
}

impl FromStr for Straggler {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let factor = |text: &str| text.strip_prefix("skip:")?.parse::<f64>().ok();
        match factor(text) {
            _ if text == "wait" => Ok(Self::Wait),
            Some(factor) if (1.0..=1e6).contains(&factor) => Ok(Self::Skip { factor }),
            _ => Err("expected wait, or skip:FACTOR with a factor from 1, such as skip:3".into()),
        }
    }
}

impl FromStr for Lost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = |text: &str| text.strip_prefix("skip:")?.parse::<f64>().ok();
        match seconds(text) {
            _ if text == "wait" => Ok(Self::Wait),
            _ if text == "skip" => Ok(Self::Skip { silent_s: SILENT_S }),
            Some(silent_s) if (0.5..=86_400.0).contains(&silent_s) => Ok(Self::Skip { silent_s }),
            _ => Err("expected wait, skip, or skip:SECONDS with 0.5 to 86400 seconds".into()),
        }
    }
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wait => f.write_str("wait"),
            Self::Skip { factor } => write!(f, "skip:{factor}"),
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wait => f.write_str("wait"),
            Self::Skip { silent_s } => write!(f, "skip:{silent_s}"),
        }
    }
}

/// Pauses between looks for messages: short at first, longer the longer nothing comes.
pub(super) struct Pauses(Duration);

impl Pauses {
    pub fn new() -> Self {
        Self(PAUSE_MIN)
    }

    pub fn pause(&mut self) {
        thread::sleep(self.0);
        self.0 = (2 * self.0).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_sets_the_limit() {
        let skip = Straggler::Skip { factor: 3.0 };
        assert_eq!(skip.limit_s(4, &[1.0]), None);
        assert_eq!(skip.limit_s(4, &[1.0, 2.0]), Some(6.0));
        assert_eq!(skip.limit_s(5, &[1.0, 2.0]), None);
        assert_eq!(skip.limit_s(5, &[1.0, 2.0, 4.0]), Some(12.0));
        // One worker is its own median.
        assert_eq!(skip.limit_s(1, &[]), None);
        // Nobody is late within milliseconds.
        assert_eq!(skip.limit_s(2, &[0.001]), Some(GRACE_S));
        assert_eq!(Straggler::Wait.limit_s(2, &[1.0, 2.0]), None);
    }

    #[test]
    fn options_are_read_as_they_are_written() {
        for text in ["wait", "skip:3", "skip:1.5"] {
            assert_eq!(text.parse::<Straggler>().expect("an option").to_string(), text);
        }
        for text in ["wait", "skip:10", "skip:0.5"] {
            assert_eq!(text.parse::<Lost>().expect("an option").to_string(), text);
        }
        assert_eq!("skip".parse(), Ok(Lost::Skip { silent_s: SILENT_S }));
        for text in ["", "skip:", "skip:0.4", "skip:nan", "skip:-1", "waits"] {
            assert!(text.parse::<Straggler>().is_err() && text.parse::<Lost>().is_err(), "{text}");
        }
        assert!("skip".parse::<Straggler>().is_err());
    }
}
