//! Connections to a server. HTTP/1.1 for HTTP targets, where each request in flight holds a connection
//! of its own; HTTP/2 for gRPC targets, where requests share a few. A gRPC call is a plain HTTP/2
//! request whose body was encoded before the clock started, so the client costs little of its core.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, TE};
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::Error;

/// Window of HTTP/2 flow control: a request of several megabytes must not wait for credit.
const HTTP2_WINDOW_BYTES: u32 = 16 << 20;

/// The protocol that a target speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Grpc,
}

/// Where a server listens: `http://HOST:PORT`, `grpc://HOST:PORT` or `HOST:PORT` for HTTP; `https` and
/// `grpcs` over TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub protocol: Protocol,
    pub is_encrypted: bool,
    /// Host and port.
    authority: String,
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let wrong = |problem| Error::Url { url: url.into(), problem };
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let (protocol, is_encrypted) = match scheme {
            "http" => (Protocol::Http, false),
            "grpc" => (Protocol::Grpc, false),
            "https" => (Protocol::Http, true),
            "grpcs" => (Protocol::Grpc, true),
            _ => return Err(wrong("unknown protocol")),
        };
        let authority = rest.trim_end_matches('/');
        let parsed: http::uri::Authority =
            authority.parse().map_err(|_| wrong("no host and port"))?;
        let port = match (parsed.port_u16(), protocol) {
            (Some(port), _) => port,
            (None, Protocol::Http) => 8000,
            (None, Protocol::Grpc) => 8001,
        };
        if parsed.host().is_empty() || authority.contains('@') {
            return Err(wrong("no host"));
        }
        Ok(Self { protocol, is_encrypted, authority: format!("{}:{port}", parsed.host()) })
    }
}

impl Target {
    /// The host alone, whose name or address the server's certificate must have.
    fn host(&self) -> &str {
        let host = self.authority.rsplit_once(':').map_or("", |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.protocol {
            Protocol::Http => "http",
            Protocol::Grpc => "grpc",
        };
        let s = if self.is_encrypted { "s" } else { "" };
        write!(f, "{scheme}{s}://{}", self.authority)
    }
}

/// A request that is ready to be sent any number of times.
#[derive(Debug, Clone)]
pub struct Prepared {
    pub method: Method,
    pub path: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A whole answer. Of gRPC, `headers` also has the trailers.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

type Body = Full<Bytes>;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Makes encrypted connections to servers whose certificates one of the authorities in a PEM file signed.
pub fn connector(authorities: &Path) -> Result<TlsConnector, Error> {
    let problem = |problem: String| Error::Authorities { path: authorities.into(), problem };
    let mut roots = RootCertStore::empty();
    let read = CertificateDer::pem_file_iter(authorities).map_err(|e| problem(e.to_string()))?;
    for authority in read {
        let authority = authority.map_err(|e| problem(e.to_string()))?;
        roots.add(authority).map_err(|e| problem(e.to_string()))?;
    }
    if roots.is_empty() {
        return Err(problem("there is no certificate in it; PEM is expected".into()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| problem(e.to_string()))?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The open connections to one server.
pub struct Connections {
    target: Target,
    /// Sent with every request.
    token: Option<HeaderValue>,
    tls: Option<TlsConnector>,
    idle: Mutex<Vec<http1::SendRequest<Body>>>,
    shared: Vec<tokio::sync::Mutex<Option<http2::SendRequest<Body>>>>,
    turn: AtomicUsize,
}

impl Connections {
    /// `shared` is the number of HTTP/2 connections; HTTP/1.1 opens as many as are in flight.
    pub fn new(target: Target, token: Option<&str>, shared: usize) -> Self {
        let token = token.and_then(|t| HeaderValue::from_str(&format!("Bearer {t}")).ok());
        Self {
            target,
            token,
            tls: None,
            idle: Mutex::default(),
            shared: (0..shared.max(1)).map(|_| tokio::sync::Mutex::default()).collect(),
            turn: AtomicUsize::new(0),
        }
    }

    /// As told, for encrypted targets.
    pub fn encrypted(self, tls: Option<TlsConnector>) -> Self {
        Self { tls, ..self }
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Sends a request and collects the whole answer.
    pub async fn exchange(&self, prepared: &Prepared) -> Result<Reply, Error> {
        match self.target.protocol {
            Protocol::Http => self.exchange_http1(prepared).await,
            Protocol::Grpc => self.exchange_http2(prepared).await,
        }
    }

    async fn exchange_http1(&self, prepared: &Prepared) -> Result<Reply, Error> {
        let mut sender = match self.take_idle() {
            Some(sender) => sender,
            None => self.connect_http1().await?,
        };
        sender.ready().await.map_err(|e| self.broken(e))?;
        let mut request = self.request(prepared, prepared.path.clone());
        let host = HeaderValue::from_str(&self.target.authority);
        request.headers_mut().insert(HOST, host.expect("a parsed authority is a header's value"));
        let answer = sender.send_request(request).await.map_err(|e| self.broken(e))?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await.map_err(|e| self.broken(e))?.to_bytes();
        if !sender.is_closed() {
            self.idle.lock().expect("no holder panics").push(sender);
        }
        Ok(Reply { status: head.status.as_u16(), headers: head.headers, body })
    }

    fn take_idle(&self) -> Option<http1::SendRequest<Body>> {
        let mut idle = self.idle.lock().expect("no holder panics");
        while let Some(sender) = idle.pop() {
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    async fn exchange_http2(&self, prepared: &Prepared) -> Result<Reply, Error> {
        let uri = Uri::builder()
            .scheme("http")
            .authority(self.target.authority.as_str())
            .path_and_query(prepared.path.path())
            .build()
            .expect("a parsed authority and a path are an address");
        let mut sender = self.shared_sender().await?;
        let request = self.request(prepared, uri);
        let answer = sender.send_request(request).await.map_err(|e| self.broken(e))?;
        let (mut head, body) = answer.into_parts();
        let collected = body.collect().await.map_err(|e| self.broken(e))?;
        if let Some(trailers) = collected.trailers() {
            head.headers.extend(trailers.clone());
        }
        let body = collected.to_bytes();
        Ok(Reply { status: head.status.as_u16(), headers: head.headers, body })
    }

    /// One of the shared connections in turn; it is opened anew where the server closed it.
    async fn shared_sender(&self) -> Result<http2::SendRequest<Body>, Error> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.shared.len();
        let mut slot = self.shared[turn].lock().await;
        if let Some(sender) = slot.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let io = TokioIo::new(self.connect().await?);
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(HTTP2_WINDOW_BYTES)
            .initial_connection_window_size(HTTP2_WINDOW_BYTES)
            .handshake(io)
            .await
            .map_err(|e| self.broken(e))?;
        // Its error reaches the requests that are in flight on it.
        tokio::spawn(connection);
        Ok(slot.insert(sender).clone())
    }

    async fn connect_http1(&self) -> Result<http1::SendRequest<Body>, Error> {
        let io = TokioIo::new(self.connect().await?);
        let (sender, connection) = http1::handshake(io).await.map_err(|e| self.broken(e))?;
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn connect(&self) -> Result<Box<dyn Stream>, Error> {
        let failed = |cause: String| Error::Connect { target: self.target.to_string(), cause };
        let stream = TcpStream::connect(&self.target.authority).await;
        let stream = stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
        let stream = stream.map_err(|e| failed(e.to_string()))?;
        let tls = match (&self.tls, self.target.is_encrypted) {
            (_, false) => return Ok(Box::new(stream)),
            (Some(tls), true) => tls,
            (None, true) => return Err(failed("no authorities are known".into())),
        };
        let name = ServerName::try_from(self.target.host().to_owned());
        let name = name.map_err(|e| failed(e.to_string()))?;
        let stream = tls.connect(name, stream).await.map_err(|e| failed(e.to_string()))?;
        Ok(Box::new(stream))
    }

    fn request(&self, prepared: &Prepared, uri: Uri) -> Request<Body> {
        let mut request = Request::new(Full::new(prepared.body.clone()));
        *request.method_mut() = prepared.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = prepared.headers.clone();
        if let Some(token) = &self.token {
            request.headers_mut().insert(http::header::AUTHORIZATION, token.clone());
        }
        if self.target.protocol == Protocol::Grpc {
            request
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
        }
        request
    }

    fn broken(&self, error: hyper::Error) -> Error {
        let cause = std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
        Error::Broken { target: self.target.to_string(), cause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_or_refused() {
        let parsed = |url: &str| url.parse::<Target>().map(|target| target.to_string());
        assert_eq!(parsed("http://127.0.0.1:9000/").unwrap(), "http://127.0.0.1:9000");
        assert_eq!(parsed("localhost:7").unwrap(), "http://localhost:7");
        assert_eq!(parsed("localhost").unwrap(), "http://localhost:8000");
        assert_eq!(parsed("grpc://[::1]").unwrap(), "grpc://[::1]:8001");
        assert_eq!(parsed("grpcs://x").unwrap(), "grpcs://x:8001");
        assert_eq!("https://[::1]:9".parse::<Target>().unwrap().host(), "::1");
        for bad in ["", "ftp://x", "http://", "http://a b", "http://u@h:1"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
