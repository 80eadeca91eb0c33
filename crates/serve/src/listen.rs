//! Ports: accepts connections, with limits, and serves a router on each until told to stop.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;
use tracing::{debug, warn};

use crate::infer::ClientId;
use crate::receive::{Budget, Limited};
use crate::{grpc, http as http_protocol};

/// One port.
pub struct Port {
    pub listener: TcpListener,
    pub router: Router,
    pub tls: Option<TlsAcceptor>,
    /// Requests must name it, except for health.
    pub token: Option<Arc<str>>,
    pub connections_max: usize,
    /// Shared by all ports.
    pub budget: Budget,
    /// How long requests may take to end after the port was told to stop.
    pub drain_max: Duration,
}

/// A client that takes longer for its request's head is cut off.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// A connection without a first request after this time is closed.
const FIRST_MAX: Duration = Duration::from_secs(60);
/// A client that takes longer to agree on encryption is cut off.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Bytes of one request that may be under way before the client waits.
const STREAM_WINDOW: u32 = 4 << 20;
/// As above, for all requests of a connection together.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Requests of one connection at a time.
const STREAMS_MAX: u32 = 1024;
/// What one call to the system may bring. HTTP/2 asks for 8 kB at a time, which is hundreds of calls for a
/// request of some megabytes. Every connection keeps room for it.
const READ_BYTES: usize = 64 << 10;
const HEADERS_BYTES_MAX: u32 = 64 << 10;
/// How often a silent HTTP/2 connection is asked whether it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Pause after the system could not give a connection, as when files run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Clients are numbered by connection, over all ports.
static CLIENTS: AtomicU64 = AtomicU64::new(1);

impl Port {
    pub async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
        let listener = TcpListener::bind(address).await;
        listener.map_err(|error| format!("cannot listen on {address}: {error}"))
    }

    /// Serves until `stop` becomes true, then lets requests end.
    pub async fn serve(self, mut stop: watch::Receiver<bool>) {
        let graceful = GracefulShutdown::new();
        let places = Arc::new(Semaphore::new(self.connections_max));
        let this = Arc::new(self);
        loop {
            let place = tokio::select! {
                place = Arc::clone(&places).acquire_owned() => place,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let accepted = tokio::select! {
                accepted = this.listener.accept() => accepted,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let _ = stream.set_nodelay(true);
            let (this, watcher) = (Arc::clone(&this), graceful.watcher());
            tokio::spawn(async move {
                let _place = place;
                this.connection(stream, watcher).await;
            });
        }
        if tokio::time::timeout(this.drain_max, graceful.shutdown()).await.is_err() {
            warn!("requests did not end in time; their connections are closed");
        }
    }

    async fn connection(&self, stream: TcpStream, watcher: hyper_util::server::graceful::Watcher) {
        match &self.tls {
            None => self.requests(stream, watcher).await,
            Some(tls) => match tokio::time::timeout(HANDSHAKE_MAX, tls.accept(stream)).await {
                Ok(Ok(stream)) => self.requests(stream, watcher).await,
                Ok(Err(error)) => debug!(%error, "no agreement on encryption"),
                Err(_) => debug!("no agreement on encryption in time"),
            },
        }
    }

    async fn requests(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        watcher: hyper_util::server::graceful::Watcher,
    ) {
        let client = ClientId(CLIENTS.fetch_add(1, Relaxed));
        let has_asked = AtomicBool::new(false);
        let service = hyper::service::service_fn(|mut request: http::Request<Incoming>| {
            has_asked.store(true, Relaxed);
            request.extensions_mut().insert(client);
            let router = self.router.clone();
            let refusal = self.refusal(&request);
            let budget = self.budget.clone();
            async move {
                match refusal {
                    Some(refusal) => Ok::<_, Infallible>(refusal),
                    None => {
                        let (head, body) = request.into_parts();
                        let body = Body::new(Limited::new(body, head.uri.path(), &budget));
                        router.oneshot(http::Request::from_parts(head, body)).await
                    }
                }
            }
        });
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_MAX);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEP_ALIVE)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEADERS_BYTES_MAX);
        let stream = TokioIo::new(BufReader::with_capacity(READ_BYTES, stream));
        let connection = builder.serve_connection(stream, service);
        let mut connection = pin!(watcher.watch(connection));
        let ended = match tokio::time::timeout(FIRST_MAX, &mut connection).await {
            Ok(ended) => ended,
            // A connection that asks nothing, or never finishes saying which protocol it speaks.
            Err(_) if !has_asked.load(Relaxed) => return debug!(client = client.0, "no request"),
            Err(_) => connection.await,
        };
        if let Err(error) = ended {
            debug!(client = client.0, %error, "connection ended");
        }
    }

    /// The answer to a request without the right token.
    fn refusal(&self, request: &http::Request<Incoming>) -> Option<Response> {
        let token = self.token.as_deref()?;
        let path = request.uri().path();
        if path.starts_with("/v2/health/") || path.starts_with("/grpc.health.v1.Health/") {
            return None;
        }
        let given = request.headers().get(http::header::AUTHORIZATION);
        let given = given.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        if given.is_some_and(|given| is_same(given.trim(), token)) {
            return None;
        }
        let content = request.headers().get(http::header::CONTENT_TYPE);
        let is_grpc = content.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        Some(if is_grpc { grpc::unauthenticated() } else { http_protocol::unauthorised() })
    }
}

/// Compares in a time that does not depend on how much of the secret was guessed.
fn is_same(given: &str, secret: &str) -> bool {
    let (given, secret) = (given.as_bytes(), secret.as_bytes());
    let differences = given.iter().zip(secret).fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == secret.len() && differences == 0
}
