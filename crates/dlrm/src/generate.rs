//! Synthetic models of any shape, drawn from a seed: the same bytes for any number of threads.

use std::path::Path;

use half::f16;
use hither_core::seed;
use hither_data::safetensors::{Entry, Writer};
use hither_kernels::bag::quant::Params;
use hither_kernels::bag::{Dtype, Pooling};
use rand::Rng;
use rand_distr::{Distribution, Normal};
use rayon::prelude::*;

use crate::Error;
use crate::model::{Cross, Interaction, Part, Spec, TableSpec, store, write, write_params};

/// What is drawn from one stream: part of what a seed means, so never to be changed.
const ROWS_A_STREAM: usize = 1024;
/// What is drawn before it is written: large enough for all threads, small beside any table.
const BLOCK_BYTES: usize = 32 << 20;

/// Tables all alike, as benchmarks have them.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    pub tables: usize,
    pub rows: usize,
    pub dim: usize,
    pub dtype: Dtype,
    pub pooling: Pooling,
    /// Ids per bag of the requests that such a model is measured with.
    pub ids_per_bag: usize,
    pub interaction: Interaction,
    /// For `dcn` only.
    pub cross: Option<Cross>,
    /// From the dense features on.
    pub bottom: Vec<usize>,
    /// From the first hidden layer on: what the top takes follows from the rest.
    pub top: Vec<usize>,
    pub sigmoid: bool,
}

pub const PRESETS: [&str; 4] = ["micro24", "rm2_1", "rm1", "mlperf"];

impl Shape {
    /// The shapes that recommendation models are measured by.
    pub fn preset(name: &str) -> Result<Self, Error> {
        type Sizes = &'static [usize];
        let (tables, rows, dim, ids_per_bag, bottom, top): (_, _, _, _, Sizes, Sizes) = match name {
            "micro24" => (12, 500_000, 128, 150, &[256, 128, 128], &[128, 64, 1]),
            "rm2_1" => (60, 1_000_000, 128, 120, &[256, 128, 128], &[128, 64, 1]),
            "rm1" => (32, 500_000, 64, 80, &[2048, 2048, 256, 64], &[768, 384, 1]),
            "mlperf" => (26, 1_000_000, 128, 1, &[13, 512, 256, 128], &[1024, 1024, 512, 256, 1]),
            _ => return Err(Error::UnknownPreset { name: name.into() }),
        };
        Ok(Self {
            tables,
            rows,
            dim,
            dtype: Dtype::F32,
            pooling: Pooling::Sum,
            ids_per_bag,
            interaction: Interaction::Dot,
            cross: None,
            bottom: bottom.into(),
            top: top.into(),
            sigmoid: true,
        })
    }

    pub fn spec(&self, name: &str) -> Spec {
        let table = |index: usize| TableSpec {
            name: format!("t{index}"),
            rows: self.rows,
            dim: self.dim,
            dtype: self.dtype,
            pooling: self.pooling,
            padding: None,
            shares: None,
        };
        let mut spec = Spec {
            name: name.into(),
            interaction: self.interaction,
            sigmoid: self.sigmoid,
            bottom: self.bottom.clone(),
            top: Vec::new(),
            cross: self.cross,
            projection: None,
            tables: (0..self.tables).map(table).collect(),
        };
        spec.top.push(spec.interaction_width());
        spec.top.extend(&self.top);
        spec
    }
}

/// Draws a model and writes its directory; `done` hears of the bytes of tables as they are written.
pub fn generate(
    spec: &Spec,
    seed: u64,
    dir: &Path,
    force: bool,
    done: &dyn Fn(u64),
) -> Result<(), Error> {
    write(dir, spec, force, |part, entry, writer| match part {
        Part::Weight(index) | Part::Rows(index) | Part::Params(index) => {
            draw_table(&spec.tables[index], index, seed, writer, done)
        }
        _ => draw_dense(part, entry, seed, writer),
    })
}

/// As facebookresearch/dlrm begins training: normal, narrower for wider layers.
fn draw_dense(part: Part, entry: &Entry, seed: u64, writer: &mut Writer) -> Result<(), Error> {
    let elements = entry.shape.iter().product();
    let fan_out = entry.shape[0] as f64;
    let variance = match (part, &entry.shape[..]) {
        (Part::CrossBias(_), _) => 0.0,
        (_, [_, fan_in]) => 2.0 / (fan_out + *fan_in as f64),
        _ => 1.0 / fan_out,
    };
    let problem = |error: rand_distr::NormalError| Error::Spec {
        path: entry.name.clone().into(),
        problem: error.to_string(),
    };
    let normal = Normal::new(0.0, variance.sqrt()).map_err(problem)?;
    let mut stream = seed::stream(seed, &entry.name);
    let values: Vec<f32> = (0..elements).map(|_| normal.sample(&mut stream) as f32).collect();
    Ok(writer.write(bytemuck::cast_slice(&values))?)
}

/// As facebookresearch/dlrm begins training: uniform within ± 1/√rows.
fn draw_table(
    table: &TableSpec,
    index: usize,
    seed: u64,
    writer: &mut Writer,
    done: &dyn Fn(u64),
) -> Result<(), Error> {
    let TableSpec { rows, dim, dtype, .. } = *table;
    let row_bytes = table.row_bytes();
    let chunk = ROWS_A_STREAM * row_bytes;
    let rows_at_once = (BLOCK_BYTES / chunk).max(rayon::current_num_threads()) * ROWS_A_STREAM;
    let rows_at_once = rows_at_once.min(rows.next_multiple_of(ROWS_A_STREAM));
    let mut block = vec![0; rows_at_once * row_bytes];
    // Only these of a whole table are held in memory, and only where they are needed.
    let mut params = Vec::new();
    let limit = (rows as f32).sqrt().recip();
    for start in (0..rows).step_by(rows_at_once) {
        let count = rows_at_once.min(rows - start);
        let block = &mut block[..count * row_bytes];
        if !dtype.is_quantised() {
            params.clear();
        }
        let known = params.len();
        params.resize(known + count, Params { scale: f16::ZERO, bias: f16::ZERO });
        let of_block = params[known..].par_chunks_mut(ROWS_A_STREAM);
        block.par_chunks_mut(chunk).zip(of_block).enumerate().for_each(|(i, (chunk, params))| {
            let number = start / ROWS_A_STREAM + i;
            let mut stream = seed::stream(seed, &format!("emb_l.{index}/{number}"));
            let mut values = vec![0.0; dim];
            for (row, params) in chunk.chunks_exact_mut(row_bytes).zip(params) {
                draw_uniform(&mut stream, limit, &mut values);
                *params = store(dtype, &values, row);
            }
        });
        writer.write(block)?;
        done(block.len() as u64);
    }
    write_params(writer, dtype, &params, done)
}

/// Two numbers of 24 bits from each draw.
fn draw_uniform(stream: &mut impl Rng, limit: f32, values: &mut [f32]) {
    const HALF: f32 = (1 << 23) as f32;
    for pair in values.chunks_mut(2) {
        let bits = stream.next_u64();
        for (value, bits) in pair.iter_mut().zip([bits as u32, (bits >> 32) as u32]) {
            *value = ((bits >> 8) as f32 - HALF) / HALF * limit;
        }
    }
}
