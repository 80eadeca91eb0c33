//! `hither progress`: a job tells how far it has come, in its own comment. Slurm carries the word: no
//! shared directory and no connection to the scheduler is needed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use hither_live::slurm::command::{Commands, one_line};
use hither_live::slurm::{read, unix_s};
use hither_live::wish::Wish;

use crate::Common;
use crate::inputs::number;

/// Report from inside a job how many iterations it has done
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, in a job's script:
  hither progress 1200
  hither progress 1200 --saved

Once or twice a minute is enough: every report is a request to Slurm's controller.")]
pub struct Args {
    /// Iterations done since the job was first started
    #[arg(value_parser = |t: &str| number(t, 0.0, 1e18))]
    done: f64,
    /// They are in a checkpoint: a restart goes on from here
    #[arg(long)]
    saved: bool,
    /// The job [default: the one that runs this command]
    #[arg(long, value_name = "ID", env = "SLURM_JOB_ID")]
    job: Option<String>,
    /// Folder of Slurm's commands [default: on the path]
    #[arg(long, value_name = "DIR", env = "HITHER_SLURM_BIN")]
    slurm_bin: Option<PathBuf>,
}

pub fn run(args: &Args, _: &Common) -> anyhow::Result<ExitCode> {
    let Some(job) = &args.job else {
        bail!("SLURM_JOB_ID is not set; run this inside a job, or give --job");
    };
    if job.is_empty() || !job.bytes().all(|b| b.is_ascii_digit() || b == b'_') {
        bail!("--job {job}: expected Slurm's id of a job");
    }
    let commands = Commands { bin: args.slurm_bin.clone(), limit: Duration::from_secs(30) };
    let shown = commands.ask("scontrol", &["show", "job", job])?;
    let records = read::records(&shown);
    let Some(record) = records.into_values().next() else {
        bail!("job {job} is not known to Slurm")
    };
    let mut wish = Wish::parse(&record.comment);
    wish.done = Some(args.done);
    // Milliseconds are more than Slurm's own clocks have.
    wish.at_s = Some((unix_s() * 1000.0).round() / 1000.0);
    if args.saved {
        wish.saved = Some(args.done);
    }
    let update = format!("comment={}", wish.rewrite(&record.comment));
    let printed = commands.run("scontrol", &["update", &format!("jobid={job}"), &update], "")?;
    if !printed.ok {
        bail!("Slurm does not take the report: {}", one_line(&printed.err));
    }
    Ok(ExitCode::SUCCESS)
}
