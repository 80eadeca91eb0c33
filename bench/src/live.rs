//! The scheduler on a private Slurm on this machine: how soon a gang starts after the one before it
//! has ended, with few and with many held jobs; and what the scheduler itself costs. Slurm's own
//! scheduler runs the same jobs beside it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use hither_live::slurm::testbed::{Shape, Testbed};
use serde_json::json;

use crate::machine;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The binary to measure
    #[arg(long, default_value = "target/release/hither")]
    hither: PathBuf,
    /// Empty folder for the cluster
    #[arg(long)]
    folder: PathBuf,
    /// Gangs in a row
    #[arg(long, default_value_t = 20)]
    gangs: usize,
    /// Held jobs that wait behind them, one measurement each
    #[arg(long, value_delimiter = ',', default_value = "0,1000,5000")]
    held: Vec<u32>,
    /// Seconds of idling
    #[arg(long, default_value_t = 20)]
    idle_s: u64,
    /// Short jobs, one after the other, over which memory is watched
    #[arg(long, default_value_t = 10_000)]
    short: u32,
    /// Let Slurm run examples/slurm/epilog.sh at the end of every job
    #[arg(long)]
    epilog: bool,
    /// What to measure
    #[arg(long, value_delimiter = ',', default_value = "idle,turn-around,short")]
    what: Vec<String>,
}

/// Notes its start and its end.
const GANG: &str = "#!/bin/bash
echo start $SLURM_JOB_ID $(date +%s.%N) >> runs
sleep 0.5
echo end $SLURM_JOB_ID $(date +%s.%N) >> runs
";

const SHAPE: Shape = Shape { racks: 1, machines: 2, gpus: 4 };
/// For many short jobs at once.
const SHAPE_SHORT: Shape = Shape { racks: 1, machines: 4, gpus: 8 };

pub fn run(args: &Args) -> Result<()> {
    let hither = fs::canonicalize(&args.hither)
        .with_context(|| format!("{}: build it first", args.hither.display()))?;
    fs::create_dir_all(&args.folder)?;
    let folder = fs::canonicalize(&args.folder)?;
    for what in &args.what {
        match what.as_str() {
            "idle" => idle(args, &hither, &folder.join("idle"))?,
            "turn-around" => {
                turn_around(args, None, 0, &folder.join("slurm"))?;
                for &held in &args.held {
                    turn_around(args, Some(&hither), held, &folder.join(format!("held-{held}")))?;
                }
            }
            "short" => short_jobs(args, &hither, &folder.join("short"))?,
            "controller" => controller(&folder.join("controller"))?,
            other => bail!("--what {other}: expected idle, turn-around, short or controller"),
        }
    }
    Ok(())
}

fn cluster(dir: &Path) -> Result<Testbed> {
    cluster_with(dir, SHAPE, "")
}

fn cluster_with(dir: &Path, shape: Shape, extra: &str) -> Result<Testbed> {
    fs::create_dir_all(dir)?;
    fs::write(dir.join("gang.sh"), GANG)?;
    fs::write(dir.join("idle.sh"), "#!/bin/bash\nsleep 1\n")?;
    Testbed::start(&dir.join("slurm"), shape, extra).map_err(anyhow::Error::msg)
}

/// The line of slurm.conf that lets Slurm poke the scheduler, which is found by its socket.
pub fn epilog(dir: &Path) -> Result<String> {
    fs::create_dir_all(dir)?;
    let here = format!("--unix-socket {}/state/socket http://hither", dir.display());
    let script = include_str!("../../examples/slurm/epilog.sh");
    let path = dir.join("epilog.sh");
    fs::write(&path, script.replace("http://127.0.0.1:9433", &here))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(format!("EpilogSlurmctld={}\n", path.display()))
}

struct Scheduler(Child);

impl Drop for Scheduler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Scheduler {
    fn start(bed: &Testbed, hither: &Path, dir: &Path) -> Result<Self> {
        let flags =
            ["schedule", "--act", "--partition", "gpu", "--release-after-s", "0", "--quiet"];
        let no_preemption = ["--policy", "dally-no-preempt"];
        let mut command: Command = bed.command(hither);
        command.args(flags).args(no_preemption).arg("--state").arg(dir.join("state"));
        Ok(Self(command.stdin(Stdio::null()).spawn()?))
    }

    /// CPU seconds of the scheduler and of the commands that it has run, and its memory in MB.
    fn cost(&self) -> Result<(f64, f64)> {
        let pid = self.0.id();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let ticks: f64 = fields[11..15].iter().filter_map(|t| t.parse::<f64>().ok()).sum();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kb = memory.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
        Ok((ticks / 100.0, kb.unwrap_or(0.0) / 1000.0))
    }
}

fn idle(args: &Args, hither: &Path, dir: &Path) -> Result<()> {
    let bed = cluster(dir)?;
    let scheduler = Scheduler::start(&bed, hither, dir)?;
    thread::sleep(Duration::from_secs(2));
    let (before_s, _) = scheduler.cost()?;
    thread::sleep(Duration::from_secs(args.idle_s));
    let (after_s, memory_mb) = scheduler.cost()?;
    let share = (after_s - before_s) / args.idle_s as f64;
    print(&json!({ "what": "idle", "cpu_share": share, "memory_mb": memory_mb }));
    Ok(())
}

/// Gangs that each need the whole cluster, one after the other.
fn turn_around(args: &Args, hither: Option<&Path>, held: u32, dir: &Path) -> Result<()> {
    let pokes = args.epilog && hither.is_some();
    let extra = if pokes { epilog(dir)? } else { String::new() };
    let bed = cluster_with(dir, SHAPE, &extra)?;
    let folder = dir.to_string_lossy();
    let submit = |script: &str, more: &[&str]| {
        let mut all = vec!["-D", &*folder, "--gpus=8"];
        all.extend(more);
        if hither.is_some() {
            all.push("-H");
        } else {
            all.push("-N2");
        }
        bed.submit(&all, &dir.join(script), &[]).map_err(anyhow::Error::msg)
    };
    for _ in 0..args.gangs {
        submit("gang.sh", &[])?;
    }
    let mut left = held;
    while left > 0 {
        let tasks = ARRAY.min(left);
        submit("idle.sh", &[&format!("--array=1-{tasks}")])?;
        left -= tasks;
    }
    let begin = Instant::now();
    let scheduler = hither.map(|hither| Scheduler::start(&bed, hither, dir)).transpose()?;
    let limit = Duration::from_secs(60 + 5 * args.gangs as u64);
    let runs = loop {
        let runs = fs::read_to_string(dir.join("runs")).unwrap_or_default();
        if runs.lines().filter(|line| line.starts_with("end")).count() == args.gangs {
            break runs;
        }
        if begin.elapsed() > limit {
            bail!("the gangs took longer than {} s; {}", limit.as_secs(), dir.display());
        }
        thread::sleep(Duration::from_millis(100));
    };
    let wall_s = begin.elapsed().as_secs_f64();
    let mut ended_s = None;
    let mut gaps_s = Vec::new();
    for line in runs.lines() {
        let at_s: f64 = line.rsplit(' ').next().unwrap_or("").parse()?;
        match (line.starts_with("start"), ended_s) {
            (true, Some(before_s)) => gaps_s.push(at_s - before_s),
            (true, None) => {}
            (false, _) => ended_s = Some(at_s),
        }
    }
    gaps_s.sort_by(f64::total_cmp);
    let at = |share: f64| gaps_s[((gaps_s.len() - 1) as f64 * share).round() as usize];
    let (cpu_s, memory_mb) = scheduler.as_ref().map_or(Ok((0.0, 0.0)), Scheduler::cost)?;
    let by = if hither.is_some() { "hither" } else { "slurm" };
    print(&json!({
        "what": "turn-around", "by": by, "epilog": pokes, "held": held, "gangs": args.gangs, "median_s": at(0.5),
        "p99_s": at(0.99), "max_s": at(1.0), "cpu_share": cpu_s / wall_s, "memory_mb": memory_mb,
    }));
    Ok(())
}

/// What Slurm alone, without Hither, knows of its jobs after its controller was killed: jobs that
/// ended, or were submitted, shortly before.
fn controller(dir: &Path) -> Result<()> {
    let bed = cluster(dir)?;
    fs::write(dir.join("short.sh"), "#!/bin/bash\nsleep $1\necho $SLURM_JOB_ID >> ended\n")?;
    let folder = dir.to_string_lossy();
    let submit = |sleep_s: &str| {
        bed.submit(&["-D", &*folder, "--gpus=1"], &dir.join("short.sh"), &[sleep_s])
            .map_err(anyhow::Error::msg)
    };
    let ending = (0..8).map(|n| submit(&format!("{}", 7 + n % 3))).collect::<Result<Vec<_>>>()?;
    thread::sleep(Duration::from_millis(10_500));
    let late = (0..8).map(|_| submit("1")).collect::<Result<Vec<_>>>()?;
    bed.kill_controller();
    bed.start_controller().map_err(anyhow::Error::msg)?;
    thread::sleep(Duration::from_secs(60));
    let ended = fs::read_to_string(dir.join("ended")).unwrap_or_default();
    let has_ended = |job: &&String| ended.lines().any(|line| line == job.as_str());
    let rows =
        bed.ask("squeue", &["-h", "-t", "all", "-o", "%i %T"]).map_err(anyhow::Error::msg)?;
    let is = |job: &String, state: &str| rows.lines().any(|row| row == format!("{job} {state}"));
    let known = |job: &&String| rows.lines().any(|row| row.starts_with(&format!("{job} ")));
    print(&json!({
        "what": "controller killed, Slurm alone", "after_s": 60,
        "ended": ending.iter().filter(has_ended).count(),
        "ended_but_running": ending.iter().filter(|j| has_ended(j) && is(j, "RUNNING")).count(),
        "submitted_before": late.len(), "of_these_known": late.iter().filter(known).count(),
    }));
    Ok(())
}

/// Tasks of an array that Slurm takes at once.
const ARRAY: u32 = 500;
const SHORT_LIMIT: Duration = Duration::from_secs(5400);

/// Jobs that end at once, an array after the other; memory of the scheduler after each.
fn short_jobs(args: &Args, hither: &Path, dir: &Path) -> Result<()> {
    // Slurm forgets ended jobs soon, as it does on a cluster that has run for a day.
    let bed = cluster_with(dir, SHAPE_SHORT, "MinJobAge=10\n")?;
    fs::write(dir.join("short.sh"), "#!/bin/bash\necho >> ended\n")?;
    let scheduler = Scheduler::start(&bed, hither, dir)?;
    let folder = dir.to_string_lossy();
    let begin = Instant::now();
    let mut memory_mb = Vec::new();
    let mut submitted = 0;
    while submitted < args.short {
        let tasks = ARRAY.min(args.short - submitted);
        let array = format!("--array=1-{tasks}");
        let all = ["-D", &*folder, "-H", "--gpus=1", &array];
        bed.submit(&all, &dir.join("short.sh"), &[]).map_err(anyhow::Error::msg)?;
        submitted += tasks;
        while (fs::metadata(dir.join("ended")).map_or(0, |m| m.len()) as u32) < submitted {
            if begin.elapsed() > SHORT_LIMIT {
                bail!("the jobs took longer than {} s", SHORT_LIMIT.as_secs());
            }
            thread::sleep(Duration::from_millis(200));
        }
        memory_mb.push(scheduler.cost()?.1);
    }
    let (cpu_s, _) = scheduler.cost()?;
    let wall_s = begin.elapsed().as_secs_f64();
    print(&json!({
        "what": "short", "jobs": args.short, "wall_s": wall_s, "jobs_per_s": f64::from(args.short) / wall_s,
        "cpu_share": cpu_s / wall_s, "memory_mb": memory_mb, "jobs_between": ARRAY,
    }));
    Ok(())
}

fn print(row: &serde_json::Value) {
    let mut row = row.clone();
    row["machine"] = machine::facts();
    println!("{row}");
}
