//! The commands of serving.

use std::process::ExitCode;

use clap::Subcommand;

use crate::{Common, bench, load, model, plan, serve};

#[derive(Subcommand)]
pub enum Command {
    #[command(subcommand)]
    Model(model::Command),
    Plan(plan::Args),
    Serve(Box<serve::Args>),
    Load(Box<load::Args>),
    #[command(subcommand)]
    Bench(bench::Command),
}

impl Command {
    pub fn run(&self, common: &Common) -> anyhow::Result<ExitCode> {
        match self {
            Self::Model(command) => model::run(command, common),
            Self::Plan(args) => plan::run(args, common),
            Self::Serve(args) => serve::run(args, common),
            Self::Load(args) => load::run(args, common),
            Self::Bench(command) => bench::run(command, common),
        }
    }
}
