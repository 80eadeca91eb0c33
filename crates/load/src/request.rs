//! Tensors become requests, and answers become outcomes. A request is encoded once and sent many
//! times.

use std::borrow::Cow;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use serde_json::json;

use crate::describe::Model;
use crate::measure::Outcome;
use crate::proto::{self, TensorMetadata};
use crate::wire::{Prepared, Protocol, Reply};

/// How many bytes of an HTTP body are JSON; the tensors follow.
const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");
/// gRPC's codes of a server that is too busy.
const RESOURCE_EXHAUSTED: &str = "8";
const UNAVAILABLE: &str = "14";

/// One input of a request: little-endian elements, row after row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    pub datatype: &'static str,
    pub shape: Vec<i64>,
    pub data: Bytes,
}

/// A request that is ready to be sent.
#[derive(Debug, Clone)]
pub struct InferRequest {
    pub samples: usize,
    pub prepared: Prepared,
}

impl InferRequest {
    /// Encodes a request with binary tensors. The answer is asked for in binary too.
    pub fn new(protocol: Protocol, model: &Model, samples: usize, inputs: &[Tensor]) -> Self {
        let prepared = match protocol {
            Protocol::Http => http(model, inputs),
            Protocol::Grpc => grpc(model, inputs),
        };
        Self { samples, prepared }
    }

    pub fn bytes(&self) -> usize {
        self.prepared.body.len()
    }
}

fn http(model: &Model, inputs: &[Tensor]) -> Prepared {
    let describe = |tensor: &Tensor| {
        json!({
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
            "parameters": { "binary_data_size": tensor.data.len() },
        })
    };
    let head = json!({
        "inputs": inputs.iter().map(describe).collect::<Vec<_>>(),
        "parameters": { "binary_data_output": true },
    })
    .to_string();
    let bytes: usize = inputs.iter().map(|tensor| tensor.data.len()).sum();
    let mut body = BytesMut::with_capacity(head.len() + bytes);
    body.put_slice(head.as_bytes());
    inputs.iter().for_each(|tensor| body.put_slice(&tensor.data));
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(HEADER_LENGTH, HeaderValue::from(head.len()));
    let path = format!("{}/infer", model.path());
    let path = path.parse::<Uri>().expect("names in a path are escaped");
    Prepared { method: Method::POST, path, headers, body: body.freeze() }
}

fn grpc(model: &Model, inputs: &[Tensor]) -> Prepared {
    let describe = |tensor: &Tensor| TensorMetadata {
        name: tensor.name.clone(),
        datatype: tensor.datatype.into(),
        shape: tensor.shape.clone(),
    };
    let request = proto::InferRequest {
        model_name: model.name.clone(),
        model_version: model.version.clone(),
        inputs: inputs.iter().map(describe).collect(),
        raw_input_contents: inputs.iter().map(|tensor| tensor.data.clone()).collect(),
    };
    call("ModelInfer", proto::framed(&request))
}

/// A call of the protocol's gRPC service.
pub(crate) fn call(name: &str, body: Bytes) -> Prepared {
    let path = format!("{}{name}", proto::SERVICE).parse().expect("names of calls are plain");
    Prepared { method: Method::POST, path, headers: HeaderMap::new(), body }
}

/// What an answer to an inference request means.
pub fn outcome(protocol: Protocol, reply: &Reply) -> Outcome {
    match protocol {
        Protocol::Http => match reply.status {
            200 => Outcome::Answered,
            429 | 503 => Outcome::Refused,
            status => Outcome::Failed(format!("{status}: {}", error_text(&reply.body))),
        },
        Protocol::Grpc => match grpc_status(reply) {
            "0" => Outcome::Answered,
            RESOURCE_EXHAUSTED | UNAVAILABLE => Outcome::Refused,
            code => Outcome::Failed(format!("gRPC status {code}: {}", grpc_message(reply))),
        },
    }
}

/// The code as text; `?` where the answer is no gRPC answer.
pub(crate) fn grpc_status(reply: &Reply) -> &str {
    reply.headers.get("grpc-status").and_then(|code| code.to_str().ok()).unwrap_or("?")
}

pub(crate) fn grpc_message(reply: &Reply) -> Cow<'_, str> {
    let message = reply.headers.get("grpc-message").map_or(&[][..], HeaderValue::as_bytes);
    match message {
        [] => Cow::Owned(format!("HTTP status {}", reply.status)),
        message => Cow::Owned(unescaped(message)),
    }
}

/// The `error` of a JSON answer, or the beginning of any other.
pub(crate) fn error_text(body: &[u8]) -> String {
    let json = serde_json::from_slice::<serde_json::Value>(body).ok();
    let error = json.as_ref().and_then(|json| json["error"].as_str());
    let text = error.map_or_else(|| String::from_utf8_lossy(body), Cow::Borrowed);
    text.chars().take(300).collect()
}

/// Decodes `%41` as `A`.
fn unescaped(text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match (first, tail.get(..2).and_then(hex)) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn tensors() -> Vec<Tensor> {
        vec![
            Tensor {
                name: "dense".into(),
                datatype: "FP32",
                shape: vec![2, 1],
                data: Bytes::from_static(&[1, 2, 3, 4, 5, 6, 7, 8]),
            },
            Tensor {
                name: "ids".into(),
                datatype: "INT64",
                shape: vec![1],
                data: Bytes::from_static(&[9, 0, 0, 0, 0, 0, 0, 0]),
            },
        ]
    }

    fn model() -> Model {
        Model { name: "a b".into(), version: String::new() }
    }

    #[test]
    fn http_requests_carry_tensors_behind_the_json() {
        let request = InferRequest::new(Protocol::Http, &model(), 2, &tensors()).prepared;
        assert_eq!(request.path, "/v2/models/a%20b/infer");
        let length: usize = request.headers[HEADER_LENGTH].to_str().unwrap().parse().unwrap();
        let (head, tail) = request.body.split_at(length);
        let head: serde_json::Value = serde_json::from_slice(head).unwrap();
        assert_eq!(head["inputs"][1]["parameters"]["binary_data_size"], 8);
        assert_eq!(head["inputs"][0]["shape"], json!([2, 1]));
        assert_eq!(tail, [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn grpc_requests_are_framed_messages() {
        let request = InferRequest::new(Protocol::Grpc, &model(), 2, &tensors()).prepared;
        let message = proto::unframed(&request.body).expect("it is whole");
        let message = proto::InferRequest::decode(message).expect("it decodes");
        assert_eq!(message.model_name, "a b");
        assert_eq!(message.inputs[0].shape, [2, 1]);
        assert_eq!(message.raw_input_contents[1][..], [9, 0, 0, 0, 0, 0, 0, 0]);
        assert!(proto::unframed(&request.body.slice(..9)).is_none(), "cut short");
        assert!(proto::unframed(&Bytes::new()).is_none());
    }

    #[test]
    fn answers_are_told_apart() {
        let http = |status, body: &'static str| {
            let reply = Reply { status, headers: HeaderMap::new(), body: body.into() };
            outcome(Protocol::Http, &reply)
        };
        assert_eq!(http(200, ""), Outcome::Answered);
        assert_eq!(http(503, "{}"), Outcome::Refused);
        assert_eq!(http(400, "{\"error\":\"no\"}"), Outcome::Failed("400: no".into()));
        let grpc = |code: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", HeaderValue::from_static(code));
            headers.insert("grpc-message", HeaderValue::from_static("too%20much%"));
            outcome(Protocol::Grpc, &Reply { status: 200, headers, body: Bytes::new() })
        };
        assert_eq!(grpc("0"), Outcome::Answered);
        assert_eq!(grpc("14"), Outcome::Refused);
        assert_eq!(grpc("3"), Outcome::Failed("gRPC status 3: too much%".into()));
    }
}
