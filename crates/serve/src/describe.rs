//! What a server and its models are, in the protocol's terms. HTTP sends these as JSON, gRPC turns
//! them into its messages.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::config::VersionPolicy;
use crate::inputs::TensorInfo;
use crate::served::Served;
use crate::server::Server;
use crate::stats::Total;

pub const SERVER_NAME: &str = "hither";
pub const SERVER_VERSION: &str = env!("CARGO_PKG_VERSION");
pub const PLATFORM: &str = "hither_dlrm";
/// The extensions that always work.
pub const EXTENSIONS: [&str; 7] = [
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
];

#[derive(Debug, Serialize)]
pub struct ServerMetadata {
    pub name: &'static str,
    pub version: &'static str,
    pub extensions: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
pub struct ModelMetadata {
    pub name: String,
    pub versions: Vec<String>,
    pub platform: &'static str,
    pub inputs: Vec<TensorMetadata>,
    pub outputs: Vec<TensorMetadata>,
}

#[derive(Debug, Serialize)]
pub struct TensorMetadata {
    pub name: String,
    pub datatype: &'static str,
    pub shape: Vec<i64>,
}

/// A model's configuration in Triton's terms. Dimensions leave out that of the samples if
/// `max_batch_size` is not 0.
#[derive(Debug, Serialize)]
pub struct ModelConfig {
    pub name: String,
    pub platform: &'static str,
    pub backend: &'static str,
    pub version_policy: serde_json::Value,
    pub max_batch_size: usize,
    pub input: Vec<TensorConfig>,
    pub output: Vec<TensorConfig>,
    pub dynamic_batching: DynamicBatching,
    pub parameters: BTreeMap<&'static str, ModelParameter>,
}

#[derive(Debug, Serialize)]
pub struct ModelParameter {
    pub string_value: String,
}

#[derive(Debug, Serialize)]
pub struct TensorConfig {
    pub name: String,
    pub data_type: String,
    pub dims: Vec<i64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

#[derive(Debug, Serialize)]
pub struct DynamicBatching {
    pub preferred_batch_size: Vec<usize>,
    pub max_queue_delay_microseconds: u64,
    pub default_queue_policy: QueuePolicy,
}

#[derive(Debug, Serialize)]
pub struct QueuePolicy {
    pub default_timeout_microseconds: u64,
    pub allow_timeout_override: bool,
    pub max_queue_size: usize,
}

#[derive(Debug, Serialize)]
pub struct ModelStatistics {
    pub name: String,
    pub version: String,
    pub last_inference: u64,
    pub inference_count: u64,
    pub execution_count: u64,
    pub inference_stats: InferStatistics,
    pub batch_stats: Vec<BatchStatistics>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct InferStatistics {
    pub success: Total,
    pub fail: Total,
    pub queue: Total,
    pub compute_input: Total,
    pub compute_infer: Total,
    pub compute_output: Total,
    pub cache_hit: Total,
    pub cache_miss: Total,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct BatchStatistics {
    pub batch_size: u64,
    pub compute_input: Total,
    pub compute_infer: Total,
    pub compute_output: Total,
}

pub fn server(server: &Server) -> ServerMetadata {
    let shared_memory = server.regions.is_offered().then_some("system_shared_memory");
    let extensions = EXTENSIONS.into_iter().chain(shared_memory).collect();
    ServerMetadata { name: SERVER_NAME, version: SERVER_VERSION, extensions }
}

/// `versions` are all that are served, whichever was asked for.
pub fn metadata(served: &Served, versions: &[u64]) -> ModelMetadata {
    let tensor = |info: TensorInfo| TensorMetadata {
        name: info.name,
        datatype: info.datatype.name(),
        shape: info.shape,
    };
    ModelMetadata {
        name: served.name.clone(),
        versions: versions.iter().map(ToString::to_string).collect(),
        platform: PLATFORM,
        inputs: served.signature().inputs().into_iter().map(tensor).collect(),
        outputs: served.signature().outputs().into_iter().map(tensor).collect(),
    }
}

pub fn config(served: &Served) -> ModelConfig {
    let is_batched = served.signature().is_batched();
    let tensor = |info: TensorInfo| TensorConfig {
        name: info.name,
        data_type: format!("TYPE_{}", info.datatype.name()),
        dims: info.shape[usize::from(is_batched)..].to_vec(),
        optional: info.is_optional,
    };
    let config = &served.config;
    ModelConfig {
        name: served.name.clone(),
        platform: PLATFORM,
        backend: SERVER_NAME,
        version_policy: match &config.version_policy {
            VersionPolicy::All => serde_json::json!({ "all": {} }),
            VersionPolicy::Latest(count) => {
                serde_json::json!({ "latest": { "num_versions": count } })
            }
            VersionPolicy::Specific(numbers) => {
                serde_json::json!({ "specific": { "versions": numbers } })
            }
        },
        max_batch_size: if is_batched { config.max_batch_size } else { 0 },
        input: served.signature().inputs().into_iter().map(tensor).collect(),
        output: served.signature().outputs().into_iter().map(tensor).collect(),
        dynamic_batching: DynamicBatching {
            preferred_batch_size: config.batching.samples_preferred.clone(),
            max_queue_delay_microseconds: config.batching.window_us,
            default_queue_policy: QueuePolicy {
                default_timeout_microseconds: config.timeout_us,
                allow_timeout_override: true,
                max_queue_size: config.batching.queue_requests_max,
            },
        },
        parameters: (served.signature().parameters().into_iter())
            .map(|(name, string_value)| (name, ModelParameter { string_value }))
            .collect(),
    }
}

pub fn statistics(served: &Served) -> ModelStatistics {
    use std::sync::atomic::Ordering::Relaxed;
    let stats = &served.stats;
    let batch = |(samples, [input, infer, output]): (usize, [Total; 3])| BatchStatistics {
        batch_size: samples as u64,
        compute_input: input,
        compute_infer: infer,
        compute_output: output,
    };
    ModelStatistics {
        name: served.name.clone(),
        version: served.version.to_string(),
        last_inference: stats.last_ms(),
        inference_count: stats.samples.load(Relaxed),
        execution_count: stats.batches.load(Relaxed),
        inference_stats: InferStatistics {
            success: stats.success.read(),
            fail: stats.fail.read(),
            queue: stats.queue.read(),
            compute_input: stats.compute_input.read(),
            compute_infer: stats.compute_infer.read(),
            compute_output: stats.compute_output.read(),
            ..InferStatistics::default()
        },
        batch_stats: stats.by_size().into_iter().map(batch).collect(),
    }
}
