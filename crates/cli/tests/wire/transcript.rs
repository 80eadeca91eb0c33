//! Requests that real Triton 2.51 was asked, replayed byte by byte. Status, shape and meaning of the
//! answers agree, and texts where clients parse them; differences are listed here with their reason,
//! and described in docs/server.md. `bench/server/record_transcript.py` records the transcript.

use std::collections::BTreeMap;

use base64::Engine as _;
use hither_load::proto::{self, InferAnswer};
use hither_load::wire::Prepared;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use prost::Message as _;
use serde_json::Value;

use crate::bed::{Caller, Server, fixture};

/// Triton blames itself (500) for requests that it cannot parse; 400 names the sender.
const BLAME: &str = "a malformed request is the client's error";

/// HTTP cases that we answer with another status, ours, and why.
const HTTP_DIFFERENCES: &[(&str, u16, &str)] = &[
    ("huge dimension", 400, "Triton's process ends"),
    ("unknown model ready", 404, "as every other address of an unknown model"),
    ("unknown model's statistics", 404, "as every other address of an unknown model"),
    ("load of an unknown model", 400, BLAME),
    ("unload of an unknown model", 400, "a misspelt name is told, not passed over"),
    ("no JSON", 400, BLAME),
    ("JSON that is cut", 400, BLAME),
    ("JSON that is no object", 400, BLAME),
    ("no inputs", 400, BLAME),
    ("inputs are no list", 400, BLAME),
    ("input without a name", 400, BLAME),
    ("input without a type", 400, BLAME),
    ("input without a shape", 400, BLAME),
    ("negative dimension", 400, BLAME),
    ("shape of text", 400, BLAME),
    ("shape of fractions", 400, BLAME),
    ("too few values", 400, BLAME),
    ("too many values", 400, BLAME),
    ("text as value", 400, BLAME),
    ("fraction as id", 400, BLAME),
    ("null as value", 400, BLAME),
    ("output without a name", 400, BLAME),
    ("sequence id", 400, "requests are independent; a sequence would be scored without its state"),
    ("id that is a number", 400, BLAME),
    ("parameters that are a list", 400, BLAME),
    ("binary size negative", 400, BLAME),
    ("binary size as text", 400, BLAME),
    ("header length too small", 400, BLAME),
    ("gzip that is broken", 400, "Triton computes on what a broken body still yields"),
    ("unknown encoding", 400, BLAME),
    ("deeply nested JSON", 400, BLAME),
];

/// The same for gRPC, by the name of the status.
const GRPC_DIFFERENCES: &[(&str, &str, &str)] = &[
    ("unknown model ready", "NOT_FOUND", "as every other call with an unknown model"),
    ("unknown model's statistics", "NOT_FOUND", "as every other call with an unknown model"),
    ("load of an unknown model", "INVALID_ARGUMENT", BLAME),
    (
        "more raw contents than inputs",
        "INVALID_ARGUMENT",
        "contents without an input are a mistake",
    ),
    (
        "version that is no number",
        "NOT_FOUND",
        "as any version that is not served, and as over HTTP",
    ),
];

/// Cases whose message clients may parse: it is Triton's, word for word.
const SAME_TEXT: &[&str] = &[
    "unknown model's metadata",
    "unknown model's config",
    "unknown version's metadata",
    "infer with an unknown model",
    "infer with an unknown version",
    "wrong type",
    "too many samples",
    "unknown shared memory",
    "unknown path",
    "infer by GET",
];

/// Names of gRPC's codes, by number.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

fn transcript() -> Value {
    let text = std::fs::read_to_string(fixture("triton-2.51.json")).expect("the transcript");
    serde_json::from_str(&text).expect("it is JSON")
}

fn decoded(text: &str) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD.decode(text).expect("it is base64")
}

fn body(value: &Value) -> Vec<u8> {
    match value["base64"].as_str() {
        Some(text) => decoded(text),
        None => value["text"].as_str().expect("text or base64").as_bytes().to_vec(),
    }
}

fn http_request(case: &Value) -> Prepared {
    let request = &case["request"];
    let mut headers = HeaderMap::new();
    for (name, value) in request["headers"].as_object().into_iter().flatten() {
        let name: HeaderName = name.parse().expect("a header's name");
        let value = value.as_str().expect("text");
        headers.insert(name, HeaderValue::from_str(value).expect("a header's value"));
    }
    let text = |key: &str| request[key].as_str().expect("text");
    Prepared {
        method: Method::from_bytes(text("method").as_bytes()).expect("a method"),
        path: text("path").parse().expect("a path"),
        headers,
        body: body(&request["body"]).into(),
    }
}

/// The JSON in front of binary tensors, and how many bytes follow.
fn json_part(headers: &HeaderMap, body: &[u8]) -> (Value, usize) {
    let length = headers.get("inference-header-content-length");
    let length = length.map(|n| n.to_str().expect("text").parse::<usize>().expect("a number"));
    let length = length.unwrap_or(body.len());
    (serde_json::from_slice(&body[..length]).unwrap_or(Value::Null), body.len() - length)
}

/// Scores are the model's own; everything else of an answer is compared.
fn without_values(mut answer: Value) -> Value {
    for output in answer["outputs"].as_array_mut().into_iter().flatten() {
        if let Some(data) = output["data"].as_array() {
            output["data"] = data.len().into();
        }
    }
    answer
}

#[test]
fn http_answers_are_tritons() {
    let server = Server::start("", &["--allow-control", "--shared-memory"]);
    let caller = Caller::new(&format!("http://{}", server.http));
    let listed: BTreeMap<&str, (u16, &str)> =
        HTTP_DIFFERENCES.iter().map(|(name, status, why)| (*name, (*status, *why))).collect();
    let mut wrong = Vec::new();
    for case in transcript()["http"].as_array().expect("a list") {
        let name = case["name"].as_str().expect("a name");
        let triton = &case["answer"];
        let triton_status = triton["status"].as_u64().map(|status| status as u16);
        let mut reply = caller.send(&http_request(case)).unwrap_or_else(|e| panic!("{name}: {e}"));
        if reply.headers.get("content-encoding").is_some_and(|value| value == "gzip") {
            let mut text = Vec::new();
            let mut reader = flate2::read::GzDecoder::new(&reply.body[..]);
            std::io::Read::read_to_end(&mut reader, &mut text).expect("gzip");
            reply.body = text.into();
        }
        let expected = listed.get(name).map_or(triton_status, |(status, _)| Some(*status));
        if Some(reply.status) != expected {
            let text = String::from_utf8_lossy(&reply.body).chars().take(200).collect::<String>();
            wrong.push(format!("{name}: {} for {expected:?}: {text}", reply.status));
            continue;
        }
        if listed.contains_key(name) && triton_status == Some(reply.status) {
            wrong.push(format!("{name} is listed as a difference and is none"));
        }
        let (ours, ours_behind) = json_part(&reply.headers, &reply.body);
        if reply.status != 200 {
            let error = ours["error"].as_str().unwrap_or_default();
            if error.is_empty() {
                wrong.push(format!("{name}: no error text in {ours}"));
            }
            if SAME_TEXT.contains(&name) {
                let theirs: Value = serde_json::from_slice(&body(&triton["body"])).expect("JSON");
                if theirs["error"] != error {
                    wrong.push(format!("{name}: `{error}` for `{}`", theirs["error"]));
                }
            }
        } else if name.starts_with("infer") {
            let mut headers = HeaderMap::new();
            if let Some(length) = triton["headers"]["inference-header-content-length"].as_str() {
                let length = HeaderValue::from_str(length).expect("a number");
                headers.insert("inference-header-content-length", length);
            }
            let (theirs, behind) = json_part(&headers, &body(&triton["body"]));
            let (ours, theirs) = (without_values(ours), without_values(theirs));
            if ours != theirs || ours_behind != behind {
                wrong.push(format!("{name}: {ours} + {ours_behind} for {theirs} + {behind}"));
            }
        } else if name.starts_with("model metadata") {
            let theirs: Value = serde_json::from_slice(&body(&triton["body"])).expect("JSON");
            for key in ["name", "versions", "inputs", "outputs"] {
                if ours[key] != theirs[key] {
                    wrong.push(format!("{name}: {key} {} for {}", ours[key], theirs[key]));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    server.assert_well();
}

#[test]
fn grpc_answers_are_tritons() {
    let server = Server::start("", &["--allow-control", "--shared-memory"]);
    let caller = Caller::new(&format!("grpc://{}", server.grpc));
    let listed: BTreeMap<&str, &str> =
        GRPC_DIFFERENCES.iter().map(|(name, code, _)| (*name, *code)).collect();
    let mut wrong = Vec::new();
    for case in transcript()["grpc"].as_array().expect("a list") {
        let name = case["name"].as_str().expect("a name");
        let request = decoded(case["request"].as_str().expect("base64"));
        let mut body = vec![0];
        body.extend((request.len() as u32).to_be_bytes());
        body.extend(request);
        let path = format!("{}{}", proto::SERVICE, case["call"].as_str().expect("a call"));
        let prepared = Prepared {
            method: Method::POST,
            path: path.parse().expect("a path"),
            headers: HeaderMap::new(),
            body: body.into(),
        };
        let reply = caller.send(&prepared).unwrap_or_else(|e| panic!("{name}: {e}"));
        let number = reply.headers.get("grpc-status").and_then(|code| code.to_str().ok());
        let number = number.and_then(|code| code.parse::<usize>().ok()).unwrap_or(2);
        let (code, triton) = (CODES[number], &case["answer"]);
        let expected = listed.get(name).copied().or(triton["code"].as_str());
        if Some(code) != expected {
            let text = reply.headers.get("grpc-message");
            wrong.push(format!("{name}: {code} for {expected:?}: {text:?}"));
            continue;
        }
        if code == "OK" && name.starts_with("infer") {
            let message = proto::unframed(&reply.body).expect("it is whole");
            let answer = InferAnswer::decode(message).expect("an answer");
            let theirs = &triton["message"];
            let shape: Vec<String> = answer.outputs[0].shape.iter().map(i64::to_string).collect();
            let same = theirs["outputs"][0]["shape"] == Value::from(shape)
                && theirs["outputs"][0]["name"] == answer.outputs[0].name.as_str()
                && theirs["outputs"][0]["datatype"] == answer.outputs[0].datatype.as_str()
                && theirs["model_version"] == answer.model_version.as_str()
                && theirs["id"].as_str().unwrap_or_default() == answer.id
                && answer.raw_output_contents[0].len() == 8;
            if !same {
                wrong.push(format!("{name}: {answer:?} for {theirs}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    server.assert_well();
}
