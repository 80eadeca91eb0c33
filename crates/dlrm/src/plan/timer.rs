//! Times passes against each other, in turns. It knows nothing of what a pass does or where it runs.
//!
//! The smallest time of each pass counts: other work on the machine only ever makes a pass slower.

use std::time::{Duration, Instant};

use crate::Error;

/// Something that is done again and again.
pub type Pass<'a> = Box<dyn FnMut() -> Result<(), Error> + 'a>;

/// A pass, and its smallest time so far.
pub struct Timed<'a> {
    pass: Pass<'a>,
    /// What the time is divided by.
    lookups: usize,
    /// Whether an untimed pass precedes each timed one, so that the caches hold what they can.
    is_warm: bool,
    /// Nanoseconds per lookup.
    pub ns: f64,
}

/// Many short rounds instead of few long ones: some of them will have the machine to themselves.
pub const ROUNDS_MIN: usize = 7;
const ROUNDS_MAX: usize = 50;

impl<'a> Timed<'a> {
    pub fn new(lookups: usize, pass: Pass<'a>) -> Self {
        Self { pass, lookups, is_warm: false, ns: f64::INFINITY }
    }

    pub fn warm(self) -> Self {
        Self { is_warm: true, ..self }
    }

    /// The pass alone.
    pub fn into_pass(self) -> Pass<'a> {
        self.pass
    }

    fn once(&mut self) -> Result<(), Error> {
        if self.is_warm {
            (self.pass)()?;
        }
        let begin = Instant::now();
        (self.pass)()?;
        let ns = begin.elapsed().as_secs_f64() * 1e9 / self.lookups.max(1) as f64;
        self.ns = self.ns.min(ns);
        Ok(())
    }
}

/// Times all passes in turns for about so long. What a pass finds in the caches depends on the passes
/// before it: neighbours are taken `apart` passes from each other, so that none finds its rows where
/// its neighbour left them.
pub fn interleave(runs: &mut [Timed], apart: usize, seconds: f64) -> Result<(), Error> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let latest = end + Duration::from_secs_f64(seconds);
    // The first round only brings everything into memory.
    for round in 0..=ROUNDS_MAX {
        let now = Instant::now();
        if round > ROUNDS_MIN && now >= end || round > 1 && now >= latest {
            break;
        }
        if round == 1 {
            runs.iter_mut().for_each(|run| run.ns = f64::INFINITY);
        }
        for first in 0..apart {
            for run in runs.iter_mut().skip(first).step_by(apart) {
                run.once()?;
            }
        }
    }
    Ok(())
}
