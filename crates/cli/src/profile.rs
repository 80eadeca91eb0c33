//! `hither profile`: what training runs measured, as one file of profiles that the scheduler reads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hither_sched::job::{Measured, Profile};
use hither_sched::profile::Library;
use serde_json::json;

use crate::outputs::{self, Force};
use crate::{Common, inputs};

/// Merge the profiles of training runs into one file for `--profiles`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither profile out/ -o profiles.json
  hither profile near/ far/ -o profiles.json
  hither simulate trace.csv --profiles profiles.json

Runs of the same model and dataset become one profile: the means of their compute times and bytes, and one \
entry per placement that a run over several ranks measured. See docs/distributed.md.")]
pub struct Args {
    /// Output directories of `hither train`, or their profile.json
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.output {
        args.force.check_file(path)?;
    }
    let mut by_name = BTreeMap::<String, Vec<Profile>>::new();
    for path in &args.runs {
        for profile in read(path)?.profiles() {
            by_name.entry(profile.name.clone()).or_default().push(Profile::clone(profile));
        }
    }
    let merged: Vec<Profile> = by_name.into_values().filter_map(|of| merge(&of)).collect();
    let text = serde_json::to_string_pretty(&json!({ "profile": merged }))? + "\n";
    outputs::write_or_print(args.output.as_deref(), &text)?;
    if let Some(path) = &args.output {
        let (count, shown) = (merged.len(), path.display());
        let s = if count == 1 { "" } else { "s" };
        common.say(&format!("wrote {count} profile{s} to {shown}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The scheduler's own reader: what is merged is what it would take.
fn read(run: &Path) -> anyhow::Result<Library> {
    let path = if run.is_dir() { run.join("profile.json") } else { run.to_path_buf() };
    Ok(Library::parse_json(&inputs::text(&path)?, &path.display().to_string())?)
}

/// One profile from those of equal jobs; `None` if there are none.
fn merge(profiles: &[Profile]) -> Option<Profile> {
    let first = profiles.first()?;
    let mean = |figure: fn(&Profile) -> f64| {
        profiles.iter().map(figure).sum::<f64>() / profiles.len() as f64
    };
    let mut steps = BTreeMap::<&[u32], Vec<f64>>::new();
    for Measured { placement, step_s } in profiles.iter().flat_map(|profile| &profile.table) {
        steps.entry(placement).or_default().push(*step_s);
    }
    let measured = |(placement, all): (&[u32], Vec<f64>)| Measured {
        placement: placement.to_vec(),
        step_s: all.iter().sum::<f64>() / all.len() as f64,
    };
    let source = match profiles.len() {
        1 => first.source.clone(),
        count => format!("mean of {count} runs; the first: {}", first.source),
    };
    Some(Profile {
        compute_s: mean(|profile| profile.compute_s),
        gradient_bytes: mean(|profile| profile.gradient_bytes),
        table: steps.into_iter().map(measured).collect(),
        source,
        ..first.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_are_joined_and_figures_averaged() {
        let profile = |compute_s: f64, table: &[(&[u32], f64)]| Profile {
            name: "sage@graph".into(),
            compute_s,
            gradient_bytes: 10.0 * compute_s,
            table: table
                .iter()
                .map(|(placement, step_s)| Measured {
                    placement: placement.to_vec(),
                    step_s: *step_s,
                })
                .collect(),
            ..Profile::clone(Library::builtin().profiles().next().expect("a profile"))
        };
        let runs = [profile(1.0, &[(&[5], 2.0)]), profile(3.0, &[(&[5], 4.0), (&[3, 2], 8.0)])];
        let merged = merge(&runs).expect("a profile");
        assert_eq!((merged.compute_s, merged.gradient_bytes), (2.0, 20.0));
        let expected = [
            Measured { placement: vec![3, 2], step_s: 8.0 },
            Measured { placement: vec![5], step_s: 3.0 },
        ];
        assert_eq!(merged.table, expected);
        assert_eq!(merge(&[]), None);
    }
}
