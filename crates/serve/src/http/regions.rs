//! The addresses of system shared memory. CUDA's has only those that clients call to clean up: no region
//! is ever registered there.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};

use super::{Answer, Shared, body, json};
use crate::server::Server;

pub(super) fn router() -> Router<Arc<Server>> {
    Router::new()
        .route("/v2/systemsharedmemory/status", get(status))
        .route("/v2/systemsharedmemory/region/{name}/status", get(status))
        .route("/v2/systemsharedmemory/region/{name}/register", post(register))
        .route("/v2/systemsharedmemory/unregister", post(unregister))
        .route("/v2/systemsharedmemory/region/{name}/unregister", post(unregister))
        .route("/v2/cudasharedmemory/status", get(|| async { json(&[(); 0]) }))
        .route("/v2/cudasharedmemory/unregister", post(|| async { Response::new(Body::empty()) }))
}

/// The region of a path; empty for all.
#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    name: String,
}

async fn status(State(server): Shared, Path(named): Path<Named>) -> Answer {
    #[derive(Serialize)]
    struct Status<'a> {
        name: &'a str,
        key: &'a str,
        offset: u64,
        byte_size: u64,
    }
    let regions = server.regions.status(&named.name)?;
    let status: Vec<Status> = (regions.iter())
        .map(|(name, region)| Status {
            name,
            key: &region.key,
            offset: region.offset,
            byte_size: region.byte_size,
        })
        .collect();
    Ok(json(&status))
}

async fn register(State(server): Shared, Path(named): Path<Named>, request: Request) -> Answer {
    #[derive(Deserialize)]
    struct Asked {
        key: String,
        #[serde(default)]
        offset: u64,
        byte_size: u64,
    }
    let (_, body) = body::read(request, &server.limits).await?;
    let Asked { key, offset, byte_size } = super::json::parse(&body.bytes)?;
    server.regions.register(&named.name, &key, offset, byte_size)?;
    Ok(Response::new(Body::empty()))
}

async fn unregister(State(server): Shared, Path(named): Path<Named>) -> Answer {
    server.regions.unregister(&named.name);
    Ok(Response::new(Body::empty()))
}
