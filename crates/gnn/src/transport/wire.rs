//! Orders and answers as bytes, for workers in other processes.
//!
//! Numbers are little-endian and floats keep their bits, so that a run over processes ends with the
//! same bytes as one over threads. A message is a kind, then the fields in the order below; vectors
//! carry their length. This module does no I/O: a transport sends what it writes, one message at a
//! time, and whatever arrives is checked before it is used.

use hither_core::Seconds;
use hither_core::record::train::{Bytes, Work};

use super::{Answer, Order, PartFacts, PeerTraffic, ProcessFacts};
use crate::local::Learnt;
use crate::model::Weights;
use crate::update::Change;

/// What the server asks of a process of workers.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Make the workers of a run ready, by what the server's front end says of it.
    Begin { orders: String },
    /// Learn; the fields of an [`Order`].
    Learn { round: u32, steps: u32, start: Weights },
    /// Write the state after `round` to the workers' files in `folder`.
    Save { folder: String, run: String, round: u32 },
    /// Read that state back.
    Restore { folder: String, run: String, round: u32 },
    /// Say how much memory was used.
    Report,
    /// All runs have ended.
    Stop,
}

/// What a process of workers replies.
#[derive(Debug)]
pub enum Reply {
    /// The workers are ready: where they run, and what each holds.
    Ready { facts: ProcessFacts, parts: Vec<PartFacts> },
    /// One answer per worker, and the seconds that they took together.
    Learnt { answers: Vec<Answer>, busy_s: Seconds },
    /// The state is written, or read back.
    Done,
    /// The most memory that the process has had so far, and what it exchanged with others of its kind.
    Report { peak_bytes: u64, peers: PeerTraffic },
    /// The process cannot do it; the text says why.
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
    #[error("a text is not UTF-8, or a kind of change is unknown")]
    Value,
}

const LEARN: u8 = 1;
const SAVE: u8 = 2;
const RESTORE: u8 = 3;
const STOP: u8 = 4;
const LEARNT: u8 = 5;
const DONE: u8 = 6;
const FAILED: u8 = 7;
const BEGIN: u8 = 8;
const READY: u8 = 9;
const REPORT: u8 = 10;
const REPORTED: u8 = 11;

/// An order as bytes. [`Request::read`] gives [`Request::Learn`] back.
pub fn write_order(order: &Order) -> Vec<u8> {
    let Order { round, steps, start } = *order;
    let mut out = Writer(vec![LEARN]);
    out.u32(round);
    out.u32(steps);
    out.weights(start);
    out.0
}

impl Request {
    pub fn write(&self) -> Vec<u8> {
        let state = |kind: u8, folder: &str, run: &str, round: u32| {
            let mut out = Writer(vec![kind]);
            out.text(folder);
            out.text(run);
            out.u32(round);
            out
        };
        match self {
            Self::Begin { orders } => {
                let mut out = Writer(vec![BEGIN]);
                out.text(orders);
                out.0
            }
            Self::Learn { round, steps, start } => {
                write_order(&Order { round: *round, steps: *steps, start })
            }
            Self::Save { folder, run, round } => state(SAVE, folder, run, *round).0,
            Self::Restore { folder, run, round } => state(RESTORE, folder, run, *round).0,
            Self::Report => vec![REPORT],
            Self::Stop => vec![STOP],
        }
    }

    pub fn read(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader(bytes);
        let request = match from.u8()? {
            BEGIN => Self::Begin { orders: from.text()? },
            LEARN => Self::Learn { round: from.u32()?, steps: from.u32()?, start: from.weights()? },
            SAVE => Self::Save { folder: from.text()?, run: from.text()?, round: from.u32()? },
            RESTORE => {
                Self::Restore { folder: from.text()?, run: from.text()?, round: from.u32()? }
            }
            REPORT => Self::Report,
            STOP => Self::Stop,
            kind => return Err(WireError::Kind(kind)),
        };
        from.end()?;
        Ok(request)
    }
}

impl Reply {
    pub fn write(&self) -> Vec<u8> {
        let mut out = Writer(vec![]);
        match self {
            Self::Ready { facts: ProcessFacts { host, place, isa }, parts } => {
                out.0.push(READY);
                [host, place, isa].into_iter().for_each(|text| out.text(text));
                out.u32(parts.len() as u32);
                for PartFacts { train_nodes, bytes } in parts {
                    out.u64(*train_nodes as u64);
                    out.u64(*bytes);
                }
            }
            Self::Learnt { answers, busy_s } => {
                out.0.push(LEARNT);
                out.f64(*busy_s);
                out.u32(answers.len() as u32);
                answers.iter().for_each(|answer| out.answer(answer));
            }
            Self::Done => out.0.push(DONE),
            Self::Report { peak_bytes, peers } => {
                let PeerTraffic { received_bytes, sent_bytes, waited_s } = peers;
                out.0.push(REPORTED);
                [peak_bytes, received_bytes, sent_bytes].into_iter().for_each(|n| out.u64(*n));
                out.f64(*waited_s);
            }
            Self::Failed(why) => {
                out.0.push(FAILED);
                out.text(why);
            }
        }
        out.0
    }

    pub fn read(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader(bytes);
        let reply = match from.u8()? {
            READY => Self::Ready {
                facts: ProcessFacts { host: from.text()?, place: from.text()?, isa: from.text()? },
                parts: from.list(|from| {
                    Ok(PartFacts { train_nodes: from.u64()? as usize, bytes: from.u64()? })
                })?,
            },
            LEARNT => {
                let busy_s = from.f64()?;
                Self::Learnt { answers: from.list(Reader::answer)?, busy_s }
            }
            REPORTED => Self::Report {
                peak_bytes: from.u64()?,
                peers: PeerTraffic {
                    received_bytes: from.u64()?,
                    sent_bytes: from.u64()?,
                    waited_s: from.f64()?,
                },
            },
            DONE => Self::Done,
            FAILED => Self::Failed(from.text()?),
            kind => return Err(WireError::Kind(kind)),
        };
        from.end()?;
        Ok(reply)
    }
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

    fn numbers(&mut self, values: &[u32]) {
        self.u64(values.len() as u64);
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn halves(&mut self, values: &[u16]) {
        self.u64(values.len() as u64);
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn change(&mut self, change: Option<&Change>) {
        match change {
            None => self.0.push(0),
            Some(Change::All(by)) => {
                self.0.push(1);
                self.halves(by);
            }
            Some(Change::Some { at, by }) => {
                self.0.push(2);
                self.numbers(at);
                self.halves(by);
            }
        }
    }

    fn work(&mut self, work: &Work) {
        self.u64(work.sums);
        self.u64(work.products);
    }

    fn answer(&mut self, answer: &Answer) {
        let Answer { part, learnt, change } = answer;
        let Learnt { weights, steps, loss, bytes, work } = learnt;
        self.u64(*part as u64);
        self.weights(weights);
        self.change(change.as_ref());
        self.u32(*steps);
        self.f64(*loss);
        let Bytes { model_down_bytes, model_up_bytes, features_down_bytes, requests_up_bytes } =
            bytes;
        for count in [model_down_bytes, model_up_bytes, features_down_bytes, requests_up_bytes] {
            self.u64(*count);
        }
        self.work(work);
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

    fn text(&mut self) -> Result<String, WireError> {
        let len = self.u64()?;
        let text = std::str::from_utf8(self.take(len)?).map_err(|_| WireError::Value)?;
        Ok(text.to_owned())
    }

    /// A vector of elements of `N` bytes. Reserves only what the message holds, whatever length it states.
    fn vector<const N: usize, T>(&mut self, from: fn([u8; N]) -> T) -> Result<Vec<T>, WireError> {
        let len = self.u64()?.checked_mul(N as u64).ok_or(WireError::Short)?;
        let (elements, _) = self.take(len)?.as_chunks();
        Ok(elements.iter().map(|bytes| from(*bytes)).collect())
    }

    fn floats(&mut self) -> Result<Vec<f32>, WireError> {
        self.vector(f32::from_le_bytes)
    }

    fn change(&mut self) -> Result<Option<Change>, WireError> {
        Ok(match self.u8()? {
            0 => None,
            1 => Some(Change::All(self.vector(u16::from_le_bytes)?)),
            2 => Some(Change::Some {
                at: self.vector(u32::from_le_bytes)?,
                by: self.vector(u16::from_le_bytes)?,
            }),
            _ => return Err(WireError::Value),
        })
    }

    fn weights(&mut self) -> Result<Weights, WireError> {
        Ok(Weights { params: self.floats()?, stats: self.floats()? })
    }

    /// Reserves nothing for elements that a message only claims to have.
    fn list<T>(
        &mut self,
        element: impl Fn(&mut Self) -> Result<T, WireError>,
    ) -> Result<Vec<T>, WireError> {
        let count = self.u32()?;
        (0..count).map(|_| element(self)).collect()
    }

    fn answer(&mut self) -> Result<Answer, WireError> {
        let part = self.u64()? as usize;
        let weights = self.weights()?;
        let change = self.change()?;
        let learnt = Learnt {
            weights,
            steps: self.u32()?,
            loss: self.f64()?,
            bytes: Bytes {
                model_down_bytes: self.u64()?,
                model_up_bytes: self.u64()?,
                features_down_bytes: self.u64()?,
                requests_up_bytes: self.u64()?,
            },
            work: self.work()?,
        };
        Ok(Answer { part, learnt, change })
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
    use proptest::option;
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
        let learn = (any::<[u32; 2]>(), weights());
        let state = || (".{0,9}", ".{0,9}", any::<u32>());
        prop_oneof![
            ".{0,9}".prop_map(|orders| Request::Begin { orders }),
            learn.prop_map(|([round, steps], start)| Request::Learn { round, steps, start }),
            state().prop_map(|(folder, run, round)| Request::Save { folder, run, round }),
            state().prop_map(|(folder, run, round)| Request::Restore { folder, run, round }),
            Just(Request::Report),
            Just(Request::Stop),
        ]
    }

    fn reply() -> impl Strategy<Value = Reply> {
        let learnt = (weights(), any::<u32>(), any::<[u64; 5]>(), work()).prop_map(
            |(weights, steps, bits, work)| Learnt {
                weights,
                steps,
                loss: f64::from_bits(bits[0]),
                bytes: Bytes {
                    model_down_bytes: bits[1],
                    model_up_bytes: bits[2],
                    features_down_bytes: bits[3],
                    requests_up_bytes: bits[4],
                },
                work,
            },
        );
        let change = prop_oneof![
            vec(any::<u16>(), 0..40).prop_map(Change::All),
            (vec(any::<u32>(), 0..40), vec(any::<u16>(), 0..40))
                .prop_map(|(at, by)| Change::Some { at, by }),
        ];
        let answer = (any::<u32>(), learnt, option::of(change))
            .prop_map(|(part, learnt, change)| Answer { part: part as usize, learnt, change });
        let facts = (".{0,9}", ".{0,9}", ".{0,9}").prop_map(|(host, place, isa)| ProcessFacts {
            host,
            place,
            isa,
        });
        let part = any::<[u32; 2]>().prop_map(|[nodes, bytes]| PartFacts {
            train_nodes: nodes as usize,
            bytes: bytes.into(),
        });
        prop_oneof![
            (facts, vec(part, 0..3)).prop_map(|(facts, parts)| Reply::Ready { facts, parts }),
            (vec(answer, 0..3), any::<u64>()).prop_map(|(answers, bits)| Reply::Learnt {
                answers,
                busy_s: f64::from_bits(bits),
            }),
            any::<[u64; 4]>().prop_map(|[peak_bytes, received_bytes, sent_bytes, bits]| {
                let waited_s = f64::from_bits(bits);
                Reply::Report {
                    peak_bytes,
                    peers: PeerTraffic { received_bytes, sent_bytes, waited_s },
                }
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
        let mut bytes = vec![LEARN, 1, 0, 0, 0, 1, 0, 0, 0];
        bytes.extend((1u64 << 61).to_le_bytes());
        assert_eq!(Request::read(&bytes), Err(WireError::Short));
    }

    /// The layout is fixed: ranks may run builds of different days.
    #[test]
    fn the_bytes_of_an_order_are_known() {
        let start = Weights { params: vec![1.0], stats: vec![] };
        let order = Order { round: 2, steps: 3, start: &start };
        let expected = [
            vec![1, 2, 0, 0, 0, 3, 0, 0, 0],
            vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3f],
            vec![0; 8],
        ];
        assert_eq!(write_order(&order), expected.concat());
    }
}
