//! The server's settings: a file, then the environment, then flags.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use hither_dlrm::run::Pinning;
use hither_serve::listen::{Access, Control};
use hither_serve::repository::Layout;
use hither_serve::run::Options;
use hither_serve::server::Limits;
use hither_serve::tls::Identity;
use serde::Deserialize;

use crate::Common;
use crate::inputs::number;

/// Serve models over the Open Inference Protocol (HTTP and gRPC)
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither serve --demo
  hither serve models/
  hither serve models/ --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem

A repository holds MODEL/VERSION/ directories as `hither model import` writes them, and may have a \
MODEL/config.toml (docs/formats/repository.md). A single model's own directory works too.
SIGHUP reloads what has changed, SIGTERM lets requests end and stops. Every option can be set in the \
environment (HITHER_HTTP_PORT=9000) and, with underscores, in the file of --config (http_port = 9000).")]
pub struct Args {
    /// Directory of models, or one model's directory
    #[arg(value_name = "MODEL_REPOSITORY", env = "HITHER_MODEL_REPOSITORY", required_unless_present_any = ["demo", "config"])]
    repository: Option<PathBuf>,
    /// Serve a small generated model, and print requests to try
    #[arg(long, conflicts_with = "repository")]
    pub demo: bool,
    /// File of settings; the environment and flags override it
    #[arg(long, value_name = "FILE", env = "HITHER_SERVE_CONFIG")]
    config: Option<PathBuf>,
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "IP", env = "HITHER_HOST")]
    host: Option<IpAddr>,
    /// Port for HTTP; 0 takes any [default: 8000]
    #[arg(long, value_name = "PORT", env = "HITHER_HTTP_PORT")]
    http_port: Option<u16>,
    /// Port for gRPC; 0 takes any [default: 8001]
    #[arg(long, value_name = "PORT", env = "HITHER_GRPC_PORT")]
    grpc_port: Option<u16>,
    /// Address of the metrics port, which has neither token nor TLS [default: 127.0.0.1]
    #[arg(long, value_name = "IP", env = "HITHER_METRICS_HOST")]
    metrics_host: Option<IpAddr>,
    /// Port for metrics and the status page; 0 takes any [default: 8002]
    #[arg(long, value_name = "PORT", env = "HITHER_METRICS_PORT")]
    metrics_port: Option<u16>,
    /// Certificate chain (PEM), for HTTP and gRPC over TLS
    #[arg(long, value_name = "FILE", env = "HITHER_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Key of the certificate (PEM)
    #[arg(long, value_name = "FILE", env = "HITHER_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// Certificates (PEM) of the authorities that must have signed clients' certificates
    #[arg(long, value_name = "FILE", env = "HITHER_TLS_CLIENT_CA")]
    tls_client_ca: Option<PathBuf>,
    /// File with the bearer token that requests must carry; health needs none
    #[arg(long, value_name = "FILE", env = "HITHER_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Let clients load and unload models
    #[arg(long, env = "HITHER_ALLOW_CONTROL", value_parser = clap::builder::FalseyValueParser::new())]
    allow_control: bool,
    /// File with the bearer token that loading and unloading needs instead; allows both
    #[arg(long, value_name = "FILE", env = "HITHER_CONTROL_TOKEN_FILE")]
    control_token_file: Option<PathBuf>,
    /// Let clients of this host register shared memory objects that the server's user owns
    #[arg(long, env = "HITHER_SHARED_MEMORY", value_parser = clap::builder::FalseyValueParser::new())]
    shared_memory: bool,
    /// Largest request body in bytes, also after decompression [default: 67108864]
    #[arg(long, value_name = "N", env = "HITHER_REQUEST_BYTES_MAX")]
    request_bytes_max: Option<usize>,
    /// Most connections per port [default: 4096]
    #[arg(long, value_name = "N", env = "HITHER_CONNECTIONS_MAX")]
    connections_max: Option<usize>,
    /// Most bytes of tables to copy into memory; others stay mapped [default: what is free]
    #[arg(long, value_name = "BYTES", env = "HITHER_MEMORY_MAX")]
    memory_max: Option<u64>,
    /// Keep each engine thread on one core
    #[arg(long, env = "HITHER_PIN", value_parser = clap::builder::FalseyValueParser::new())]
    pin: bool,
    /// Seconds between looks for changed models; 0: only on SIGHUP [default: 0]
    #[arg(long, value_name = "S", env = "HITHER_POLL_S", value_parser = |t: &str| number(t, 0.0, 1e6))]
    poll_s: Option<f64>,
    /// Seconds that requests may take to end after SIGTERM [default: 30]
    #[arg(long, value_name = "S", env = "HITHER_DRAIN_S", value_parser = |t: &str| number(t, 0.0, 1e6))]
    drain_s: Option<f64>,
    /// Lowest level to log: error, warn, info, debug (every request) or trace [default: info]
    #[arg(long, value_name = "LEVEL", env = "HITHER_LOG")]
    log: Option<String>,
    /// Format of the log [default: text]
    #[arg(long, value_name = "FORMAT", env = "HITHER_LOG_FORMAT")]
    log_format: Option<LogFormat>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// The file of `--config`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    model_repository: Option<PathBuf>,
    host: Option<IpAddr>,
    http_port: Option<u16>,
    grpc_port: Option<u16>,
    metrics_host: Option<IpAddr>,
    metrics_port: Option<u16>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_client_ca: Option<PathBuf>,
    token_file: Option<PathBuf>,
    allow_control: bool,
    control_token_file: Option<PathBuf>,
    shared_memory: bool,
    request_bytes_max: Option<usize>,
    connections_max: Option<usize>,
    memory_max: Option<u64>,
    pin: bool,
    poll_s: Option<f64>,
    drain_s: Option<f64>,
    log: Option<String>,
    log_format: Option<LogFormat>,
}

/// What holds after file, environment and flags.
#[derive(Debug)]
pub struct Settings {
    repository: PathBuf,
    host: IpAddr,
    http_port: u16,
    grpc_port: u16,
    metrics: SocketAddr,
    tls: Option<Identity>,
    token_file: Option<PathBuf>,
    control_token_file: Option<PathBuf>,
    allow_control: bool,
    shared_memory: bool,
    limits: Limits,
    memory_max: Option<u64>,
    pin: bool,
    poll_s: f64,
    drain_s: f64,
    pub log: String,
    pub log_format: LogFormat,
}

impl Args {
    /// `demo` is the demo's repository.
    pub fn settings(&self, demo: Option<&Path>) -> anyhow::Result<Settings> {
        let file = self.config.as_deref().map(File::read).transpose()?.unwrap_or_default();
        let repository = self.repository.clone().or(file.model_repository);
        let Some(repository) = demo.map(PathBuf::from).or(repository) else {
            bail!("MODEL_REPOSITORY is missing: name a directory of models, or try --demo");
        };
        let tls_cert = self.tls_cert.clone().or(file.tls_cert);
        let tls_key = self.tls_key.clone().or(file.tls_key);
        let client_authorities = self.tls_client_ca.clone().or(file.tls_client_ca);
        let tls = match (tls_cert, tls_key) {
            (Some(certificates), Some(key)) => {
                Some(Identity { certificates, key, client_authorities })
            }
            (None, None) if client_authorities.is_some() => {
                bail!("--tls-client-ca needs --tls-cert and --tls-key")
            }
            (None, None) => None,
            (Some(_), None) => bail!("--tls-cert needs --tls-key"),
            (None, Some(_)) => bail!("--tls-key needs --tls-cert"),
        };
        let limits = Limits::default();
        let at_least_one = |name: &str, value: usize| match value {
            0 => bail!("{name} 0: must be at least 1"),
            _ => Ok(value),
        };
        let request_bytes = self.request_bytes_max.or(file.request_bytes_max);
        let connections = self.connections_max.or(file.connections_max);
        let limits = Limits {
            request_bytes_max: at_least_one(
                "--request-bytes-max",
                request_bytes.unwrap_or(limits.request_bytes_max),
            )?,
            connections_max: at_least_one(
                "--connections-max",
                connections.unwrap_or(limits.connections_max),
            )?,
            ..limits
        };
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let metrics_host = self.metrics_host.or(file.metrics_host).unwrap_or(localhost);
        let metrics_port = self.metrics_port.or(file.metrics_port).unwrap_or(8002);
        Ok(Settings {
            repository,
            host: self.host.or(file.host).unwrap_or(localhost),
            http_port: self.http_port.or(file.http_port).unwrap_or(8000),
            grpc_port: self.grpc_port.or(file.grpc_port).unwrap_or(8001),
            metrics: SocketAddr::new(metrics_host, metrics_port),
            tls,
            token_file: self.token_file.clone().or(file.token_file),
            control_token_file: self.control_token_file.clone().or(file.control_token_file),
            allow_control: self.allow_control || file.allow_control,
            shared_memory: self.shared_memory || file.shared_memory,
            limits,
            memory_max: self.memory_max.or(file.memory_max),
            pin: self.pin || file.pin,
            poll_s: self.poll_s.or(file.poll_s).unwrap_or(0.0),
            drain_s: self.drain_s.or(file.drain_s).unwrap_or(30.0),
            log: self.log.clone().or(file.log).unwrap_or_else(|| "info".into()),
            log_format: self.log_format.or(file.log_format).unwrap_or_default(),
        })
    }
}

impl Settings {
    pub fn options(&self, common: &Common) -> anyhow::Result<Options> {
        let address = |port| SocketAddr::new(self.host, port);
        Ok(Options {
            layout: Layout::open(&self.repository).map_err(anyhow::Error::msg)?,
            http: address(self.http_port),
            grpc: address(self.grpc_port),
            metrics: self.metrics,
            tls: self.tls.clone(),
            access: self.access()?,
            shared_memory: self.shared_memory,
            limits: self.limits,
            threads: common.thread_count(),
            pinning: if self.pin { Pinning::Pinned } else { Pinning::Free },
            gpu: Some(hither_cuda::load),
            memory_bytes_max: self.memory_max,
            drain_max: Duration::from_secs_f64(self.drain_s),
        })
    }

    /// Who may ask for what; reads the files of the tokens.
    pub fn access(&self) -> anyhow::Result<Access> {
        let token = self.token_file.as_deref().map(read_token).transpose()?;
        let control = match &self.control_token_file {
            Some(path) => Control::Token(read_token(path)?),
            None if self.allow_control => Control::Everybody,
            None => Control::Nobody,
        };
        Ok(Access { token, control })
    }

    /// Time between looks for changed models, where it looks by itself.
    pub fn poll(&self) -> Option<Duration> {
        (self.poll_s > 0.0).then(|| Duration::from_secs_f64(self.poll_s))
    }
}

impl File {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let file: Self = toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
            let line = before.matches('\n').count() + 1;
            anyhow::anyhow!("{}:{line}: {}", path.display(), error.message())
        })?;
        for (name, value) in [("poll_s", file.poll_s), ("drain_s", file.drain_s)] {
            if value.is_some_and(|value| !(0.0..=1e6).contains(&value)) {
                bail!("{}: {name}: must be between 0 and 1000000", path.display());
            }
        }
        Ok(file)
    }
}

fn read_token(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    match text.trim() {
        "" => bail!("{} is empty; a token is expected in it", path.display()),
        token => Ok(token.to_owned()),
    }
}
