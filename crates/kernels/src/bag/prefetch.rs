//! What is fetched ahead of its use, and how the best way is found on a machine.
//!
//! A core can wait for only so many lines at once. Lines that are fetched into the first-level
//! cache queue in its few miss buffers (24 on Zen 4, 16 on Sapphire Rapids); a prefetch into the
//! second level leaves those at once and waits in the larger queue behind. Rows can therefore be
//! fetched twice: whole, far ahead, into the second level; and some of their lines, shortly before
//! use, into the first.
//!
//! Which way is best depends on the processor, the row and the ids, so it is measured
//! ([`search`]). Nanoseconds per row of 512 bytes on Zen 4 with 32 MB of shared L3, one thread, huge
//! pages, 8 tables of 500,000 rows, bags of 150 (hotness as in `hither bench bags`):
//!
//! | scheme                                   | one | high | medium | low  | random |
//! |------------------------------------------|-----|------|--------|------|--------|
//! | none                                     | 2.4 | 16.8 | 29.8   | 50.7 | 61.9   |
//! | L1, all lines, 8 rows ahead              | 3.1 | 11.7 | 23.5   | 45.2 | 60.1   |
//! | L1, all lines, 32 rows ahead             | 3.0 |  8.2 | 21.8   | 44.3 | 58.8   |
//! | L2, all lines, 32 rows ahead             | 3.0 |  9.4 | 18.4   | 29.6 | 31.1   |
//!
//! A Sapphire Rapids Xeon preferred 16 rows into L1 on random ids, 64 rows into L2 on medium ones and
//! 32 rows into L1 on hot ones, and lost 1.5 ns per int8 row with 256 rows into L2, which Zen 4 likes
//! best.

use std::fmt;
use std::str::FromStr;

/// No prefetch looks more rows ahead.
pub const ROWS_MAX: usize = 512;
/// No prefetch looks more bytes ahead: more than this would push rows out before their use.
pub const BYTES_MAX: usize = 1 << 20;

/// What is fetched ahead of its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prefetch {
    Off,
    Ahead {
        hint: Hint,
        /// How far ahead, in bytes of rows, so that wide and narrow rows fill the same share of a
        /// cache.
        bytes: usize,
    },
}

/// Where lines are fetched to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hint {
    /// The first-level cache.
    L1,
    /// The second-level cache, whole rows; their lines are then fetched into the first level
    /// shortly before use.
    L2,
}

impl Default for Prefetch {
    /// A middle course, for use without a measurement.
    fn default() -> Self {
        Self::Ahead { hint: Hint::L2, bytes: 32 << 10 }
    }
}

/// How many bags ahead the lines of the output are claimed for writing: where bags are short, as
/// many lines are written as read, and a store waits for its line like a load.
pub(super) const OUTPUT_BAGS: usize = 12;

/// Bytes of rows that lie between a second-level line's way into the first level and its use.
const NEAR_BYTES: usize = 4 << 10;
const NEAR_ROWS: std::ops::RangeInclusive<usize> = 2..=16;

impl Prefetch {
    /// Some ways of each kind, for tests and rough comparisons; [`search`] finds the best.
    pub const CANDIDATES: [Self; 4] = [
        Self::Off,
        Self::Ahead { hint: Hint::L1, bytes: 8 << 10 },
        Self::Ahead { hint: Hint::L2, bytes: 32 << 10 },
        Self::Ahead { hint: Hint::L2, bytes: 128 << 10 },
    ];

    /// How many rows of a size are looked ahead.
    pub(crate) fn rows_ahead(self, row_bytes: usize) -> usize {
        match self {
            Self::Off => 0,
            Self::Ahead { bytes, .. } => rows_of(bytes, row_bytes).clamp(1, ROWS_MAX),
        }
    }
}

/// How many rows ahead of their use lines of the second level are fetched into the first.
pub(crate) fn near_rows(row_bytes: usize) -> usize {
    rows_of(NEAR_BYTES, row_bytes).clamp(*NEAR_ROWS.start(), *NEAR_ROWS.end())
}

/// A row takes whole lines.
fn rows_of(bytes: usize, row_bytes: usize) -> usize {
    bytes / row_bytes.max(1).next_multiple_of(64)
}

/// Finds the fastest way to prefetch: the hint first, then the distance, then both again around the best.
/// `time` measures some ways, in turns, and returns the time of each. Of ways whose times are within
/// `margin` of the fastest, the simplest wins: noise must not choose among equals.
pub fn search<E>(
    margin: f64,
    mut time: impl FnMut(&[Prefetch]) -> Result<Vec<f64>, E>,
) -> Result<Prefetch, E> {
    const DISTANCES: [usize; 5] = [2 << 10, 8 << 10, 32 << 10, 128 << 10, 256 << 10];
    let ahead = |hint, bytes| Prefetch::Ahead { hint, bytes };
    let hints = [Hint::L1, Hint::L2];
    let mut pick = |mut ways: Vec<Prefetch>| -> Result<Prefetch, E> {
        ways.sort_by_key(|way| way.effort());
        ways.dedup();
        let times = time(&ways)?;
        let least = times.iter().copied().fold(f64::INFINITY, f64::min);
        let near = |ns: &f64| *ns <= least * (1.0 + margin);
        Ok(times.iter().position(near).map_or(Prefetch::Off, |at| ways[at]))
    };
    let mut ways = vec![Prefetch::Off];
    ways.extend(hints.map(|hint| ahead(hint, DISTANCES[1])));
    ways.push(ahead(Hint::L2, DISTANCES[2]));
    let mut best = pick(ways)?;
    if let Prefetch::Ahead { hint, .. } = best {
        best = pick(DISTANCES.map(|bytes| ahead(hint, bytes)).into())?;
    }
    let mut ways = vec![Prefetch::Off];
    if let Prefetch::Ahead { hint, bytes } = best {
        ways.extend([bytes / 2, bytes, bytes * 2].map(|bytes| ahead(hint, bytes)));
        ways.extend(hints.map(|hint| ahead(hint, bytes)));
    }
    pick(ways)
}

impl Prefetch {
    /// Orders ways to prefetch by what they cost beside time: instructions and room in caches.
    fn effort(self) -> (u8, usize) {
        match self {
            Self::Off => (0, 0),
            Self::Ahead { hint, bytes } => (1 + hint as u8, bytes),
        }
    }
}

impl Hint {
    fn name(self) -> &'static str {
        match self {
            Self::L1 => "l1",
            Self::L2 => "l2",
        }
    }
}

/// `off`, or `HINT:BYTES`, for example `l2:32K`.
impl fmt::Display for Prefetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Ahead { hint, bytes } = self else { return f.pad("off") };
        let bytes = match bytes % 1024 {
            0 => format!("{}K", bytes / 1024),
            _ => bytes.to_string(),
        };
        f.pad(&format!("{}:{bytes}", hint.name()))
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "unknown prefetch `{0}`: expected off or HINT:BYTES, with hint l1 or l2 and bytes from 64 to 1024K, for example l2:32K"
)]
pub struct UnknownPrefetch(String);

impl FromStr for Prefetch {
    type Err = UnknownPrefetch;

    fn from_str(text: &str) -> Result<Self, UnknownPrefetch> {
        let ahead = |hint: &str, bytes: &str| {
            let hint = [Hint::L1, Hint::L2].into_iter().find(|h| h.name() == hint)?;
            let bytes: usize = match bytes.strip_suffix('K') {
                Some(kilobytes) => kilobytes.parse::<usize>().ok()?.checked_mul(1024)?,
                None => bytes.parse().ok()?,
            };
            (64..=BYTES_MAX).contains(&bytes).then_some(Self::Ahead { hint, bytes })
        };
        let parts: Vec<&str> = text.split(':').collect();
        let parsed = match parts[..] {
            ["off"] => Some(Self::Off),
            [hint, bytes] => ahead(hint, bytes),
            _ => None,
        };
        parsed.ok_or_else(|| UnknownPrefetch(text.into()))
    }
}
