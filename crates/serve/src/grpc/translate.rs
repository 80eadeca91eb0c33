//! Messages to requests, and answers to messages.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::proto::inference::infer_parameter::ParameterChoice;
use super::proto::inference::model_infer_request::InferInputTensor;
use super::proto::inference::model_infer_response::InferOutputTensor;
use super::proto::inference::repository_index_response::ModelIndex;
use super::proto::inference::{self as message, InferParameter, InferTensorContents};
use crate::error::{Error, shown_id};
use crate::infer::{InferRequest, InferResponse};
use crate::inputs::SCORES;
use crate::receive::Held;
use crate::repository::IndexEntry;
use crate::shm::{Reader, Region, SharedRange};
use crate::tensor::{Data, Datatype, Tensor};

/// Translates an inference request. Returns also the shared memory that the scores go to, if any.
pub(super) fn request(
    request: message::ModelInferRequest,
    held: Held,
    shared: &mut Reader<'_>,
) -> Result<(InferRequest, Option<SharedRange>), Error> {
    let message::ModelInferRequest {
        model_name,
        model_version,
        id,
        parameters,
        inputs,
        outputs,
        raw_input_contents,
    } = request;
    let refuse = |problem: String| Error::Request { id: shown_id(&id), problem: problem.into() };
    let choice = |name: &str| parameters.get(name).and_then(|p| p.parameter_choice.as_ref());
    if choice("sequence_id").is_some_and(|sequence| number(sequence) != Some(0)) {
        return Err(refuse("sequences are not supported: requests are independent".into()));
    }
    if outputs.iter().any(|output| output.parameters.contains_key("classification")) {
        return Err(refuse("classification is not supported: scores are returned".into()));
    }
    let is_raw = !raw_input_contents.is_empty();
    let sent = inputs.iter().filter(|input| range(&input.parameters).is_none()).count();
    if is_raw && raw_input_contents.len() != sent {
        let raw = raw_input_contents.len();
        return Err(refuse(format!(
            "expected one raw_input_contents for each of {sent} inputs, got {raw}"
        )));
    }
    let mut raw = raw_input_contents.into_iter();
    let tensor = |input: InferInputTensor| {
        let InferInputTensor { name, datatype, shape, contents, parameters } = input;
        let data = match range(&parameters) {
            Some(_) if contents.is_some() => {
                return Err(refuse(format!("input '{name}' has both contents and shared memory")));
            }
            Some(range) => Data::Raw(shared.read(&range)?),
            None => match (raw.next(), contents) {
                (Some(_), Some(_)) => {
                    return Err(refuse(format!(
                        "contents field must not be specified when using raw_input_contents for '{name}'"
                    )));
                }
                (Some(bytes), None) => Data::Raw(bytes),
                (None, contents) => typed(&datatype, contents.unwrap_or_default()),
            },
        };
        Ok(Tensor { name, datatype, shape, data })
    };
    let inputs: Result<Vec<Tensor>, Error> = inputs.into_iter().map(tensor).collect();
    let timeout = choice("timeout").and_then(number).filter(|us| *us > 0);
    let inputs = inputs?;
    let scores_to = outputs.iter().find_map(|output| range(&output.parameters));
    let request = InferRequest {
        model: model_name,
        version: model_version,
        inputs,
        outputs: outputs.into_iter().map(|output| output.name).collect(),
        timeout: timeout.map(Duration::from_micros),
        held,
        id,
    };
    Ok((request, scores_to))
}

/// The shared memory that a tensor lies in.
fn range(parameters: &HashMap<String, InferParameter>) -> Option<SharedRange> {
    let choice = |name: &str| parameters.get(name).and_then(|p| p.parameter_choice.as_ref());
    let Some(ParameterChoice::StringParam(region)) = choice("shared_memory_region") else {
        return None;
    };
    let number = |name: &str| choice(name).and_then(number).unwrap_or(0);
    Some(SharedRange {
        region: region.clone(),
        offset: number("shared_memory_offset"),
        byte_size: number("shared_memory_byte_size"),
    })
}

/// A registered region as its status shows it.
pub(super) fn region(
    (name, region): (String, Arc<Region>),
) -> (String, message::system_shared_memory_status_response::RegionStatus) {
    let status = message::system_shared_memory_status_response::RegionStatus {
        name: name.clone(),
        key: region.key.clone(),
        offset: region.offset,
        byte_size: region.byte_size,
    };
    (name, status)
}

/// A whole number that is not negative, however it was sent.
fn number(choice: &ParameterChoice) -> Option<u64> {
    match choice {
        ParameterChoice::Int64Param(value) => u64::try_from(*value).ok(),
        ParameterChoice::Uint64Param(value) => Some(*value),
        _ => None,
    }
}

fn typed(datatype: &str, contents: InferTensorContents) -> Data {
    match Datatype::from_name(datatype) {
        Some(Datatype::Fp32) => Data::Fp32(contents.fp32_contents),
        Some(Datatype::Int32) => Data::Int32(contents.int_contents),
        Some(Datatype::Int64) => Data::Int64(contents.int64_contents),
        // Refused by its type later, with the type that the model expects.
        None => Data::Raw(Default::default()),
    }
}

/// The scores as a message. Where they lie in shared memory an empty entry stands for them: clients
/// expect one for each output.
pub(super) fn response(answer: InferResponse, is_shared: bool) -> message::ModelInferResponse {
    let output = InferOutputTensor {
        name: SCORES.into(),
        datatype: Datatype::Fp32.name().into(),
        shape: answer.scores.shape().into(),
    };
    message::ModelInferResponse {
        model_name: answer.model,
        model_version: answer.version.to_string(),
        id: answer.id,
        parameters: Default::default(),
        outputs: vec![output],
        raw_output_contents: vec![if is_shared { Bytes::new() } else { answer.scores.bytes }],
    }
}

impl From<IndexEntry> for ModelIndex {
    fn from(entry: IndexEntry) -> Self {
        let IndexEntry { name, version, state, reason } = entry;
        Self { name, version, state: state.into(), reason }
    }
}
