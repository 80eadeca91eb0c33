//! Inference: one batch through the whole model.
//!
//! dense → bottom MLP ┐
//!                    ├→ interaction → top MLP → score
//! ids → tables ──────┘

use hither_kernels::bag::{self, Bags, Ids, OutOfRange, Settings};
use hither_kernels::detect::Cpu;
use hither_kernels::gemm::{Activation, Rows, RowsMut, stride_for};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::Error;
use crate::interact::Interactor;
use crate::mlp::{Mlp, Scratch};
use crate::model::Model;
use crate::plan::Plan;
use crate::tables::Tables;

/// A model, loaded as its plan says, and the threads that run it.
pub struct Engine {
    tables: Tables,
    bottom: Mlp,
    interactor: Interactor,
    top: Mlp,
    settings: Settings,
    threads: ThreadPool,
}

/// One batch: dense features [batch, inputs], and for each table a bag of ids a sample.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub dense: &'a [f32],
    pub bags: Bags<'a>,
}

/// What a batch passes through, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Bottom,
    Tables,
    /// The interaction and the top MLP: what one leaves in a core's cache, the other takes.
    Top,
}

/// Memory between the stages, kept from batch to batch.
#[derive(Default)]
pub struct Workspace {
    dense: Vec<f32>,
    pooled: Vec<f32>,
}

/// Samples that a thread takes at a time.
const SAMPLES_AT_ONCE: usize = 64;

impl Engine {
    /// `done` hears of bytes of tables that were laid out.
    pub fn load(
        model: &Model,
        plan: &Plan,
        cpu: Cpu,
        out_of_range: OutOfRange,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, Error> {
        let pool = ThreadPoolBuilder::new().num_threads(plan.threads).build();
        let threads = pool.map_err(|error| Error::Threads { problem: error.to_string() })?;
        let spec = &model.spec;
        let last = if spec.sigmoid { Activation::Sigmoid } else { Activation::None };
        Ok(Self {
            tables: threads.install(|| Tables::load(model, plan, done))?,
            bottom: Mlp::new(&model.bottom(), Activation::Relu, plan.mlp, cpu),
            interactor: Interactor::new(model, plan.mlp, cpu),
            top: Mlp::new(&model.top(), last, plan.mlp, cpu),
            settings: Settings { isa: cpu.isa, out_of_range },
            threads,
        })
    }

    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    pub fn threads(&self) -> &ThreadPool {
        &self.threads
    }

    /// Scores of a sample.
    pub fn outputs(&self) -> usize {
        self.top.outputs()
    }

    /// Scores all samples of a batch; `out` is [batch, outputs]. Returns how many ids were clamped.
    /// `after` is told when a stage has ended.
    pub fn infer(
        &self,
        batch: &Batch,
        out: &mut [f32],
        work: &mut Workspace,
        mut after: impl FnMut(Stage) + Send,
    ) -> Result<u64, Error> {
        let samples = batch.bags.batch;
        check("dense features", batch.dense.len(), samples * self.bottom.inputs())?;
        check("scores", out.len(), samples * self.outputs())?;
        let dense_stride = stride_for::<f32>(self.bottom.outputs());
        work.dense.resize(samples * dense_stride, 0.0);
        work.pooled.resize(samples * self.tables.width(), 0.0);
        let at_once = at_once(samples, self.threads.current_num_threads());
        self.threads.install(|| {
            in_blocks(&self.bottom, batch.dense, &mut work.dense, dense_stride, at_once);
            after(Stage::Bottom);
            let clamped = self.pool(&batch.bags, &mut work.pooled)?;
            after(Stage::Tables);
            self.top(&work.dense, dense_stride, &work.pooled, out, at_once);
            after(Stage::Top);
            Ok(clamped)
        })
    }

    /// The lookups alone: [batch, all tables' dims].
    pub fn pool(&self, bags: &Bags, out: &mut [f32]) -> Result<u64, Error> {
        let tables = self.tables.view();
        Ok(bag::embed(&tables, bags, out, &self.settings)?)
    }

    /// The interaction and the top MLP, block by block of samples.
    fn top(
        &self,
        dense: &[f32],
        dense_stride: usize,
        pooled: &[f32],
        out: &mut [f32],
        at_once: usize,
    ) {
        let (pooled_width, outputs) = (self.tables.width(), self.outputs());
        let width = self.interactor.width();
        let stride = stride_for::<f32>(width);
        let blocks = out.par_chunks_mut((at_once * outputs).max(1)).enumerate();
        let buffers = || (Scratch::default(), vec![0.0f32; at_once * stride]);
        blocks.for_each_init(buffers, |(scratch, meeting), (block, out)| {
            let samples = out.len() / outputs;
            let first = block * at_once;
            let dense = Rows::new(&dense[first * dense_stride..], samples, dense_stride);
            let pooled = Rows::new(&pooled[first * pooled_width..], samples, pooled_width);
            let met = RowsMut::new(meeting, samples, stride);
            self.interactor.forward(dense, pooled, met, scratch);
            let met = Rows::new(meeting, samples, stride);
            self.top.forward(met, RowsMut::new(out, samples, outputs), scratch);
        });
    }
}

/// How many samples a thread takes at a time.
pub fn at_once(samples: usize, threads: usize) -> usize {
    samples.div_ceil(threads).clamp(1, SAMPLES_AT_ONCE)
}

/// An MLP over many samples on the threads of the rayon pool that this is called in; rows of `out`
/// are `stride` apart.
pub fn in_blocks(mlp: &Mlp, x: &[f32], out: &mut [f32], stride: usize, at_once: usize) {
    let inputs = mlp.inputs();
    let blocks = out.par_chunks_mut((at_once * stride).max(1)).enumerate();
    blocks.for_each_init(Scratch::default, |scratch, (block, out)| {
        let samples = out.len() / stride;
        let x = Rows::new(&x[block * at_once * inputs..], samples, inputs);
        mlp.forward(x, RowsMut::new(out, samples, stride), scratch);
    });
}

fn check(what: &'static str, found: usize, expected: usize) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(Error::Batch { what, found, expected }) }
}

impl<'a> Batch<'a> {
    /// A batch of 64-bit ids without weights.
    pub fn new(batch: usize, dense: &'a [f32], ids: &'a [i64], offsets: &'a [i64]) -> Self {
        Self { dense, bags: Bags { batch, ids: Ids::I64(ids), offsets, weights: None } }
    }
}
