//! `hither model check`: compares a model's scores with those that are expected of it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use hither_data::{Bytes, Checkpoint, npy};
use hither_report::plural;
use serde::Serialize;

use super::run::{ScoringArgs, score};
use crate::Common;
use crate::inputs::number;

/// Compare a model's scores with expected ones
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither model check model --inputs examples/requests.csv --expect scores.csv
  hither model check model --inputs ids.safetensors --expect scores.npy

Scores are expected in the order of the samples: CSV as `hither model run` writes it, or one tensor as \
.npy, .safetensors or .pt. Ends with 1 if a score differs by more than the tolerance, or is not \
finite.")]
pub struct Args {
    #[command(flatten)]
    scoring: ScoringArgs,
    /// File of expected scores
    #[arg(long, value_name = "FILE")]
    expect: PathBuf,
    /// Largest difference that is accepted
    #[arg(long, value_name = "X", default_value = "0.001", value_parser = |t: &str| number(t, 0.0, f64::MAX))]
    tolerance: f64,
    /// Print JSON instead of a sentence
    #[arg(long)]
    json: bool,
}

/// What the comparison came to.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    samples: usize,
    /// Scores that differ by more than the tolerance.
    different: usize,
    not_finite: usize,
    max_difference: f64,
    /// The first sample with a score that is not accepted.
    first: Option<usize>,
    tolerance: f64,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let expected = expected(&args.expect)?;
    let mut outcome = Outcome { tolerance: args.tolerance, ..Outcome::default() };
    let mut at = 0;
    outcome.samples = score(&args.scoring, common, &mut |outputs, scores| {
        for score in scores {
            let Some(wanted) = expected.get(at) else {
                bail!(
                    "{}: it has {} scores, and the model gives more: {outputs} per sample",
                    args.expect.display(),
                    expected.len()
                );
            };
            outcome.compare(at / outputs.max(1), *score, *wanted);
            at += 1;
        }
        Ok(())
    })?;
    if at < expected.len() {
        bail!("{}: it has {} scores; the model gives {at}", args.expect.display(), expected.len());
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        println!("{}", outcome.sentence());
    }
    Ok(if outcome.first.is_none() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

impl Outcome {
    fn compare(&mut self, sample: usize, score: f32, wanted: f32) {
        let difference = f64::from((score - wanted).abs());
        if !score.is_finite() {
            self.not_finite += 1;
        } else if difference.is_nan() || difference > self.tolerance {
            self.different += 1;
        } else {
            self.max_difference = self.max_difference.max(difference);
            return;
        }
        if difference.is_finite() {
            self.max_difference = self.max_difference.max(difference);
        }
        self.first.get_or_insert(sample);
    }

    fn sentence(&self) -> String {
        let Self { samples, different, not_finite, max_difference, tolerance, .. } = self;
        let samples = plural(*samples, "sample");
        match self.first {
            None => format!(
                "{samples} agree to within {tolerance}; the largest difference is {max_difference:.3e}"
            ),
            Some(first) => format!(
                "{different} scores of {samples} differ by more than {tolerance} (at most {max_difference:.3e}) \
                 and {not_finite} are not finite; the first is of sample {first}"
            ),
        }
    }
}

/// The scores of a file, in their order.
fn expected(path: &Path) -> anyhow::Result<Vec<f32>> {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    if matches!(extension.as_str(), "csv" | "txt" | "") {
        return expected_in_csv(path);
    }
    let tensor = if extension == "npy" {
        npy::read(path, &Bytes::map(path)?)?
    } else {
        let mut tensors = Checkpoint::open(path)?.tensors.into_values();
        match (tensors.next(), tensors.next()) {
            (Some(tensor), None) => tensor,
            _ => bail!("{}: one tensor of scores is expected", path.display()),
        }
    };
    match tensor.as_f32() {
        Some(scores) => Ok(scores.into_owned()),
        None => bail!("{}: scores are expected as floating-point numbers", path.display()),
    }
}

fn expected_in_csv(path: &Path) -> anyhow::Result<Vec<f32>> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let mut scores = Vec::new();
    for (line, row) in (1..).zip(text.lines()).filter(|(_, row)| !row.trim().is_empty()) {
        for field in row.split(',').map(str::trim) {
            match field.parse() {
                Ok(score) => scores.push(score),
                // The names of the columns.
                Err(_) if line == 1 => {}
                Err(_) => bail!("{}:{line}: `{field}` is not a number", path.display()),
            }
        }
    }
    Ok(scores)
}
