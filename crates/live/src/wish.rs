//! What a user writes into a job's comment: `hither: model=bert iterations=40000 signal=USR1`, and
//! the progress that the job itself reports there.

use std::fmt;

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

const MARK: &str = "hither:";
/// A job with a longer time to write its checkpoint would block its successors for too long.
const GRACE_S_MAX: Seconds = 3600.0;

/// Figures that a user may name; others are mistakes, and would make nonsense of what is computed from them.
const FIGURES: std::ops::RangeInclusive<f64> = 1e-6..=1e15;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Wish {
    /// Name of a profile in the library.
    pub model: Option<String>,
    /// Length of the job.
    pub iterations: Option<f64>,
    /// Sent before the job is requeued; `None`: nothing but what the engine itself sends.
    pub signal: Option<String>,
    /// Time between the signal and the requeue.
    pub grace_s: Option<Seconds>,
    /// Iterations done, as the job reported.
    pub done: Option<f64>,
    /// Iterations in the last checkpoint, as the job reported.
    pub saved: Option<f64>,
    /// Unix time of the report.
    pub at_s: Option<Seconds>,
    /// The user holds the job. An engine may show no difference between a job that its user submitted held and
    /// one that is held again.
    pub hold: bool,
    /// Words that nobody understands.
    pub unknown: Vec<String>,
}

impl Wish {
    pub fn parse(comment: &str) -> Self {
        let mut wish = Self::default();
        let Some((_, words)) = comment.split_once(MARK) else { return wish };
        for word in words.split([' ', '\t', '\n', ',', ';']).filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let number = || value.parse::<f64>().ok().filter(|n| *n == 0.0 || FIGURES.contains(n));
            let is_known = match key {
                "model" => set(&mut wish.model, Some(value.to_owned()).filter(|v| !v.is_empty())),
                "iterations" => set(&mut wish.iterations, number().filter(|n| *n > 0.0)),
                "signal" => set(&mut wish.signal, signal(value)),
                "grace" => set(&mut wish.grace_s, number().map(|s| s.min(GRACE_S_MAX))),
                "done" => set(&mut wish.done, number()),
                "saved" => set(&mut wish.saved, number()),
                "at" => set(&mut wish.at_s, number()),
                "hold" => {
                    wish.hold = true;
                    true
                }
                _ => false,
            };
            if !is_known {
                wish.unknown.push(word.chars().take(60).collect());
            }
        }
        wish
    }

    /// The comment with these words in the place of what it said to Hither; the rest stays.
    pub fn rewrite(&self, comment: &str) -> String {
        let before = comment.split_once(MARK).map_or(comment, |(before, _)| before).trim_end();
        let blank = if before.is_empty() { "" } else { " " };
        format!("{before}{blank}{self}")
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MARK)?;
        let words = [("model", &self.model), ("signal", &self.signal)];
        for (key, value) in words {
            if let Some(value) = value {
                write!(f, " {key}={value}")?;
            }
        }
        let numbers = [
            ("iterations", self.iterations),
            ("grace", self.grace_s),
            ("done", self.done),
            ("saved", self.saved),
            ("at", self.at_s),
        ];
        for (key, value) in numbers {
            if let Some(value) = value {
                write!(f, " {key}={value}")?;
            }
        }
        if self.hold {
            write!(f, " hold")?;
        }
        self.unknown.iter().try_for_each(|word| write!(f, " {word}"))
    }
}

fn set<T>(field: &mut Option<T>, value: Option<T>) -> bool {
    let is_valid = value.is_some();
    *field = value.or(field.take());
    is_valid
}

/// A signal's name or number, as `kill` takes it.
fn signal(text: &str) -> Option<String> {
    let fits = (1..=12).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric());
    fits.then(|| text.to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_hither_are_found_in_any_comment() {
        let wish = Wish::parse("night run; hither: model=bert iterations=4e4 signal=usr1 grace=30");
        assert_eq!(wish.model.as_deref(), Some("bert"));
        assert_eq!(wish.iterations, Some(40_000.0));
        assert_eq!((wish.signal.as_deref(), wish.grace_s), (Some("USR1"), Some(30.0)));
        assert_eq!(Wish::parse("model=bert"), Wish::default());
    }

    #[test]
    fn bad_words_are_kept_apart() {
        let wish = Wish::parse(
            "hither: iterations=-3 signal=$(rm) speed=9 done=nan model= at=1e300 saved=1e-310",
        );
        assert_eq!(
            wish.unknown,
            [
                "iterations=-3",
                "signal=$(rm)",
                "speed=9",
                "done=nan",
                "model=",
                "at=1e300",
                "saved=1e-310"
            ]
        );
        assert!(Wish::parse("hither: hold").hold);
        assert_eq!(Wish { unknown: Vec::new(), ..wish }, Wish::default());
    }

    #[test]
    fn progress_is_written_beside_what_was_there() {
        let comment = "night run hither: model=bert colour=red";
        let wish = Wish { done: Some(12.0), at_s: Some(1.5), ..Wish::parse(comment) };
        let again = wish.rewrite(comment);
        assert_eq!(again, "night run hither: model=bert done=12 at=1.5 colour=red");
        assert_eq!(Wish::parse(&again), wish);
    }
}
