//! `hither model run`: scores for one's own inputs.

use std::io::{BufRead as _, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::builder::RangedU64ValueParser;
use hither_data::samples::{Block, Format, SampleReader};
use hither_data::{Bytes, IdTrace};
use hither_dlrm::Model;
use hither_dlrm::model::Spec;
use hither_dlrm::plan::{PageChoice, Plan};
use hither_dlrm::run::{Engine, Options, Request, Sparse, Threads, Worker};
use hither_dlrm::workload::{BadId, Reading, Workload};
use hither_kernels::bag::{Bags, Ids};
use hither_report::plural;
use indicatif::ProgressBar;

use super::note_ignored;
use crate::outputs::Force;
use crate::scores::{ScoreFormat, ScoreWriter};
use crate::{Common, inputs};

/// Score samples with a model
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither model run model --inputs examples/requests.csv
  hither model run model --inputs requests.jsonl -o scores.npy
  hither model run model --inputs requests.safetensors --plan model \\
      -o scores.safetensors

Inputs, one sample per row or line (docs/formats/requests.md has all the details):
  CSV         columns d0, d1, … for dense features, and one per table with its
              ids, separated by blanks
  JSON lines  {\"dense\": [0.5, …], \"ids\": {\"TABLE\": [3, 17], …}}, or lists of ids
              in the order of the tables
  tensors     `dense`, `indices` and `offsets` (or `lengths`), and optionally
              `weights`, as safetensors, .pt or .npz; or one matrix of dense
              features and one id per table as .npy

The score of a sample is the model's output: a probability, or a logit if the model ends without a \
sigmoid (`hither model info` tells). Scores do not depend on --batch, --plan or --threads.")]
pub struct Args {
    #[command(flatten)]
    scoring: ScoringArgs,
    /// File to write: .csv, .jsonl, .npy or .safetensors [default: CSV on standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
}

/// What is scored, and by what.
#[derive(Debug, clap::Args)]
pub struct ScoringArgs {
    /// Model directory
    model: PathBuf,
    /// Samples: CSV, JSON lines, .safetensors, .pt, .npz or .npy; - is standard input
    #[arg(long, short, value_name = "FILE")]
    inputs: PathBuf,
    /// Plan of `hither plan`: plan.toml or its directory [default: tables are read in the mapped file]
    #[arg(long, value_name = "PATH")]
    plan: Option<PathBuf>,
    /// Samples per batch; needed only for `indices` and `offsets` without a stored batch
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=65_536))]
    batch: Option<usize>,
}

/// Samples that are computed at once, unless asked for otherwise.
const SAMPLES: usize = 1024;

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    let output = args.output.as_deref().unwrap_or(Path::new("-"));
    let format = ScoreFormat::from_path(output)?;
    args.force.check_file(output)?;
    let mut writer = None;
    let samples = score(&args.scoring, common, &mut |outputs, scores| {
        let writer = match &mut writer {
            Some(writer) => writer,
            none => none.insert(ScoreWriter::new(output, format, outputs)?),
        };
        writer.write(scores)
    })?;
    if let Some(writer) = writer {
        writer.finish()?;
    }
    common.say(&format!("scored {}", plural(samples, "sample")));
    Ok(())
}

/// Takes the number of scores per sample, and the scores of some samples.
pub type Sink<'a> = &'a mut dyn FnMut(usize, &[f32]) -> anyhow::Result<()>;

/// Scores all samples, in their order. Returns how many there are.
pub fn score(args: &ScoringArgs, common: &Common, sink: Sink<'_>) -> anyhow::Result<usize> {
    let model = Model::open(&args.model)?;
    let spec = &model.spec;
    // Before the tables are loaded: a wrong header should not have to wait for them.
    let mut inputs = Inputs::open(&args.inputs, spec)?;
    let mut plan = match &args.plan {
        Some(path) => crate::plan::open(path, spec, common)?,
        None => mapped(spec),
    };
    plan.threads = common.threads.map_or(plan.threads, usize::from);
    let engine = crate::plan::load(&model, &plan, Options::default(), &|_| (), common)?;
    sink(engine.outputs(), &[])?;
    let threads = common.helpers(plan.threads)?;
    let mut scorer = Scorer { args, spec, engine, worker: Worker::default(), threads, sink };
    let bar = common.bar(inputs.size(), inputs.unit());
    let result = scorer.score_all(&mut inputs, &bar, common);
    bar.finish_and_clear();
    result
}

/// Reads rows where they are: a few samples are scored before a large table could be copied.
fn mapped(spec: &Spec) -> Plan {
    let mut plan = Plan::standard(spec);
    plan.tables.iter_mut().for_each(|table| table.pages = PageChoice::Mapped);
    plan
}

/// Samples, as a stream or all at once.
enum Inputs {
    Lines { reader: SampleReader, bytes: u64 },
    Tensors(IdTrace),
}

impl Inputs {
    fn open(path: &Path, spec: &Spec) -> anyhow::Result<Self> {
        let columns = spec.columns();
        if inputs::is_stdin(path) {
            let mut input = BufReader::new(std::io::stdin());
            let start = input.fill_buf().context("cannot read standard input")?;
            let Some(format) = Format::detect(path, start) else {
                bail!(
                    "standard input: CSV or JSON lines are expected; give other formats as a file"
                );
            };
            let shown = Path::new("standard input");
            let reader = SampleReader::new(shown, format, Box::new(input), &columns)?;
            return Ok(Self::Lines { reader, bytes: 0 });
        }
        let bytes = Bytes::map(path)?;
        match Format::detect(path, &bytes) {
            Some(format) => {
                let reader = SampleReader::open(path, format, &columns)?;
                Ok(Self::Lines { reader, bytes: bytes.len() as u64 })
            }
            None => Ok(Self::Tensors(IdTrace::read(path, &columns)?)),
        }
    }

    fn size(&self) -> u64 {
        match self {
            Self::Lines { bytes, .. } => bytes >> 20,
            Self::Tensors(trace) => trace.dense.as_ref().map_or(0, |dense| dense.rows as u64),
        }
    }

    fn unit(&self) -> &'static str {
        match self {
            Self::Lines { .. } => "scoring, MiB",
            Self::Tensors(_) => "scoring, samples",
        }
    }
}

struct Scorer<'a> {
    args: &'a ScoringArgs,
    spec: &'a Spec,
    engine: Engine,
    worker: Worker,
    threads: Threads,
    sink: Sink<'a>,
}

impl Scorer<'_> {
    /// Returns the number of samples.
    fn score_all(
        &mut self,
        inputs: &mut Inputs,
        bar: &ProgressBar,
        common: &Common,
    ) -> anyhow::Result<usize> {
        let path = &self.args.inputs;
        let at_once = self.args.batch.unwrap_or(SAMPLES);
        match inputs {
            Inputs::Tensors(trace) => {
                self.score_trace(trace, None, &mut |done| bar.set_position(done as u64))
            }
            Inputs::Lines { reader, .. } => {
                let (mut samples, mut last) = (0, None);
                while let Some(block) = reader.read(at_once)? {
                    samples += self.score_trace(&block.trace, Some(&block), &mut |_| ())?;
                    bar.set_position(reader.bytes_read() >> 20);
                    last = Some(block);
                }
                let Some(block) = last else { bail!("{} holds no samples", path.display()) };
                note_ignored(path, &block.trace, common);
                Ok(samples)
            }
        }
    }

    /// Scores all samples of a trace; `block` tells their lines in the file.
    fn score_trace(
        &mut self,
        trace: &IdTrace,
        block: Option<&Block>,
        done: &mut dyn FnMut(usize),
    ) -> anyhow::Result<usize> {
        let path = self.args.inputs.display();
        // Lines can be cut anywhere: only tensors need to be told a batch.
        let batch = self.args.batch.filter(|_| block.is_none());
        let reading = Reading { batch, pooling: 1, wrap: false };
        let spec = self.spec;
        let workload = Workload::new(trace, spec, reading).with_context(|| format!("{path}"))?;
        let Some(samples) = workload.samples() else {
            bail!(
                "{path} is a plain list of ids; samples need `offsets` or `lengths`, and `dense`"
            );
        };
        if let Some(bad) = workload.bad_id() {
            bail!(self.bad_id(&bad, trace, block, workload.batch()));
        }
        let Some(dense) = workload.dense(0..samples) else {
            let wanted = spec.dense_features();
            bail!(
                "{path} has no dense features (`dense`; in CSV d0, d1, …); the model takes {wanted}"
            );
        };
        if let Some(at) = dense.iter().position(|value| !value.is_finite()) {
            let (sample, feature) = (at / spec.dense_features(), at % spec.dense_features());
            bail!("{path}: sample {sample}: dense feature {feature} is {}", dense[at]);
        }
        let at_once = self.args.batch.unwrap_or(SAMPLES);
        for first in (0..samples).step_by(at_once) {
            self.score(&workload, first..(first + at_once).min(samples))?;
            done(first + at_once);
        }
        Ok(samples)
    }

    fn score(&mut self, workload: &Workload, samples: Range<usize>) -> anyhow::Result<()> {
        let count = samples.len();
        let requests = workload.of_samples(samples.clone());
        let bags = Bags {
            batch: count,
            ids: Ids::I64(&requests.ids),
            offsets: &requests.offsets,
            weights: requests.weights.as_deref(),
        };
        let dense = workload.dense(samples).unwrap_or_default();
        let mut scores = vec![0.0; count * self.engine.outputs()];
        let request = Request { dense, sparse: Sparse::Joined(bags) };
        self.engine.infer_one(&request, &mut scores, &mut self.worker, Some(&self.threads))?;
        (self.sink)(self.engine.outputs(), &scores)
    }

    fn bad_id(&self, bad: &BadId, trace: &IdTrace, block: Option<&Block>, batch: usize) -> String {
        let path = self.args.inputs.display();
        let table = &self.spec.tables[bad.table];
        let place = match block {
            Some(block) => format!("{path}:{}: ", block.lines[bad.sample]),
            None => format!("{path}: sample {}, ", bad.sample),
        };
        let hint = match trace.by_sample {
            true => String::new(),
            false => format!("; is {batch} the batch size of the file (--batch)?"),
        };
        let (name, id, rows) = (&table.name, bad.id, table.rows);
        format!("{place}table `{name}`: id {id} is not below its {rows} rows{hint}")
    }
}
