//! What a client hears whose body was cut off on its way in.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use hither_dlrm::run::{Pinning, Threads};
use hither_serve::receive::{Budget, Limited};
use hither_serve::repository::{Layout, LoadBackend, Repository};
use hither_serve::server::{Limits, Server};
use hither_serve::shm::Regions;
use hither_serve::{Error, grpc, http};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tonic::Status;
use tonic::codegen::tokio_stream;
use tower::ServiceExt as _;

const LIMITS: Limits =
    Limits { request_bytes_max: 100, connections_max: 1, body_max: Duration::from_secs(60) };

fn server() -> Arc<Server> {
    let dir = tempfile::tempdir().expect("a directory");
    let threads = Threads::new(1, Pinning::Free).expect("a thread");
    let layout = Layout::open(dir.path()).expect("an empty repository");
    let load: LoadBackend = Box::new(|_, _, _| Err("there are no models".into()));
    let repository = Repository::new(layout, load, Arc::new(threads), None);
    Arc::new(Server::new(Arc::new(repository), LIMITS, Regions::new(false)))
}

/// A body of so many bytes, of which a client with this budget may hold four hundred.
fn body(
    path: &str,
    bytes: Vec<u8>,
) -> Limited<impl http_body::Body<Data = Bytes, Error = hyper::Error> + Unpin + Send> {
    let frame: Result<_, hyper::Error> = Ok(Frame::data(Bytes::from(bytes)));
    let client = Budget::new(&LIMITS).client();
    Limited::new(StreamBody::new(tokio_stream::iter([frame])), path, &client)
}

fn request(path: &str, kind: &str) -> ::http::request::Builder {
    ::http::Request::post(path).header("content-type", kind)
}

#[tokio::test]
async fn too_many_bytes_are_told_as_overload_and_not_as_a_mistake() {
    let path = "/v2/models/ads/infer";
    let limited = body(path, vec![b' '; 500]);
    let asked = request(path, "application/json").extension(limited.intake());
    let asked = asked.body(Body::new(limited)).expect("a request");
    let answer = http::router(server()).oneshot(asked).await.expect("an answer");
    assert_eq!(answer.status(), 503);

    let path = "/inference.GRPCInferenceService/ModelInfer";
    let mut message = vec![0];
    message.extend(500u32.to_be_bytes());
    message.resize(505, 0);
    let limited = body(path, message);
    let asked = request(path, "application/grpc").extension(limited.intake());
    let body = limited.map_err(|cut| Status::from(Error::from(cut)));
    let asked = asked.body(Body::new(body)).expect("a request");
    let answer = grpc::router(server()).oneshot(asked).await.expect("an answer");
    assert_eq!(answer.headers().get("grpc-status").expect("a status"), "14", "UNAVAILABLE");
}
