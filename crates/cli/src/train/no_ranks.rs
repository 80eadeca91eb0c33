//! What stands for ranks in a build without MPI.

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use hither_gnn::Dataset;
use hither_gnn::config::TrainConfig;
use hither_gnn::train::Trainer;
use hither_gnn::transport::Workers;
use hither_gnn::transport::mpi::Launch;

use super::Args;
use super::profile::RankReport;
use crate::Common;

/// No ranks.
pub enum Crew {}

impl Crew {
    pub fn begin(
        &self,
        _: &Path,
        _: &TrainConfig,
        _: &Dataset,
    ) -> anyhow::Result<Box<dyn Workers>> {
        match *self {}
    }

    pub fn report(&self, _: &mut Trainer, _: &Path) -> anyhow::Result<Vec<RankReport>> {
        match *self {}
    }
}

pub fn run(_: &Args, _: Launch, _: &Common) -> anyhow::Result<ExitCode> {
    bail!(
        "this hither was built without MPI, but mpirun or srun started several copies of it; build it with \
         `cargo build --release --features mpi`, or start one copy"
    )
}
