//! The whole prefetch policy, and the numbers behind it.
//!
//! A core can wait for only so many lines at once. Lines that are fetched into the first-level
//! cache queue in its few miss buffers (24 on Zen 4, 16 on Sapphire Rapids); a prefetch into the
//! second level leaves those at once and waits in the larger queue behind. Rows are therefore
//! fetched twice: whole, far ahead, into the second level; and their first line, shortly before
//! use, into the first, from where the hardware's own stream prefetch takes over.
//!
//! Nanoseconds a row of 512 bytes, Zen 4 with 32 MB of shared L3, one thread, huge pages, 8 tables
//! of 500,000 rows, bags of 150 (hotness as in `hither bench bags`):
//!
//! | scheme                                   | one | high | medium | low  | random |
//! |------------------------------------------|-----|------|--------|------|--------|
//! | none                                     | 2.4 | 16.8 | 29.8   | 50.7 | 61.9   |
//! | L1, 2 lines, 16 rows ahead               | 2.6 | 10.8 | 22.6   | 45.4 | 60.9   |
//! | L1, all lines, 8 rows ahead              | 3.1 | 11.7 | 23.5   | 45.2 | 60.1   |
//! | L1, all lines, 32 rows ahead             | 3.0 |  8.2 | 21.8   | 44.3 | 58.8   |
//! | L2, all lines, 32 rows ahead             | 3.0 |  9.4 | 18.4   | 29.6 | 31.1   |
//! | L2, all lines, 64 ahead + L1, first, 8   | 3.1 |  8.6 | 18.2   | 29.3 | 31.8   |
//!
//! The last is within 4 % of the best for every hotness but rows that never leave the first level,
//! and there `none` is right. Those were lists of 77,000 addresses. Calls are resolved in items of
//! 1,024 rows, and there a greater distance wins: the first 256 rows of an item are asked for in
//! one burst, which memory likes better than requests that come one by one between loads. The same
//! machine, other rounds:
//!
//! | whole rows into L2, so far ahead         | high | medium | random |
//! |------------------------------------------|------|--------|--------|
//! | 32                                       | 11.6 | 18.7   | 41.8   |
//! | 64                                       |  9.8 | 19.3   | 36.2   |
//! | 128                                      |  9.6 | 16.7   | 32.5   |
//! | 256                                      |  9.7 | 16.1   | 27.7   |

use std::fmt;
use std::str::FromStr;

/// No prefetch looks further ahead.
pub const DISTANCE_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prefetch {
    Off,
    /// The first `lines` lines of the row that is `distance` rows ahead, into the first level.
    Near {
        distance: usize,
        lines: usize,
    },
    /// The whole row that is `distance` rows ahead, into the second level; and the first line of
    /// the row [`FAR_NEAR`] ahead into the first.
    Far {
        distance: usize,
    },
}

/// How many bags ahead the lines of the output are called, to be written: where bags are short, as
/// many lines are written as read, and a store waits for its line like a load. Takes 6 % off one-hot
/// lookups of medium hotness, and nothing from others.
pub const OUTPUT_BAGS: usize = 12;

/// How far ahead of its use a row that waits in the second level is called to the first.
pub const FAR_NEAR: usize = 8;

impl Default for Prefetch {
    fn default() -> Self {
        Self::Far { distance: 256 }
    }
}

impl Prefetch {
    /// What a plan tries on a machine, simplest first.
    pub const CANDIDATES: [Self; 5] = [
        Self::Off,
        Self::Near { distance: 16, lines: 2 },
        Self::Near { distance: 32, lines: usize::MAX },
        Self::Far { distance: 64 },
        Self::Far { distance: 256 },
    ];

    pub fn distance(self) -> usize {
        match self {
            Self::Off => 0,
            Self::Near { distance, .. } | Self::Far { distance } => distance.min(DISTANCE_MAX),
        }
    }
}

/// `off`, `near:DISTANCE:LINES` (`all` for all lines) or `far:DISTANCE`.
impl fmt::Display for Prefetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.pad("off"),
            Self::Near { distance, lines: usize::MAX } => f.pad(&format!("near:{distance}:all")),
            Self::Near { distance, lines } => f.pad(&format!("near:{distance}:{lines}")),
            Self::Far { distance } => f.pad(&format!("far:{distance}")),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "unknown prefetch `{0}`: expected off, far:ROWS, or near:ROWS:LINES, with rows from 1 to 256 and lines from 1 or `all`"
)]
pub struct UnknownPrefetch(String);

impl FromStr for Prefetch {
    type Err = UnknownPrefetch;

    fn from_str(text: &str) -> Result<Self, UnknownPrefetch> {
        let number = |part: &str| part.parse().ok().filter(|n| (1..=DISTANCE_MAX).contains(n));
        let parts: Vec<&str> = text.split(':').collect();
        let parsed = match parts[..] {
            ["off"] => Some(Self::Off),
            ["far", distance] => number(distance).map(|distance| Self::Far { distance }),
            ["near", distance, "all"] => {
                number(distance).map(|distance| Self::Near { distance, lines: usize::MAX })
            }
            ["near", distance, lines] => number(distance)
                .zip(number(lines))
                .map(|(distance, lines)| Self::Near { distance, lines }),
            _ => None,
        };
        parsed.ok_or_else(|| UnknownPrefetch(text.into()))
    }
}
