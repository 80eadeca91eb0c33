//! The messages and services in `src/grpc/generated` are what the generator makes of `proto/`. They are
//! checked in, so that nobody who builds the server has to build the generator.

use std::path::Path;
use std::{env, fs};

#[test]
fn checked_in_messages_are_those_of_the_protocol_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = tempfile::tempdir().unwrap();
    let proto = root.join("proto");
    let files = ["inference.proto", "health.proto"].map(|name| proto.join(name));
    let descriptors = protox::compile(files, [&proto]).unwrap();
    tonic_prost_build::configure()
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
