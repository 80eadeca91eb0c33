//! What all protocols share: the models, the limits, and whether the server still takes requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use tracing::{debug, warn};

use crate::backend::Served;
use crate::describe::{self, ModelStatistics};
use crate::error::{Error, Kind};
use crate::infer::{ClientId, InferRequest, InferResponse};
use crate::repository::Repository;
use crate::shm::Regions;

pub struct Server {
    pub repository: Arc<Repository>,
    pub limits: Limits,
    /// Requests must name it, except for health.
    pub token: Option<String>,
    pub regions: Regions,
    is_draining: AtomicBool,
    /// Requests by how they ended.
    pub answered: Answered,
}

/// Bounds on what a client can make the server hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request's body, also after decompression.
    pub request_bytes_max: usize,
    /// Connections per port.
    pub connections_max: usize,
}

/// Requests that were answered for no model, or before one was found.
#[derive(Debug, Default)]
pub struct Answered {
    pub refused: AtomicU64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { request_bytes_max: 64 << 20, connections_max: 4096 }
    }
}

impl Server {
    pub fn new(
        repository: Arc<Repository>,
        limits: Limits,
        token: Option<String>,
        regions: Regions,
    ) -> Self {
        let is_draining = AtomicBool::new(false);
        Self { repository, limits, token, regions, is_draining, answered: Answered::default() }
    }

    /// From now on the server is not ready; requests that arrive are still answered.
    pub fn drain(&self) {
        self.is_draining.store(true, Relaxed);
    }

    pub fn is_ready(&self) -> bool {
        !self.is_draining.load(Relaxed) && self.repository.is_ready()
    }

    pub fn is_model_ready(&self, model: &str, version: &str) -> Result<bool, Error> {
        match self.repository.find(model, version) {
            Ok(_) => Ok(!self.is_draining.load(Relaxed)),
            Err(error @ Error::UnknownModel { .. }) => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Answers one inference request.
    pub async fn infer(
        &self,
        client: ClientId,
        request: InferRequest,
        trace: Option<&str>,
    ) -> Result<InferResponse, Error> {
        let (model, id) = (request.model.clone(), request.id.clone());
        let result = match self.repository.find(&request.model, &request.version) {
            Ok(served) => served.infer(client, request).await,
            Err(error) => {
                self.answered.refused.fetch_add(1, Relaxed);
                Err(error)
            }
        };
        match &result {
            Ok(answer) => {
                debug!(
                    model,
                    id,
                    trace,
                    client = client.0,
                    samples = answer.scores.samples,
                    "answered"
                );
            }
            Err(error) if error.kind() == Kind::Internal => {
                warn!(model, id, trace, client = client.0, %error, "failed");
            }
            Err(error) => debug!(model, id, trace, client = client.0, %error, "refused"),
        }
        result
    }

    /// Statistics of one version, of all versions of a model, or of all models.
    pub fn statistics(&self, model: &str, version: &str) -> Result<Vec<ModelStatistics>, Error> {
        let served: Vec<Arc<Served>> = match (model, version) {
            ("", _) => self.repository.served(),
            (_, "") => {
                self.repository.find(model, "")?;
                let all = self.repository.served();
                all.into_iter().filter(|served| served.name == model).collect()
            }
            _ => vec![self.repository.find(model, version)?],
        };
        Ok(served.iter().map(|served| describe::statistics(served)).collect())
    }
}
