//! Asks a server what it serves: its models, the inputs that a model takes, and the time that it
//! spends by its own account. All answers are the protocol's own, so any server of it will do.

use std::collections::BTreeMap;

use http::{HeaderMap, Method};
use prost::Message;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::Error;
use crate::proto;
use crate::request::{call, error_text, grpc_message, grpc_status};
use crate::wire::{Connections, Prepared, Protocol};

/// A model by name and version; the newest where the version is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    pub name: String,
    pub version: String,
}

impl Model {
    /// The model's address below a server's.
    pub fn path(&self) -> String {
        let name = escaped(&self.name);
        match self.version.as_str() {
            "" => format!("/v2/models/{name}"),
            version => format!("/v2/models/{name}/versions/{}", escaped(version)),
        }
    }
}

/// The inputs of a model, and what its server adds to them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    pub inputs: Vec<Input>,
    /// The parameters of the model's configuration; empty where the server shows none.
    pub parameters: BTreeMap<String, String>,
}

/// An input; −1 in its shape is any length.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Input {
    pub name: String,
    pub datatype: String,
    pub shape: Vec<i64>,
}

/// A server's counters; times are sums over requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    pub requests: u64,
    pub executions: u64,
    pub queue_ns: u64,
    pub compute_input_ns: u64,
    pub compute_infer_ns: u64,
    pub compute_output_ns: u64,
}

/// The only model that is ready to serve.
pub async fn only_model(connections: &Connections) -> Result<String, Error> {
    #[derive(Deserialize)]
    struct Entry {
        name: String,
    }
    let models: Vec<String> = match connections.target().protocol {
        Protocol::Http => {
            let body = r#"{"ready": true}"#;
            let entries: Vec<Entry> =
                ask_http(connections, Method::POST, "/v2/repository/index", body).await?;
            entries.into_iter().map(|entry| entry.name).collect()
        }
        Protocol::Grpc => {
            let ask = proto::RepositoryIndexRequest { repository_name: String::new(), ready: true };
            let index: proto::RepositoryIndex =
                ask_grpc(connections, "RepositoryIndex", &ask).await?;
            index.models.into_iter().map(|entry| entry.name).collect()
        }
    };
    let mut models = models;
    models.sort();
    models.dedup();
    let target = || connections.target().to_string();
    match models.as_slice() {
        [] => Err(Error::NoModel { target: target() }),
        [one] => Ok(one.clone()),
        _ => Err(Error::SeveralModels { target: target(), models }),
    }
}

/// What a model takes. A server without configurations still has metadata.
pub async fn metadata(connections: &Connections, model: &Model) -> Result<Metadata, Error> {
    #[derive(Deserialize)]
    struct Answer {
        inputs: Vec<Input>,
    }
    let name = || proto::ModelName { name: model.name.clone(), version: model.version.clone() };
    match connections.target().protocol {
        Protocol::Http => {
            let answer: Answer = ask_http(connections, Method::GET, &model.path(), "").await?;
            let config = format!("{}/config", model.path());
            let config: serde_json::Value =
                ask_http(connections, Method::GET, &config, "").await.unwrap_or_default();
            let text =
                |value: &serde_json::Value| value["string_value"].as_str().map(str::to_owned);
            let parameters = config["parameters"].as_object().into_iter().flatten();
            let parameters = parameters.filter_map(|(key, v)| Some((key.clone(), text(v)?)));
            Ok(Metadata { inputs: answer.inputs, parameters: parameters.collect() })
        }
        Protocol::Grpc => {
            let answer: proto::ModelMetadata =
                ask_grpc(connections, "ModelMetadata", &name()).await?;
            let config = ask_grpc(connections, "ModelConfig", &name()).await;
            let config: proto::ModelConfigAnswer = config.unwrap_or_default();
            let parameters = config.config.into_iter().flat_map(|config| config.parameters);
            let inputs = answer.inputs.into_iter().map(|tensor| Input {
                name: tensor.name,
                datatype: tensor.datatype,
                shape: tensor.shape,
            });
            let parameters = parameters.map(|(key, value)| (key, value.string_value)).collect();
            Ok(Metadata { inputs: inputs.collect(), parameters })
        }
    }
}

/// The server's counters of a model, summed over its versions.
pub async fn statistics(connections: &Connections, model: &Model) -> Result<Statistics, Error> {
    let mut sum = Statistics::default();
    match connections.target().protocol {
        Protocol::Http => {
            let path = format!("{}/stats", model.path());
            let answer: serde_json::Value = ask_http(connections, Method::GET, &path, "").await?;
            for one in answer["model_stats"].as_array().into_iter().flatten() {
                let stats = &one["inference_stats"];
                let count = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
                sum.requests += count(&stats["success"]["count"]);
                sum.executions += count(&one["execution_count"]);
                sum.queue_ns += count(&stats["queue"]["ns"]);
                sum.compute_input_ns += count(&stats["compute_input"]["ns"]);
                sum.compute_infer_ns += count(&stats["compute_infer"]["ns"]);
                sum.compute_output_ns += count(&stats["compute_output"]["ns"]);
            }
        }
        Protocol::Grpc => {
            let name =
                proto::ModelName { name: model.name.clone(), version: model.version.clone() };
            let answer: proto::ModelStatistics =
                ask_grpc(connections, "ModelStatistics", &name).await?;
            for one in answer.model_stats {
                let stats = one.inference_stats.unwrap_or_default();
                let ns = |spent: Option<proto::Spent>| spent.map_or(0, |spent| spent.ns);
                sum.requests += stats.success.as_ref().map_or(0, |spent| spent.count);
                sum.executions += one.execution_count;
                sum.queue_ns += ns(stats.queue);
                sum.compute_input_ns += ns(stats.compute_input);
                sum.compute_infer_ns += ns(stats.compute_infer);
                sum.compute_output_ns += ns(stats.compute_output);
            }
        }
    }
    Ok(sum)
}

async fn ask_http<T: DeserializeOwned>(
    connections: &Connections,
    method: Method,
    path: &str,
    body: &'static str,
) -> Result<T, Error> {
    let target = connections.target().to_string();
    let uri = path.parse().expect("names in a path are escaped");
    let headers = HeaderMap::new();
    let prepared = Prepared { method, path: uri, headers, body: body.into() };
    let reply = connections.exchange(&prepared).await?;
    if reply.status != 200 {
        let (status, message) = (format!("{} to {path}", reply.status), error_text(&reply.body));
        return Err(Error::Refused { target, status, message });
    }
    serde_json::from_slice(&reply.body).map_err(|error| Error::Answer {
        target,
        asked: path.into(),
        problem: error.to_string(),
    })
}

async fn ask_grpc<T: Message + Default>(
    connections: &Connections,
    name: &str,
    message: &impl Message,
) -> Result<T, Error> {
    let target = connections.target().to_string();
    let reply = connections.exchange(&call(name, proto::framed(message))).await?;
    let code = grpc_status(&reply);
    if code != "0" {
        let status = format!("{name} with gRPC status {code}");
        return Err(Error::Refused { target, status, message: grpc_message(&reply).into() });
    }
    let decoded = proto::unframed(&reply.body).and_then(|message| T::decode(message).ok());
    decoded.ok_or_else(|| Error::Answer {
        target,
        asked: name.into(),
        problem: "it is not the message that was expected".into(),
    })
}

/// A name as part of a path.
fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(byte.into());
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}
