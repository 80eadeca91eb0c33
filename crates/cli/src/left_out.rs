//! What a build without all features says when it is asked for what it leaves out.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::bail;
use clap::error::ErrorKind;

/// The commands behind the features `train` and `serve`.
const COMMANDS: [&str; 11] = [
    "train",
    "submit",
    "predict",
    "dataset",
    "partition",
    "model",
    "plan",
    "serve",
    "load",
    "bench",
    "doctor",
];

pub const HINT: &str =
    "is not in this build of hither; `cargo build --release` makes one with everything";

/// Refuses a command that clap does not know.
pub fn refuse(words: &[OsString], mut command: clap::Command) -> anyhow::Result<ExitCode> {
    let word = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    if COMMANDS.contains(&&*word) {
        bail!("`{word}` {HINT}");
    }
    let message = format!("unrecognized subcommand '{word}'");
    command.error(ErrorKind::InvalidSubcommand, message).exit()
}
