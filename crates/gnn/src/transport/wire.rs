//! Orders and answers as bytes, for workers in other processes.
//!
//! Numbers are little-endian and floats keep their bits, so that a run over processes ends with the
//! same bytes as one over threads. A message is a kind, then the fields in the order below; vectors
//! carry their length. This module does no I/O: a transport sends what it writes, one message at a
//! time, and whatever arrives is checked before it is used.

use hither_core::record::train::{Bytes, Work};

use super::{Answer, Order};
use crate::drift::Probed;
use crate::local::Learnt;
use crate::model::Weights;
use crate::remote::HiddenSums;

/// What the server asks of a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Learn; the fields of an [`Order`], and of its sums the worker's own.
    Learn { round: u32, steps: u32, probe: bool, start: Weights, sums: Option<HiddenSums> },
    /// Write the state after `round` to the worker's file in `folder`.
    Save { folder: String, run: String, round: u32 },
    /// Read that state back.
    Restore { folder: String, run: String, round: u32 },
    /// The run has ended.
    Stop,
}

/// What a worker replies.
#[derive(Debug)]
pub enum Reply {
    Learnt(Answer),
    /// The state is written, or read back.
    Done,
    /// The worker cannot go on; the text says why.
    Failed(String),
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("the message ends before its last field")]
    Short,
    #[error("{0} bytes follow the message")]
    Long(usize),
    #[error("no message has kind {0}")]
    Kind(u8),
    #[error("a text is not UTF-8, or a flag neither 0 nor 1")]
    Value,
}

const LEARN: u8 = 1;
const SAVE: u8 = 2;
const RESTORE: u8 = 3;
const STOP: u8 = 4;
const LEARNT: u8 = 5;
const DONE: u8 = 6;
const FAILED: u8 = 7;

/// The order to the worker of a part, as bytes. [`Request::read`] gives [`Request::Learn`] back.
pub fn write_order(order: &Order, part: usize) -> Vec<u8> {
    let Order { round, steps, probe, start, sums } = *order;
    write_learn(round, steps, probe, start, sums.map(|sums| &sums[part]))
}

fn write_learn(
    round: u32,
    steps: u32,
    probe: bool,
    start: &Weights,
    sums: Option<&HiddenSums>,
) -> Vec<u8> {
    let mut out = Writer(vec![LEARN]);
    out.u32(round);
    out.u32(steps);
    out.flag(probe);
    out.weights(start);
    out.flag(sums.is_some());
    if let Some(layers) = sums {
        out.u32(layers.len() as u32);
        layers.iter().for_each(|layer| out.floats(layer));
    }
    out.0
}

impl Request {
    pub fn write(&self) -> Vec<u8> {
        let state = |kind: u8, folder: &str, run: &str, round: u32| {
            let mut out = Writer(vec![kind]);
            out.text(folder);
            out.text(run);
            out.u32(round);
            out.0
        };
        match self {
            Self::Learn { round, steps, probe, start, sums } => {
                write_learn(*round, *steps, *probe, start, sums.as_ref())
            }
            Self::Save { folder, run, round } => state(SAVE, folder, run, *round),
            Self::Restore { folder, run, round } => state(RESTORE, folder, run, *round),
            Self::Stop => vec![STOP],
        }
    }

    pub fn read(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader(bytes);
        let request = match from.u8()? {
            LEARN => Self::Learn {
                round: from.u32()?,
                steps: from.u32()?,
                probe: from.flag()?,
                start: from.weights()?,
                sums: from.sums()?,
            },
            SAVE => Self::Save { folder: from.text()?, run: from.text()?, round: from.u32()? },
            RESTORE => {
                Self::Restore { folder: from.text()?, run: from.text()?, round: from.u32()? }
            }
            STOP => Self::Stop,
            kind => return Err(WireError::Kind(kind)),
        };
        from.end()?;
        Ok(request)
    }
}

impl Reply {
    pub fn write(&self) -> Vec<u8> {
        match self {
            Self::Learnt(answer) => write_answer(answer),
            Self::Done => vec![DONE],
            Self::Failed(why) => {
                let mut out = Writer(vec![FAILED]);
                out.text(why);
                out.0
            }
        }
    }

    pub fn read(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader(bytes);
        let reply = match from.u8()? {
            LEARNT => Self::Learnt(read_answer(&mut from)?),
            DONE => Self::Done,
            FAILED => Self::Failed(from.text()?),
            kind => return Err(WireError::Kind(kind)),
        };
        from.end()?;
        Ok(reply)
    }
}

fn write_answer(answer: &Answer) -> Vec<u8> {
    let Answer { part, learnt, probed } = answer;
    let Learnt { weights, steps, loss, gradient_squared, bytes, work } = learnt;
    let mut out = Writer(vec![LEARNT]);
    out.u64(*part as u64);
    out.weights(weights);
    out.u32(*steps);
    out.f64(*loss);
    out.f64(*gradient_squared);
    let Bytes { model_down_bytes, model_up_bytes, features_down_bytes, requests_up_bytes } = bytes;
    for count in [model_down_bytes, model_up_bytes, features_down_bytes, requests_up_bytes] {
        out.u64(*count);
    }
    out.work(work);
    out.flag(probed.is_some());
    if let Some(Probed { gradients, bias_squared, work }) = probed {
        gradients.iter().for_each(|half| out.floats(half));
        out.f64(*bias_squared);
        out.work(work);
    }
    out.0
}

fn read_answer(from: &mut Reader) -> Result<Answer, WireError> {
    let part = from.u64()? as usize;
    let learnt = Learnt {
        weights: from.weights()?,
        steps: from.u32()?,
        loss: from.f64()?,
        gradient_squared: from.f64()?,
        bytes: Bytes {
            model_down_bytes: from.u64()?,
            model_up_bytes: from.u64()?,
            features_down_bytes: from.u64()?,
            requests_up_bytes: from.u64()?,
        },
        work: from.work()?,
    };
    let mut probed = None;
    if from.flag()? {
        probed = Some(Probed {
            gradients: [from.floats()?, from.floats()?],
            bias_squared: from.f64()?,
            work: from.work()?,
        });
    }
    Ok(Answer { part, learnt, probed })
}

/// Appends fields to a message.
struct Writer(Vec<u8>);

impl Writer {
    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn f64(&mut self, value: f64) {
        self.u64(value.to_bits());
    }

    fn flag(&mut self, value: bool) {
        self.0.push(value.into());
    }

    fn text(&mut self, text: &str) {
        self.u64(text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    fn floats(&mut self, values: &[f32]) {
        self.u64(values.len() as u64);
        self.0.reserve(size_of_val(values));
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn weights(&mut self, weights: &Weights) {
        self.floats(&weights.params);
        self.floats(&weights.stats);
    }

    fn work(&mut self, work: &Work) {
        self.u64(work.sums);
        self.u64(work.products);
    }
}

/// Takes fields off the front of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8], WireError> {
        let count = usize::try_from(count).map_err(|_| WireError::Short)?;
        let (field, rest) = self.0.split_at_checked(count).ok_or(WireError::Short)?;
        self.0 = rest;
        Ok(field)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        self.take(N as u64)?.try_into().map_err(|_| WireError::Short)
    }

    fn u8(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    fn f64(&mut self) -> Result<f64, WireError> {
        self.u64().map(f64::from_bits)
    }

    fn flag(&mut self) -> Result<bool, WireError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Value),
        }
    }

    fn text(&mut self) -> Result<String, WireError> {
        let len = self.u64()?;
        let text = std::str::from_utf8(self.take(len)?).map_err(|_| WireError::Value)?;
        Ok(text.to_owned())
    }

    /// Reserves only what the message holds, whatever length it states.
    fn floats(&mut self) -> Result<Vec<f32>, WireError> {
        let len = self.u64()?.checked_mul(4).ok_or(WireError::Short)?;
        let float = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Ok(self.take(len)?.chunks_exact(4).map(float).collect())
    }

    fn weights(&mut self) -> Result<Weights, WireError> {
        Ok(Weights { params: self.floats()?, stats: self.floats()? })
    }

    fn sums(&mut self) -> Result<Option<HiddenSums>, WireError> {
        if !self.flag()? {
            return Ok(None);
        }
        let layers = self.u32()?;
        (0..layers).map(|_| self.floats()).collect::<Result<_, _>>().map(Some)
    }

    fn work(&mut self) -> Result<Work, WireError> {
        Ok(Work { sums: self.u64()?, products: self.u64()? })
    }

    fn end(&self) -> Result<(), WireError> {
        if self.0.is_empty() { Ok(()) } else { Err(WireError::Long(self.0.len())) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Any bits: a model that diverged arrives as it was sent.
    fn floats() -> impl Strategy<Value = Vec<f32>> {
        vec(any::<u32>().prop_map(f32::from_bits), 0..40)
    }

    fn weights() -> impl Strategy<Value = Weights> {
        (floats(), floats()).prop_map(|(params, stats)| Weights { params, stats })
    }

    fn work() -> impl Strategy<Value = Work> {
        any::<[u64; 2]>().prop_map(|[sums, products]| Work { sums, products })
    }

    fn request() -> impl Strategy<Value = Request> {
        let sums = proptest::option::of(vec(floats(), 0..3));
        let learn = (any::<[u32; 2]>(), any::<bool>(), weights(), sums);
        let state = || (".{0,9}", ".{0,9}", any::<u32>());
        prop_oneof![
            learn.prop_map(|([round, steps], probe, start, sums)| {
                Request::Learn { round, steps, probe, start, sums }
            }),
            state().prop_map(|(folder, run, round)| Request::Save { folder, run, round }),
            state().prop_map(|(folder, run, round)| Request::Restore { folder, run, round }),
            Just(Request::Stop),
        ]
    }

    fn reply() -> impl Strategy<Value = Reply> {
        let learnt = (weights(), any::<u32>(), any::<[u64; 6]>(), work()).prop_map(
            |(weights, steps, bits, work)| Learnt {
                weights,
                steps,
                loss: f64::from_bits(bits[0]),
                gradient_squared: f64::from_bits(bits[1]),
                bytes: Bytes {
                    model_down_bytes: bits[2],
                    model_up_bytes: bits[3],
                    features_down_bytes: bits[4],
                    requests_up_bytes: bits[5],
                },
                work,
            },
        );
        let probed = (floats(), floats(), any::<u64>(), work()).prop_map(|(a, b, bits, work)| {
            Probed { gradients: [a, b], bias_squared: f64::from_bits(bits), work }
        });
        let answer = (any::<u32>(), learnt, proptest::option::of(probed));
        prop_oneof![
            answer.prop_map(|(part, learnt, probed)| {
                Reply::Learnt(Answer { part: part as usize, learnt, probed })
            }),
            Just(()).prop_map(|()| Reply::Done),
            ".{0,20}".prop_map(Reply::Failed),
        ]
    }

    proptest! {
        /// Bytes are compared, not values: NaN is not equal to itself.
        #[test]
        fn messages_arrive_as_they_were_sent(request in request(), reply in reply()) {
            let bytes = request.write();
            prop_assert_eq!(Request::read(&bytes).expect("a request").write(), bytes);
            let bytes = reply.write();
            prop_assert_eq!(Reply::read(&bytes).expect("a reply").write(), bytes);
        }

        #[test]
        fn a_cut_or_lengthened_message_is_refused(request in request(), reply in reply()) {
            for bytes in [request.write(), reply.write()] {
                let is_refused = |bytes: &[u8]| {
                    Request::read(bytes).is_err() && Reply::read(bytes).is_err()
                };
                for len in 0..bytes.len() {
                    prop_assert!(is_refused(&bytes[..len]));
                }
                let longer = [&bytes[..], &[0]].concat();
                prop_assert!(is_refused(&longer));
            }
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
            let _ = Request::read(&bytes);
            let _ = Reply::read(&bytes);
        }
    }

    #[test]
    fn a_stated_length_reserves_nothing() {
        // A learn request whose parameters claim to be 2^61 floats.
        let mut bytes = vec![LEARN, 1, 0, 0, 0, 1, 0, 0, 0, 0];
        bytes.extend((1u64 << 61).to_le_bytes());
        assert_eq!(Request::read(&bytes), Err(WireError::Short));
    }

    /// The layout is fixed: ranks may run builds of different days.
    #[test]
    fn the_bytes_of_an_order_are_known() {
        let start = Weights { params: vec![1.0], stats: vec![] };
        let order = Order { round: 2, steps: 3, start: &start, probe: true, sums: None };
        let expected = [
            vec![1, 2, 0, 0, 0, 3, 0, 0, 0, 1],
            vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3f],
            vec![0; 8 + 1],
        ];
        assert_eq!(write_order(&order, 0), expected.concat());
    }
}
