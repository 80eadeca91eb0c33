//! `hither completions`.

use std::process::ExitCode;

use clap_complete::{Shell, generate};

use crate::outputs;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither completions bash > ~/.local/share/bash-completion/completions/hither
  hither completions zsh > ~/.zfunc/_hither
  hither completions fish > ~/.config/fish/completions/hither.fish")]
pub struct Args {
    /// Shell to complete for
    shell: Shell,
}

pub fn run(args: &Args, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    // Buffered in memory, because the generator panics if it cannot write.
    let mut script = Vec::new();
    generate(args.shell, &mut command, "hither", &mut script);
    outputs::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
