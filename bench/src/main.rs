//! The bench program. Each line that it prints is one measurement as JSON, with the machine's
//! facts; times are CPU seconds of the process, as machines are shared and noisy.

use anyhow::Result;
use clap::{Parser, Subcommand};

mod distributed;
mod fidelity;
mod gpu;
mod live;
mod machine;
mod placed;
mod schedule;
mod train;

#[derive(Parser)]
#[command(about = "Measures Hither. Results go to stdout as JSON lines.", version)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The scheduler and its simulator: Muri's traces, Philly, growth with the number of jobs, and
    /// the time of one decision on a large cluster.
    Schedule(schedule::Args),
    /// The scheduler on a private Slurm: turn-around with few and many held jobs, CPU and memory.
    Live(live::Args),
    /// Forecasts for GPUs that need not be here: resources, hit rates and bounds of every variant.
    Gpu(gpu::Args),
    /// The same small workload simulated, live, and under Slurm's own scheduler.
    Fidelity(fidelity::Args),
    /// Training over MPI on emulated machines with limited links: time to given scores. Needs root.
    Distributed(distributed::Args),
    /// Two training jobs on a Slurm with slow links between racks, placed by Hither and by Slurm. Needs root.
    Placed(placed::Args),
    /// Epochs of training a graph neural network; `bench/train` runs this against its peers.
    Train(train::Args),
}

fn main() -> Result<()> {
    match Cli::parse().what {
        What::Schedule(args) => schedule::run(&args),
        What::Live(args) => live::run(&args),
        What::Gpu(args) => gpu::run(&args),
        What::Fidelity(args) => fidelity::run(&args),
        What::Distributed(args) => distributed::run(&args),
        What::Placed(args) => placed::run(&args),
        What::Train(args) => train::run(&args),
    }
}
