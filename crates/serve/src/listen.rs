//! Ports: accepts connections, with limits and checks of who may do what, and serves a router on each until
//! told to stop.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tonic::Status;
use tower::ServiceExt as _;
use tracing::{debug, warn};

use crate::error::Error;
use crate::http as http_protocol;
use crate::infer::ClientId;
use crate::receive::{Budget, Limited};

/// One port.
pub struct Port {
    pub router: Router,
    /// Read anew for each connection: certificates are exchanged while the server runs.
    pub tls: Option<watch::Receiver<TlsAcceptor>>,
    /// Read anew for each request; `None` lets everybody ask for everything.
    pub access: Option<watch::Receiver<Access>>,
    pub connections_max: usize,
    /// Shared by all ports.
    pub budget: Budget,
    /// How long requests may take to end after the port was told to stop.
    pub drain_max: Duration,
}

/// Who may ask for what.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Requests must carry it, except for health.
    pub token: Option<String>,
    pub control: Control,
}

/// Who may load and unload models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Control {
    #[default]
    Nobody,
    /// Whoever may ask for scores.
    Everybody,
    /// Requests that carry this token instead of the usual one.
    Token(String),
}

/// Requests that need no token, by the beginning of their path.
const HEALTH: [&str; 4] = [
    "/v2/health/",
    "/grpc.health.v1.Health/",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
];

impl Access {
    /// Whether a request may pass.
    fn check(&self, path: &str, given: Option<&str>) -> Result<(), Error> {
        if HEALTH.iter().any(|health| path.starts_with(health)) {
            return Ok(());
        }
        let token = match &self.control {
            _ if !is_control(path) => self.token.as_ref(),
            Control::Nobody => return Err(Error::Forbidden),
            Control::Everybody => self.token.as_ref(),
            Control::Token(token) => Some(token),
        };
        match token {
            Some(token) if !given.is_some_and(|given| is_same(given, token)) => {
                Err(Error::Unauthenticated)
            }
            _ => Ok(()),
        }
    }
}

fn is_control(path: &str) -> bool {
    let over_http = path.starts_with("/v2/repository/models/")
        && ["/load", "/unload"].iter().any(|end| path.trim_end_matches('/').ends_with(end));
    over_http || path.starts_with("/inference.GRPCInferenceService/RepositoryModel")
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
/// Read buffer of a connection; without it HTTP/2 reads 8 kB per system call.
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

    /// Serves until `stop` becomes true. Then the port closes at once, and requests that have begun are
    /// answered.
    pub async fn serve(self, listener: TcpListener, mut stop: watch::Receiver<bool>) {
        let graceful = GracefulShutdown::new();
        let places = Arc::new(Semaphore::new(self.connections_max));
        let this = Arc::new(self);
        let mut connections = JoinSet::new();
        loop {
            let place = tokio::select! {
                place = Arc::clone(&places).acquire_owned() => place,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            while connections.try_join_next().is_some() {}
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
            connections.spawn(async move {
                let _place = place;
                this.connection(stream, watcher).await;
            });
        }
        drop(listener);
        if tokio::time::timeout(this.drain_max, graceful.shutdown()).await.is_err() {
            warn!("requests did not end in time; their connections are closed");
        }
        connections.shutdown().await;
    }

    async fn connection(&self, stream: TcpStream, watcher: hyper_util::server::graceful::Watcher) {
        let tls = self.tls.as_ref().map(|tls| tls.borrow().clone());
        match tls {
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
        let budget = self.budget.client();
        let has_asked = AtomicBool::new(false);
        let service = hyper::service::service_fn(|mut request: http::Request<Incoming>| {
            has_asked.store(true, Relaxed);
            request.extensions_mut().insert(client);
            let router = self.router.clone();
            let refusal = self.refusal(&request);
            let budget = budget.clone();
            async move {
                match refusal {
                    Some(refusal) => Ok::<_, Infallible>(refusal),
                    None => {
                        let (mut head, body) = request.into_parts();
                        let body = Limited::new(body, head.uri.path(), &budget);
                        head.extensions.insert(body.intake());
                        let body = match is_grpc(&head.headers) {
                            true => Body::new(body.map_err(|cut| Status::from(Error::from(cut)))),
                            false => Body::new(body),
                        };
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

    /// The answer to a request that may not pass.
    fn refusal(&self, request: &http::Request<Incoming>) -> Option<Response> {
        let given = request.headers().get(http::header::AUTHORIZATION);
        let given = given.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let access = self.access.as_ref()?.borrow();
        let error = access.check(request.uri().path(), given.map(str::trim)).err()?;
        Some(match is_grpc(request.headers()) {
            true => Status::from(error).into_http(),
            false => http_protocol::refusal(error),
        })
    }
}

fn is_grpc(headers: &http::HeaderMap) -> bool {
    let content = headers.get(http::header::CONTENT_TYPE);
    content.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Compares in a time that does not depend on how much of the secret was guessed.
fn is_same(given: &str, secret: &str) -> bool {
    let (given, secret) = (given.as_bytes(), secret.as_bytes());
    let differences = given.iter().zip(secret).fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == secret.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_needs_a_switch_and_may_need_a_token_of_its_own() {
        let token = Some("secret".to_owned());
        let load = [
            "/v2/repository/models/ads/load",
            "/v2/repository/models/ads/unload/",
            "/inference.GRPCInferenceService/RepositoryModelLoad",
            "/inference.GRPCInferenceService/RepositoryModelUnload",
        ];
        let access = |control| Access { token: token.clone(), control };
        let own = access(Control::Token("other".into()));
        for path in load {
            let nobody = Access::default().check(path, None);
            assert_eq!(nobody, Err(Error::Forbidden), "{path}");
            assert_eq!(access(Control::Nobody).check(path, Some("secret")), Err(Error::Forbidden));
            assert_eq!(access(Control::Everybody).check(path, Some("secret")), Ok(()));
            let refused = access(Control::Everybody).check(path, None);
            assert_eq!(refused, Err(Error::Unauthenticated));
            assert_eq!(own.check(path, Some("secret")), Err(Error::Unauthenticated), "{path}");
            assert_eq!(own.check(path, Some("other")), Ok(()));
        }
        let infer = "/v2/models/ads/infer";
        assert_eq!(own.check(infer, Some("secret")), Ok(()));
        assert_eq!(own.check(infer, Some("other")), Err(Error::Unauthenticated));
        assert_eq!(own.check("/v2/repository/index", Some("secret")), Ok(()));
        // A model may be called `load`.
        assert_eq!(own.check("/v2/models/load", Some("secret")), Ok(()));
    }

    #[test]
    fn health_needs_no_token() {
        let access = Access { token: Some("secret".into()), control: Control::Nobody };
        for path in [
            "/v2/health/ready",
            "/grpc.health.v1.Health/Watch",
            "/inference.GRPCInferenceService/ServerReady",
        ] {
            assert_eq!(access.check(path, None), Ok(()), "{path}");
        }
        assert_eq!(access.check("/v2", None), Err(Error::Unauthenticated));
    }
}
