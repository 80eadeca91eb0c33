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
    /// The passes with this number compete: only the fastest of them matters.
    contest: Option<usize>,
    /// Nanoseconds per lookup.
    pub ns: f64,
}

/// Many short rounds instead of few long ones: some of them will have the machine to themselves.
pub const ROUNDS_MIN: usize = 7;
const ROUNDS_MAX: usize = 50;
/// Rounds after which the first passes leave their contests, and how much slower these are than the fastest.
const LOSING_ROUNDS: usize = 2;
const LOSING: f64 = 1.2;

impl<'a> Timed<'a> {
    pub fn new(lookups: usize, pass: Pass<'a>) -> Self {
        Self { pass, lookups, contest: None, ns: f64::INFINITY }
    }

    /// Lets the pass compete with all others of the same number. Once it is clearly slower than the
    /// fastest of them it is timed no more, and the time goes to those that may still win.
    pub fn competing(self, contest: usize) -> Self {
        Self { contest: Some(contest), ..self }
    }

    /// The pass alone.
    pub fn into_pass(self) -> Pass<'a> {
        self.pass
    }

    fn once(&mut self) -> Result<(), Error> {
        let begin = Instant::now();
        (self.pass)()?;
        let ns = begin.elapsed().as_secs_f64() * 1e9 / self.lookups.max(1) as f64;
        self.ns = self.ns.min(ns);
        // A model may be served on the same core meanwhile.
        std::thread::yield_now();
        Ok(())
    }
}

/// Times all passes in turns for about so long.
pub fn interleave(runs: &mut [Timed], seconds: f64) -> Result<(), Error> {
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
        let is_timed = contenders(runs, round);
        for (run, _) in runs.iter_mut().zip(&is_timed).filter(|(_, is_timed)| **is_timed) {
            run.once()?;
        }
    }
    Ok(())
}

/// Whether each pass still matters in a round.
fn contenders(runs: &[Timed], round: usize) -> Vec<bool> {
    let fastest = |contest: usize| {
        let rivals = runs.iter().filter(|run| run.contest == Some(contest));
        rivals.map(|run| run.ns).fold(f64::INFINITY, f64::min)
    };
    let is_lost =
        |run: &Timed| run.contest.is_some_and(|contest| run.ns > fastest(contest) * LOSING);
    runs.iter().map(|run| round <= LOSING_ROUNDS || !is_lost(run)).collect()
}
