//! What clients and balancers see of a backend that fails, through the real shell and a backend of the
//! test's own.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::http::Request;
use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use hither_kernels::threads::Pinning;
use hither_serve::backend::{Backend, Done, Failure, Threads, Worker};
use hither_serve::config::ModelConfig;
use hither_serve::grpc::proto::inference::ModelInferRequest;
use hither_serve::grpc::proto::inference::model_infer_request::InferInputTensor;
use hither_serve::inputs::{Features, Form, ModelShape, Signature};
use hither_serve::memory::Share;
use hither_serve::receive::{Budget, Limited};
use hither_serve::repository::{Layout, LoadBackend, Repository};
use hither_serve::server::{Limits, Server};
use hither_serve::shm::Regions;
use hither_serve::{grpc, http};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use prost::Message as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// What the backends of a test do, and what is known of them.
#[derive(Default)]
struct Script {
    failure: Mutex<Option<Failure>>,
    load_failure: Mutex<Option<String>>,
    copy_bytes: u64,
    copy_time: Duration,
    /// Bytes that all backends hold at most, as their copies end.
    copied: Mutex<Vec<u64>>,
}

struct Fake {
    signature: Signature,
    script: Arc<Script>,
    memory: Mutex<Option<Share>>,
}

impl Backend for Fake {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn run(
        &self,
        _: &[&Features],
        scores: &mut [f32],
        results: &mut [Result<(), Failure>],
        _: &mut Worker,
        _: &Threads,
    ) -> Done {
        scores.fill(0.5);
        if let Some(failure) = &*self.script.failure.lock().expect("nobody panics") {
            results.fill(Err(failure.clone()));
        }
        Done::default()
    }

    fn copy_bytes(&self) -> u64 {
        match self.memory.lock().expect("nobody panics").is_some() {
            true => 0,
            false => self.script.copy_bytes,
        }
    }

    fn copy(&self, memory: Share) -> Result<(), String> {
        std::thread::sleep(self.script.copy_time);
        *self.memory.lock().expect("nobody panics") = Some(memory);
        self.script.copied.lock().expect("nobody panics").push(self.script.copy_bytes);
        Ok(())
    }

    fn tune(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A server of the one model `ads`, whose backends follow a script.
struct Bed {
    script: Arc<Script>,
    server: Arc<Server>,
    _dir: tempfile::TempDir,
}

impl Bed {
    async fn new(script: Script, memory_bytes_max: Option<u64>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(dir.path().join("ads/1")).expect("a version");
        let script = Arc::new(script);
        let own = Arc::clone(&script);
        let load: LoadBackend = Box::new(move |name: &str, _: &Path, config: &ModelConfig| {
            if let Some(reason) = &*own.load_failure.lock().expect("nobody panics") {
                return Err(reason.clone());
            }
            let shape = ModelShape { dense: 2, tables: vec![("t".into(), 9)], outputs: 1 };
            let signature = Signature::new(name, shape, Form::Joined, Vec::new(), config);
            let (script, memory) = (Arc::clone(&own), Mutex::default());
            Ok(Box::new(Fake { signature, script, memory }) as Box<dyn Backend>)
        });
        let threads = Arc::new(Threads::new(1, Pinning::Free).expect("a thread"));
        let layout = Layout::open(dir.path()).expect("a repository");
        let repository = Arc::new(Repository::new(layout, load, threads, memory_bytes_max));
        assert_eq!(repository.begin().await.expect("readable").len(), 0);
        let regions = Regions::new(false);
        let server = Arc::new(Server::new(repository, Limits::default(), regions));
        Self { script, server, _dir: dir }
    }

    async fn sent(&self, router: Router, path: &str, kind: &str, bytes: Vec<u8>) -> (u16, String) {
        let budget = Budget::new(&Limits::default());
        let frame: Result<_, hyper::Error> = Ok(Frame::data(Bytes::from(bytes)));
        let body = StreamBody::new(tonic::codegen::tokio_stream::iter([frame]));
        let body = Limited::new(body, path, &budget.client());
        let asked = Request::post(path).header("content-type", kind).extension(body.intake());
        let asked = asked.body(Body::new(body)).expect("a request");
        let answer = router.oneshot(asked).await.expect("an answer");
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let code = headers.get("grpc-status").map(|code| code.to_str().expect("text").to_owned());
        let body = answer.into_body().collect().await.expect("a body");
        let trailers = body.trailers().and_then(|all| all.get("grpc-status"));
        let code = code.or(trailers.map(|code| code.to_str().expect("text").to_owned()));
        (status, code.unwrap_or_default())
    }

    /// The status of a request over HTTP, and that over gRPC.
    async fn infer(&self) -> (u16, String) {
        let tensor = |name: &str, datatype: &str, shape: Value, data: Value| json!({ "name": name, "datatype": datatype, "shape": shape, "data": data });
        let asked = json!({ "inputs": [
            tensor("dense", "FP32", json!([1, 2]), json!([0, 1])),
            tensor("values", "INT64", json!([1]), json!([3])),
            tensor("lengths", "INT64", json!([1]), json!([1])),
        ] });
        let (router, path) = (http::router(Arc::clone(&self.server)), "/v2/models/ads/infer");
        let (over_http, _) =
            self.sent(router, path, "application/json", asked.to_string().into_bytes()).await;
        let tensor = |name: &str, datatype: &str, shape: &[i64]| InferInputTensor {
            name: name.into(),
            datatype: datatype.into(),
            shape: shape.into(),
            ..InferInputTensor::default()
        };
        let message = ModelInferRequest {
            model_name: "ads".into(),
            inputs: vec![
                tensor("dense", "FP32", &[1, 2]),
                tensor("values", "INT64", &[1]),
                tensor("lengths", "INT64", &[1]),
            ],
            raw_input_contents: vec![
                vec![0; 8].into(),
                3i64.to_le_bytes().to_vec().into(),
                1i64.to_le_bytes().to_vec().into(),
            ],
            ..ModelInferRequest::default()
        };
        let message = message.encode_to_vec();
        let mut framed = vec![0];
        framed.extend((message.len() as u32).to_be_bytes());
        framed.extend(message);
        let path = "/inference.GRPCInferenceService/ModelInfer";
        let router = grpc::router(Arc::clone(&self.server));
        let (_, over_grpc) = self.sent(router, path, "application/grpc", framed).await;
        (over_http, over_grpc)
    }

    fn fails(&self, failure: Option<Failure>) {
        *self.script.failure.lock().expect("nobody panics") = failure;
    }
}

fn statuses(http: u16, grpc: u32) -> (u16, String) {
    (http, grpc.to_string())
}

#[tokio::test]
async fn whose_fault_a_failure_is() {
    let bed = Bed::new(Script::default(), None).await;
    assert_eq!(bed.infer().await, statuses(200, 0));
    bed.fails(Some(Failure::Request("id 9 is not below 9 rows".into())));
    assert_eq!(bed.infer().await, statuses(400, 3), "the request is wrong");
    bed.fails(Some(Failure::Backend("out of memory".into())));
    assert_eq!(bed.infer().await, statuses(500, 13), "the server is at fault");
    assert!(bed.server.is_ready(), "it may work again");
    bed.fails(None);
    assert_eq!(bed.infer().await, statuses(200, 0));
}

#[tokio::test]
async fn a_lost_device_takes_readiness_away_until_the_model_is_loaded_anew() {
    let bed = Bed::new(Script::default(), None).await;
    let mut changes = bed.server.repository.changes();
    assert!(bed.server.is_ready());
    changes.mark_unchanged();
    bed.fails(Some(Failure::Lost("CUDA_ERROR_LAUNCH_FAILED".into())));
    assert_eq!(bed.infer().await, statuses(500, 13));
    assert!(!bed.server.is_ready() && !bed.server.is_model_ready("ads", "").expect("known"));
    assert!(changes.has_changed().expect("it lives"), "whoever watches health is told");
    bed.fails(None);
    bed.server.repository.load("ads").await.expect("loaded");
    assert!(bed.server.is_ready());
    assert_eq!(bed.infer().await, statuses(200, 0));
}

#[tokio::test]
async fn a_backend_that_cannot_be_made_leaves_the_one_that_serves() {
    let bed = Bed::new(Script::default(), None).await;
    *bed.script.load_failure.lock().expect("nobody panics") = Some("no room on the GPU".into());
    let error = bed.server.repository.load("ads").await.expect_err("it fails").to_string();
    assert!(error.contains("no room on the GPU"), "{error}");
    assert_eq!(bed.infer().await, statuses(200, 0));
    assert!(bed.server.is_ready());
    assert_eq!(bed.server.repository.load_failures(), [("ads".to_owned(), 1)]);
}

/// Memory for one and a half copies: each load waits for the version before to give its share back.
#[tokio::test]
async fn copies_wait_for_the_memory_of_the_version_before() {
    let script = Script { copy_bytes: 60, ..Script::default() };
    let bed = Bed::new(script, Some(90)).await;
    for load in 1..=3 {
        let copies = || bed.script.copied.lock().expect("nobody panics").len();
        for _ in 0..1000 {
            if copies() == load {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!((copies(), bed.server.repository.copied_bytes()), (load, 60));
        bed.server.repository.load("ads").await.expect("loaded");
    }
}

/// With memory for both, a version takes the place of another only when its tables are copied.
#[tokio::test]
async fn a_version_is_copied_before_it_takes_the_place_of_another() {
    let copy_time = Duration::from_millis(50);
    let script = Script { copy_bytes: 60, copy_time, ..Script::default() };
    let bed = Bed::new(script, Some(1000)).await;
    for loads in 1..=3 {
        bed.server.repository.load("ads").await.expect("loaded");
        let copies = bed.script.copied.lock().expect("nobody panics").len();
        // The first version serves from its file at once, and may be replaced before its turn.
        assert!(copies >= loads, "{copies} copies after {loads} loads");
    }
}
