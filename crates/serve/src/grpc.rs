//! The protocol over gRPC: translates requests and answers, and nothing else.

mod health;
mod translate;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use prost::Message as _;
use tonic::codec::CompressionEncoding::Gzip;
use tonic::codegen::tokio_stream::{Stream, StreamExt as _};
use tonic::{Code, Request, Response, Status, Streaming};

use self::proto::inference::grpc_inference_service_server::{
    GrpcInferenceService, GrpcInferenceServiceServer,
};
use self::proto::inference::*;
use crate::describe;
use crate::error::{Error, Kind};
use crate::http::TRACE;
use crate::infer::ClientId;
use crate::inputs::SCORES;
use crate::receive::{Held, Intake};
use crate::server::Server;

/// Messages and services, generated from `proto/`; `tests/generated.rs` makes them anew.
pub mod proto {
    #[allow(clippy::all)]
    pub mod inference {
        include!("grpc/generated/inference.rs");
    }
    #[allow(clippy::all)]
    pub mod health {
        include!("grpc/generated/health.rs");
    }
}

/// Bytes of a message that are not tensors.
const OVERHEAD_BYTES: usize = 1 << 20;
/// Fewer bytes of scores are not compressed: every client of gRPC accepts it, and few gain.
const COMPRESSED_BYTES_MIN: usize = 64 << 10;

#[derive(Clone)]
struct Inference(Arc<Server>);

pub fn router(server: Arc<Server>) -> axum::Router {
    let limit = server.limits.request_bytes_max + OVERHEAD_BYTES;
    let inference = GrpcInferenceServiceServer::new(Inference(Arc::clone(&server)))
        .max_decoding_message_size(limit)
        .max_encoding_message_size(usize::MAX)
        .accept_compressed(Gzip)
        .send_compressed(Gzip);
    let mut routes = tonic::service::RoutesBuilder::default();
    routes.add_service(inference).add_service(health::service(server));
    routes.routes().into_axum_router()
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            Kind::Invalid => Code::InvalidArgument,
            Kind::Unauthenticated => Code::Unauthenticated,
            Kind::Forbidden => Code::PermissionDenied,
            Kind::NotFound => Code::NotFound,
            Kind::TooLarge => Code::ResourceExhausted,
            Kind::Late => Code::DeadlineExceeded,
            Kind::Unavailable => Code::Unavailable,
            Kind::Unimplemented => Code::Unimplemented,
            Kind::Internal => Code::Internal,
        };
        Self::new(code, error.to_string())
    }
}

type Answer<T> = Result<Response<T>, Status>;

fn answer<T>(message: T) -> Answer<T> {
    Ok(Response::new(message))
}

#[tonic::async_trait]
impl GrpcInferenceService for Inference {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Answer<ServerLiveResponse> {
        answer(ServerLiveResponse { live: true })
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Answer<ServerReadyResponse> {
        answer(ServerReadyResponse { ready: self.0.is_ready() })
    }

    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> Answer<ModelReadyResponse> {
        let asked = request.get_ref();
        answer(ModelReadyResponse { ready: self.0.is_model_ready(&asked.name, &asked.version)? })
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Answer<ServerMetadataResponse> {
        answer(describe::server(&self.0))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> Answer<ModelMetadataResponse> {
        let ModelMetadataRequest { name, version } = request.into_inner();
        let served = self.0.repository.find(&name, &version)?;
        answer(describe::metadata(&served, &self.0.repository.versions(&name)))
    }

    async fn model_infer(&self, request: Request<ModelInferRequest>) -> Answer<ModelInferResponse> {
        let client = client(request.extensions());
        let held = intake(request.extensions())?.take();
        let trace = request.metadata().get(TRACE).cloned();
        let text = trace.as_ref().and_then(|trace| trace.to_str().ok());
        let result = self.0.infer_message(client, request.into_inner(), held, text).await?;
        let bytes: usize = result.raw_output_contents.iter().map(bytes::Bytes::len).sum();
        let is_small = bytes < COMPRESSED_BYTES_MIN;
        let mut response = Response::new(result);
        if let Some(trace) = trace {
            response.metadata_mut().insert(TRACE, trace);
        }
        if is_small {
            response.disable_compression();
        }
        Ok(response)
    }

    type ModelStreamInferStream =
        Pin<Box<dyn Stream<Item = Result<ModelStreamInferResponse, Status>> + Send>>;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Answer<Self::ModelStreamInferStream> {
        let client = client(request.extensions());
        let intake = intake(request.extensions())?;
        let server = Arc::clone(&self.0);
        let drained = Box::pin(server.drained());
        let requests = UntilDrained { requests: request.into_inner(), drained, is_drained: false };
        // One request at a time, so answers come in the order of the requests.
        let answers = requests.then(move |request| {
            let server = Arc::clone(&server);
            let held = intake.take();
            async move {
                let id = request.as_ref().map_or(String::new(), |request| request.id.clone());
                Ok(match server.infer_message(client, request?, held, None).await {
                    Ok(result) => ModelStreamInferResponse {
                        error_message: String::new(),
                        infer_response: Some(result),
                    },
                    Err(error) => ModelStreamInferResponse {
                        error_message: error.to_string(),
                        infer_response: Some(ModelInferResponse { id, ..Default::default() }),
                    },
                })
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn model_config(
        &self,
        request: Request<ModelConfigRequest>,
    ) -> Answer<ModelConfigResponse> {
        let asked = request.get_ref();
        let served = self.0.repository.find(&asked.name, &asked.version)?;
        answer(ModelConfigResponse { config: Some(describe::config(&served)) })
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> Answer<ModelStatisticsResponse> {
        let asked = request.get_ref();
        let model_stats = self.0.statistics(&asked.name, &asked.version)?;
        answer(ModelStatisticsResponse { model_stats })
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> Answer<RepositoryIndexResponse> {
        let index = self.0.repository.index(request.get_ref().ready);
        let models = index.into_iter().map(Into::into).collect();
        answer(RepositoryIndexResponse { models })
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Answer<RepositoryModelLoadResponse> {
        let asked = request.get_ref();
        if let Some(name) = asked.parameters.keys().next() {
            let problem = format!(
                "parameter '{name}' is not supported: a model is loaded as its config.toml says"
            );
            return Err(Error::malformed(problem).into());
        }
        self.0.repository.load(&asked.model_name).await?;
        answer(RepositoryModelLoadResponse {})
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Answer<RepositoryModelUnloadResponse> {
        self.0.repository.unload(&request.get_ref().model_name).await?;
        answer(RepositoryModelUnloadResponse {})
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<SystemSharedMemoryStatusRequest>,
    ) -> Answer<SystemSharedMemoryStatusResponse> {
        let regions = self.0.regions.status(&request.get_ref().name)?;
        let regions = regions.into_iter().map(translate::region).collect();
        answer(SystemSharedMemoryStatusResponse { regions })
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<SystemSharedMemoryRegisterRequest>,
    ) -> Answer<SystemSharedMemoryRegisterResponse> {
        let asked = request.get_ref();
        self.0.regions.register(&asked.name, &asked.key, asked.offset, asked.byte_size)?;
        answer(SystemSharedMemoryRegisterResponse {})
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> Answer<SystemSharedMemoryUnregisterResponse> {
        self.0.regions.unregister(&request.get_ref().name);
        answer(SystemSharedMemoryUnregisterResponse {})
    }

    /// Clients call it to clean up. No such region is ever registered.
    async fn cuda_shared_memory_unregister(
        &self,
        _: Request<CudaSharedMemoryUnregisterRequest>,
    ) -> Answer<CudaSharedMemoryUnregisterResponse> {
        answer(CudaSharedMemoryUnregisterResponse {})
    }
}

impl Server {
    /// Answers a message with a message.
    async fn infer_message(
        &self,
        client: ClientId,
        request: ModelInferRequest,
        mut held: Held,
        trace: Option<&str>,
    ) -> Result<ModelInferResponse, Error> {
        held.set(request.encoded_len())?;
        let mut shared = self.regions.reader(self.limits.request_bytes_max, held.client());
        let (request, range) = translate::request(request, held, &mut shared)?;
        let answer = self.infer(client, request, trace).await?;
        if let Some(range) = &range {
            self.regions.write(range, SCORES, &answer.scores.bytes)?;
        }
        Ok(translate::response(answer, range.is_some()))
    }
}

fn client(extensions: &http::Extensions) -> ClientId {
    extensions.get().copied().unwrap_or(ClientId(0))
}

/// What has arrived of a call's body.
fn intake(extensions: &http::Extensions) -> Result<Intake, Error> {
    let intake = extensions.get().cloned();
    intake.ok_or_else(|| Error::Internal("a body that was not counted".into()))
}

/// The requests of a stream, which ends between two of them when the server drains.
struct UntilDrained<D> {
    requests: Streaming<ModelInferRequest>,
    drained: Pin<Box<D>>,
    is_drained: bool,
}

impl<D: Future<Output = ()>> Stream for UntilDrained<D> {
    type Item = Result<ModelInferRequest, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.is_drained = self.is_drained || self.drained.as_mut().poll(cx).is_ready();
        match Pin::new(&mut self.requests).poll_next(cx) {
            Poll::Pending if self.is_drained => Poll::Ready(None),
            other => other,
        }
    }
}
