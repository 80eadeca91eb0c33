//! The JSON of inference requests and answers.

use std::borrow::Cow;
use std::time::Duration;

use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::body::Received;
use crate::error::{Error, shown_id};
use crate::infer::{InferRequest, InferResponse};
use crate::inputs::SCORES;
use crate::shm::{Reader, SharedRange};
use crate::tensor::{Data, Datatype, Tensor};

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(default)]
    id: String,
    #[serde(default)]
    parameters: Parameters,
    #[serde(borrow)]
    inputs: Vec<Input<'a>>,
    #[serde(default)]
    outputs: Vec<Output>,
}

#[derive(Deserialize)]
struct Input<'a> {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    #[serde(default)]
    parameters: Parameters,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Output {
    name: String,
    #[serde(default)]
    parameters: Parameters,
}

/// Parameters that mean something here, of requests and tensors alike; others are passed over, as
/// Triton does.
#[derive(Default, Deserialize)]
struct Parameters {
    binary_data_size: Option<u64>,
    binary_data: Option<bool>,
    binary_data_output: Option<bool>,
    classification: Option<u64>,
    shared_memory_region: Option<String>,
    #[serde(default)]
    shared_memory_offset: u64,
    #[serde(default)]
    shared_memory_byte_size: u64,
    sequence_id: Option<serde_json::Value>,
    /// Microseconds.
    timeout: Option<u64>,
}

impl Parameters {
    /// The shared memory that a tensor lies in.
    fn range(&self) -> Option<SharedRange> {
        self.shared_memory_region.as_ref().map(|region| SharedRange {
            region: region.clone(),
            offset: self.shared_memory_offset,
            byte_size: self.shared_memory_byte_size,
        })
    }
}

/// How a client wants its answer.
pub(super) struct Wanted {
    pub is_binary: bool,
    /// Where the scores go, if they are not to be sent.
    pub range: Option<SharedRange>,
}

pub(super) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| {
        Error::malformed(format!("failed to parse the request JSON buffer: {error}"))
    })
}

/// Translates an inference request.
pub(super) fn request(
    model: String,
    version: String,
    body: Received,
    shared: &mut Reader<'_>,
) -> Result<(InferRequest, Wanted), Error> {
    let Received { bytes, header_length, held } = body;
    let has_tensors = header_length.is_some();
    let header_length = header_length.unwrap_or(bytes.len());
    let head: Head = parse(&bytes[..header_length])?;
    let id = head.id;
    let refuse = |problem: Cow<'static, str>| Error::Request { id: shown_id(&id), problem };
    if head.parameters.sequence_id.as_ref().is_some_and(|sequence| *sequence != 0) {
        return Err(refuse("sequences are not supported: requests are independent".into()));
    }
    let mut start = header_length;
    let mut inputs = Vec::with_capacity(head.inputs.len());
    for input in head.inputs {
        let Input { name, datatype, shape, parameters, data } = input;
        let data = match (parameters.binary_data_size, data, parameters.range()) {
            (None, None, Some(range)) => Data::Raw(shared.read(&range)?),
            (Some(size), None, None) => {
                let end = usize::try_from(size).ok().and_then(|size| start.checked_add(size));
                let Some(end) = end.filter(|end| *end <= bytes.len()) else {
                    let left = bytes.len() - start;
                    return Err(refuse(
                        format!(
                            "input '{name}' has a binary_data_size of {size}, but {left} bytes are left in the body"
                        )
                        .into(),
                    ));
                };
                let data = bytes.slice(start..end);
                start = end;
                Data::Raw(data)
            }
            (None, Some(data), None) => {
                numbers(&name, &datatype, data).map_err(|e| refuse(e.into()))?
            }
            (None, None, None) => return Err(refuse(format!("input '{name}' has no data").into())),
            _ => {
                return Err(refuse(
                    format!(
                        "input '{name}' has more than one of data, binary data and shared memory"
                    )
                    .into(),
                ));
            }
        };
        inputs.push(Tensor { name, datatype, shape, data });
    }
    if start < bytes.len() && has_tensors {
        let left = bytes.len() - start;
        return Err(refuse(format!("{left} bytes of the body belong to no input").into()));
    }
    let is_binary = head.parameters.binary_data_output.unwrap_or(false);
    let mut wanted = Wanted { is_binary, range: None };
    for output in &head.outputs {
        if output.parameters.classification.is_some_and(|count| count > 0) {
            return Err(refuse("classification is not supported: scores are returned".into()));
        }
        wanted.range = output.parameters.range();
        wanted.is_binary =
            wanted.range.is_none() && output.parameters.binary_data.unwrap_or(wanted.is_binary);
    }
    let timeout = head.parameters.timeout.filter(|us| *us > 0).map(Duration::from_micros);
    let outputs = head.outputs.into_iter().map(|output| output.name).collect();
    Ok((InferRequest { model, version, id, inputs, outputs, timeout, held }, wanted))
}

/// The values of a tensor in JSON: a list, flat or nested.
fn numbers(name: &str, datatype: &str, data: &RawValue) -> Result<Data, String> {
    fn flat<T: Number>(data: &RawValue) -> Result<Vec<T>, serde_json::Error> {
        let mut values = Vec::new();
        let mut from = serde_json::Deserializer::from_str(data.get());
        Flat(&mut values).deserialize(&mut from)?;
        Ok(values)
    }
    let values = match Datatype::from_name(datatype) {
        Some(Datatype::Fp32) => flat(data).map(Data::Fp32),
        Some(Datatype::Int32) => flat(data).map(Data::Int32),
        Some(Datatype::Int64) => flat(data).map(Data::Int64),
        // Refused by its type later, with the type that the model expects.
        None => return Ok(Data::Raw(Default::default())),
    };
    values.map_err(|error| format!("input '{name}': {error}"))
}

/// An element that a JSON number can become without changing its value, but for rounding of floats.
trait Number: Sized {
    const NAME: &'static str;
    fn from_integer(value: i64) -> Option<Self>;
    fn from_float(value: f64) -> Option<Self>;
}

impl Number for f32 {
    const NAME: &'static str = "FP32";

    fn from_integer(value: i64) -> Option<Self> {
        Some(value as f32)
    }

    fn from_float(value: f64) -> Option<Self> {
        Some(value as f32)
    }
}

impl Number for i32 {
    const NAME: &'static str = "INT32";

    fn from_integer(value: i64) -> Option<Self> {
        value.try_into().ok()
    }

    fn from_float(_: f64) -> Option<Self> {
        None
    }
}

impl Number for i64 {
    const NAME: &'static str = "INT64";

    fn from_integer(value: i64) -> Option<Self> {
        Some(value)
    }

    fn from_float(_: f64) -> Option<Self> {
        None
    }
}

/// Appends a number, or all numbers of lists within lists.
struct Flat<'a, T>(&'a mut Vec<T>);

impl<'de, T: Number> DeserializeSeed<'de> for Flat<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Number> Visitor<'de> for Flat<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{} numbers", T::NAME)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        let number = T::from_integer(value);
        self.0.push(number.ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))?);
        Ok(())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        let number = i64::try_from(value).ok().and_then(T::from_integer);
        self.0.push(number.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(value), &self))?);
        Ok(())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        let number = T::from_float(value);
        self.0.push(number.ok_or_else(|| E::invalid_value(Unexpected::Float(value), &self))?);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Flat(self.0))?.is_some() {}
        Ok(())
    }
}

/// The JSON of an answer, its content type, and its length where tensors follow it.
pub(super) fn response(
    answer: &InferResponse,
    wanted: &Wanted,
) -> (Vec<u8>, &'static str, Option<usize>) {
    #[derive(Serialize)]
    struct Answer<'a> {
        #[serde(skip_serializing_if = "str::is_empty")]
        id: &'a str,
        model_name: &'a str,
        model_version: String,
        outputs: [Output; 1],
    }
    #[derive(Serialize)]
    struct Output {
        name: &'static str,
        datatype: &'static str,
        shape: [i64; 2],
        #[serde(skip_serializing_if = "Option::is_none")]
        parameters: Option<Size>,
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<Vec<f32>>,
    }
    #[derive(Serialize)]
    struct Size {
        binary_data_size: usize,
    }
    let scores = &answer.scores;
    let size = Size { binary_data_size: scores.bytes.len() };
    // As Triton: nothing says that values lie in shared memory, where the client asked for them.
    let is_json = !wanted.is_binary && wanted.range.is_none();
    let output = Output {
        name: SCORES,
        datatype: Datatype::Fp32.name(),
        shape: scores.shape(),
        parameters: wanted.is_binary.then_some(size),
        data: is_json.then(|| scores.values().collect()),
    };
    let answer = Answer {
        id: &answer.id,
        model_name: &answer.model,
        model_version: answer.version.to_string(),
        outputs: [output],
    };
    let json = serde_json::to_vec(&answer).expect("plain values");
    let length = json.len();
    match wanted.is_binary {
        true => (json, "application/octet-stream", Some(length)),
        false => (json, "application/json", None),
    }
}

/// Refuses the parameters of a load request that would change the model: the repository's files
/// alone say how it is served.
pub(super) fn refuse_parameters(body: &[u8]) -> Result<(), Error> {
    #[derive(Deserialize)]
    struct Asked {
        #[serde(default)]
        parameters: serde_json::Map<String, serde_json::Value>,
    }
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(());
    }
    let asked: Asked = parse(body)?;
    match asked.parameters.keys().find(|name| *name != "unload_dependents") {
        None => Ok(()),
        Some(name) => Err(Error::malformed(format!(
            "parameter '{name}' is not supported: a model is loaded as its config.toml says"
        ))),
    }
}
