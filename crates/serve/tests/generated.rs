//! The messages and services in `src/grpc/generated` are what the generator makes of `proto/`. They are
//! checked in, so that nobody who builds the server has to build the generator.

use std::path::Path;
use std::{env, fs};

const IN_JSON: [&str; 16] = [
    ".inference.ServerMetadataResponse",
    ".inference.ModelMetadataResponse",
    ".inference.ModelConfig",
    ".inference.ModelVersionPolicy.policy_choice",
    ".inference.ModelVersionPolicy.Latest",
    ".inference.ModelVersionPolicy.All",
    ".inference.ModelVersionPolicy.Specific",
    ".inference.ModelInput",
    ".inference.ModelOutput",
    ".inference.ModelDynamicBatching",
    ".inference.ModelQueuePolicy",
    ".inference.ModelParameter",
    ".inference.ModelStatistics",
    ".inference.InferStatistics",
    ".inference.InferBatchStatistics",
    ".inference.StatisticDuration",
];

#[test]
fn checked_in_messages_are_those_of_the_protocol_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = tempfile::tempdir().unwrap();
    let proto = root.join("proto");
    let files = ["inference.proto", "health.proto"].map(|name| proto.join(name));
    let descriptors = protox::compile(files, [&proto]).unwrap();
    let mut builder = tonic_prost_build::configure();
    // HTTP sends these messages as JSON.
    for message in IN_JSON {
        builder = builder.type_attribute(message, "#[derive(serde::Serialize)]");
    }
    builder
        .type_attribute(
            ".inference.ModelVersionPolicy.policy_choice",
            "#[serde(rename_all = \"snake_case\")]",
        )
        .field_attribute("version_policy", "#[serde(serialize_with = \"crate::describe::policy\")]")
        .field_attribute("data_type", "#[serde(serialize_with = \"crate::describe::data_type\")]")
        .field_attribute("optional", "#[serde(skip_serializing_if = \"std::ops::Not::not\")]")
        .btree_map(".inference.ModelConfig.parameters")
        .build_client(false)
        // Tensors stay in the buffer that they were received in.
        .bytes(".inference.ModelInferRequest.raw_input_contents")
        .bytes(".inference.ModelInferResponse.raw_output_contents")
        .out_dir(made.path())
        .compile_fds(descriptors)
        .unwrap();
    let generated = root.join("src/grpc/generated");
    for (package, name) in [("inference", "inference.rs"), ("grpc.health.v1", "health.rs")] {
        let expected = fs::read_to_string(made.path().join(format!("{package}.rs"))).unwrap();
        let path = generated.join(name);
        if env::var_os("HITHER_PROTO").is_some_and(|word| word == "write") {
            fs::write(&path, &expected).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap();
        // Not `assert_eq`: nobody wants to read two thousand lines twice.
        assert!(
            found == expected,
            "{} is old; set HITHER_PROTO=write to replace it",
            path.display()
        );
    }
}
