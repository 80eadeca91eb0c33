//! What a worker sends back of its model: all of it, or its change in fewer bytes.
//!
//! A compressed change is not exact. The worker keeps what was left out (error feedback) and adds it to its next
//! change, so that nothing is lost, only sent later. The server adds the change to the model that it had sent.
//! Nothing here depends on where the worker runs.

use std::fmt;
use std::str::FromStr;

use half::bf16;
use serde::{Deserialize, Serialize};

use crate::transport::wire::numbers;

/// How workers send what they have learnt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Updates {
    /// The model itself.
    #[default]
    Fp32,
    /// The change of every parameter, rounded to 16 bits.
    Bf16,
    /// The largest changes, as many as this share of the parameters, each with its number, rounded to 16 bits.
    TopK { share: f64 },
}

/// The change of a model's parameters, as it is sent. The bits of numbers are those of bf16.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    All(#[serde(with = "numbers")] Vec<u16>),
    /// Some parameters, by number, in ascending order.
    Some {
        #[serde(with = "numbers")]
        at: Vec<u32>,
        #[serde(with = "numbers")]
        by: Vec<u16>,
    },
}

impl Updates {
    /// Compresses the change from `start` to `learnt`; `None` if the model is sent as it is. `residual` is what
    /// earlier changes left out, 0 at first; it becomes what this one leaves out.
    pub fn compress(self, start: &[f32], learnt: &[f32], residual: &mut [f32]) -> Option<Change> {
        if self == Self::Fp32 {
            return None;
        }
        for ((left, start), learnt) in residual.iter_mut().zip(start).zip(learnt) {
            *left += learnt - start;
        }
        let take = |left: &mut f32| {
            let sent = bf16::from_f32(*left);
            *left -= sent.to_f32();
            sent.to_bits()
        };
        Some(match self {
            Self::TopK { share } => {
                let at = largest(residual, share);
                let by = at.iter().map(|at| take(&mut residual[*at as usize])).collect();
                Change::Some { at, by }
            }
            _ => Change::All(residual.iter_mut().map(take).collect()),
        })
    }

    /// Bytes of a model's update with so many parameters and statistics. Statistics are few, and sent whole.
    pub fn bytes(self, params: usize, stats: usize) -> u64 {
        let params_bytes = match self {
            Self::Fp32 => 4 * params,
            Self::Bf16 => 2 * params,
            Self::TopK { share } => 6 * count(params, share),
        };
        (params_bytes + 4 * stats) as u64
    }
}

/// How many of so many parameters a share is: at least one.
fn count(params: usize, share: f64) -> usize {
    ((params as f64 * share).ceil() as usize).clamp(1, params.max(1)).min(params)
}

/// The numbers of the largest values, in ascending order. Of equal ones the first are taken.
fn largest(values: &[f32], share: f64) -> Vec<u32> {
    let count = count(values.len(), share);
    let mut at: Vec<u32> = (0..values.len() as u32).collect();
    if count < at.len() {
        let size = |at: u32| values[at as usize].abs();
        // A change that is not finite counts as largest: it is sent, and the server notices.
        at.select_nth_unstable_by(count, |a, b| size(*b).total_cmp(&size(*a)).then(a.cmp(b)));
        at.truncate(count);
        at.sort_unstable();
    }
    at
}

impl Change {
    /// Whether it is of a model with so many parameters.
    pub fn fits(&self, params: usize) -> bool {
        match self {
            Self::All(by) => by.len() == params,
            Self::Some { at, by } => {
                let is_inside = at.last().is_none_or(|last| (*last as usize) < params);
                at.len() == by.len() && at.is_sorted() && is_inside
            }
        }
    }

    /// The parameters that it leads to. It must fit them.
    pub fn apply(&self, start: &[f32]) -> Vec<f32> {
        let mut params = start.to_vec();
        let mut add = |at: usize, by: u16| params[at] += bf16::from_bits(by).to_f32();
        match self {
            Self::All(by) => by.iter().enumerate().for_each(|(at, by)| add(at, *by)),
            Self::Some { at, by } => at.iter().zip(by).for_each(|(at, by)| add(*at as usize, *by)),
        }
        params
    }
}

impl FromStr for Updates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = |text: &str| text.strip_prefix("top-k:")?.parse::<f64>().ok();
        match text {
            "fp32" => Ok(Self::Fp32),
            "bf16" => Ok(Self::Bf16),
            _ => match share(text) {
                Some(share) if share > 0.0 && share <= 1.0 => Ok(Self::TopK { share }),
                _ => Err("expected fp32, bf16, or top-k:SHARE, such as top-k:0.05".into()),
            },
        }
    }
}

impl fmt::Display for Updates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fp32 => f.write_str("fp32"),
            Self::Bf16 => f.write_str("bf16"),
            Self::TopK { share } => write!(f, "top-k:{share}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn updates() -> impl Strategy<Value = Updates> {
        prop_oneof![Just(Updates::Bf16), (0.001..=1.0).prop_map(|share| Updates::TopK { share })]
    }

    /// A start and where some steps led, of the same length.
    fn models() -> impl Strategy<Value = (Vec<f32>, Vec<f32>)> {
        vec((-1e3_f32..1e3, -1e3_f32..1e3), 1..60).prop_map(|both| both.into_iter().unzip())
    }

    proptest! {
        #[test]
        fn what_is_not_sent_is_kept(updates in updates(), (start, learnt) in models()) {
            let mut residual = vec![0.0; start.len()];
            let change = updates.compress(&start, &learnt, &mut residual).expect("compressed");
            prop_assert!(change.fits(start.len()));
            let sent = change.apply(&vec![0.0; start.len()]);
            for (at, sent) in sent.iter().enumerate() {
                // Exact: a float minus its rounding to bf16 is a float.
                prop_assert_eq!(sent + residual[at], learnt[at] - start[at]);
            }
            let entries = match &change {
                Change::All(by) => 2 * by.len(),
                Change::Some { at, by } => 4 * at.len() + 2 * by.len(),
            };
            prop_assert_eq!(updates.bytes(start.len(), 0), entries as u64);
        }

        /// The plain reference: sort all by size, then by number.
        #[test]
        fn the_largest_are_taken(values in vec(-3_i8..=3, 1..50), share in 0.001..=1.0) {
            let values: Vec<f32> = values.into_iter().map(f32::from).collect();
            let mut all: Vec<u32> = (0..values.len() as u32).collect();
            all.sort_by(|a, b| {
                values[*b as usize].abs().total_cmp(&values[*a as usize].abs()).then(a.cmp(b))
            });
            all.truncate(count(values.len(), share));
            all.sort_unstable();
            prop_assert_eq!(largest(&values, share), all);
        }
    }

    #[test]
    fn what_was_left_out_is_sent_later() {
        let updates = Updates::TopK { share: 0.5 };
        let mut residual = [0.0; 2];
        let first = updates.compress(&[0.0, 0.0], &[1.0, 0.75], &mut residual);
        assert_eq!(first.expect("a change").apply(&[0.0, 0.0]), [1.0, 0.0]);
        let second = updates.compress(&[0.0, 0.0], &[0.5, 0.0], &mut residual);
        assert_eq!(second.expect("a change").apply(&[0.0, 0.0]), [0.0, 0.75]);
        assert_eq!(residual, [0.5, 0.0]);
    }

    #[test]
    fn a_change_of_another_model_does_not_fit() {
        assert!(!Change::All(vec![0; 3]).fits(2));
        assert!(!Change::Some { at: vec![2], by: vec![0] }.fits(2));
        assert!(!Change::Some { at: vec![0, 1], by: vec![0] }.fits(2));
        assert!(!Change::Some { at: vec![1, 0], by: vec![0, 0] }.fits(2));
    }

    #[test]
    fn forms_are_read_as_they_are_written() {
        for text in ["fp32", "bf16", "top-k:0.05", "top-k:1"] {
            assert_eq!(text.parse::<Updates>().expect("a form").to_string(), text);
        }
        for text in ["", "fp16", "top-k", "top-k:0", "top-k:1.5", "top-k:nan"] {
            assert!(text.parse::<Updates>().is_err(), "{text}");
        }
    }
}
