//! The few gRPC messages that a client of the protocol needs, with Triton's names and field numbers.
//! They are written down here, apart from the server's own, so that the generator can run against any
//! server and shares no mistake with ours.

use std::collections::HashMap;

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message;

/// The service that all calls belong to.
pub const SERVICE: &str = "/inference.GRPCInferenceService/";

#[derive(Clone, PartialEq, Message)]
pub struct ModelName {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ModelMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, repeated, tag = "2")]
    pub versions: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    pub inputs: Vec<TensorMetadata>,
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<TensorMetadata>,
}

/// A tensor's name, type and shape: in metadata, and in a request whose values follow raw.
#[derive(Clone, PartialEq, Message)]
pub struct TensorMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct InferRequest {
    #[prost(string, tag = "1")]
    pub model_name: String,
    #[prost(string, tag = "2")]
    pub model_version: String,
    #[prost(message, repeated, tag = "5")]
    pub inputs: Vec<TensorMetadata>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub raw_input_contents: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub struct InferAnswer {
    #[prost(string, tag = "1")]
    pub model_name: String,
    #[prost(string, tag = "2")]
    pub model_version: String,
    #[prost(string, tag = "3")]
    pub id: String,
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<TensorMetadata>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub raw_output_contents: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RepositoryIndexRequest {
    #[prost(string, tag = "1")]
    pub repository_name: String,
    #[prost(bool, tag = "2")]
    pub ready: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct RepositoryIndex {
    #[prost(message, repeated, tag = "1")]
    pub models: Vec<ModelIndex>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ModelIndex {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ModelStatistics {
    #[prost(message, repeated, tag = "1")]
    pub model_stats: Vec<ModelStats>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ModelStats {
    #[prost(uint64, tag = "5")]
    pub execution_count: u64,
    #[prost(message, optional, tag = "6")]
    pub inference_stats: Option<InferStats>,
}

#[derive(Clone, PartialEq, Message)]
pub struct InferStats {
    #[prost(message, optional, tag = "1")]
    pub success: Option<Spent>,
    #[prost(message, optional, tag = "3")]
    pub queue: Option<Spent>,
    #[prost(message, optional, tag = "4")]
    pub compute_input: Option<Spent>,
    #[prost(message, optional, tag = "5")]
    pub compute_infer: Option<Spent>,
    #[prost(message, optional, tag = "6")]
    pub compute_output: Option<Spent>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Spent {
    #[prost(uint64, tag = "1")]
    pub count: u64,
    #[prost(uint64, tag = "2")]
    pub ns: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ModelConfigAnswer {
    #[prost(message, optional, tag = "1")]
    pub config: Option<ModelConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ModelConfig {
    #[prost(map = "string, message", tag = "14")]
    pub parameters: HashMap<String, Parameter>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Parameter {
    #[prost(string, tag = "1")]
    pub string_value: String,
}

/// A message as gRPC sends it: not compressed, its length, its bytes.
pub fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(5 + length);
    bytes.put_u8(0);
    bytes.put_u32(length as u32);
    message.encode(&mut bytes).expect("there is room for it");
    bytes.freeze()
}

/// The message in a framed answer; `None` if it is compressed or cut short.
pub fn unframed(bytes: &Bytes) -> Option<Bytes> {
    let length = u32::from_be_bytes(bytes.get(1..5)?.try_into().ok()?) as usize;
    (bytes[0] == 0 && bytes.len() >= 5 + length).then(|| bytes.slice(5..5 + length))
}
