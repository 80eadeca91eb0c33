//! `hither submit`: a training run as a batch script for Slurm, which can be preempted and goes on.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Parser as _;
use hither_gnn::model::Kind;
use hither_gnn::parts::stored::{self, FolderFacts};
use hither_gnn::train::Mode;

use crate::outputs::{self, Force};
use crate::train::{TrainArgs, job_name};
use crate::{Cli, Command, Common, training};

/// Write a batch script that trains over MPI under Slurm
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither partition flickr.npz --parts 8 --write parts/
  hither submit train parts/ --rounds 100 -o out/ | sbatch
  hither submit --gpus-per-rank 1 --hold train parts/ -o out/ | sbatch

The script starts one rank per part and one for the server. On USR1 or TERM the run writes a checkpoint at \
the end of its round and ends; when Slurm starts the job again, it goes on from there. The comment tells \
`hither schedule` the profile and the number of rounds. See docs/distributed.md.")]
pub struct Args {
    /// Number of ranks: the server and up to one per part [default: one per part, and the server]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=100_000))]
    ranks: Option<u32>,
    /// Cores per rank
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    cores_per_rank: u32,
    /// GPUs per rank; `hither schedule` places jobs that ask for some
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    gpus_per_rank: u32,
    /// Partition of the cluster
    #[arg(long, value_name = "NAME", env = "HITHER_PARTITION")]
    partition: Option<String>,
    /// Time between the signal and the end of the job: more than a round takes
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    grace_s: u32,
    /// Submit the job held, for `hither schedule` to place
    #[arg(long)]
    hold: bool,
    /// Write the script to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    /// `train` and its options, with -o
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<String>,
}

pub fn run(args: &Args, _: &Common) -> anyhow::Result<ExitCode> {
    if !cfg!(feature = "mpi") {
        bail!(
            "this hither was built without MPI, and the script starts several ranks of it; build it with `cargo build \
             --release --features mpi`, and submit with that"
        );
    }
    if let Some(path) = &args.script {
        args.force.check_file_of("--script", path)?;
    }
    let words = [&["hither".to_owned()], &args.command[..]].concat();
    let Command::Training(training::Command::Train(train)) = Cli::try_parse_from(&words)?.command
    else {
        bail!("only `train` can be submitted, but the command is `{}`", args.command[0]);
    };
    let Some((mode, train)) = train.over_ranks() else {
        bail!("`train compare` runs in one process; submit `train` with one mode");
    };
    if train.output.output.is_none() {
        bail!(
            "the command has no -o DIR, which keeps the checkpoints that a restarted job goes on from"
        );
    }
    let folder = stored::facts(train.data.path())?;
    outputs::write_or_print(args.script.as_deref(), &script(args, train, mode, &folder)?)?;
    Ok(ExitCode::SUCCESS)
}

fn script(
    args: &Args,
    train: &TrainArgs,
    mode: Mode,
    folder: &FolderFacts,
) -> anyhow::Result<String> {
    let ranks = args.ranks.unwrap_or(folder.parts as u32 + 1);
    if ranks as usize > folder.parts + 1 {
        bail!(
            "--ranks {ranks}: {} parts and the server take at most {}",
            folder.parts,
            folder.parts + 1
        );
    }
    let config = train.config(mode)?;
    let layers: Vec<&str> = config.stack(false)?.into_iter().map(Kind::name).collect();
    let name = job_name(&layers.join(","), &folder.name, mode.name());
    if name.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"') {
        bail!("the dataset is called `{}`, which cannot be the name of a job", folder.name);
    }
    let mut options = vec![
        format!("--job-name={name}"),
        format!("--ntasks={ranks}"),
        format!("--cpus-per-task={}", args.cores_per_rank),
    ];
    if args.gpus_per_rank > 0 {
        options.push(format!("--gpus-per-task={}", args.gpus_per_rank));
    }
    options.extend(args.partition.iter().map(|partition| format!("--partition={partition}")));
    options.extend(args.hold.then(|| "--hold".to_owned()));
    options.extend(["--requeue", "--open-mode=append"].map(ToOwned::to_owned));
    let (rounds, grace_s) = (config.run.rounds, args.grace_s);
    options.push(format!(
        "--comment=\"hither: model={name} iterations={rounds} signal=USR1 grace={grace_s}\""
    ));
    let mut script = String::from("#!/bin/bash\n");
    for option in options {
        writeln!(script, "#SBATCH {option}")?;
    }
    let words = args.command.iter().filter(|word| *word != "--resume");
    let command: Vec<String> = words.map(|word| quoted(word)).collect();
    let threads = args.cores_per_rank;
    write!(
        script,
        "
# srun passes the signal on. The run writes a checkpoint at the end of its round, and ends.
srun --mpi=pmix --kill-on-bad-exit=1 hither --threads {threads} {} --resume &
run=$!
trap 'kill -USR1 $run' USR1 TERM
# A signal interrupts the wait, not the run.
while kill -0 $run 2>/dev/null; do wait $run; done
wait $run
",
        command.join(" ")
    )?;
    Ok(script)
}

/// A word as the shell reads it back.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:@=+%".contains(c);
    match word.chars().all(is_plain) && !word.is_empty() {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_the_shell_needs_it() {
        assert_eq!(quoted("--hidden=64"), "--hidden=64");
        assert_eq!(quoted("my parts"), "'my parts'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
