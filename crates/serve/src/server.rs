//! What all protocols share: the models, the limits, and whether the server still takes requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::watch;
use tracing::{debug, warn};

use crate::describe;
use crate::error::{Error, Kind};
use crate::grpc::proto::inference::ModelStatistics;
use crate::infer::{ClientId, InferRequest, InferResponse};
use crate::repository::Repository;
use crate::served::Served;
use crate::shm::Regions;

pub struct Server {
    pub repository: Arc<Repository>,
    pub limits: Limits,
    pub regions: Regions,
    draining: watch::Sender<bool>,
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
    /// A client that takes longer for one request's body is cut off.
    pub body_max: Duration,
}

/// Requests that were answered for no model, or before one was found.
#[derive(Debug, Default)]
pub struct Answered {
    pub refused: AtomicU64,
}

impl Default for Limits {
    fn default() -> Self {
        let body_max = Duration::from_secs(60);
        Self { request_bytes_max: 64 << 20, connections_max: 4096, body_max }
    }
}

impl Server {
    pub fn new(repository: Arc<Repository>, limits: Limits, regions: Regions) -> Self {
        let (draining, answered) = (watch::Sender::new(false), Answered::default());
        Self { repository, limits, regions, draining, answered }
    }

    /// From now on the server is not ready; requests that arrive are still answered.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Waits until the server drains.
    pub fn drained(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut draining = self.draining.subscribe();
        async move { drop(draining.wait_for(|is_draining| *is_draining).await) }
    }

    pub fn is_ready(&self) -> bool {
        !self.is_draining() && self.repository.is_ready()
    }

    pub fn is_model_ready(&self, model: &str, version: &str) -> Result<bool, Error> {
        match self.repository.find(model, version) {
            Ok(served) => Ok(served.is_healthy() && !self.is_draining()),
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
