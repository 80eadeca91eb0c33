//! `hither schedule`: decides for the jobs of a Slurm partition.

mod guard;

use std::collections::VecDeque;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use hither_core::topology::Topology;
use hither_live::attempts::Limits;
use hither_live::drive::{Driver, Options};
use hither_live::engine::{self, Engine as _, Order};
use hither_live::journal::{Journal, Setup};
use hither_live::run::{self, Home, Pace, Run};
use hither_live::serve::Window;
use hither_live::slurm::{Config, Slurm, unix_s};
use hither_live::status::{self, Source};
use hither_live::{machines, replay, what_if};
use hither_sched::policy::{self, Entry};
use hither_sched::profile::Library;

use crate::inputs::{library, number, say_notes};
use crate::settings::{self, OptionArgs};
use crate::{Common, outputs};

pub use guard::{ReleaseArgs, run as release};

/// Decide where the jobs of a Slurm partition run
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither schedule --partition gpu
  hither schedule --partition gpu --act --listen 127.0.0.1:9433
  hither schedule --replay /var/lib/hither/journal.redb

Without --act it looks once, prints what it would do and why, and changes nothing. With --act it \
keeps deciding until it is stopped. It may be killed and started again at any time.

Held jobs of the partition that ask for GPUs (sbatch -H --gpus=8, -N2 --gpus-per-node=4) are placed \
and released by Hither. All others are left to Slurm. docs/live.md is the guide.")]
pub struct Args {
    #[command(flatten)]
    pub slurm: SlurmArgs,
    #[command(flatten)]
    state: StateArgs,
    /// Carry the decisions out
    #[arg(long, conflicts_with = "replay")]
    act: bool,
    /// Policy that decides; `hither policies` lists them
    #[arg(long, short, value_name = "NAME", default_value = "dally")]
    policy: String,
    #[command(flatten)]
    options: OptionArgs,
    /// More model profiles, as TOML or JSON; they replace built-in ones of the same name
    #[arg(long, value_name = "FILE")]
    profiles: Option<PathBuf>,
    /// Serve a page, metrics and health on this address, such as 127.0.0.1:9433
    #[arg(long, value_name = "HOST:PORT", requires = "act")]
    listen: Option<String>,
    /// Seconds between two polls of the cluster while it has jobs; doubled while it has none
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = |t: &str| number(t, 0.05, 60.0))]
    poll_s: f64,
    /// Seconds after which a start that Slurm has not carried out is withdrawn
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = |t: &str| number(t, 1.0, 3600.0))]
    start_limit_s: f64,
    /// Seconds from a job's checkpoint signal to its requeue, unless the job sets its own
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = |t: &str| number(t, 0.0, 3600.0))]
    grace_s: f64,
    /// Seconds without Hither after which held jobs are released to Slurm's own scheduler; 0 for
    /// never
    #[arg(long, value_name = "S", default_value_t = 900.0, value_parser = |t: &str| number(t, 0.0, 1e9))]
    release_after_s: f64,
    /// Days for which the journal keeps its entries
    #[arg(long, value_name = "DAYS", default_value_t = 30.0, value_parser = |t: &str| number(t, 0.001, 36500.0))]
    keep_days: f64,
    /// Repeat every decision of a journal and compare
    #[arg(long, value_name = "JOURNAL")]
    replay: Option<PathBuf>,
}

#[derive(Debug, Clone, clap::Args)]
pub struct SlurmArgs {
    /// Partitions whose held jobs Hither places, separated by commas
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', env = "HITHER_PARTITION")]
    pub partition: Vec<String>,
    /// Folder of Slurm's commands [default: on the path]
    #[arg(long, value_name = "DIR", env = "HITHER_SLURM_BIN")]
    pub slurm_bin: Option<PathBuf>,
    /// Time limit of each Slurm command, in seconds
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = |t: &str| number(t, 0.1, 600.0))]
    pub command_limit_s: f64,
}

impl SlurmArgs {
    pub fn connect(&self) -> anyhow::Result<Slurm> {
        if self.partition.is_empty() {
            bail!("--partition is missing: name the partition whose jobs Hither places");
        }
        let limit = Duration::from_secs_f64(self.command_limit_s);
        let (partitions, bin) = (self.partition.clone(), self.slurm_bin.clone());
        Ok(Slurm::connect(Config { partitions, bin, limit })?)
    }
}

#[derive(Debug, Clone, clap::Args)]
pub struct StateArgs {
    /// Directory of the scheduler's journal, lock and socket
    #[arg(long, value_name = "DIR", env = "HITHER_STATE", default_value = "/var/lib/hither")]
    pub state: PathBuf,
}

impl StateArgs {
    pub fn home(&self) -> Home {
        Home(self.state.clone())
    }
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    match &args.replay {
        Some(path) => replayed(path, common),
        None if args.act => act(args, common),
        None => dry_run(args, common),
    }
}

/// The one policy to run.
fn policy(args: &Args) -> anyhow::Result<&'static Entry> {
    let Some(entry) = policy::find(&args.policy) else {
        bail!("{}", settings::unknown(&args.policy))
    };
    let built = entry.build(&Default::default());
    if built.is_clairvoyant() {
        bail!("--policy {}: it needs true job lengths, which no real cluster knows", entry.name);
    }
    if entry.name == "gandiva" {
        bail!("--policy gandiva: it shares GPUs by time slices, which Slurm cannot do");
    }
    Ok(entry)
}

/// Slurm and its topology. A scheduler that is to act waits for a Slurm that does not answer yet:
/// after a power cut all of them start at once.
fn connect(args: &Args, common: &Common) -> anyhow::Result<(Slurm, Topology)> {
    let mut told = String::new();
    loop {
        let error = match args.slurm.connect() {
            Ok(mut slurm) => match slurm.topology() {
                Ok((topology, notes)) => {
                    say_notes(common, &notes);
                    return Ok((slurm, topology));
                }
                Err(error) => error.into(),
            },
            Err(error) => error,
        };
        let passes = error.downcast_ref::<engine::Error>().is_some_and(engine::Error::passes);
        if !(args.act && passes) {
            return Err(error);
        }
        if told != error.to_string() {
            told = error.to_string();
            common.say(&format!("{told}; waiting for it"));
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// The driver over a journal.
fn open(args: &Args, journal: Journal, common: &Common) -> anyhow::Result<Driver<Slurm>> {
    let entry = policy(args)?;
    let settings = settings::settings(&args.options.table()?)?;
    let library = library(args.profiles.as_deref())?;
    let (slurm, topology) = connect(args, common)?;
    let now_s = unix_s();
    let setup = Setup {
        policy: entry.name.into(),
        settings: toml::to_string(&settings).context("the options of the policy")?,
        partitions: args.slurm.partition.clone(),
        cluster: String::new(),
        epoch_s: now_s.floor(),
        version: env!("CARGO_PKG_VERSION").into(),
    };
    let limits = Limits { start_s: args.start_limit_s, grace_s: args.grace_s, ..Limits::default() };
    let options = Options { limits, act: args.act, keep_s: args.keep_days * 86_400.0 };
    Ok(Driver::open(slurm, journal, &topology, setup, library, options, now_s)?)
}

fn act(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let home = args.state.home();
    fs::create_dir_all(&home.0)
        .with_context(|| format!("cannot create {}; give --state", home.0.display()))?;
    let taken = run::lock(&home.lock()).with_context(|| home.lock().display().to_string())?;
    let Some(_lock) = taken else {
        bail!("another scheduler acts with {}; stop it first", home.0.display());
    };
    let mut driver = open(args, Journal::open(&home.journal())?, common)?;
    let _claims = claims(&mut driver.engine, args, common)?;
    let window = Window::new();
    window
        .listen_at(&home.socket())
        .with_context(|| format!("cannot listen at {}", home.socket().display()))?;
    if let Some(address) = &args.listen {
        let bound = window.listen_on(address).with_context(|| format!("--listen {address}"))?;
        common.say(&format!("page and metrics on http://{bound}/"));
    }
    let heartbeat = guard::Orders {
        after_s: args.release_after_s,
        partitions: args.slurm.partition.clone(),
        slurm_bin: args.slurm.slurm_bin.clone(),
    };
    if args.release_after_s > 0.0 {
        guard::start(&home)?;
    }
    common.say(&format!(
        "{} decides for partition {}; the journal is {}",
        driver.setup.policy,
        args.slurm.partition.join(","),
        home.journal().display()
    ));
    let busy = Duration::from_secs_f64(args.poll_s);
    let mut run = Run {
        driver,
        home,
        acts: true,
        pace: Pace { busy, idle: 2 * busy },
        heartbeat: serde_json::to_string(&heartbeat)?,
        log: VecDeque::new(),
        looked_s: None,
    };
    run.run(&window, |line| common.say(line))?;
    Ok(ExitCode::SUCCESS)
}

/// The right to decide for each partition, as long as the process lives: first among the processes of
/// this host, then among all hosts.
fn claims(slurm: &mut Slurm, args: &Args, common: &Common) -> anyhow::Result<Vec<UnixListener>> {
    let cluster = slurm.identity();
    let claim = |partition: &String| {
        let claimed = run::claim(&cluster, partition).context("cannot claim the partition")?;
        claimed.with_context(|| {
            format!(
                "another scheduler on this host decides for partition {partition}; stop it first"
            )
        })
    };
    let claims = args.slurm.partition.iter().map(claim).collect::<anyhow::Result<_>>()?;
    if let Some(message) = patiently(|| slurm.claim())? {
        common.say(&format!(
            "Slurm takes no job of this user ({message}): schedulers on other hosts are not kept out"
        ));
    }
    Ok(claims)
}

/// Asks a Slurm that has just answered, and will again.
fn patiently<T>(mut ask: impl FnMut() -> Result<T, engine::Error>) -> anyhow::Result<T> {
    for _ in 0..20 {
        match ask() {
            Err(error) if error.passes() => std::thread::sleep(Duration::from_millis(500)),
            answer => return Ok(answer?),
        }
    }
    Ok(ask()?)
}

/// One look, without a word to Slurm.
fn dry_run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let mut driver = open(args, Journal::in_memory()?, common)?;
    let step = driver.step(unix_s())?;
    let mut text = String::new();
    for said in step.said.iter().filter(|said| said.job.is_empty()) {
        text.push_str(&format!("{}\n", said.text));
    }
    let source = Source {
        state: &driver.scheduler.state,
        places: &driver.places,
        racks: &driver.racks,
        setup: &driver.setup,
        seen: Some(&driver.seen),
        bars: Some(&driver.memory.bars),
        acts: false,
    };
    for row in status::status(source, Vec::new(), unix_s()).jobs {
        let nodes: Vec<String> = row.nodes.iter().map(|(n, gpus)| format!("{n}:{gpus}")).collect();
        let starts = match row.phase.as_str() {
            "starting" => format!("starts on {}: ", nodes.join(" ")),
            _ => String::new(),
        };
        text.push_str(&format!("job {}: {starts}{}\n", row.job, row.why));
    }
    for order in &step.orders {
        if let Order::HandOver { job, .. } = order {
            let why = driver.memory.bars.get(job).map_or("", String::as_str);
            text.push_str(&format!("job {job}: is released to Slurm's own scheduler: {why}\n"));
        }
    }
    if text.is_empty() {
        text.push_str("nothing to do\n");
    }
    outputs::print(&text)?;
    common.say("nothing was changed; --act carries decisions out");
    Ok(ExitCode::SUCCESS)
}

/// How a live cluster stands, and its name: at the end of a journal, or as Slurm tells now.
pub fn standing(
    from: &Path,
    slurm: &SlurmArgs,
    library: Library,
) -> anyhow::Result<(String, what_if::Start)> {
    if from != Path::new("slurm") {
        let journal = existing_journal(from)?;
        let (scheduler, mut segment) = replay::last(&journal, None)?
            .with_context(|| format!("{}: it is empty", from.display()))?;
        let topology =
            machines::in_order(&replay::topology(&segment.setup)?, &mut segment.machines);
        let start = what_if::start(&scheduler.state, &topology);
        return Ok((segment.setup.partitions.join(","), start));
    }
    let mut slurm_now = slurm.connect()?;
    let (topology, _) = slurm_now.topology()?;
    let state = what_if::books(&slurm_now.observe()?, &topology, &library, unix_s());
    let start = what_if::start(&state, &topology);
    Ok((slurm.partition.join(","), start))
}

fn existing_journal(path: &Path) -> anyhow::Result<Journal> {
    if !path.is_file() {
        bail!("{}: no such journal", path.display());
    }
    Ok(Journal::open(path)?)
}

fn replayed(path: &Path, common: &Common) -> anyhow::Result<ExitCode> {
    let journal = existing_journal(path)?;
    let replayed = replay::replay(&journal, |_| {})?;
    replayed.differences.iter().for_each(|difference| common.say(difference));
    let same = match replayed.differences.len() {
        0 => "the same decisions".to_owned(),
        1 => "other decisions in one part of the journal; before and beside it the same".into(),
        n => {
            format!("other decisions in {n} parts of the journal; before and beside them the same")
        }
    };
    outputs::print(&format!(
        "{same}: {} decisions from {} events in {} turns, {} starts of the scheduler\n",
        replayed.decisions, replayed.events, replayed.turns, replayed.segments
    ))?;
    Ok(if replayed.differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
