//! Orders and answers as bytes, for workers in other processes.
//!
//! Floats keep their bits, so that a run over processes ends with the same bytes as one over threads. Vectors of
//! numbers are their bytes as they are in memory. This module does no I/O: a transport sends what it writes, one
//! message at a time, and whatever arrives is checked before it is used.

use std::borrow::Cow;

use hither_core::Seconds;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Answer, Order, PartFacts, PeerTraffic, ProcessFacts};
use crate::model::Weights;

/// What the server asks of a process of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request<'a> {
    /// Make the workers of a run ready, by what the server's front end says of it. The first of all, so that other
    /// versions understand it, and say so.
    Begin { orders: String },
    /// Learn; the fields of an [`Order`].
    Learn { round: u32, steps: u32, start: Cow<'a, Weights> },
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
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The process cannot do it; the text says why.
    Failed(String),
    /// The workers are ready: where they run, and what each holds.
    Ready { facts: ProcessFacts, parts: Vec<PartFacts> },
    /// One answer per worker, and the seconds that they took together.
    Learnt { answers: Vec<Answer>, busy_s: Seconds },
    /// The state is written, or read back.
    Done,
    /// The most memory that the process has had so far, and what it exchanged with others of its kind.
    Report { peak_bytes: u64, peers: PeerTraffic },
}

/// Why bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("the message cannot be understood: {0}")]
    Content(#[from] postcard::Error),
    #[error("{0} bytes follow the message")]
    Long(usize),
}

impl<'a> From<&Order<'a>> for Request<'a> {
    fn from(Order { round, steps, start }: &Order<'a>) -> Self {
        Self::Learn { round: *round, steps: *steps, start: Cow::Borrowed(*start) }
    }
}

/// A message as bytes.
pub fn write(message: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(message).unwrap_or_else(|error| unreachable!("in memory: {error}"))
}

/// The message that some bytes are, all of them.
pub fn read<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, WireError> {
    match postcard::take_from_bytes(bytes)? {
        (message, []) => Ok(message),
        (_, more) => Err(WireError::Long(more.len())),
    }
}

/// Vectors of numbers in messages.
pub mod numbers {
    use bytemuck::Pod;
    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    pub fn serialize<T: Pod, S: Serializer>(numbers: &[T], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytemuck::cast_slice(numbers))
    }

    pub fn deserialize<'de, T: Pod, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        struct Bytes<T>(std::marker::PhantomData<T>);

        impl<T: Pod> Visitor<'_> for Bytes<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("whole numbers")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<T>, E> {
                if !bytes.len().is_multiple_of(size_of::<T>()) {
                    return Err(E::invalid_length(bytes.len(), &self));
                }
                Ok(bytemuck::allocation::pod_collect_to_vec(bytes))
            }
        }
        from.deserialize_bytes(Bytes(std::marker::PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use hither_core::record::train::{Bytes, Work};
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::local::Learnt;
    use crate::update::Change;

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

    fn request() -> impl Strategy<Value = Request<'static>> {
        let learn = (any::<[u32; 2]>(), weights());
        let state = || (".{0,9}", ".{0,9}", any::<u32>());
        prop_oneof![
            ".{0,9}".prop_map(|orders| Request::Begin { orders }),
            learn.prop_map(|([round, steps], start)| {
                let start = Cow::Owned(start);
                Request::Learn { round, steps, start }
            }),
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
            let bytes = write(&request);
            prop_assert_eq!(write(&read::<Request>(&bytes).expect("a request")), bytes);
            let bytes = write(&reply);
            prop_assert_eq!(write(&read::<Reply>(&bytes).expect("a reply")), bytes);
        }

        #[test]
        fn a_cut_or_lengthened_message_is_refused(request in request(), reply in reply()) {
            let is_request = |bytes: &[u8]| read::<Request>(bytes).is_ok();
            let is_reply = |bytes: &[u8]| read::<Reply>(bytes).is_ok();
            type IsMessage<'a> = &'a dyn Fn(&[u8]) -> bool;
            let both: [(Vec<u8>, IsMessage); 2] =
                [(write(&request), &is_request), (write(&reply), &is_reply)];
            for (bytes, is_message) in both {
                for len in 0..bytes.len() {
                    prop_assert!(!is_message(&bytes[..len]));
                }
                prop_assert!(!is_message(&[&bytes[..], &[0]].concat()));
            }
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
            let _ = read::<Request>(&bytes);
            let _ = read::<Reply>(&bytes);
        }
    }

    #[test]
    fn a_stated_length_reserves_nothing() {
        // A learn request whose parameters claim to be 2^62 bytes.
        let mut bytes = vec![1, 1, 1];
        bytes.extend([0x80; 8]);
        bytes.push(0x40);
        let short = WireError::Content(postcard::Error::DeserializeUnexpectedEnd);
        assert_eq!(read::<Request>(&bytes), Err(short));
    }

    /// Ranks may run builds of different days, of which the server's first message tells.
    #[test]
    fn the_bytes_of_a_beginning_are_known() {
        let begin = Request::Begin { orders: "hi".into() };
        assert_eq!(write(&begin), [0, 2, b'h', b'i']);
        assert_eq!(write(&Reply::Failed("no".into())), [0, 2, b'n', b'o']);
    }

    #[test]
    fn half_a_number_is_refused() {
        // A learn request with three bytes of parameters.
        let error = read::<Request>(&[1, 1, 1, 3, 0, 0, 0, 0]).expect_err("refused");
        assert!(matches!(error, WireError::Content(_)), "{error}");
    }
}
