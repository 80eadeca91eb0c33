//! `hither`: parses the command line and runs one subcommand. Each subcommand has its own file.

mod completions;
mod demo;
mod empty;
mod exec_policy;
mod inputs;
mod muri;
mod outputs;
mod policies;
mod profile;
mod progress;
mod queue;
mod record;
mod report;
mod runs;
mod schedule;
mod settings;
mod simulate;
mod sweep;
mod tell;
mod trace;
mod tune;
mod vopr;

#[cfg(not(all(feature = "train", feature = "serve")))]
mod left_out;

#[cfg(feature = "kernels")]
mod doctor;
#[cfg(feature = "kernels")]
mod machine;
#[cfg(feature = "kernels")]
mod scores;

#[cfg(feature = "train")]
mod dataset;
#[cfg(feature = "train")]
mod partition;
#[cfg(feature = "train")]
mod predict;
#[cfg(feature = "train")]
mod submit;
#[cfg(feature = "train")]
mod train;
#[cfg(feature = "train")]
mod training;

#[cfg(feature = "serve")]
mod bench;
#[cfg(feature = "serve")]
mod load;
#[cfg(feature = "serve")]
mod model;
#[cfg(feature = "serve")]
mod plan;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "serve")]
mod serving;

#[cfg(not(all(feature = "train", feature = "serve")))]
use std::ffi::OsString;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::builder::FalseyValueParser;
use clap::{CommandFactory, Parser, Subcommand};
use hither_data::scratch;
use hither_sched::sim;

/// Keep machine-learning work near its data
///
/// schedule: place training jobs by network proximity, and simulate policies on job traces;
/// train: graph neural networks that learn locally and correct globally;
/// serve: recommendation models whose embedding lookups run at the speed of the memory system.
#[derive(Parser)]
#[command(
    verbatim_doc_comment,
    name = "hither",
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
#[command(after_help = "\
Results go to standard output, progress and notes to standard error; `-o -` writes a result file to \
standard output. Existing results are never replaced without --force.
Exit status: 0 success, 1 a negative answer (a broken invariant), 2 wrong usage or unreadable input.")]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// Options of every subcommand.
#[derive(Debug, clap::Args)]
pub struct Common {
    /// Print only errors to standard error
    #[arg(long, short, global = true, help_heading = "Global options", env = "HITHER_QUIET", value_parser = FalseyValueParser::new())]
    pub quiet: bool,
    /// Number of threads; results do not depend on it [default: all cores]
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        value_name = "N",
        env = "HITHER_THREADS"
    )]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    Simulate(simulate::Args),
    Sweep(sweep::Args),
    Tune(Box<tune::Args>),
    Schedule(Box<schedule::Args>),
    Queue(queue::QueueArgs),
    Nodes(queue::NodesArgs),
    Explain(queue::ExplainArgs),
    Progress(tell::Args),
    Release(schedule::ReleaseArgs),
    Report(report::Args),
    #[command(subcommand)]
    Trace(trace::Command),
    Profile(profile::Args),
    #[cfg(feature = "train")]
    #[command(flatten)]
    Training(training::Command),
    #[cfg(feature = "serve")]
    #[command(flatten)]
    Serving(serving::Command),
    Policies(policies::Args),
    Vopr(vopr::Args),
    #[cfg(feature = "kernels")]
    Doctor(doctor::Args),
    Completions(completions::Args),
    /// A command that this build leaves out, or none at all
    #[cfg(not(all(feature = "train", feature = "serve")))]
    #[command(external_subcommand)]
    LeftOut(Vec<OsString>),
}

impl Command {
    /// The signals that the command handles by itself; `None` where it handles them all.
    fn handled_signals(&self) -> Option<&'static [i32]> {
        match self {
            // The server reloads or ends in order.
            #[cfg(feature = "serve")]
            Self::Serving(serving::Command::Serve(_)) => None,
            #[cfg(feature = "train")]
            Self::Training(training::Command::Train(args)) if args.writes_checkpoints() => {
                Some(&[signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT])
            }
            _ => Some(&[]),
        }
    }
}

fn main() -> ExitCode {
    panic::set_hook(Box::new(|info| {
        // A bug is reported like any other error: one line, no backtrace.
        outputs::say_error(&format!("internal error: {info}; please report the command line"));
    }));
    let cli = Cli::parse();
    match panic::catch_unwind(AssertUnwindSafe(|| run(cli))) {
        Ok(Ok(code)) => code,
        // The reader of our output has seen enough, as `head` does.
        Ok(Err(error)) if outputs::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            outputs::say_error(&told(&error));
            ExitCode::from(status(&error))
        }
        Err(_) => ExitCode::from(2),
    }
}

/// The error and its causes, unless its own message already ends with them.
fn told(error: &anyhow::Error) -> String {
    let mut told = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !told.ends_with(&cause) {
            told = format!("{told}: {cause}");
        }
    }
    told
}

/// The exit code of an error. A broken invariant is the answer that `--check` was asked for, if a negative one.
fn status(error: &anyhow::Error) -> u8 {
    if let Some(sim::Error::Invariant { .. }) = error.downcast_ref() {
        return 1;
    }
    #[cfg(feature = "train")]
    if let Some(stopped) = error.downcast_ref::<train::Stopped>() {
        return stopped.status();
    }
    2
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    #[cfg(feature = "kernels")]
    {
        hither_kernels::detect::requested().context("HITHER_ISA")?;
        hither_kernels::detect::cpu();
    }
    if let Some(handled) = cli.command.handled_signals() {
        scratch::remove_on_signal(handled).context("cannot handle signals")?;
    }
    let common = &cli.common;
    match cli.command {
        Command::Demo(args) => demo::run(&args, common),
        Command::Simulate(args) => simulate::run(&args, common),
        Command::Sweep(args) => sweep::run(&args, common),
        Command::Tune(args) => tune::run(&args, common),
        Command::Schedule(args) => schedule::run(&args, common),
        Command::Queue(args) => queue::queue(&args, common),
        Command::Nodes(args) => queue::nodes(&args, common),
        Command::Explain(args) => queue::explain(&args, common),
        Command::Progress(args) => tell::run(&args, common),
        Command::Release(args) => schedule::release(&args, common),
        Command::Report(args) => report::run(&args, common),
        Command::Trace(command) => trace::run(&command, common),
        Command::Profile(args) => profile::run(&args, common),
        #[cfg(feature = "train")]
        Command::Training(command) => command.run(common),
        #[cfg(feature = "serve")]
        Command::Serving(command) => command.run(common),
        Command::Policies(args) => policies::run(&args),
        Command::Vopr(args) => vopr::run(&args, common),
        #[cfg(feature = "kernels")]
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => completions::run(&args, Cli::command()),
        #[cfg(not(all(feature = "train", feature = "serve")))]
        Command::LeftOut(words) => left_out::refuse(&words, Cli::command()),
    }
}
