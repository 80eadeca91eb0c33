//! Starts a server and stops it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hither_kernels::threads::Pinning;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tracing::warn;

use crate::backend::{Backend, Threads};
use crate::dlrm::{Dlrm, LoadGpu};
use crate::listen::{Access, Port};
use crate::receive::Budget;
use crate::repository::{Layout, LoadBackend, Repository};
use crate::server::{Limits, Server};
use crate::shm::Regions;
use crate::tls::Identity;
use crate::{grpc, http, metrics, tls};

/// What a server is told.
#[derive(Clone, Debug)]
pub struct Options {
    pub layout: Layout,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    pub metrics: SocketAddr,
    /// For HTTP and gRPC.
    pub tls: Option<Identity>,
    pub access: Access,
    /// Offer shared memory to clients of this host.
    pub shared_memory: bool,
    pub limits: Limits,
    /// The engine's threads.
    pub threads: usize,
    pub pinning: Pinning,
    /// How plans for a GPU are carried out; without it such models run on the CPU.
    pub gpu: Option<LoadGpu>,
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
    tls: Option<(Identity, watch::Sender<TlsAcceptor>)>,
    access: watch::Sender<Access>,
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
    warn_of_open_doors(&options);
    let tls = match &options.tls {
        Some(identity) => Some((identity.clone(), watch::Sender::new(tls::acceptor(identity)?))),
        None => None,
    };
    let threads = Threads::new(options.threads, options.pinning);
    let threads = threads.map_err(|error| format!("cannot start threads: {error}"))?;
    let gpu = options.gpu;
    let load: LoadBackend = Box::new(move |name, dir, config| {
        let loaded = Dlrm::load(name, dir, config, gpu);
        loaded.map(|model| Box::new(model) as Box<dyn Backend>)
    });
    let repository =
        Repository::new(options.layout, load, Arc::new(threads), options.memory_bytes_max);
    let repository = Arc::new(repository);
    let is_local = [options.http, options.grpc].iter().all(|address| address.ip().is_loopback());
    let budget = Budget::new(&options.limits);
    if options.shared_memory && !is_local {
        return Err("--shared-memory: the server must listen on loopback only".into());
    }
    let regions = Regions::new(options.shared_memory);
    let server = Arc::new(Server::new(Arc::clone(&repository), options.limits, regions));
    // Before the ports open: a client that connects finds the models.
    for (model, error) in repository.begin().await? {
        warn!(model, %error, "not served");
    }
    let routers = [
        http::router(Arc::clone(&server)),
        grpc::router(Arc::clone(&server)),
        metrics::router(Arc::clone(&server)),
    ];
    let (stop, stopped) = watch::channel(false);
    let access = watch::Sender::new(options.access);
    let mut ports = JoinSet::new();
    let mut addresses = Vec::new();
    for (index, (listener, router)) in listeners.into_iter().zip(routers).enumerate() {
        addresses.push(listener.local_addr().map_err(|error| error.to_string())?);
        let is_metrics = index == 2;
        let port = Port {
            router,
            tls: tls.as_ref().filter(|_| !is_metrics).map(|(_, tls)| tls.subscribe()),
            access: (!is_metrics).then(|| access.subscribe()),
            connections_max: options.limits.connections_max,
            budget: budget.clone(),
            drain_max: options.drain_max,
        };
        ports.spawn(port.serve(listener, stopped.clone()));
    }
    let [http, grpc, metrics] = addresses[..] else { unreachable!("three ports") };
    Ok(Running { server, http, grpc, metrics, tls, access, stop, ports })
}

/// Says what a stranger could do.
fn warn_of_open_doors(options: &Options) {
    let is_open = |address: SocketAddr| !address.ip().is_loopback();
    if is_open(options.http) || is_open(options.grpc) {
        match (&options.access.token, &options.tls) {
            (None, None | Some(Identity { client_authorities: None, .. })) => warn!(
                "the server answers everybody who reaches it; --token-file or --tls-client-ca limits that"
            ),
            (Some(_), None) => {
                warn!(
                    "tokens and requests are sent in clear; --tls-cert and --tls-key encrypt them"
                );
            }
            _ => {}
        }
    }
    if is_open(options.metrics) {
        warn!("metrics are shown to everybody who reaches their port; --metrics-host limits that");
    }
}

impl Running {
    /// Reads the certificates again; connections that are open keep theirs.
    pub fn renew_certificates(&self) -> Result<(), String> {
        if let Some((identity, tls)) = &self.tls {
            tls.send_replace(tls::acceptor(identity)?);
        }
        Ok(())
    }

    /// From now on requests need these tokens, those of open connections too.
    pub fn renew_access(&self, access: Access) {
        self.access.send_replace(access);
    }

    /// Stops accepting, lets requests that have begun end, and returns.
    pub async fn stop(mut self) {
        self.server.drain();
        let _ = self.stop.send(true);
        while self.ports.join_next().await.is_some() {}
    }
}
