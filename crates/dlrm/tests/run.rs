//! Whole models: imported checkpoints against what PyTorch computed, on every instruction set and
//! number of threads, in every precision; and batches that are refused.

use crate::common;

use common::bounds::{BF16_UNIT, Near, score};
use common::{assert_near, assert_within, expected, floats, import, integers, variants};
use hither_data::Checkpoint;
use hither_dlrm::import::Options as ImportOptions;
use hither_dlrm::plan::Plan;
use hither_dlrm::run::{Engine, Options, Pinning, Request as Asked, Threads, Worker};
use hither_dlrm::{Error, Model};
use hither_kernels::bag::quant::Params;
use hither_kernels::bag::{Bags, Dtype, Error as BagError, Ids, OutOfRange, Prepared, Scratch};
use hither_kernels::detect::{Cpu, cpu};
use hither_kernels::gemm::Precision;

const FIXTURES: [&str; 5] =
    ["dlrm.pt", "dlrm_cat.pt", "torchrec.pt", "torchrec.safetensors", "torchrec_dcn.safetensors"];

/// One batch of any number of tables.
#[derive(Clone)]
struct Request {
    samples: usize,
    dense: Vec<f32>,
    ids: Vec<i64>,
    offsets: Vec<i64>,
}

impl Request {
    /// What PyTorch was given.
    fn of(expected: &Checkpoint) -> Self {
        Self {
            samples: expected.tensors["dense"].shape[0],
            dense: floats(expected, "dense"),
            ids: integers(expected, "indices"),
            offsets: integers(expected, "offsets"),
        }
    }

    fn asked(&self) -> Asked<'_> {
        Asked::new(self.samples, &self.dense, &self.ids, &self.offsets)
    }

    fn bags(&self) -> Bags<'_> {
        let (batch, offsets) = (self.samples, self.offsets.as_slice());
        Bags { batch, ids: Ids::I64(&self.ids), offsets, weights: None }
    }

    fn bag(&self, table: usize, sample: usize) -> &[i64] {
        let bag = table * self.samples + sample;
        &self.ids[self.offsets[bag] as usize..self.offsets[bag + 1] as usize]
    }

    /// All samples `times` times, one behind the other.
    fn repeated(&self, times: usize) -> Self {
        let tables = (self.offsets.len() - 1) / self.samples;
        let (mut ids, mut offsets) = (Vec::new(), vec![0]);
        for (table, sample) in
            (0..tables).flat_map(|t| (0..times * self.samples).map(move |s| (t, s)))
        {
            ids.extend(self.bag(table, sample % self.samples));
            offsets.push(ids.len() as i64);
        }
        Self { samples: times * self.samples, dense: self.dense.repeat(times), ids, offsets }
    }
}

/// An engine, and the threads that it is run by.
struct Run {
    engine: Engine,
    threads: Threads,
}

fn engine(model: &Model, precision: Precision, threads: usize, cpu: Cpu) -> Run {
    let plan = Plan { mlp: precision, ..Plan::standard(&model.spec) };
    let options = Options { cpu, ..Options::default() };
    let engine = Engine::load(model, &plan, options, &|_| {}).expect("loaded");
    Run { engine, threads: Threads::new(threads - 1, Pinning::Free).expect("started") }
}

fn infer(run: &Run, request: &Request) -> Result<Vec<f32>, Error> {
    let mut scores = vec![f32::NAN; request.samples * run.engine.outputs()];
    let worker = &mut Worker::default();
    run.engine.infer_one(&request.asked(), &mut scores, worker, Some(&run.threads))?;
    Ok(scores)
}

fn scores(run: &Run, request: &Request) -> Vec<f32> {
    infer(run, request).unwrap_or_else(|error| panic!("{error}"))
}

fn pooled(run: &Run, request: &Request) -> Vec<f32> {
    let tables = run.engine.tables();
    let mut rows = vec![f32::NAN; request.samples * tables.width()];
    let prepared = Prepared::new(tables.view(), Vec::new(), cpu().isa).expect("tables");
    prepared.pool(&request.bags(), &mut rows, &mut Scratch::default()).expect("pooled");
    rows
}

/// PyTorch's scores: probabilities or logits, as the model ends.
fn wanted(model: &Model, expected: &Checkpoint) -> Vec<f32> {
    floats(expected, if model.spec.sigmoid { "probability" } else { "logit" })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn models_compute_what_pytorch_computes() {
    for name in FIXTURES {
        let (imported, expected) = (import(name, &ImportOptions::default()), expected(name));
        let (model, request) = (&imported.model, Request::of(&expected));
        for cpu in variants() {
            let engine = engine(model, Precision::F32, 1, cpu);
            let told = format!("{name}, {cpu:?}");
            assert_near(&told, &pooled(&engine, &request), &floats(&expected, "embedding"));
            assert_near(&told, &scores(&engine, &request), &wanted(model, &expected));
        }
    }
}

/// Nor do they depend on how many samples a batch has: 240 are more than a thread takes at once.
#[test]
fn scores_do_not_depend_on_the_number_of_threads() {
    for name in FIXTURES {
        let (imported, expected) = (import(name, &ImportOptions::default()), expected(name));
        let request = Request::of(&expected);
        let many = request.repeated(40);
        for (precision, cpu) in
            variants().into_iter().flat_map(|cpu| [(Precision::F32, cpu), (Precision::Bf16, cpu)])
        {
            let few = engine(&imported.model, precision, 1, cpu);
            let (rows, alone) = (bits(&pooled(&few, &request)), bits(&scores(&few, &request)));
            for threads in [1, 2, 3] {
                let engine = engine(&imported.model, precision, threads, cpu);
                let told = format!("{name}, {precision:?}, {cpu:?}, {threads} threads");
                assert_eq!(bits(&scores(&engine, &request)), alone, "{told}");
                assert_eq!(bits(&pooled(&engine, &many)), rows.repeat(40), "{told}");
                assert_eq!(bits(&scores(&engine, &many)), alone.repeat(40), "{told}");
            }
        }
    }
}

/// Each sample's score from pooled rows, in fp64 but for layers that round to `unit`.
fn evaluate(model: &Model, request: &Request, rows: &[f32], unit: f64) -> Vec<Near> {
    let dense = request.dense.chunks(model.spec.dense_features());
    let samples = dense.zip(rows.chunks(rows.len() / request.samples));
    samples.map(|(dense, rows)| score(model, dense, rows, unit)).collect()
}

#[test]
fn bf16_is_as_near_as_rounding_allows() {
    for name in FIXTURES {
        let (imported, expected) = (import(name, &ImportOptions::default()), expected(name));
        let (model, request) = (&imported.model, Request::of(&expected));
        let near = evaluate(model, &request, &floats(&expected, "embedding"), BF16_UNIT);
        let bounds: Vec<f64> = near.into_iter().map(Near::bound).collect();
        let (wanted, plain) = (wanted(model, &expected), engine(model, Precision::F32, 1, cpu()));
        for cpu in variants() {
            let found = scores(&engine(model, Precision::Bf16, 2, cpu), &request);
            let told = format!("{name}, {cpu:?}");
            assert_within(&told, &found, &wanted, &bounds);
            assert_ne!(found, scores(&plain, &request), "{told}: not bf16 at all");
        }
    }
}

/// A level is half a step off at most, as scale and bias span their row after they were rounded;
/// a sum of rows is off by the half steps of all of them.
fn half_steps(model: &Model, request: &Request) -> Vec<f64> {
    let steps: Vec<Vec<Params>> = model
        .tables()
        .map(|table| {
            let params = table.params.expect("quantised").chunks_exact(4);
            params.map(bytemuck::pod_read_unaligned).collect()
        })
        .collect();
    let half = |t: usize, id: i64| f64::from(steps[t][id as usize].scale.to_f32()) / 2.0;
    let mut off = Vec::new();
    for sample in 0..request.samples {
        for (t, table) in model.spec.tables.iter().enumerate() {
            let sum: f64 = request.bag(t, sample).iter().map(|id| half(t, *id)).sum();
            off.extend(vec![sum; table.dim]);
        }
    }
    off
}

/// The rows are, and scores are what those rows make in any other program.
#[test]
fn quantised_tables_are_half_a_step_off_at_most() {
    for (name, dtype) in
        FIXTURES.iter().flat_map(|name| [Dtype::Int8, Dtype::Int4].map(|dtype| (name, dtype)))
    {
        let (imported, expected) = (import(name, &ImportOptions::default()), expected(name));
        let dir = tempfile::tempdir().expect("a directory");
        let dtypes = vec![dtype; imported.model.spec.tables.len()];
        imported.model.convert(&dtypes, dir.path(), false, &|_| {}).expect("converted");
        let (model, request) = (Model::open(dir.path()).expect("opened"), Request::of(&expected));
        // With fp32's own rounding on top.
        let bounds: Vec<f64> = half_steps(&model, &request).iter().map(|off| off + 1e-5).collect();
        for cpu in variants() {
            let engine = engine(&model, Precision::F32, 2, cpu);
            let told = format!("{name}, {dtype:?}, {cpu:?}");
            let rows = pooled(&engine, &request);
            assert_within(&told, &rows, &floats(&expected, "embedding"), &bounds);
            let plain = evaluate(&model, &request, &rows, 0.0);
            let plain: Vec<f32> = plain.iter().map(|near| near.value as f32).collect();
            assert_near(&told, &scores(&engine, &request), &plain);
        }
    }
}

#[test]
fn a_batch_may_be_empty_and_its_stages_take_time() {
    let imported = import("dlrm.pt", &ImportOptions::default());
    let run = engine(&imported.model, Precision::F32, 2, cpu());
    let none = Request { samples: 0, dense: vec![], ids: vec![], offsets: vec![0] };
    assert!(scores(&run, &none).is_empty());
    // The same worker serves a large batch and then a smaller one.
    let request = Request::of(&expected("dlrm.pt"));
    let mut worker = Worker::default();
    for request in [&request.repeated(30), &request, &none] {
        let mut out = vec![f32::NAN; request.samples];
        let done = run.engine.infer_one(&request.asked(), &mut out, &mut worker, None);
        let done = done.expect("inferred");
        assert_eq!(done.clamped, 0);
        let times = [done.times.bottom, done.times.tables, done.times.top];
        assert!(times.iter().all(|time| time.is_zero() == (request.samples == 0)), "{times:?}");
        assert_eq!(out, scores(&run, request));
    }
}

#[test]
fn ids_out_of_range_are_told_or_clamped() {
    let (imported, expected) = (import("dlrm.pt", &ImportOptions::default()), expected("dlrm.pt"));
    let model = &imported.model;
    let good = Request::of(&expected);
    // In the second table, of 37 rows.
    let position = good.offsets[good.samples] as usize + 1;
    let mut bad = good.clone();
    bad.ids[position] = 37;
    for threads in [1, 3] {
        let engine = engine(model, Precision::F32, threads, cpu());
        let error = infer(&engine, &bad).expect_err("out of range");
        assert_eq!(
            error.to_string(),
            format!("table 1: id 37 at position {position} is not below its 37 rows")
        );
        assert!(matches!(
            error,
            Error::Bags(BagError::OutOfRange { table: 1, id: 37, rows: 37, .. })
        ));
        // The same engine goes on.
        assert_near("after an error", &scores(&engine, &good), &wanted(model, &expected));
    }
    let plan = Plan::standard(&model.spec);
    let options = Options { out_of_range: vec![OutOfRange::Clamp; 2], ..Options::default() };
    let engine = Engine::load(model, &plan, options, &|_| {}).expect("loaded");
    let clamp = |request: &Request| {
        let mut out = vec![f32::NAN; request.samples];
        let done = engine.infer_one(&request.asked(), &mut out, &mut Worker::default(), None);
        (done.expect("clamped").clamped, out)
    };
    // Tables without a reaction of their own refuse.
    let mut other = good.clone();
    other.ids[good.offsets[2 * good.samples] as usize] = 1 << 40;
    let mut out = vec![f32::NAN; good.samples];
    let mut infer = |request: &Request| {
        engine.infer_one(&request.asked(), &mut out, &mut Worker::default(), None)
    };
    assert!(infer(&other).is_err() && infer(&good).is_ok());
    bad.ids[0] = -2;
    bad.ids[position] = i64::MAX;
    let mut nearest = good.clone();
    (nearest.ids[0], nearest.ids[position]) = (0, 36);
    assert_eq!(clamp(&bad), (2, clamp(&nearest).1));
    assert_eq!(clamp(&good).0, 0);
}

#[test]
fn batches_of_wrong_sizes_are_refused() {
    let imported = import("dlrm.pt", &ImportOptions::default());
    let engine = engine(&imported.model, Precision::F32, 2, cpu());
    let good = Request::of(&expected("dlrm.pt"));
    type Change = fn(&mut Request);
    let cases: [(Change, &str); 8] = [
        (|r| r.dense.truncate(77), "77 dense features, expected 78"),
        (|r| r.dense.push(0.0), "79 dense features, expected 78"),
        (|r| r.samples = 5, "78 dense features, expected 65"),
        (|r| r.offsets.truncate(24), "4 tables and a batch of 6 need 25 offsets, not 24"),
        (|r| r.offsets.clear(), "need 25 offsets, not 0"),
        (|r| r.offsets[0] = 1, "offset 0 is 1: offsets begin at 0"),
        (|r| r.offsets[3] = -1, "offset 3 is -1"),
        (|r| r.ids.truncate(3), "end at the number of ids, 3"),
    ];
    for (change, told) in cases {
        let mut bad = good.clone();
        change(&mut bad);
        let error = infer(&engine, &bad).expect_err(told).to_string();
        assert!(error.contains(told), "no {told:?} in {error}");
    }
    let mut short = vec![0.0; 5];
    let worker = &mut Worker::default();
    let engine = &engine.engine;
    let error = engine.infer_one(&good.asked(), &mut short, worker, None);
    assert_eq!(error.expect_err("too short").to_string(), "5 scores, expected 6");
}
