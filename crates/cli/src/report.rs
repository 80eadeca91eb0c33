//! `hither report`: one page from one or more directories of results.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use hither_core::record::{Header, RunRecord};
use hither_report::{Group, html};

use crate::outputs::Force;
use crate::{Common, outputs, record};

/// Make one self-contained HTML page from the results of one or more simulations
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither report out/
  hither report quiet/ congested/ -o comparison.html")]
pub struct Args {
    /// Directories that `hither simulate -o DIR` wrote
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// File to write [default: report.html in the directory, where there is only one]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let output = match (&args.output, &args.dirs[..]) {
        (Some(path), _) => {
            args.force.check_file(path)?;
            path.clone()
        }
        // The page of a run belongs to the run: it is made anew from the same figures.
        (None, [dir]) => dir.join(record::REPORT),
        _ => bail!("several directories make one page; say where it goes: -o FILE"),
    };
    let read: anyhow::Result<Vec<(Header, Vec<RunRecord>)>> =
        args.dirs.iter().map(|dir| record::read(dir)).collect();
    let read = read?;
    let groups: Vec<Group> = read.iter().map(|(header, runs)| Group { header, runs }).collect();
    outputs::write_or_print(Some(&output), &html(&groups))?;
    common.say(&format!("wrote {}", output.display()));
    Ok(ExitCode::SUCCESS)
}
