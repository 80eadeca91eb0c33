//! The commands of training.

use std::process::ExitCode;

use clap::Subcommand;

use crate::{Common, dataset, partition, predict, submit, train};

#[derive(Subcommand)]
pub enum Command {
    Train(Box<train::Args>),
    Submit(submit::Args),
    Predict(predict::Args),
    #[command(subcommand)]
    Dataset(dataset::Command),
    Partition(partition::Args),
}

impl Command {
    pub fn run(&self, common: &Common) -> anyhow::Result<ExitCode> {
        match self {
            Self::Train(args) => train::run(args, common),
            Self::Submit(args) => submit::run(args, common),
            Self::Predict(args) => predict::run(args, common).map(|()| ExitCode::SUCCESS),
            Self::Dataset(command) => dataset::run(command, common),
            Self::Partition(args) => partition::run(args, common),
        }
    }
}
