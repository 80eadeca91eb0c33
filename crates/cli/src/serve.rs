//! `hither serve`: the inference server.

mod args;
mod demo;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use hither_serve::run::{Options, Running, start};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};

pub use self::args::Args;
use self::args::{LogFormat, Settings};
use crate::Common;

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let demo = args.demo.then(demo::Demo::new);
    let settings = args.settings(demo.as_ref().map(demo::Demo::repository))?;
    if let Some(demo) = &demo {
        demo.make(common)?;
    }
    let options = settings.options(common)?;
    log(&settings, common)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(common.thread_count().min(NETWORK_THREADS_MAX))
        .thread_name("hither-net")
        .enable_all()
        .build()
        .context("cannot start threads")?;
    let result = runtime.block_on(serve(options, &settings, demo.is_some(), common));
    // Copies of tables that are still being made have no reader any more.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Threads that translate requests. The engine has its own.
const NETWORK_THREADS_MAX: usize = 8;

async fn serve(
    options: Options,
    settings: &Settings,
    is_demo: bool,
    common: &Common,
) -> anyhow::Result<ExitCode> {
    // Before anything is loaded: a signal during a long load must not be lost.
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle signals")?;
    let mut hang_up = signal(SignalKind::hangup()).context("cannot handle signals")?;
    let running = tokio::select! {
        running = start(options) => running.map_err(anyhow::Error::msg)?,
        _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
    };
    let Running { server, http, grpc, metrics, .. } = &running;
    if server.repository.served().is_empty() {
        let root = server.repository.root().display().to_string();
        let index = server.repository.index(false);
        let reason =
            index.iter().map(|entry| entry.reason.clone()).find(|reason| !reason.is_empty());
        running.stop().await;
        match reason {
            Some(reason) => bail!("no model can be served: {reason}"),
            None => bail!("{root} has no models; it should hold MODEL/VERSION/model.toml"),
        }
    }
    if is_demo {
        print!("{}", demo::examples(*http, *grpc));
    }
    common.say(&format!("serving HTTP on {http}, gRPC on {grpc}, metrics on {metrics}"));
    let mut look = settings.poll().map(tokio::time::interval);
    loop {
        let next = async {
            match &mut look {
                Some(look) => drop(look.tick().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => {
                info!("reloading what has changed");
                reload(&running, settings).await;
            }
            () = next => reload(&running, settings).await,
        }
    }
    common.say("draining");
    running.stop().await;
    Ok(ExitCode::SUCCESS)
}

async fn reload(running: &Running, settings: &Settings) {
    if let Err(problem) = running.renew_certificates() {
        error!(problem, "the certificates stay as they were");
    }
    match settings.access() {
        Ok(access) => running.renew_access(access),
        Err(problem) => error!(%problem, "the tokens stay as they were"),
    }
    // Models that cannot be loaded have been logged; the others go on.
    if let Err(problem) = running.server.repository.refresh().await {
        error!(problem, "cannot look for changes");
    }
}

fn log(settings: &Settings, common: &Common) -> anyhow::Result<()> {
    let level = if common.quiet { "error" } else { &settings.log };
    let filter = tracing_subscriber::EnvFilter::try_new(level)
        .with_context(|| format!("--log {level}: expected error, warn, info, debug or trace"))?;
    let is_coloured = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(is_coloured)
        .with_writer(std::io::stderr);
    match settings.log_format {
        LogFormat::Json => builder.json().flatten_event(true).init(),
        LogFormat::Text => builder.with_target(false).init(),
    }
    Ok(())
}
