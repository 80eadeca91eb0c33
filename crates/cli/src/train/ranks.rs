//! A run over the ranks of an MPI job: rank 0 is the server, the others open their own parts alone.
//!
//! All ranks have the same command line. Rank 0 runs as if it were alone, but for its workers; the
//! others do what it asks until it stops them.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::bail;
use hither_core::Seconds;
use hither_gnn::fetch::{Fetcher, HeldRows, Holders};
use hither_gnn::mode::Sees;
use hither_gnn::model::Model;
use hither_gnn::parts::stored::{self, FolderFacts};
use hither_gnn::parts::{FetchedGraph, open_part};
use hither_gnn::train::{Mode, Settings, Trainer};
use hither_gnn::transport::mpi::{Launch, LifeSigns, Rank, RowExchange, World};
use hither_gnn::transport::wire::Request;
use hither_gnn::transport::{
    Channel as _, Gather, Home, Lost, PeerTraffic, ProcessFacts, Processes, Reduction, Threads,
    serve,
};
use hither_gnn::update::Updates;
use hither_gnn::{Dataset, Error};
use hither_kernels::detect;
use serde::Serialize;

use super::args::TrainArgs;
use super::stop::StopRequest;
use crate::Common;

/// The server's view of the job. Dropping it lets the other ranks end.
pub struct Crew {
    /// Before `world`: it ends first.
    _heartbeat: Option<Heartbeat>,
    world: World,
    start: Instant,
}

impl Crew {
    /// Joins the job as its rank 0.
    pub fn join(args: &TrainArgs, mode: Mode) -> anyhow::Result<Self> {
        check(args, mode)?;
        let world = World::join()?;
        let heartbeat = Heartbeat::start(args.exchange.lost, world.life_signs(1..world.ranks()));
        Ok(Self { _heartbeat: heartbeat, world, start: Instant::now() })
    }

    /// Has all ranks make ready for a run on a dataset of so many parts.
    pub fn begin(
        &self,
        args: &TrainArgs,
        settings: &Settings,
        model: &Model,
    ) -> anyhow::Result<Box<Processes<Rank>>> {
        let FolderFacts { parts, id, .. } = stored::facts(args.data.path())?;
        let ranks = self.world.ranks();
        if ranks - 1 > parts {
            bail!(
                "{ranks} ranks were started, but {} has {parts} parts: one rank is the server, so start \
                 at most {}",
                args.data.path().display(),
                parts + 1
            );
        }
        let channels =
            (1..ranks).map(|rank| (self.world.channel(rank), Launch::parts_of(rank, ranks, parts)));
        let start = self.start;
        let clock = Box::new(move || start.elapsed().as_secs_f64());
        let run = (settings.seed, options(settings, model, &id));
        let patience = args.exchange.patience();
        let processes = Processes::begin(channels, run, isa(), clock, patience)?;
        Ok(Box::new(match args.exchange.gather {
            Gather::Ordered => processes,
            Gather::Reduce => processes.reduced_by(Box::new(self.world.sum(0))),
        }))
    }

    /// What every rank used and sent, server first.
    pub fn report(&self, trainer: &mut Trainer) -> anyhow::Result<Vec<RankReport>> {
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
        Ok(ranks)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        // After a panic the job is aborted instead: ranks may be waiting to be heard.
        if !thread::panicking() {
            let lost = self.world.lost();
            let stop = Request::Stop { is_whole: lost.is_empty() }.write();
            for rank in (1..self.world.ranks()).filter(|rank| !lost.contains(rank)) {
                let _ = self.world.channel(rank).send(&stop);
            }
        }
    }
}

/// One rank of a job, in ranks.json: figures from the start, or resumption, of the run.
#[derive(Debug, Default, Serialize)]
pub struct RankReport {
    pub rank: usize,
    /// Numbers of its parts; none: the server.
    pub parts: Vec<usize>,
    pub host: String,
    /// The switches above the host and the host, as far as Slurm says.
    pub place: String,
    /// The graph, features and labels that it works on. They are mapped, not copied.
    pub data_bytes: u64,
    /// The most memory that was in use, with the pages of mapped files; `null` of a rank that was late or lost
    /// at the end.
    pub peak_bytes: Option<u64>,
    pub busy_s: Seconds,
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

/// Refuses what cannot run over several ranks.
fn check(args: &TrainArgs, mode: Mode) -> anyhow::Result<()> {
    if !matches!(mode.does().workers, Some(Sees::Part | Sees::WholeByFetching)) {
        bail!(
            "--mode {} does not run over MPI; llcg, llcg-stale, psgd-pa and ggs do. Start it without mpirun or srun",
            mode.name()
        );
    }
    if args.model.class_weights.is_some() {
        bail!("--class-weights do not work over MPI; start it without mpirun or srun");
    }
    if args.learns_links() {
        bail!("links are learnt in one process only; start it without mpirun or srun");
    }
    if !args.data.is_partitioned() {
        bail!(
            "{} is not partitioned, and each rank opens its parts alone; run `hither partition {0} --parts \
             N --write DIR` first, and train on DIR",
            args.data.path().display()
        );
    }
    if args.exchange.leaves_out() && mode.does().workers != Some(Sees::Part) {
        bail!(
            "--mode {} needs all workers in every step, so that none can be left out; leave --straggler and --lost \
             at wait",
            mode.name()
        );
    }
    if args.exchange.gather == Gather::Reduce {
        if args.exchange.leaves_out() {
            bail!(
                "--gather reduce needs all workers in every round; leave --straggler and --lost at wait"
            );
        }
        if args.exchange.updates != Updates::Fp32 {
            bail!(
                "--gather reduce adds whole models up; leave --updates at fp32, or --gather at ordered"
            );
        }
    }
    // What `mpirun --enable-recovery` tells its ranks. Other launchers end the job with its first dead rank.
    let is_ended = env::var("OMPI_MCA_orte_enable_recovery").map_or(true, |value| value != "1");
    if args.exchange.lost != Lost::Wait && is_ended {
        bail!(
            "--lost skip: start the job with `mpirun --enable-recovery`, or it ends with the first lost rank"
        );
    }
    if args.run.dry_run {
        bail!("--dry-run takes one process; start it without mpirun or srun");
    }
    Ok(())
}

/// Exit code of a rank that cannot work for a reason that rank 0 finds too, and reports. Not an error:
/// the launcher ends the job at the first one, perhaps before rank 0 has said anything.
pub const LEFT_TO_RANK_0: ExitCode = ExitCode::SUCCESS;

/// Does the work of a rank other than 0. Rank 0 says what went wrong, so this says nothing.
pub fn work(
    args: &TrainArgs,
    mode: Mode,
    launch: Launch,
    common: &Common,
) -> anyhow::Result<ExitCode> {
    if args.check(&[mode]).is_err() || check(args, mode).is_err() {
        return Ok(LEFT_TO_RANK_0);
    }
    let Ok(world) = World::join() else { return Ok(LEFT_TO_RANK_0) };
    let _stopped_by_the_server = StopRequest::on_signal(&Common { quiet: true, threads: None })?;
    let mut home = WorkerRank {
        args,
        mode,
        launch,
        world: &world,
        host: host(&world),
        start: Instant::now(),
        opened: None,
        exchange: None,
    };
    let lost = args.exchange.lost;
    let _heartbeat = Heartbeat::start(lost, world.life_signs(0..1));
    let mut server = world.channel(0).watched(lost.silent_s().map(Duration::from_secs_f64));
    let served = common.pool()?.install(|| serve(&mut home, &mut server));
    drop(home);
    // Also without the server there is nobody to end together with.
    if !matches!(served, Ok(true)) {
        world.leave();
    }
    served?;
    Ok(ExitCode::SUCCESS)
}

/// Tells other ranks again and again that this one lives, until it is dropped.
struct Heartbeat {
    /// Dropping it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Several signs in the time after which this rank would count as lost; none if it never does.
    fn start(lost: Lost, signs: LifeSigns) -> Option<Self> {
        let every = Duration::from_secs_f64((lost.silent_s()? / 5.0).min(1.0));
        let (stop, stopped) = mpsc::channel::<()>();
        let pause = move || stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout);
        let thread = thread::spawn(move || signs.send(pause));
        Some(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A rank that holds some parts.
struct WorkerRank<'a> {
    args: &'a TrainArgs,
    mode: Mode,
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
    facts: FolderFacts,
    /// The parts of this rank.
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
    fn open(&mut self) -> Result<Opened, Error> {
        if let Some(opened) = &self.opened {
            return Ok(opened.clone());
        }
        let dir = self.args.data.path();
        let facts = stored::facts(dir)?;
        let Launch { rank, ranks, .. } = self.launch;
        let parts = Launch::parts_of(rank, ranks, facts.parts);
        if parts.is_empty() {
            return Err(Error::Settings("it has no part; start fewer ranks".into()));
        }
        let view = if self.mode.does().workers == Some(Sees::WholeByFetching) {
            let graph = FetchedGraph::open(dir)?;
            let Range { start, end } = graph.nodes(parts.clone());
            let held = HeldRows::new(graph.features.clone(), start as u32..end as u32);
            View::Whole(Arc::new(graph), Arc::new(held))
        } else {
            let open = |part| Ok(Arc::new(open_part(dir, part)?.data));
            View::Parts(parts.clone().map(open).collect::<Result<_, Error>>()?)
        };
        Ok(self.opened.insert(Opened { facts, parts, view }).clone())
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
}

impl Home for WorkerRank<'_> {
    fn workers(&mut self, seed: u64, asked: &str) -> Result<Threads, Error> {
        let Opened { facts, parts, view } = self.open()?;
        let first = match &view {
            View::Parts(own) => own[0].clone(),
            View::Whole(graph, _) => graph.data.clone(),
        };
        let bad = |error: anyhow::Error| Error::Settings(error.to_string());
        let model = Arc::new(Model::new(self.args.spec(&first).map_err(bad)?)?);
        let steps = self.args.server.server_steps.clone();
        let settings = self.args.settings(&first, self.mode, seed, facts.parts, steps);
        if options(&settings, &model, &facts.id) != asked {
            return Err(Error::Settings(format!(
                "{} or the options are not those of the server; give all ranks the same command line and \
                 the same folder",
                self.args.data.path().display()
            )));
        }
        match view {
            View::Parts(own) => Ok(Threads::from_parts(&settings, &model, parts.zip(own))),
            View::Whole(graph, held) => self.fetching(&settings, &model, &graph, &held, parts),
        }
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

    fn reduction(&mut self) -> Option<Box<dyn Reduction>> {
        let is_reduced = self.args.exchange.gather == Gather::Reduce;
        is_reduced.then(|| Box::new(self.world.sum(self.launch.rank)) as Box<dyn Reduction>)
    }

    fn peers(&self) -> PeerTraffic {
        self.exchange.as_ref().map_or_else(PeerTraffic::default, RowExchange::traffic)
    }
}

/// Everything that decides what a rank computes.
fn options(settings: &Settings, model: &Model, id: &str) -> String {
    format!("{} {id} {:?} {settings:?}", env!("CARGO_PKG_VERSION"), model.spec)
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
pub fn shared(common: &Common, launch: &Launch) -> Common {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let share = (cores / launch.ranks_here.max(1)).clamp(1, 1024) as u16;
    Common { quiet: common.quiet, threads: common.threads.or(Some(share)) }
}
