//! `grpc.health.v1`: the whole server under the empty name, and each model under its own.

use std::pin::Pin;
use std::sync::Arc;

use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::proto::health::health_check_response::ServingStatus;
use super::proto::health::health_server::{Health, HealthServer};
use super::proto::health::{HealthCheckRequest, HealthCheckResponse};
use crate::server::Server;

#[derive(Clone)]
pub(super) struct Healthy(Arc<Server>);

pub(super) fn service(server: Arc<Server>) -> HealthServer<Healthy> {
    HealthServer::new(Healthy(server))
}

impl Healthy {
    fn status(&self, service: &str) -> Option<ServingStatus> {
        let is_serving = match service {
            "" | "inference.GRPCInferenceService" => self.0.is_ready(),
            model => self.0.is_model_ready(model, "").ok()?,
        };
        Some(if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing })
    }
}

#[tonic::async_trait]
impl Health for Healthy {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = &request.get_ref().service;
        match self.status(service) {
            Some(status) => Ok(Response::new(HealthCheckResponse { status: status.into() })),
            None => Err(Status::not_found(format!("service '{service}' is not known"))),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let this = self.clone();
        let service = request.into_inner().service;
        let (send, receive) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            let mut changes = this.0.repository.changes();
            let mut last = None;
            loop {
                let status = this.status(&service).unwrap_or(ServingStatus::ServiceUnknown);
                if last != Some(status) {
                    last = Some(status);
                    let message = Ok(HealthCheckResponse { status: status.into() });
                    if send.send(message).await.is_err() {
                        return;
                    }
                }
                // Whoever watches has been told that the server stops; the stream must not hold it up.
                if this.0.is_draining() {
                    return;
                }
                tokio::select! {
                    _ = changes.changed() => {}
                    () = this.0.drained() => {}
                    () = send.closed() => return,
                }
            }
        });
        let stream = tonic::codegen::tokio_stream::wrappers::ReceiverStream::new(receive);
        Ok(Response::new(Box::pin(stream)))
    }
}
