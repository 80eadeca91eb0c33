//! One inference request and its answer, whatever the protocol. HTTP and gRPC translate into these
//! and back, and do nothing else.

use std::time::Duration;

use bytes::Bytes;

use crate::receive::Held;
use crate::tensor::Tensor;

/// Identifies who a request comes from. Requests of different clients take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

#[derive(Debug)]
pub struct InferRequest {
    pub model: String,
    /// Empty for the newest.
    pub version: String,
    /// The client's own name for the request, repeated in the answer; may be empty.
    pub id: String,
    pub inputs: Vec<Tensor>,
    /// Names of outputs; empty for all.
    pub outputs: Vec<String>,
    /// Time from arrival after which nobody needs the answer; `None` for the model's default.
    pub timeout: Option<Duration>,
    /// The request's share of the budget, until it is answered.
    pub held: Held,
}

/// The scores of a request.
#[derive(Clone, Debug)]
pub struct InferResponse {
    pub model: String,
    pub version: u64,
    pub id: String,
    pub scores: Scores,
}

/// [samples, outputs] as little-endian FP32. Requests of one batch share the buffer.
#[derive(Clone, Debug)]
pub struct Scores {
    pub samples: usize,
    pub outputs: usize,
    pub bytes: Bytes,
}

impl Scores {
    pub fn shape(&self) -> [i64; 2] {
        [self.samples as i64, self.outputs as i64]
    }

    pub fn values(&self) -> impl Iterator<Item = f32> {
        let chunks = self.bytes.chunks_exact(4);
        chunks.map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }
}
