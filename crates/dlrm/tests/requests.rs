//! Several requests in one batch: each has its own result, to the last bit that which it has alone;
//! plans that change while requests run.

use std::sync::atomic::{AtomicBool, Ordering};

use hither_dlrm::generate::{Shape, generate};
use hither_dlrm::lookups::{Hotness, Lookups, Shape as Drawn};
use hither_dlrm::plan::{Packing, PageChoice, Plan};
use hither_dlrm::run::{Device, Engine, Options, Pinning, Request, Sparse, Threads, Worker};
use hither_dlrm::{Error, Model};
use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::bag::{Dtype, Ids, Pooling, TableBags};
use tempfile::TempDir;

const TABLES: usize = 6;
const ROWS: usize = 200;
const DENSE: usize = 7;

/// Tables of every type and pooling.
fn model() -> (TempDir, Model) {
    let dir = tempfile::tempdir().expect("a directory");
    let shape = Shape {
        tables: TABLES,
        rows: ROWS,
        dim: 24,
        bottom: vec![DENSE, 24],
        top: vec![16, 1],
        ..Shape::preset("rm1").expect("known")
    };
    let mut spec = shape.spec("small");
    let poolings = [Pooling::Sum, Pooling::Mean, Pooling::Max].into_iter().cycle();
    for (t, (table, pooling)) in spec.tables.iter_mut().zip(poolings).enumerate() {
        table.dtype = Dtype::ALL[t % Dtype::ALL.len()];
        table.pooling = pooling;
    }
    generate(&spec, 11, dir.path(), false, &|_| {}).expect("generated");
    let model = Model::open(dir.path()).expect("opened");
    (dir, model)
}

fn engine(model: &Model, plan: &Plan, options: Options) -> Engine {
    Engine::load(model, plan, options, &|_| {}).expect("loaded")
}

/// One request, owned, with a list for each table.
#[derive(Clone)]
struct Owned {
    samples: usize,
    dense: Vec<f32>,
    ids: Vec<Vec<i64>>,
    offsets: Vec<Vec<i64>>,
    /// Per table; none where the table takes maxima.
    weights: Option<Vec<Vec<f32>>>,
}

impl Owned {
    fn draw(samples: usize, seed: u64, weighted: bool) -> Self {
        Self::draw_long(samples, 1 + seed as usize % 9, seed, weighted)
    }

    fn draw_long(samples: usize, pooling: usize, seed: u64, weighted: bool) -> Self {
        let shape = Drawn { batches: 1, batch: samples, pooling };
        let drawn = Lookups::draw(Hotness::High, &[ROWS; TABLES], shape, seed);
        let ids: Vec<Vec<i64>> = (0..TABLES).map(|t| drawn.of_table(t).collect()).collect();
        let each = (0..=samples).map(|s| (s * shape.pooling) as i64);
        let offsets = vec![each.collect::<Vec<_>>(); TABLES];
        let weigh = |ids: &Vec<i64>| ids.iter().map(|id| (*id as f32).cos()).collect();
        let weights = weighted.then(|| ids.iter().map(weigh).collect());
        let dense = (0..samples * DENSE).map(|i| ((i as u64 + seed) as f32).sin()).collect();
        Self { samples, dense, ids, offsets, weights }
    }

    fn lists(&self) -> Vec<TableBags<'_>> {
        (0..TABLES)
            .map(|t| TableBags {
                ids: Ids::I64(&self.ids[t]),
                offsets: &self.offsets[t],
                weights: self.weights.as_ref().filter(|_| t % 3 != 2).map(|w| w[t].as_slice()),
            })
            .collect()
    }
}

fn request<'a>(owned: &'a Owned, lists: &'a [TableBags<'a>]) -> Request<'a> {
    let sparse = Sparse::PerTable { samples: owned.samples, tables: lists };
    Request { dense: &owned.dense, sparse }
}

/// Scores as bits, or the error, of each request.
fn infer(
    engine: &Engine,
    all: &[Owned],
    threads: Option<&Threads>,
) -> Vec<Result<Vec<u32>, String>> {
    let lists: Vec<Vec<TableBags>> = all.iter().map(Owned::lists).collect();
    let requests: Vec<Request> = all.iter().zip(&lists).map(|(o, l)| request(o, l)).collect();
    let samples: usize = all.iter().map(|one| one.samples).sum();
    let mut out = vec![9.0; samples];
    let mut results: Vec<Result<(), Error>> = all.iter().map(|_| Ok(())).collect();
    engine.infer(&requests, &mut out, &mut results, &mut Worker::default(), threads);
    let mut first = 0;
    let each = all.iter().zip(results).map(|(one, result)| {
        let scores = &out[first..first + one.samples];
        first += one.samples;
        assert!(scores.iter().all(|score| score.is_nan() == result.is_err()), "{scores:?}");
        match result {
            Ok(()) => Ok(scores.iter().map(|score| score.to_bits()).collect()),
            Err(error) => Err(error.to_string()),
        }
    });
    each.collect()
}

/// Sizes from none to more than a thread takes at a time; some with weights.
fn many() -> Vec<Owned> {
    let sizes = [3, 0, 1, 70, 1, 1, 200, 5, 64, 2];
    let draw = |(at, size): (usize, usize)| Owned::draw(size, at as u64, at % 3 == 1);
    sizes.into_iter().enumerate().map(draw).collect()
}

#[test]
fn a_request_has_the_scores_that_it_has_alone() {
    let (_dir, model) = model();
    let engine = engine(&model, &Plan::standard(&model.spec), Options::default());
    let all = many();
    let alone: Vec<_> =
        all.iter().flat_map(|one| infer(&engine, std::slice::from_ref(one), None)).collect();
    assert!(alone.iter().all(Result::is_ok), "{alone:?}");
    assert_eq!(infer(&engine, &all, None), alone);
    for helpers in [1, 3] {
        let threads = Threads::new(helpers, Pinning::Pinned).expect("started");
        assert_eq!(infer(&engine, &all, Some(&threads)), alone, "{helpers} helpers");
    }
}

/// Fewer samples than threads, and long bags: one thread takes a sample, and the scores are the same.
#[test]
fn long_bags_of_few_samples_score_the_same_for_any_threads() {
    let (_dir, model) = model();
    let engine = engine(&model, &Plan::standard(&model.spec), Options::default());
    let threads = Threads::new(5, Pinning::Free).expect("started");
    for sizes in [vec![1], vec![1, 0, 1], vec![2, 1]] {
        let draw = |(at, size): (usize, &usize)| Owned::draw_long(*size, 900, at as u64, at == 0);
        let all: Vec<Owned> = sizes.iter().enumerate().map(draw).collect();
        let alone = infer(&engine, &all, None);
        assert!(alone.iter().all(Result::is_ok), "{alone:?}");
        assert_eq!(infer(&engine, &all, Some(&threads)), alone, "{sizes:?}");
        let mut bad = all;
        let last = bad.len() - 1;
        (bad[last].ids[4][0], bad[last].ids[1][700]) = (ROWS as i64, -2);
        let found = infer(&engine, &bad, Some(&threads));
        let told = "table 1: id -2 at position 700 is not below its 200 rows";
        assert_eq!(found[last], Err(told.to_string()));
        assert_eq!(found[..last], alone[..last]);
    }
}

#[test]
fn a_bad_request_fails_alone() {
    let (_dir, model) = model();
    let engine = engine(&model, &Plan::standard(&model.spec), Options::default());
    let threads = Threads::new(2, Pinning::Free).expect("started");
    let good = many();
    let alone = infer(&engine, &good, None);
    type Change = fn(&mut Owned);
    let cases: [(Change, &str); 7] = [
        // Of several bad ids the first in the order of tables is told, on any number of threads.
        (
            |r| {
                (r.ids[4][0], r.ids[1][5]) = (ROWS as i64, -2);
                *r.ids[1].last_mut().expect("ids") = 1 << 40;
            },
            "table 1: id -2 at position 5 is not below its 200 rows",
        ),
        (|r| r.dense.truncate(9), "9 dense features, expected 1400"),
        (|r| r.offsets[2][7] = 0, "table 2: offset 7 is 0"),
        (|r| r.offsets[5].truncate(9), "9 offsets of a table, expected 201"),
        (|r| r.offsets[0][0] = -1, "offset 0 is -1"),
        (|r| *r.offsets[3].last_mut().expect("one") = 1 << 50, "is 1125899906842624"),
        (|r| r.weights = Some(vec![vec![1.0]; TABLES]), "1 weights for 1400 ids"),
    ];
    for (change, told) in cases {
        let mut all = good.clone();
        change(&mut all[6]);
        for threads in [None, Some(&threads)] {
            let found = infer(&engine, &all, threads);
            let error = found[6].as_ref().expect_err(told);
            assert!(error.contains(told), "no {told:?} in {error}");
            for (at, (found, alone)) in found.iter().zip(&alone).enumerate() {
                assert!(at == 6 || found == alone, "{told}: request {at}");
            }
        }
    }
    let lists = good[6].lists();
    let mut out = vec![0.0; good[6].samples];
    let fewer = request(&good[6], &lists[1..]);
    let fewer = engine.infer_one(&fewer, &mut out, &mut Worker::default(), None);
    assert_eq!(fewer.expect_err("no table").to_string(), "5 tables with ids, expected 6");
}

/// Every change at once, while other threads infer: no score changes, none fails.
#[test]
fn plans_change_while_requests_run() {
    let (_dir, model) = model();
    let standard = Plan::standard(&model.spec);
    let engine = engine(&model, &standard, Options::default());
    let all = many();
    let wanted = infer(&engine, &all, None);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    assert_eq!(infer(&engine, &all, None), wanted);
                }
            });
        }
        for turn in 0..40u32 {
            let mut plan = standard.clone();
            for (t, table) in plan.tables.iter_mut().enumerate() {
                let pages = [PageChoice::Huge, PageChoice::Mapped, PageChoice::Small];
                table.pages = pages[(turn / 8) as usize % 3];
                table.prefetch = if turn % 2 == 0 { Prefetch::Off } else { Prefetch::default() };
                table.packing = if turn % 3 == 0 { Packing::Off } else { Packing::Lookup };
                table.hot_rows = 30;
                plan.hot[t] = (turn..turn + 30).collect();
            }
            engine.replan(&plan, &|_| {}).expect("a plan of this model");
        }
        ended.store(true, Ordering::Relaxed);
    });
    let other = Plan { mlp: hither_kernels::gemm::Precision::Bf16, ..standard.clone() };
    let error = engine.replan(&other, &|_| {}).expect_err("other arithmetic").to_string();
    assert!(error.contains("the arithmetic of the MLPs"), "{error}");
}

/// A self-test changes the prefetch at most, and no score.
#[test]
fn a_self_test_leaves_scores_alone() {
    let (_dir, model) = model();
    let plan = Plan::standard(&model.spec);
    let engine = engine(&model, &plan, Options::default());
    let all = many();
    let wanted = infer(&engine, &all, None);
    let found = engine.self_test(&plan, 0.01).expect("tested");
    let mut same = found.clone();
    for (table, old) in same.tables.iter_mut().zip(&plan.tables) {
        table.prefetch = old.prefetch;
    }
    assert_eq!(same, plan);
    assert_eq!(infer(&engine, &all, None), wanted);
}

#[test]
fn devices_have_names_and_the_cpu_is_the_way_out() {
    for (text, device) in [("cpu", Device::Cpu), ("cuda:3", Device::Cuda(3))] {
        assert_eq!(text.parse::<Device>().expect(text), device);
        assert_eq!(device.to_string(), text);
    }
    assert!("cuda".parse::<Device>().is_err() && "cuda:x".parse::<Device>().is_err());
    let (_dir, model) = model();
    let plan = Plan { device: Device::Cuda(0), ..Plan::standard(&model.spec) };
    let error = Engine::load(&model, &plan, Options::default(), &|_| {}).err().expect("no GPU");
    assert!(matches!(error, Error::Gpu { is_lost: false, .. }), "{error}");
    let loaded = Engine::load_or_cpu(&model, &plan, Options::default(), &|_| {});
    let (_, problem) = loaded.expect("loaded on the CPU");
    assert!(problem.is_some());
}
