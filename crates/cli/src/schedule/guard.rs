//! `hither release`: gives held jobs back to Slurm's own scheduler if Hither stays away. A guard, the
//! same command, is started beside the scheduler and outlives it.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use hither_live::engine::{Engine as _, Obstacle, Order, SeenJob, Stands};
use hither_live::run::{self, Home, unix_s};
use hither_live::slurm::{Config, Slurm};
use serde::{Deserialize, Serialize};
use std::os::unix::process::CommandExt as _;

use super::{SlurmArgs, StateArgs};
use crate::{Common, inputs, outputs};

const COMMAND_LIMIT: Duration = Duration::from_secs(30);

/// Release held jobs to Slurm's own scheduler if Hither has been away for too long
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither release --partition gpu
  hither release --now --partition gpu

A scheduler that acts starts `hither release --watch` by itself. For the case that its whole host is gone, run \
the first line from cron on another host: it looks at the scheduler's claim in Slurm, and releases nothing while \
any scheduler lives.")]
pub struct ReleaseArgs {
    #[command(flatten)]
    slurm: SlurmArgs,
    #[command(flatten)]
    state: StateArgs,
    /// Seconds without a sign of the scheduler [default: as the scheduler was told]
    #[arg(long, value_name = "S", value_parser = |t: &str| inputs::number(t, 1.0, 1e9))]
    after_s: Option<f64>,
    /// Release at once, whether or not the scheduler lives
    #[arg(long, conflicts_with = "after_s")]
    now: bool,
    /// Keep watching, and release whenever it is time
    #[arg(long)]
    watch: bool,
}

/// What the heartbeat file tells a guard.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    pub after_s: f64,
    pub partitions: Vec<String>,
    pub slurm_bin: Option<PathBuf>,
}

fn guard_lock(home: &Home) -> PathBuf {
    home.0.join("guard.lock")
}

/// Starts a guard in a process group of its own, so that what ends the scheduler does not end it.
pub fn start(home: &Home) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot start the guard")?;
    Command::new(program)
        .args(["release", "--watch", "--quiet", "--state"])
        .arg(&home.0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .context("cannot start the guard")?;
    Ok(())
}

pub fn run(args: &ReleaseArgs, common: &Common) -> anyhow::Result<ExitCode> {
    let home = args.state.home();
    if args.watch {
        return watch(args, &home, common);
    }
    let orders = orders(args, &home)?;
    let told = match attend(&orders, run::silence(&home), args.now)? {
        Outcome::Released(jobs) => format!("released {jobs} jobs to Slurm's own scheduler\n"),
        Outcome::Alive(seconds) => {
            format!("the scheduler was seen {seconds:.0} s ago: nothing is released\n")
        }
        Outcome::Nobody => {
            "no scheduler has decided for the partition: nothing is released; --now releases all the same\n"
                .to_owned()
        }
    };
    outputs::print(&told)?;
    Ok(ExitCode::SUCCESS)
}

fn orders(args: &ReleaseArgs, home: &Home) -> anyhow::Result<Orders> {
    let told: Option<Orders> =
        std::fs::read(home.heartbeat()).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let mut orders = match told {
        Some(orders) => orders,
        None if args.slurm.partition.is_empty() => {
            bail!("{} has no heartbeat; give --partition", home.0.display())
        }
        None => Orders { after_s: 900.0, partitions: Vec::new(), slurm_bin: None },
    };
    if !args.slurm.partition.is_empty() {
        orders.partitions = args.slurm.partition.clone();
    }
    orders.after_s = args.after_s.unwrap_or(orders.after_s);
    orders.slurm_bin = args.slurm.slurm_bin.clone().or(orders.slurm_bin);
    Ok(orders)
}

/// What became of a look at the partitions.
enum Outcome {
    Released(usize),
    /// A scheduler lives, or was seen so many seconds ago.
    Alive(f64),
    /// There is no sign of any scheduler, now or earlier.
    Nobody,
}

/// Releases held jobs if no scheduler decides for them. Two signs say that one does: the heartbeat of this state
/// directory, and a claim in Slurm, which may be that of another scheduler on any host.
fn attend(orders: &Orders, heartbeat: Option<Duration>, now: bool) -> anyhow::Result<Outcome> {
    let mut slurm = connect(orders)?;
    if !now {
        // A scheduler of this host is asked directly: no other process has its sockets.
        let cluster = slurm.identity();
        let is_here = |partition: &String| matches!(run::claim(&cluster, partition), Ok(None));
        if orders.partitions.iter().any(is_here) {
            return Ok(Outcome::Alive(0.0));
        }
        let claims = slurm.listed_claims()?;
        let heartbeat_s = heartbeat.map(|silence| silence.as_secs_f64());
        let claims_s = claims.iter().map(|claim| (unix_s() - claim.renewed_s).max(0.0));
        let Some(seen_s) = heartbeat_s.into_iter().chain(claims_s).min_by(f64::total_cmp) else {
            return Ok(Outcome::Nobody);
        };
        let lives_elsewhere =
            claims.iter().any(|claim| claim.is_fresh() && !claim.is_of_this_host());
        if seen_s < orders.after_s || lives_elsewhere {
            return Ok(Outcome::Alive(seen_s));
        }
    }
    let seen = slurm.observe()?;
    let is_ours = |job: &SeenJob| {
        job.managed
            && job.stands == Stands::Held
            && job.obstacle != Obstacle::Hold
            && !job.wish.hold
    };
    let held = seen.jobs.iter().filter(|(_, job)| is_ours(job));
    let orders: Vec<Order> = held.map(|(key, job)| job.hand_over(key)).collect();
    slurm.act(&orders)?;
    Ok(Outcome::Released(orders.len()))
}

fn connect(orders: &Orders) -> anyhow::Result<Slurm> {
    let (partitions, bin) = (orders.partitions.clone(), orders.slurm_bin.clone());
    Ok(Slurm::connect(Config { partitions, bin, limit: COMMAND_LIMIT })?)
}

/// Sleeps until the scheduler has been silent for long enough; then releases, until one is back. Ends
/// when the state directory is gone.
fn watch(args: &ReleaseArgs, home: &Home, common: &Common) -> anyhow::Result<ExitCode> {
    let taken = run::lock(&guard_lock(home)).context("cannot lock")?;
    let Some(_lock) = taken else { return Ok(ExitCode::SUCCESS) }; // another guard watches
    loop {
        // The scheduler that started this guard may not have seen the cluster yet.
        let (Ok(orders), Some(silence)) = (orders(args, home), run::silence(home)) else {
            if !home.0.exists() {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(Duration::from_secs(1));
            continue;
        };
        // Zero: never.
        let after_s = if orders.after_s > 0.0 { orders.after_s } else { f64::INFINITY };
        let left_s = after_s - silence.as_secs_f64();
        if left_s > 0.0 {
            std::thread::sleep(Duration::from_secs_f64(left_s.clamp(0.2, 30.0)));
            continue;
        }
        // Slurm may be away as well; and jobs go on to enter held. Either way: again later.
        if let Ok(Outcome::Released(jobs)) = attend(&orders, Some(silence), false) {
            common.say(&format!("released {jobs} jobs"));
        }
        std::thread::sleep(Duration::from_secs_f64(orders.after_s.clamp(0.2, 60.0)));
    }
}
