//! `hither load`: offers load to an inference server and measures what it makes of it.

mod inputs;
mod levels;
mod results;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use hither_dlrm::lookups::Hotness;
use hither_load::describe::{self, Metadata, Model};
use hither_load::drive::{Arrivals, Client, Level, Measured, Settings, runtime};
use hither_load::measure::{Figures, Percentile};
use hither_load::search;
use hither_load::wire::{Connections, Target, connector};
use indicatif::ProgressBar;

use crate::outputs::{Force, Kind, OutputDir};
use crate::{Common, outputs};
use results::Results;

/// Connections that gRPC requests share.
const GRPC_CONNECTIONS: u16 = 4;
/// Callers of the closed loop that a search begins with; enough to keep any server busy.
const PROBE_CALLERS: usize = 16;
/// A search begins at this share of what the closed loop reached.
const PROBE_SHARE: f64 = 0.8;
/// A search tries no rate that would offer fewer requests than this.
const SEARCH_REQUESTS_MIN: f64 = 10.0;
/// More requests lost than this share, and a rate does not keep its target.
const LOST_SHARE_MAX: f64 = 0.001;

/// Offer load to an inference server and measure latency, throughput and goodput
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither load http://127.0.0.1:8000 --samples 16 --concurrency 1,4,16
  hither load grpc://127.0.0.1:8001 -b 64 --rate 100:900:100 --slo 10ms -o out/
  hither load grpc://127.0.0.1:8001 --samples 64 --search --slo 10ms

--concurrency is a closed loop: each caller sends its next request when the last one is answered. \
--rate is an open loop: requests are due at times of their own, and latency counts from the moment at \
which a request was due, so a server that stalls does not hide it. --search looks for the highest rate \
that keeps --percentile within --slo.

Any server of the Open Inference Protocol will do (hither serve, Triton, KServe). Requests are built \
from the model's metadata: FP32 features are drawn, and ids follow --hotness or --ids. A server that \
does not tell its tables needs --rows, and --pooling or --tables.

With -o, writes DIR/load.csv (perf_analyzer's columns and more, times in microseconds), DIR/load.json \
(every window) and DIR/load.html.")]
pub struct Args {
    /// Address of the server: http://HOST:PORT or grpc://HOST:PORT
    #[arg(value_name = "URL")]
    url: Target,
    /// Name of the model [default: the only one that is ready]
    #[arg(long, short, value_name = "NAME")]
    model: Option<String>,
    /// Version of the model [default: the server's choice]
    #[arg(long, value_name = "N", default_value = "", hide_default_value = true)]
    model_version: String,
    /// Bearer token to send
    #[arg(long, value_name = "TOKEN", env = "HITHER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Certificates (PEM) of the authorities that signed the server's, for https and grpcs
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Samples per request
    #[arg(long, short = 'b', value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    samples: u32,
    #[command(flatten)]
    inputs: inputs::InputArgs,

    /// Closed loop: numbers of callers, as a list (1,2,4) or FROM:TO[:STEP] [default: 1]
    #[arg(long, value_name = "LIST", value_parser = levels::parse, help_heading = "Load")]
    concurrency: Option<levels::Levels>,
    /// Open loop: requests per second, as a list or FROM:TO[:STEP]
    #[arg(long, value_name = "LIST", value_parser = levels::parse, help_heading = "Load")]
    #[arg(conflicts_with = "concurrency")]
    rate: Option<levels::Levels>,
    /// Open loop: search the highest rate whose --percentile stays within --slo
    #[arg(long, requires = "slo", conflicts_with_all = ["concurrency", "rate"], help_heading = "Load")]
    search: bool,
    /// Latency objective, such as 10ms; answers within it are good
    #[arg(long, value_name = "TIME", value_parser = levels::time, help_heading = "Load")]
    slo: Option<Duration>,
    /// Percentile that --search keeps within --slo: 50, 90, 95, 99 or 99.9
    #[arg(long, value_name = "P", default_value = "99", value_parser = levels::percentile, help_heading = "Load")]
    percentile: Percentile,
    /// Ratio by which --search may miss the highest rate
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = levels::share, help_heading = "Load")]
    precision: f64,
    /// Times between requests of an open loop: poisson or constant
    #[arg(long, value_name = "KIND", default_value = "poisson", value_parser = levels::arrivals, help_heading = "Load")]
    arrivals: Arrivals,
    /// Most requests in flight in an open loop; further ones wait, and their latency counts
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = "Load")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    in_flight_max: u32,
    /// Connections that gRPC requests share; over HTTP each request in flight has its own
    #[arg(long, value_name = "N", default_value_t = GRPC_CONNECTIONS, help_heading = "Load")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,

    /// Time before the first window of each level
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = levels::time, help_heading = "Measurement")]
    warmup: Duration,
    /// Length of a window
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = levels::time, help_heading = "Measurement")]
    window: Duration,
    /// Windows in a row that must agree, and that figures are taken from
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = "Measurement")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    windows: u16,
    /// Windows after which a level ends even if they do not agree
    #[arg(long, value_name = "N", default_value_t = 10, help_heading = "Measurement")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    windows_max: u16,
    /// Share of their mean that windows may differ by in throughput and median latency
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = levels::share, help_heading = "Measurement")]
    stability: f64,
    /// Leave out windows in which the host of this virtual machine took more than this share of the
    /// processors' time; more are measured in their place, up to --windows-max [default: leave out none]
    #[arg(long, value_name = "SHARE", value_parser = levels::share, help_heading = "Measurement")]
    stolen_max: Option<f64>,
    /// Time after which a request without an answer is lost
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = levels::time, help_heading = "Measurement")]
    timeout: Duration,

    /// Seed of ids, features and arrivals
    #[arg(long, value_name = "N", default_value_t = 0, env = "HITHER_SEED")]
    seed: u64,
    /// Directory to write load.csv, load.json and load.html to
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    /// Print load.json instead of a table
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let levels = args.levels()?;
    if args.windows_max < args.windows {
        bail!("--windows-max {}: must be at least --windows {}", args.windows_max, args.windows);
    }
    let mut dir = match &args.output {
        Some(dir) => Some(OutputDir::open(dir, Kind::Load, args.force.into())?),
        None => None,
    };
    let (client, asked) = args.connect(common)?;
    client.try_one(args.timeout)?;
    let (measured, found) = match &levels {
        Some(levels) => (args.measure(&client, levels, common), None),
        None => {
            let (measured, found) = args.search(&client, common)?;
            (measured, Some(found))
        }
    };
    let results = Results { args, asked: &asked, measured: &measured, found };
    if let Some(dir) = &mut dir {
        dir.create()?;
        results.write(dir.path())?;
        common.say(&format!("wrote {}", dir.path().join("load.html").display()));
    }
    match args.json {
        true => outputs::print_json(&results.json())?,
        false => outputs::print(&results.report().text())?,
    }
    // A search that found no rate is a negative answer.
    Ok(ExitCode::from(u8::from(found.is_some_and(|found| found.is_none()))))
}

impl Args {
    /// `None` for a search.
    fn levels(&self) -> anyhow::Result<Option<Vec<Level>>> {
        let closed = |callers: &f64| {
            if callers.fract() != 0.0 || *callers > 100_000.0 {
                bail!("--concurrency {callers}: must be a whole number up to 100000");
            }
            Ok(Level::Closed { concurrency: *callers as usize })
        };
        match (&self.concurrency, &self.rate, self.search) {
            (_, _, true) => Ok(None),
            (_, Some(rates), _) => Ok(Some(rates.0.iter().map(|rate| self.open(*rate)).collect())),
            (Some(callers), ..) => callers.0.iter().map(closed).collect::<Result<_, _>>().map(Some),
            (None, None, false) => Ok(Some(vec![Level::Closed { concurrency: 1 }])),
        }
    }

    fn open(&self, rate: f64) -> Level {
        Level::Open { rate, arrivals: self.arrivals }
    }

    /// Asks the server what it takes, and builds the requests.
    fn connect(&self, common: &Common) -> anyhow::Result<(Client, inputs::Asked)> {
        let runtime = runtime(common.thread_count())?;
        let connections =
            Connections::new(self.url.clone(), self.token.as_deref(), self.connections.into());
        if self.url.is_encrypted && self.tls_ca.is_none() {
            bail!("{}: --tls-ca FILE says whose certificates to trust", self.url);
        }
        let connections = connections.encrypted(self.tls_ca.as_deref().map(connector).transpose()?);
        let asked = runtime.block_on(async {
            let name = match &self.model {
                Some(name) => name.clone(),
                None => describe::only_model(&connections).await?,
            };
            let model = Model { name, version: self.model_version.clone() };
            let metadata = describe::metadata(&connections, &model).await?;
            Ok::<(Model, Metadata), hither_load::Error>((model, metadata))
        });
        let (model, metadata) = asked?;
        let about = || format!("model {} of {}", model.name, self.url);
        let asked =
            self.inputs.requests(&self.url, &model, &metadata, self.samples as usize, self.seed);
        let (requests, asked) = asked.with_context(about)?;
        common.say(&format!("{}: {}", about(), asked.told));
        Ok((Client::new(runtime, connections, model, requests), asked))
    }

    fn settings(&self) -> Settings {
        Settings {
            warmup: self.warmup,
            window: self.window,
            windows: self.windows.into(),
            windows_max: self.windows_max.into(),
            stability: self.stability,
            stolen_max: self.stolen_max.unwrap_or(f64::INFINITY),
            slo: self.slo,
            timeout: self.timeout,
            in_flight_max: self.in_flight_max as usize,
            seed: self.seed,
        }
    }

    fn measure(&self, client: &Client, levels: &[Level], common: &Common) -> Vec<Measured> {
        let settings = self.settings();
        let bar = common.bar(levels.len() as u64, "levels");
        let measured = levels.iter().map(|level| {
            let measured = client.measure(*level, &settings, |window| tell(&bar, *level, window));
            bar.inc(1);
            measured
        });
        let measured = measured.collect();
        bar.finish_and_clear();
        measured
    }

    /// Begins near what a closed loop reaches. Returns all that was measured on the way.
    fn search(
        &self,
        client: &Client,
        common: &Common,
    ) -> anyhow::Result<(Vec<Measured>, Option<f64>)> {
        let slo_us = self.slo.unwrap_or_default().as_secs_f64() * 1e6;
        let settings = self.settings();
        let probe = Level::Closed { concurrency: PROBE_CALLERS };
        let one = Settings { windows: 1, windows_max: 1, ..settings.clone() };
        common.say(&format!("probing with {PROBE_CALLERS} callers"));
        let reached = client.measure(probe, &one, |_| {}).figures.answered_per_s;
        if reached == 0.0 {
            bail!("{} answered no request within {:?}", self.url, self.window + self.warmup);
        }
        let mut measured = Vec::new();
        // Fewer requests in all windows tell nothing about a percentile.
        let lowest = SEARCH_REQUESTS_MIN / (self.window * u32::from(self.windows)).as_secs_f64();
        let guess = reached * PROBE_SHARE;
        let found = search::highest_rate(guess, lowest, self.precision, |rate| {
            let level = self.open(rate);
            let one = client.measure(level, &settings, |_| {});
            let reached_us = one.figures.latency.percentile_us(self.percentile);
            // A window without an answer has no latency to speak of.
            let passes = one.figures.answered > 0
                && reached_us <= slo_us
                && one.figures.lost_share() <= LOST_SHARE_MAX;
            common.say(&format!(
                "{rate:.0} requests/s: {} {:.2} ms, {:.2} % lost: {}",
                levels::percentile_name(self.percentile),
                reached_us / 1e3,
                one.figures.lost_share() * 100.0,
                if passes { "within the target" } else { "too much" }
            ));
            measured.push(one);
            Ok::<bool, anyhow::Error>(passes)
        })?;
        Ok((measured, found))
    }
}

/// Shows the last window beside the bar.
fn tell(bar: &ProgressBar, level: Level, window: &Figures) {
    let level = match level {
        Level::Closed { concurrency } => format!("{concurrency} callers"),
        Level::Open { rate, .. } => format!("{rate:.0}/s"),
    };
    bar.set_message(format!(
        "{level}: {:.0} answered/s, p99 {:.2} ms",
        window.answered_per_s,
        window.latency.p99_us / 1e3
    ));
}

/// The ids that requests carry, in words.
fn hotness_text(hotness: Hotness, pooling: Option<usize>) -> String {
    match pooling {
        Some(pooling) => format!("{hotness} ids, {pooling} per bag"),
        None => format!("{hotness} ids"),
    }
}
