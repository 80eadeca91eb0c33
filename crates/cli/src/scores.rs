//! Scores as files: CSV and JSON lines as they come, NumPy and safetensors when all are there.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use hither_data::safetensors::{Entry, Writer};
use hither_data::{Dtype, Output};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreFormat {
    Csv,
    JsonLines,
    Npy,
    Safetensors,
}

impl ScoreFormat {
    /// The format by the extension of a path; CSV if it has none.
    pub fn from_path(path: &Path) -> anyhow::Result<Self> {
        let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        Ok(match extension.as_str() {
            "" | "csv" => Self::Csv,
            "jsonl" | "ndjson" => Self::JsonLines,
            "npy" => Self::Npy,
            "safetensors" => Self::Safetensors,
            other => bail!(
                "{}: unknown extension `.{other}`; expected .csv, .jsonl, .npy or .safetensors",
                path.display()
            ),
        })
    }
}

/// A file of scores that is being written.
pub struct ScoreWriter {
    path: PathBuf,
    format: ScoreFormat,
    /// Scores per sample.
    outputs: usize,
    /// The text formats' file.
    out: Option<Output>,
    /// Written with the first score: inputs without any good sample leave standard output empty.
    has_header: bool,
    /// The scores of the other formats, whose headers tell how many there are.
    kept: Vec<f32>,
}

impl ScoreWriter {
    pub fn new(path: &Path, format: ScoreFormat, outputs: usize) -> anyhow::Result<Self> {
        let is_text = matches!(format, ScoreFormat::Csv | ScoreFormat::JsonLines);
        let out = is_text.then(|| Output::create(path)).transpose()?;
        Ok(Self { path: path.into(), format, outputs, out, has_header: false, kept: Vec::new() })
    }

    /// Adds the scores of some samples.
    pub fn write(&mut self, scores: &[f32]) -> anyhow::Result<()> {
        if scores.is_empty() {
            return Ok(());
        }
        let Some(out) = &mut self.out else {
            self.kept.extend_from_slice(scores);
            return Ok(());
        };
        if self.format == ScoreFormat::Csv && !std::mem::replace(&mut self.has_header, true) {
            let names: Vec<String> = match self.outputs {
                1 => vec!["score".into()],
                outputs => (0..outputs).map(|output| format!("score{output}")).collect(),
            };
            writeln!(out, "{}", names.join(",")).with_context(|| cannot_write(&self.path))?;
        }
        // The shortest text that reads back as the same number.
        let number = |score: &f32| match self.format {
            ScoreFormat::JsonLines if !score.is_finite() => "null".into(),
            _ => score.to_string(),
        };
        for sample in scores.chunks(self.outputs.max(1)) {
            let numbers: Vec<String> = sample.iter().map(number).collect();
            let numbers = numbers.join(",");
            let written = match (self.format, self.outputs) {
                (ScoreFormat::JsonLines, 1) => writeln!(out, "{{\"score\":{numbers}}}"),
                (ScoreFormat::JsonLines, _) => writeln!(out, "{{\"scores\":[{numbers}]}}"),
                _ => writeln!(out, "{numbers}"),
            };
            written.with_context(|| cannot_write(&self.path))?;
        }
        Ok(())
    }

    /// Puts the file in its place.
    pub fn finish(self) -> anyhow::Result<()> {
        if let Some(out) = self.out {
            return Ok(out.commit()?);
        }
        let samples = self.kept.len() / self.outputs.max(1);
        let shape = match self.outputs {
            1 => vec![samples],
            outputs => vec![samples, outputs],
        };
        let bytes: Vec<u8> = self.kept.iter().flat_map(|score| score.to_le_bytes()).collect();
        if self.format == ScoreFormat::Safetensors {
            let entries = [Entry::new("score", Dtype::F32, &shape)];
            let mut writer = Writer::packed(&self.path, &entries, &Default::default())?;
            writer.write(&bytes)?;
            return Ok(writer.finish()?);
        }
        let mut out = Output::create(&self.path)?;
        let written = out.write_all(&npy_header(&shape)).and_then(|()| out.write_all(&bytes));
        written.with_context(|| cannot_write(&self.path))?;
        Ok(out.commit()?)
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// As `numpy.save` writes it: padded so that the elements start at a multiple of 64 bytes.
fn npy_header(shape: &[usize]) -> Vec<u8> {
    const FIXED: usize = 10;
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let mut text =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", sizes.trim_end());
    let padded = (FIXED + text.len() + 1).next_multiple_of(64) - FIXED;
    text.extend(std::iter::repeat_n(' ', padded - text.len() - 1));
    text.push('\n');
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend((text.len() as u16).to_le_bytes());
    header.extend(text.as_bytes());
    header
}
