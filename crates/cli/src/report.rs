//! `hither report`: one page from one or more directories of results.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use hither_core::record::{Header, RunRecord};
use hither_report::{Group, html};

use crate::outputs::{Force, Kind};
use crate::{Common, outputs, record};

/// Write one self-contained HTML page from the results of simulations or of training runs
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither report out/
  hither report quiet/ congested/ -o comparison.html
  hither report trained/ trained-with-dropout/ -o comparison.html

DIR is a directory that `hither simulate -o`, `hither demo -o`, `hither train -o` or \
`hither train compare -o` wrote. Simulations and training runs cannot share a page.")]
pub struct Args {
    /// Directories of results
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// File to write [default: report.html in DIR, if there is only one]
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
        _ => bail!("several directories make one page; give the file to write: -o FILE"),
    };
    let (trained, simulated): (Vec<&PathBuf>, Vec<&PathBuf>) =
        args.dirs.iter().partition(|dir| Kind::Training.is_in(dir));
    let page = match (&trained[..], &simulated[..]) {
        ([], dirs) => simulations(dirs)?,
        (dirs, []) => training_runs(dirs)?,
        ([trained, ..], [other, ..]) => bail!(
            "{} holds a training run and {} does not; give directories of one kind",
            trained.display(),
            other.display()
        ),
    };
    outputs::write_or_print(Some(&output), &page)?;
    common.say(&format!("wrote {}", output.display()));
    Ok(ExitCode::SUCCESS)
}

fn simulations(dirs: &[&PathBuf]) -> anyhow::Result<String> {
    if let Some(dir) = dirs.iter().find(|dir| is_sweep(dir)) {
        let page = dir.join("sweep.html");
        bail!("{} holds a sweep, whose page is {}", dir.display(), page.display());
    }
    let read: Vec<(Header, Vec<RunRecord>)> =
        dirs.iter().map(|dir| record::read(dir)).collect::<anyhow::Result<_>>()?;
    let groups: Vec<Group> = read.iter().map(|(header, runs)| Group { header, runs }).collect();
    Ok(html(&groups))
}

#[cfg(not(feature = "train"))]
fn training_runs(_: &[&PathBuf]) -> anyhow::Result<String> {
    bail!("the report of a training run {}", crate::left_out::HINT)
}

#[cfg(feature = "train")]
fn training_runs(dirs: &[&PathBuf]) -> anyhow::Result<String> {
    let (mut settings, mut runs) = (Vec::new(), Vec::new());
    for dir in dirs {
        let (asked, finished) = crate::train::read(dir)?;
        settings.push(asked);
        runs.extend(finished);
    }
    Ok(hither_report::train::page(&runs, &settings))
}

fn is_sweep(dir: &Path) -> bool {
    dir.join("manifest.json").exists() && dir.join("cells").is_dir()
}
