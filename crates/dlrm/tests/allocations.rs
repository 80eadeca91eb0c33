//! Inference allocates nothing once a worker has grown: whole models, several requests in a batch,
//! alone and with helpers, in fp32 and bf16.

use std::sync::atomic::{AtomicU64, Ordering};

use hither_dlrm::Model;
use hither_dlrm::generate::{Shape, generate};
use hither_dlrm::lookups::{Hotness, Lookups, Shape as Bags};
use hither_dlrm::plan::{Packing, Plan};
use hither_dlrm::run::{Engine, Options, Pinning, Request, Sparse, Threads, Worker};
use hither_kernels::bag::Dtype;
use hither_kernels::counting::Counting;
use hither_kernels::gemm::Precision;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TABLES: usize = 5;
const ROWS: usize = 400;

fn model(dir: &std::path::Path) -> Model {
    let shape = Shape {
        tables: TABLES,
        rows: ROWS,
        dim: 32,
        bottom: vec![13, 64, 32],
        top: vec![64, 40, 1],
        ..Shape::preset("rm1").expect("known")
    };
    let mut spec = shape.spec("small");
    for (table, dtype) in spec.tables.iter_mut().zip(Dtype::ALL) {
        table.dtype = dtype;
    }
    generate(&spec, 3, dir, false, &|_| {}).expect("generated");
    Model::open(dir).expect("opened")
}

#[test]
fn inference_allocates_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let model = model(dir.path());
    let shape = Bags { batches: 6, batch: 40, pooling: 7 };
    let lookups = Lookups::draw(Hotness::High, &[ROWS; TABLES], shape, 1);
    let dense = vec![0.5; 40 * 13];
    let requests: Vec<Request> = (0..lookups.len())
        .map(|k| {
            let sparse = Sparse::Joined(lookups.bags(k));
            Request { dense: &dense, sparse }
        })
        .collect();
    for precision in [Precision::F32, Precision::Bf16] {
        let mut plan = Plan { mlp: precision, ..Plan::standard(&model.spec) };
        for (t, table) in plan.tables.iter_mut().enumerate() {
            (table.packing, table.hot_rows) = (Packing::Lookup, 20);
            plan.hot[t] = lookups.histogram(t).hottest(20).to_vec();
        }
        let engine = Engine::load(&model, &plan, Options::default(), &|_| {}).expect("loaded");
        for helpers in [0, 2] {
            let threads = Threads::new(helpers, Pinning::Free).expect("started");
            let (mut worker, mut out) = (Worker::default(), vec![0.0; 240]);
            let mut results: Vec<_> = requests.iter().map(|_| Ok(())).collect();
            let mut infer = |worker: &mut Worker| {
                engine.infer(&requests, &mut out, &mut results, worker, Some(&threads));
                engine.infer(&requests[..1], &mut out[..40], &mut results[..1], worker, None);
            };
            // Which thread takes which part is chance: each is made to grow by a batch of its own.
            let grown = std::sync::Barrier::new(helpers + 1);
            threads.split(&mut worker, helpers + 1, helpers, &|_, worker| {
                grown.wait();
                let (mut out, mut results) = (vec![0.0; 240], Vec::from([(); 6].map(Ok)));
                for _ in 0..3 {
                    engine.infer(&requests, &mut out, &mut results, worker, None);
                }
            });
            infer(&mut worker);
            let before = Counting::requests();
            (0..5).for_each(|_| infer(&mut worker));
            let own = Counting::requests() - before;
            assert_eq!(own, 0, "{precision:?}, {helpers} helpers: {own} allocations");
            let of_helpers = AtomicU64::new(0);
            let together = std::sync::Barrier::new(helpers + 1);
            threads.split(&mut worker, helpers + 1, helpers, &|_, worker| {
                together.wait();
                let mut out = [0.0; 40];
                let mut results = [Ok(())];
                let before = Counting::requests();
                engine.infer(&requests[..1], &mut out, &mut results, worker, None);
                of_helpers.fetch_add(Counting::requests() - before, Ordering::Relaxed);
            });
            assert_eq!(of_helpers.into_inner(), 0, "{precision:?}, on {helpers} helpers");
        }
    }
}
