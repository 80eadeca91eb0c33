//! The protocol over HTTP: translates requests and answers, and nothing else.

mod body;
mod json;
mod regions;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;

use crate::describe;
use crate::error::{Error, Kind};
use crate::infer::{ClientId, InferRequest};
use crate::inputs::SCORES;
use crate::receive::Budget;
use crate::server::{Limits, Server};
use crate::shm::Regions;

/// The length of the JSON in front of binary tensors.
pub const HEADER_LENGTH: &str = "inference-header-content-length";
/// The header of W3C trace contexts, which is logged and sent back.
pub const TRACE: &str = "traceparent";

type Shared = State<Arc<Server>>;
type Answer = Result<Response, Refusal>;

/// An error as an answer.
struct Refusal(Error);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

pub fn router(server: Arc<Server>) -> Router {
    let model = Router::new()
        .route("/", get(metadata))
        .route("/ready", get(model_ready))
        .route("/config", get(config))
        .route("/stats", get(stats))
        .route("/infer", post(infer));
    Router::new()
        .route("/v2", get(server_metadata))
        .route("/v2/", get(server_metadata))
        .route("/v2/health/live", get(|| async { StatusCode::OK }))
        .route("/v2/health/ready", get(ready))
        .route("/v2/models/stats", get(all_stats))
        .nest("/v2/models/{model}", model.clone())
        .nest("/v2/models/{model}/versions/{version}", model)
        .route("/v2/repository/index", post(index))
        .route("/v2/repository/models/{model}/load", post(load))
        .route("/v2/repository/models/{model}/unload", post(unload))
        .merge(regions::router())
        .fallback(|| async { nothing(StatusCode::NOT_FOUND) })
        .method_not_allowed_fallback(|| async { nothing(StatusCode::METHOD_NOT_ALLOWED) })
        .with_state(server)
}

/// The model and version of a path.
#[derive(serde::Deserialize)]
struct Named {
    model: String,
    #[serde(default)]
    version: String,
}

async fn server_metadata(State(server): Shared) -> Answer {
    Ok(json(&describe::server(&server)))
}

async fn ready(State(server): Shared) -> StatusCode {
    if server.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn model_ready(
    State(server): Shared,
    Path(named): Path<Named>,
) -> Result<StatusCode, Refusal> {
    match server.is_model_ready(&named.model, &named.version)? {
        true => Ok(StatusCode::OK),
        false => Ok(StatusCode::SERVICE_UNAVAILABLE),
    }
}

async fn metadata(State(server): Shared, Path(named): Path<Named>) -> Answer {
    let served = server.repository.find(&named.model, &named.version)?;
    Ok(json(&describe::metadata(&served, &server.repository.versions(&named.model))))
}

async fn config(State(server): Shared, Path(named): Path<Named>) -> Answer {
    let served = server.repository.find(&named.model, &named.version)?;
    Ok(json(&describe::config(&served)))
}

async fn stats(State(server): Shared, Path(named): Path<Named>) -> Answer {
    let stats = server.statistics(&named.model, &named.version)?;
    Ok(json(&serde_json::json!({ "model_stats": stats })))
}

async fn all_stats(State(server): Shared) -> Answer {
    let stats = server.statistics("", "")?;
    Ok(json(&serde_json::json!({ "model_stats": stats })))
}

async fn index(State(server): Shared, request: Request) -> Answer {
    #[derive(Default, serde::Deserialize)]
    struct Asked {
        #[serde(default)]
        ready: bool,
    }
    let (_, body) = body::read(request, &server.limits).await?;
    let asked = if body.bytes.is_empty() { Ok(Asked::default()) } else { json::parse(&body.bytes) };
    Ok(json(&server.repository.index(asked?.ready)))
}

async fn load(State(server): Shared, Path(named): Path<Named>, request: Request) -> Answer {
    let (_, body) = body::read(request, &server.limits).await?;
    json::refuse_parameters(&body.bytes)?;
    server.repository.load(&named.model).await?;
    Ok(Response::new(Body::empty()))
}

async fn unload(State(server): Shared, Path(named): Path<Named>) -> Answer {
    server.repository.unload(&named.model).await?;
    Ok(Response::new(Body::empty()))
}

/// A request as a file holds it: the body of an inference request in JSON.
pub(crate) fn request_in_json(bytes: Bytes) -> Result<InferRequest, Error> {
    let client = Budget::new(&Limits::default()).client();
    let received = body::Received { bytes, header_length: None, held: client.hold(0)? };
    let regions = Regions::new(false);
    let mut nothing_shared = regions.reader(0, client);
    let (model, version) = (String::new(), String::new());
    json::request(model, version, received, &mut nothing_shared).map(|(request, _)| request)
}

async fn infer(State(server): Shared, Path(named): Path<Named>, request: Request) -> Answer {
    let client = request.extensions().get().copied().unwrap_or(ClientId(0));
    let (head, body) = body::read(request, &server.limits).await?;
    let trace = head.get(TRACE).and_then(|value| value.to_str().ok());
    let mut shared = server.regions.reader(server.limits.request_bytes_max, body.held.client());
    let (request, wanted) = json::request(named.model, named.version, body, &mut shared)?;
    let answer = server.infer(client, request, trace).await?;
    if let Some(range) = &wanted.range {
        server.regions.write(range, SCORES, &answer.scores.bytes)?;
    }
    let (json_bytes, content_type, length) = json::response(&answer, &wanted);
    let mut response =
        body::respond(&head, json_bytes, wanted.is_binary.then_some(answer.scores.bytes));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Some(length) = length {
        headers.insert(HEADER_LENGTH, HeaderValue::from(length));
    }
    if let Some(trace) = head.get(TRACE) {
        headers.insert(TRACE, trace.clone());
    }
    Ok(response)
}

fn json(value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("plain values");
    let mut response = Response::new(Body::from(body));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

impl Refusal {
    fn with_status(self, status: StatusCode) -> Response {
        let mut response = json(&serde_json::json!({ "error": self.0.to_string() }));
        *response.status_mut() = status;
        response
    }
}

impl axum::response::IntoResponse for Refusal {
    fn into_response(self) -> Response {
        refusal(self.0)
    }
}

pub(crate) fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::Invalid => StatusCode::BAD_REQUEST,
        Kind::Unauthenticated => StatusCode::UNAUTHORIZED,
        Kind::Forbidden => StatusCode::FORBIDDEN,
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::Late => StatusCode::REQUEST_TIMEOUT,
        Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// An error as an answer.
pub(crate) fn refusal(error: Error) -> Response {
    let status = status(error.kind());
    let mut response = Refusal(error).with_status(status);
    if status == StatusCode::UNAUTHORIZED {
        let challenge = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    }
    response
}

/// The answer where there is no such path or method.
fn nothing(status: StatusCode) -> Response {
    Refusal(Error::malformed(status.canonical_reason().unwrap_or_default())).with_status(status)
}

/// Whether a header lists a word, such as gzip in Accept-Encoding.
fn lists(head: &HeaderMap, name: header::HeaderName, word: &str) -> bool {
    let values = head.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    let mut words = values.flat_map(|value| value.split(','));
    words.any(|one| one.split(';').next().is_some_and(|one| one.trim().eq_ignore_ascii_case(word)))
}
