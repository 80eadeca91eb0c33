//! What clients get over real connections: a port, and a backend of the test's own.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use ::http::Request;
use bytes::Bytes;
use hither_kernels::threads::Pinning;
use hither_serve::backend::{Backend, Done, Failure, Threads, Worker};
use hither_serve::config::ModelConfig;
use hither_serve::http;
use hither_serve::inputs::{Features, Form, ModelShape, Signature};
use hither_serve::listen::Port;
use hither_serve::memory::Share;
use hither_serve::receive::Budget;
use hither_serve::repository::{Layout, LoadBackend, Repository};
use hither_serve::server::{Limits, Server};
use hither_serve::shm::Regions;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const INFER: &str = "http://server/v2/models/ads/infer";

/// Scores as slowly as a large model.
struct Slow(Signature);

impl Backend for Slow {
    fn signature(&self) -> &Signature {
        &self.0
    }

    fn run(
        &self,
        _: &[&Features],
        scores: &mut [f32],
        _: &mut [Result<(), Failure>],
        _: &mut Worker,
        _: &Threads,
    ) -> Done {
        std::thread::sleep(Duration::from_millis(3));
        scores.fill(0.5);
        Done::default()
    }

    fn copy_bytes(&self) -> u64 {
        0
    }

    fn copy(&self, _: Share) -> Result<(), String> {
        Ok(())
    }

    fn tune(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A port that serves the model `ads` on one thread. It ends with the sender.
async fn port(limits: Limits) -> (SocketAddr, watch::Sender<bool>) {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir_all(dir.path().join("ads/1")).expect("a version");
    let load: LoadBackend = Box::new(|name: &str, _: &Path, config: &ModelConfig| {
        let shape = ModelShape { dense: 1, tables: vec![("t".into(), 9)], outputs: 1 };
        let signature = Signature::new(name, shape, Form::Matrix, vec![1], config);
        Ok(Box::new(Slow(signature)) as Box<dyn Backend>)
    });
    let threads = Arc::new(Threads::new(1, Pinning::Free).expect("a thread"));
    let layout = Layout::open(dir.path()).expect("a repository");
    let repository = Arc::new(Repository::new(layout, load, threads, None));
    assert_eq!(repository.begin().await.expect("readable").len(), 0);
    let server = Arc::new(Server::new(repository, limits, Regions::new(false)));
    let port = Port {
        router: http::router(server),
        tls: None,
        access: None,
        connections_max: limits.connections_max,
        budget: Budget::new(&limits),
        drain_max: Duration::ZERO,
    };
    let listener = Port::bind(([127, 0, 0, 1], 0).into()).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(port.serve(listener, stopped));
    (address, stop)
}

async fn connect(address: SocketAddr) -> TokioIo<TcpStream> {
    TokioIo::new(TcpStream::connect(address).await.expect("connected"))
}

/// A request of so many samples, with binary tensors.
fn request(samples: usize) -> Request<Full<Bytes>> {
    let tensor = |name: &str, datatype: &str, bytes: usize| {
        format!(
            r#"{{"name":"{name}","datatype":"{datatype}","shape":[{samples},1],"parameters":{{"binary_data_size":{bytes}}}}}"#
        )
    };
    let tensors = [tensor("dense", "FP32", samples * 4), tensor("sparse", "INT64", samples * 8)];
    let head = format!(
        r#"{{"inputs":[{}],"parameters":{{"binary_data_output":true}}}}"#,
        tensors.join(",")
    );
    let length = head.len();
    let mut body = head.into_bytes();
    body.resize(length + samples * 12, 0);
    let request = Request::post(INFER).header("inference-header-content-length", length);
    request.body(Full::new(body.into())).expect("a request")
}

#[tokio::test]
async fn a_body_that_does_not_end_gets_408() {
    let limits = Limits { body_max: Duration::from_millis(200), ..Limits::default() };
    let (address, _stop) = port(limits).await;
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let begun =
        "POST /v2/models/ads/infer HTTP/1.1\r\nhost: server\r\ncontent-length: 500\r\n\r\n{";
    stream.write_all(begun.as_bytes()).await.expect("sent");
    let mut answer = vec![0; 1024];
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut answer));
    let read = read.await.expect("an answer in time").expect("an answer");
    let answer = String::from_utf8_lossy(&answer[..read]);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    // Others are served as before.
    let (mut sender, connection) = http1::handshake(connect(address).await).await.expect("HTTP");
    tokio::spawn(connection);
    assert_eq!(sender.send_request(request(1)).await.expect("an answer").status(), 200);
}

/// Three connections ask for a whole batch each, again and again; a fourth has ten small requests waiting at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_of_one_connection_are_answered_beside_connections_that_saturate() {
    let (address, _stop) = port(Limits::default()).await;
    let answered = Arc::new(AtomicUsize::new(0));
    for _ in 0..3 {
        let (mut sender, connection) =
            http1::handshake(connect(address).await).await.expect("HTTP");
        tokio::spawn(connection);
        let answered = Arc::clone(&answered);
        tokio::spawn(async move {
            loop {
                let answer = sender.send_request(request(4096)).await.expect("an answer");
                assert_eq!(answer.status(), 200);
                answer.into_body().collect().await.expect("a body");
                answered.fetch_add(1, Relaxed);
            }
        });
    }
    while answered.load(Relaxed) < 10 {
        tokio::task::yield_now().await;
    }
    let io = connect(address).await;
    let handshake = http2::handshake(TokioExecutor::new(), io);
    let (sender, connection) = handshake.await.expect("HTTP/2");
    tokio::spawn(connection);
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let mut sender = sender.clone();
            tokio::spawn(async move { sender.send_request(request(16)).await })
        })
        .collect();
    for (at, answer) in waiting.into_iter().enumerate() {
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        let answer = answer.unwrap_or_else(|_| panic!("request {at} is not answered"));
        assert_eq!(answer.expect("no panic").expect("an answer").status(), 200);
    }
}
