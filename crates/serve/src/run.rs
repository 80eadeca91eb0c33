//! Starts a server and stops it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hither_dlrm::run::{Pinning, Threads};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::warn;

use crate::listen::Port;
use crate::receive::Budget;
use crate::repository::{Layout, Repository};
use crate::server::{Limits, Server};
use crate::shm::Regions;
use crate::{grpc, http, metrics, tls};

/// What a server is told.
#[derive(Clone, Debug)]
pub struct Options {
    pub layout: Layout,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    pub metrics: SocketAddr,
    /// Certificate chain and key, for HTTP and gRPC.
    pub tls: Option<(PathBuf, PathBuf)>,
    pub token: Option<String>,
    pub limits: Limits,
    /// The engine's threads.
    pub threads: usize,
    pub pinning: Pinning,
    /// Bytes of tables that may be copied into memory; `None` for what is free.
    pub memory_bytes_max: Option<u64>,
    /// How long requests may take to end when the server stops.
    pub drain_max: Duration,
}

/// A server that answers.
pub struct Running {
    pub server: Arc<Server>,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    pub metrics: SocketAddr,
    stop: watch::Sender<bool>,
    ports: JoinSet<()>,
}

/// Loads all models and opens the ports. Models that cannot be loaded are logged, and the server is
/// not ready until they are mended or removed. Must be called within a tokio runtime.
pub async fn start(options: Options) -> Result<Running, String> {
    let listeners = [
        Port::bind(options.http).await?,
        Port::bind(options.grpc).await?,
        Port::bind(options.metrics).await?,
    ];
    let tls = match &options.tls {
        Some((certificates, key)) => Some(tls::acceptor(certificates, key)?),
        None => None,
    };
    let threads = Threads::new(options.threads, options.pinning);
    let threads = threads.map_err(|error| format!("cannot start threads: {error}"))?;
    let repository = Repository::new(options.layout, Arc::new(threads), options.memory_bytes_max);
    let repository = Arc::new(repository);
    let is_local = [options.http, options.grpc].iter().all(|address| address.ip().is_loopback());
    let budget = Budget::new(&options.limits);
    let regions = Regions::new(is_local, budget.clone());
    let server =
        Server::new(Arc::clone(&repository), options.limits, options.token.clone(), regions);
    let server = Arc::new(server);
    // Before the ports open: a client that connects finds the models.
    for (model, error) in repository.refresh().await? {
        warn!(model, %error, "not served");
    }
    let routers = [
        http::router(Arc::clone(&server)),
        grpc::router(Arc::clone(&server)),
        metrics::router(Arc::clone(&server)),
    ];
    let (stop, stopped) = watch::channel(false);
    let mut ports = JoinSet::new();
    let mut addresses = Vec::new();
    for (index, (listener, router)) in listeners.into_iter().zip(routers).enumerate() {
        addresses.push(listener.local_addr().map_err(|error| error.to_string())?);
        let is_metrics = index == 2;
        let port = Port {
            listener,
            router,
            tls: tls.clone().filter(|_| !is_metrics),
            token: options.token.as_deref().filter(|_| !is_metrics).map(Into::into),
            connections_max: options.limits.connections_max,
            budget: budget.clone(),
            drain_max: options.drain_max,
        };
        ports.spawn(port.serve(stopped.clone()));
    }
    let [http, grpc, metrics] = addresses[..] else { unreachable!("three ports") };
    Ok(Running { server, http, grpc, metrics, stop, ports })
}

impl Running {
    /// Stops accepting, lets requests that have begun end, and returns.
    pub async fn stop(mut self) {
        self.server.drain();
        let _ = self.stop.send(true);
        while self.ports.join_next().await.is_some() {}
    }
}
