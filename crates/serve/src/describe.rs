//! What a server and its models are, as messages of the protocol. gRPC sends them as they are, and HTTP the
//! same in JSON.

use std::sync::atomic::Ordering::Relaxed;

use serde::{Serialize as _, Serializer};

use crate::config::VersionPolicy;
use crate::grpc::proto::inference::model_metadata_response::TensorMetadata;
use crate::grpc::proto::inference::model_version_policy::{All, Latest, PolicyChoice, Specific};
use crate::grpc::proto::inference::{
    DataType, InferBatchStatistics, InferStatistics, ModelConfig, ModelDynamicBatching, ModelInput,
    ModelMetadataResponse, ModelOutput, ModelParameter, ModelQueuePolicy, ModelStatistics,
    ModelVersionPolicy, ServerMetadataResponse,
};
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

pub fn server(server: &Server) -> ServerMetadataResponse {
    let shared_memory = server.regions.is_offered().then_some("system_shared_memory");
    let extensions = EXTENSIONS.into_iter().chain(shared_memory);
    ServerMetadataResponse {
        name: SERVER_NAME.into(),
        version: SERVER_VERSION.into(),
        extensions: extensions.map(Into::into).collect(),
    }
}

/// `versions` are all that are served, whichever was asked for.
pub fn metadata(served: &Served, versions: &[u64]) -> ModelMetadataResponse {
    let tensor = |info: TensorInfo| TensorMetadata {
        name: info.name,
        datatype: info.datatype.name().into(),
        shape: info.shape,
    };
    ModelMetadataResponse {
        name: served.name.clone(),
        versions: versions.iter().map(ToString::to_string).collect(),
        platform: PLATFORM.into(),
        inputs: served.signature().inputs().into_iter().map(tensor).collect(),
        outputs: served.signature().outputs().into_iter().map(tensor).collect(),
    }
}

/// A model's configuration in Triton's terms. Dimensions leave out that of the samples if
/// `max_batch_size` is not 0.
pub fn config(served: &Served) -> ModelConfig {
    let is_batched = served.signature().is_batched();
    let tensor = |info: TensorInfo| {
        let data_type = DataType::from_str_name(&format!("TYPE_{}", info.datatype.name()));
        ModelInput {
            name: info.name,
            data_type: data_type.unwrap_or(DataType::TypeInvalid).into(),
            dims: info.shape[usize::from(is_batched)..].to_vec(),
            optional: info.is_optional,
        }
    };
    let output = |info: TensorInfo| {
        let ModelInput { name, data_type, dims, .. } = tensor(info);
        ModelOutput { name, data_type, dims }
    };
    let config = &served.config;
    let policy = match &config.version_policy {
        VersionPolicy::All => PolicyChoice::All(All {}),
        VersionPolicy::Latest(count) => {
            PolicyChoice::Latest(Latest { num_versions: *count as u32 })
        }
        VersionPolicy::Specific(numbers) => {
            let versions = numbers.iter().map(|number| *number as i64).collect();
            PolicyChoice::Specific(Specific { versions })
        }
    };
    let sizes = config.batching.samples_preferred.iter();
    ModelConfig {
        name: served.name.clone(),
        platform: PLATFORM.into(),
        backend: SERVER_NAME.into(),
        version_policy: Some(ModelVersionPolicy { policy_choice: Some(policy) }),
        max_batch_size: if is_batched { config.max_batch_size as i32 } else { 0 },
        input: served.signature().inputs().into_iter().map(tensor).collect(),
        output: served.signature().outputs().into_iter().map(output).collect(),
        dynamic_batching: Some(ModelDynamicBatching {
            preferred_batch_size: sizes.map(|size| *size as i32).collect(),
            max_queue_delay_microseconds: config.batching.window_us,
            default_queue_policy: Some(ModelQueuePolicy {
                default_timeout_microseconds: config.timeout_us,
                allow_timeout_override: true,
                max_queue_size: config.batching.queue_requests_max as u32,
            }),
        }),
        parameters: (served.signature().parameters().into_iter())
            .map(|(name, string_value)| (name.into(), ModelParameter { string_value }))
            .collect(),
    }
}

/// A type of elements by its name, as JSON has it.
pub(crate) fn data_type<S: Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(DataType::try_from(*value).unwrap_or(DataType::TypeInvalid).as_str_name())
}

/// A policy without the message around it.
pub(crate) fn policy<S: Serializer>(
    value: &Option<ModelVersionPolicy>,
    to: S,
) -> Result<S::Ok, S::Error> {
    value.as_ref().and_then(|policy| policy.policy_choice.as_ref()).serialize(to)
}

pub fn statistics(served: &Served) -> ModelStatistics {
    let stats = &served.stats;
    let batch = |(samples, [input, infer, output]): (usize, [Total; 3])| InferBatchStatistics {
        batch_size: samples as u64,
        compute_input: Some(input),
        compute_infer: Some(infer),
        compute_output: Some(output),
    };
    ModelStatistics {
        name: served.name.clone(),
        version: served.version.to_string(),
        last_inference: stats.last_ms(),
        inference_count: stats.samples.load(Relaxed),
        execution_count: stats.batches.load(Relaxed),
        inference_stats: Some(InferStatistics {
            success: Some(stats.success.read()),
            fail: Some(stats.fail.read()),
            queue: Some(stats.queue.read()),
            compute_input: Some(stats.compute_input.read()),
            compute_infer: Some(stats.compute_infer.read()),
            compute_output: Some(stats.compute_output.read()),
            cache_hit: Some(Total::default()),
            cache_miss: Some(Total::default()),
        }),
        batch_stats: stats.by_size().into_iter().map(batch).collect(),
    }
}
