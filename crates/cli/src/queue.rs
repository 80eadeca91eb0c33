//! `hither queue`, `hither nodes`, `hither explain`: what the scheduler has to say.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use comfy_table::{Table, presets};
use hither_live::explain::{self, Explanation};
use hither_live::journal::{self, Journal};
use hither_live::places::Places;
use hither_live::slurm::unix_s;
use hither_live::status::{self, Source, Status};
use hither_live::{replay, serve};
use hither_sched::topo::hostlist;

use crate::schedule::StateArgs;
use crate::{Common, outputs};

/// List the jobs that Hither places, with their tiers and reasons
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither queue
  hither queue --url scheduler:9433
  hither queue --state /tmp/hither --json")]
pub struct QueueArgs {
    #[command(flatten)]
    ask: AskArgs,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// List the machines, their free GPUs, and who holds the others
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither nodes
  hither nodes --json")]
pub struct NodesArgs {
    #[command(flatten)]
    ask: AskArgs,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Explain why a job waits, runs where it runs, or was moved
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither explain 123
  hither explain 123_4 --json")]
pub struct ExplainArgs {
    #[command(flatten)]
    ask: AskArgs,
    /// Slurm's id of the job, such as 123 or 123_4
    job: String,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Which scheduler to ask.
#[derive(Debug, clap::Args)]
struct AskArgs {
    #[command(flatten)]
    state: StateArgs,
    /// Ask the scheduler at this address, which is that of its --listen, as from a login node
    #[arg(long, value_name = "HOST:PORT", env = "HITHER_URL")]
    url: Option<String>,
}

/// Asks the scheduler; one that does not run is asked through its journal.
fn ask<T: serde::de::DeserializeOwned>(
    args: &AskArgs,
    path: &str,
    common: &Common,
    from_journal: impl FnOnce(&Journal, &Status) -> anyhow::Result<Option<T>>,
) -> anyhow::Result<Option<T>> {
    let home = args.state.home();
    let answer = match &args.url {
        Some(url) => Ok(serve::get_from(url, path).with_context(|| {
            format!("--url {url}: no scheduler answers there; see its --listen")
        })?),
        None => serve::get(&home.socket(), path),
    };
    match answer {
        Ok((200, body)) => Ok(Some(serde_json::from_str(&body).context("the scheduler's answer")?)),
        Ok((404, _)) => Ok(None),
        Ok((_, body)) => bail!("{}", body.trim()),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => bail!(
            "{}: this user may not ask the scheduler ({error}); give --url with the address of its --listen",
            home.socket().display()
        ),
        Err(_) => {
            if !home.journal().is_file() {
                bail!(
                    "no scheduler runs with {}, and there is no journal; start hither schedule \
                     --act, or give its --state, or --url from another host",
                    home.0.display()
                );
            }
            let journal = match Journal::open(&home.journal()) {
                Ok(journal) => journal,
                Err(journal::Error::InUse { .. }) => {
                    bail!("the scheduler is there and does not answer yet; try again in a moment")
                }
                Err(error) => {
                    return Err(error).context(
                        "no scheduler answers, and its journal cannot be read; ask as root",
                    );
                }
            };
            common.say("no scheduler runs: this is how its journal ends");
            let status = status_of(&journal)?;
            from_journal(&journal, &status)
        }
    }
}

fn status_of(journal: &Journal) -> anyhow::Result<Status> {
    let Some((scheduler, segment)) = replay::last(journal, None)? else {
        bail!("the journal is empty")
    };
    let places = Places::new(segment.machines.clone());
    let racks = replay::racks(&segment.setup)?;
    let source = Source {
        state: &scheduler.state,
        places: &places,
        racks: &racks,
        setup: &segment.setup,
        seen: None,
        bars: None,
        acts: false,
    };
    Ok(status::status(source, Vec::new(), unix_s()))
}

fn get_status(args: &AskArgs, common: &Common) -> anyhow::Result<Status> {
    let status = ask(args, "/status.json", common, |_, status| Ok(Some(status.clone())))?;
    status.context("the scheduler does not answer")
}

fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    rows.for_each(|row| {
        table.add_row(row);
    });
    let lines: Vec<String> = table.to_string().lines().map(|line| line.trim().to_owned()).collect();
    lines.join("\n") + "\n"
}

/// `1-02:03:04`, as squeue writes times.
fn time(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (s / 86_400, s / 3600 % 24, s / 60 % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}:{:02}", s % 60),
        (0, _) => format!("{hours}:{minutes:02}:{:02}", s % 60),
        _ => format!("{days}-{hours:02}:{minutes:02}:{:02}", s % 60),
    }
}

pub fn queue(args: &QueueArgs, common: &Common) -> anyhow::Result<ExitCode> {
    let status = get_status(&args.ask, common)?;
    if args.json {
        outputs::print_json(&status.jobs)?;
        return Ok(ExitCode::SUCCESS);
    }
    let header = [
        "JOBID", "NAME", "USER", "GPUS", "PHASE", "TIME", "TIER", "BEST", "TIMER", "NODES",
        "REASON",
    ];
    let rows = status.jobs.iter().map(|row| {
        let nodes: Vec<&str> = row.nodes.iter().map(|(node, _)| node.as_str()).collect();
        vec![
            row.job.clone(),
            row.name.clone(),
            row.user.clone(),
            row.gpus.to_string(),
            row.phase.clone(),
            time(row.since_s),
            row.tier.clone(),
            row.best.clone(),
            row.timer_s.map_or_else(String::new, time),
            hostlist(&nodes),
            row.why.clone(),
        ]
    });
    outputs::print(&table(&header, rows))?;
    Ok(ExitCode::SUCCESS)
}

pub fn nodes(args: &NodesArgs, common: &Common) -> anyhow::Result<ExitCode> {
    let status = get_status(&args.ask, common)?;
    if args.json {
        outputs::print_json(&status.machines)?;
        return Ok(ExitCode::SUCCESS);
    }
    let header = ["NODE", "RACK", "STATE", "TYPE", "GPUS", "FREE", "OTHERS", "JOBS"];
    let rows = status.machines.iter().map(|row| {
        let jobs: Vec<String> =
            row.jobs.iter().map(|(job, gpus)| format!("{job}:{gpus}")).collect();
        vec![
            row.node.clone(),
            row.rack.clone(),
            row.state.clone(),
            row.gpu_type.clone(),
            row.gpus.to_string(),
            row.free.to_string(),
            row.foreign.to_string(),
            jobs.join(" "),
        ]
    });
    outputs::print(&table(&header, rows))?;
    Ok(ExitCode::SUCCESS)
}

pub fn explain(args: &ExplainArgs, common: &Common) -> anyhow::Result<ExitCode> {
    let job = &args.job;
    let is_key = !job.is_empty() && job.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    if !is_key {
        bail!("{job}: expected Slurm's id of a job, such as 123 or 123_4");
    }
    let found: Option<Explanation> =
        ask(&args.ask, &format!("/explain/{job}"), common, |journal, status| {
            Ok(explain::explain(status, journal, None, job)?)
        })?;
    let Some(explanation) = found else { bail!("job {job} is not known; hither queue lists jobs") };
    if args.json {
        outputs::print_json(&explanation)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!("job {job} {}\n", explanation.now);
    let now_s = unix_s();
    for said in &explanation.past {
        text.push_str(&format!("  {:>10} ago  {}\n", time(now_s - said.at_s), said.text));
    }
    outputs::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
