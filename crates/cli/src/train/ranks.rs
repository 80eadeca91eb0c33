//! A run over the ranks of an MPI job: rank 0 is the server, the others open their own parts alone.
//!
//! Rank 0 runs as if it were alone, but for its workers, and sends them what they need to know: the folder and the
//! configuration. The others read no options; they do what rank 0 asks until it stops them. A rank that cannot begin
//! tells rank 0 why, which ends the job with that message.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use std::{env, fs, thread};

use anyhow::bail;
use hither_core::Seconds;
use hither_gnn::config::{ClassWeights, Facts, Plan, TrainConfig};
use hither_gnn::fetch::{Fetcher, HeldRows, Holders};
use hither_gnn::mode::Sees;
use hither_gnn::model::Model;
use hither_gnn::parts::stored::{self, FolderFacts};
use hither_gnn::parts::{FetchedGraph, open_part};
use hither_gnn::run::folder::{RANKS, write_json};
use hither_gnn::train::{Mode, Settings, Trainer};
use hither_gnn::transport::mpi::{Launch, RowExchange, World};
use hither_gnn::transport::wire::{self, Request};
use hither_gnn::transport::{
    Channel as _, Home, PeerTraffic, ProcessFacts, Processes, Threads, Workers, serve,
};
use hither_gnn::{Dataset, Error};
use hither_kernels::detect;
use serde::{Deserialize, Serialize};

use super::drive::OtherRanks;
use super::profile::RankReport;
use super::stop::StopRequest;
use super::{Args, run_mode};
use crate::Common;

/// Trains as one rank of a job.
pub fn run(args: &Args, launch: Launch, common: &Common) -> anyhow::Result<ExitCode> {
    let common = shared(common, &launch);
    // Before anything can fail: the others wait for this rank to join.
    let world = World::join()?;
    if launch.rank > 0 {
        return work(launch, world, &common);
    }
    let crew = Crew { world, start: Instant::now() };
    if args.command.is_some() {
        bail!("`train compare` takes one process; start it without mpirun or srun");
    }
    let mode = args.train.mode_or_usual(args.mode, true);
    if !matches!(mode.does().workers, Some(Sees::Part | Sees::WholeByFetching)) {
        bail!(
            "--mode {} does not run over MPI; llcg, llcg-stale, psgd-pa and ggs do. Start it without mpirun or srun",
            mode.name()
        );
    }
    if args.train.output.dry_run {
        bail!("--dry-run takes one process; start it without mpirun or srun");
    }
    let path = args.train.data.path();
    if path.exists() && !args.train.data.is_partitioned() {
        bail!(
            "{} is not partitioned, and each rank opens its parts alone; run `hither partition {0} --parts \
             N --write DIR` first, and train on DIR",
            path.display()
        );
    }
    run_mode(mode, &args.train, Some(&crew), &common)
}

/// What rank 0 tells the others of a run.
#[derive(Serialize, Deserialize)]
struct Orders {
    hither: String,
    /// The dataset's folder, and what tells it from others.
    folder: PathBuf,
    id: String,
    config: TrainConfig,
}

/// The server's view of the job. Dropping it lets the other ranks end.
pub struct Crew {
    world: World,
    start: Instant,
}

impl OtherRanks for Crew {
    fn begin(
        &self,
        folder: &Path,
        config: &TrainConfig,
        data: &Dataset,
    ) -> anyhow::Result<Box<dyn Workers>> {
        let FolderFacts { parts, id, .. } = stored::facts(folder)?;
        let ranks = self.world.ranks();
        if ranks - 1 > parts {
            bail!(
                "{ranks} ranks were started, but {} has {parts} parts: one rank is the server, so start \
                 at most {}",
                folder.display(),
                parts + 1
            );
        }
        let mut config = config.clone();
        // Only the whole graph tells how many nodes each class has.
        let weights = data.class_weights.as_ref();
        config.target.class_weights = weights.map(|weights| ClassWeights::Given(weights.to_vec()));
        let hither = env!("CARGO_PKG_VERSION").to_owned();
        let orders = Orders { hither, folder: folder.into(), id, config };
        let channels =
            (1..ranks).map(|rank| (self.world.channel(rank), Launch::parts_of(rank, ranks, parts)));
        let start = self.start;
        let clock = Box::new(move || start.elapsed().as_secs_f64());
        let orders = serde_json::to_string(&orders)?;
        Ok(Box::new(Processes::begin(channels, orders, isa(), clock)?))
    }

    fn report(&self, trainer: &mut Trainer, dir: &Path) -> anyhow::Result<Vec<RankReport>> {
        let host = host(&self.world);
        let server = RankReport {
            rank: 0,
            parts: vec![],
            place: place(&host),
            host,
            data_bytes: trainer.data.bytes(),
            peak_bytes: Some(peak_bytes()),
            busy_s: trainer.rounds.iter().map(|round| round.time.server_s).sum(),
            received_bytes: 0,
            sent_bytes: 0,
        };
        let mut ranks = vec![server];
        let facts = trainer.workers.parts().to_vec();
        for (rank, process) in (1..).zip(trainer.workers.report()?) {
            ranks[0].sent_bytes += process.down_bytes;
            ranks[0].received_bytes += process.up_bytes;
            ranks.push(RankReport {
                rank,
                data_bytes: facts[process.parts.clone()].iter().map(|part| part.bytes).sum(),
                parts: process.parts.collect(),
                host: process.facts.host,
                place: process.facts.place,
                peak_bytes: process.peak_bytes,
                busy_s: process.busy_s,
                received_bytes: process.down_bytes + process.peers.received_bytes,
                sent_bytes: process.up_bytes + process.peers.sent_bytes,
            });
        }
        write_json(&dir.join(RANKS), &ranks)?;
        Ok(ranks)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        // After a panic the job is aborted instead: ranks may be waiting to be heard.
        if !thread::panicking() {
            for rank in 1..self.world.ranks() {
                let _ = self.world.channel(rank).send(&wire::write(&Request::Stop));
            }
        }
    }
}

/// Does the work of a rank other than 0, which says what went wrong.
fn work(launch: Launch, world: World, common: &Common) -> anyhow::Result<ExitCode> {
    let _stopped_by_the_server = StopRequest::on_signal(&Common { quiet: true, threads: None })?;
    let mut home = WorkerRank {
        launch,
        world: &world,
        host: host(&world),
        start: Instant::now(),
        opened: None,
        exchange: None,
    };
    let mut server = world.channel(0);
    let served = common.pool()?.install(|| serve(&mut home, &mut server));
    drop(home);
    // Without the server there is nobody to end together with.
    if served.is_err() {
        world.leave();
    }
    served?;
    Ok(ExitCode::SUCCESS)
}

/// A rank that holds some parts.
struct WorkerRank<'a> {
    launch: Launch,
    world: &'a World,
    host: String,
    start: Instant,
    /// Opened for the first run, and kept for further ones.
    opened: Option<Opened>,
    /// In modes whose workers fetch features.
    exchange: Option<RowExchange>,
}

#[derive(Clone)]
struct Opened {
    parts: Range<usize>,
    view: View,
}

/// What this rank sees of the graph.
#[derive(Clone)]
enum View {
    Parts(Vec<Arc<Dataset>>),
    Whole(Arc<FetchedGraph>, Arc<HeldRows>),
}

impl WorkerRank<'_> {
    fn open(&mut self, orders: &Orders) -> Result<Opened, Error> {
        if let Some(opened) = &self.opened {
            return Ok(opened.clone());
        }
        let Orders { folder: dir, config, .. } = orders;
        let facts = stored::facts(dir)?;
        if facts.id != orders.id {
            return Err(Error::Settings(format!(
                "{} is not the folder that rank 0 reads; give all hosts the same",
                dir.display()
            )));
        }
        let Launch { rank, ranks, .. } = self.launch;
        let parts = Launch::parts_of(rank, ranks, facts.parts);
        if parts.is_empty() {
            return Err(Error::Settings("it has no part; start fewer ranks".into()));
        }
        let weights = match &config.target.class_weights {
            Some(ClassWeights::Given(weights)) => Some(Arc::from(&weights[..])),
            _ => None,
        };
        let view = if config.by.mode() == Mode::Ggs {
            let mut graph = FetchedGraph::open(dir)?;
            if let Some(weights) = weights {
                let mut data = Dataset::clone(&graph.data);
                data.class_weights = Some(weights);
                graph.data = Arc::new(data);
            }
            let Range { start, end } = graph.nodes(parts.clone());
            let held = HeldRows::new(graph.features.clone(), start as u32..end as u32);
            View::Whole(Arc::new(graph), Arc::new(held))
        } else {
            let open = |part| {
                let data = Dataset { class_weights: weights.clone(), ..open_part(dir, part)?.data };
                Ok(Arc::new(data))
            };
            View::Parts(parts.clone().map(open).collect::<Result<_, Error>>()?)
        };
        Ok(self.opened.insert(Opened { parts, view }).clone())
    }

    /// Workers that fetch the features of nodes that other ranks hold.
    fn fetching(
        &mut self,
        settings: &Settings,
        model: &Arc<Model>,
        graph: &FetchedGraph,
        held: &Arc<HeldRows>,
        parts: Range<usize>,
    ) -> Result<Threads, Error> {
        let Launch { rank, ranks, .. } = self.launch;
        let count = graph.node_starts.len() - 1;
        let start = |rank| graph.node_starts[Launch::parts_of(rank, ranks, count).start] as u32;
        let holders = Arc::new(Holders::new((0..ranks).map(start).collect(), rank));
        let exchange = match self.exchange.take() {
            Some(exchange) => exchange,
            None => self.world.exchange(held.clone())?,
        };
        let exchange = self.exchange.insert(exchange);
        let fetcher = |_| Fetcher {
            sizes: graph.data.features.clone(),
            holders: holders.clone(),
            held: held.clone(),
            carrier: exchange.carrier(),
        };
        Ok(Threads::fetching(settings, model, graph, parts, fetcher))
    }

    fn make(&mut self, orders: &str) -> Result<Threads, Error> {
        let bad = |error: serde_json::Error| {
            Error::Settings(format!(
                "it does not understand rank 0 ({error}); start the same hither on all hosts"
            ))
        };
        let orders: Orders = serde_json::from_str(orders).map_err(bad)?;
        if orders.hither != env!("CARGO_PKG_VERSION") {
            return Err(Error::Settings(format!(
                "it is hither {}, rank 0 is {}; start the same one on all hosts",
                env!("CARGO_PKG_VERSION"),
                orders.hither
            )));
        }
        let Opened { parts, view } = self.open(&orders)?;
        let first = match &view {
            View::Parts(own) => own[0].clone(),
            View::Whole(graph, _) => graph.data.clone(),
        };
        let parts_of_all = stored::facts(&orders.folder)?.parts;
        let facts = Facts { parts: Some(parts_of_all), ..Facts::of(&first) };
        let Plan { settings, model } = orders.config.resolve(&facts)?;
        let model = Arc::new(model);
        match view {
            View::Parts(own) => Ok(Threads::from_parts(&settings, &model, parts.zip(own))),
            View::Whole(graph, held) => self.fetching(&settings, &model, &graph, &held, parts),
        }
    }
}

impl Home for WorkerRank<'_> {
    fn workers(&mut self, orders: &str) -> Result<Threads, Error> {
        self.make(orders).map_err(|error| Error::Settings(format!("{}: {error}", self.host)))
    }

    fn facts(&self) -> ProcessFacts {
        ProcessFacts { host: self.host.clone(), place: place(&self.host), isa: isa().into() }
    }

    fn now_s(&self) -> Seconds {
        self.start.elapsed().as_secs_f64()
    }

    fn peak_bytes(&self) -> u64 {
        peak_bytes()
    }

    fn peers(&self) -> PeerTraffic {
        self.exchange.as_ref().map_or_else(PeerTraffic::default, RowExchange::traffic)
    }
}

fn isa() -> &'static str {
    detect::cpu().isa.name()
}

/// What Slurm calls this node, else what MPI does.
fn host(world: &World) -> String {
    env::var("SLURMD_NODENAME").unwrap_or_else(|_| world.host())
}

/// Where Slurm says that the host is, from the topmost switch down.
fn place(host: &str) -> String {
    env::var("SLURM_TOPOLOGY_ADDR").unwrap_or_else(|_| host.to_owned())
}

/// The most memory that this process has had; 0 where the system does not tell.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// The options of a rank: unless told otherwise, the ranks of a host share its cores.
fn shared(common: &Common, launch: &Launch) -> Common {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let share = (cores / launch.ranks_here.max(1)).clamp(1, 1024) as u16;
    Common { quiet: common.quiet, threads: common.threads.or(Some(share)) }
}
