//! The dataset, split and partition that all runs with one seed share.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use hither_gnn::Dataset;
use hither_gnn::config::{Batch, PARTS, TaskName, TrainConfig};
use hither_gnn::run::Cut;
use hither_gnn::train::Mode;

use super::args::TrainArgs;
use crate::Common;
use crate::partition::say_partitioning;

pub struct TrainingCase<'a> {
    args: &'a TrainArgs,
    common: &'a Common,
    pub seed: u64,
    pub data: Arc<Dataset>,
    cut: OnceLock<Cut>,
}

impl<'a> TrainingCase<'a> {
    /// The data of a run, from 1.
    pub fn open(args: &'a TrainArgs, run: u32, common: &'a Common) -> anyhow::Result<Self> {
        let seed = args.run.seed + u64::from(run) - 1;
        let mut config = args.config(Mode::Single)?;
        config.run.seed = seed;
        let data = match config.target.task {
            Some(TaskName::Links) => args.data.open_graph(seed, common)?,
            _ => args.data.open(seed, common)?,
        };
        let data = Arc::new(config.prepare(data)?);
        Ok(Self { args, common, seed, data, cut: OnceLock::new() })
    }

    /// What a mode is asked for with this seed.
    pub fn config(&self, mode: Mode) -> anyhow::Result<TrainConfig> {
        let mut config = self.args.config(mode)?;
        config.run.seed = self.seed;
        Ok(config)
    }

    /// One machine that takes the batches of all workers together, to compare it with them.
    pub fn together(&self) -> anyhow::Result<TrainConfig> {
        let mut config = self.config(Mode::Single)?;
        let workers = self.cut(&self.config(Mode::PsgdPa)?)?.partition.parts;
        if let Some(Batch::Of(size)) = &mut config.steps.batch {
            *size = size.saturating_mul(workers);
        }
        Ok(config)
    }

    /// The partition that a configuration works on. The graph is cut on first use, because that takes a while.
    pub fn cut(&self, config: &TrainConfig) -> anyhow::Result<Cut> {
        let Some(workers) = config.by.workers() else { return Ok(Cut::none(&self.data)) };
        if let Some(cut) = self.cut.get() {
            return Ok(cut.clone());
        }
        let is_cut_here = self.data.parts.is_none() && workers.partition_file.is_none();
        let by = workers.partition.unwrap_or(Cut::usual(&self.data));
        let parts = workers.parts.unwrap_or(PARTS);
        let start = Instant::now();
        let spinner =
            is_cut_here.then(|| say_partitioning(&self.data, parts, &by.to_string(), self.common));
        let cut = Cut::of(config, &self.data);
        spinner.into_iter().for_each(|spinner| spinner.finish_and_clear());
        let mut cut = cut?;
        if is_cut_here {
            cut.setup.partition_s = start.elapsed().as_secs_f64();
        }
        Ok(self.cut.get_or_init(|| cut).clone())
    }
}
