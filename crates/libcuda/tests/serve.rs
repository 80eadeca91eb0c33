//! Whole models on an emulated GPU: the unmodified host code, real compiled kernels, and a stand-in for
//! the driver. Each case runs in a process of its own, whose loader finds the stand-in first.

use std::path::{Path, PathBuf};
use std::process::Command;

use hither_dlrm::generate::{Shape, generate};
use hither_dlrm::lookups::{self, Hotness, Lookups};
use hither_dlrm::model::{Cross, Interaction, Projection};
use hither_dlrm::plan::gpu::{CudaPlan, Variant};
use hither_dlrm::plan::{Packing, Plan};
use hither_dlrm::run::{Device, Engine, Options, Request, Worker};
use hither_dlrm::{Error, Model};
use hither_kernels::bag::{Bags, Dtype, Ids, OutOfRange, Pooling};
use hither_sass::toolchain::Toolchain;

const SAMPLES: usize = 5;
const ROWS: usize = 40;
const HOT_ROWS: usize = 6;

/// The stand-in, which cargo builds beside this test.
fn stand_in() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let mut directories = program.ancestors().skip(1).take(2);
    let found = directories.find_map(|directory| {
        let library = directory.join("libhither_libcuda.so");
        library.exists().then_some(library)
    });
    found.expect("the stand-in library")
}

/// Runs an ignored test of this program where `libcuda` is `driver`. Returns whether it passed, what
/// it said, and the driver's log.
fn in_child(test: &str, driver: Option<&Path>, env: &[(&str, &str)]) -> (bool, String, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let toolchain = Toolchain::get();
    let link = |from: &Path, name: &str| {
        std::os::unix::fs::symlink(from, directory.path().join(name)).expect("a link");
    };
    if let Some(driver) = driver {
        link(driver, "libcuda.so");
    }
    link(&toolchain.lib().join("libnvrtc.so.13"), "libnvrtc.so");
    let log = directory.path().join("log");
    let path = format!("{}:{}", directory.path().display(), toolchain.lib().display());
    let done = Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "--nocapture", test])
        .env("LD_LIBRARY_PATH", path)
        .env("HITHER_CUDA_LOG", &log)
        .envs(env.iter().copied())
        .output()
        .expect("a child");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(said.contains("running 1 test"), "{said}");
    (done.status.success(), said, std::fs::read_to_string(log).unwrap_or_default())
}

fn passes(test: &str, env: &[(&str, &str)]) -> String {
    let (is_good, said, log) = in_child(test, Some(&stand_in()), env);
    assert!(is_good, "{said}\n{log}");
    log
}

fn options() -> Options {
    Options { gpu: Some(hither_cuda::load), ..Options::default() }
}

/// A small model: three tables, every kind of element that the case wants.
fn model(dtype: Dtype, pooling: Pooling, interaction: Interaction) -> (tempfile::TempDir, Model) {
    let directory = tempfile::tempdir().expect("a directory");
    let mut shape = Shape::preset("micro24").expect("a preset");
    shape = Shape { tables: 3, rows: ROWS, dim: 12, dtype, pooling, interaction, ..shape };
    (shape.bottom, shape.top) = (vec![7, 20, 12], vec![9, 1]);
    shape.cross = (interaction == Interaction::Dcn).then_some(Cross { layers: 2, rank: 5 });
    let mut spec = shape.spec("small");
    if interaction == Interaction::Projection {
        // Two vectors meet three.
        spec.projection = Some(Projection { left: vec![48, 24], right: vec![48, 17, 36] });
        spec.top[0] = spec.interaction_width();
    }
    generate(&spec, 1, directory.path(), false, &|_| {}).expect("generated");
    let model = Model::open(directory.path()).expect("opened");
    (directory, model)
}

fn cuda_plan(model: &Model, variant: &str, cold_on_host: bool) -> Plan {
    let mut plan = Plan::standard(&model.spec);
    plan.device = Device::Cuda(0);
    let variant: Variant = variant.parse().expect("a variant");
    plan.cuda = Some(CudaPlan { variant, distance: 2, cold_on_host, ..CudaPlan::default() });
    for table in &mut plan.tables {
        (table.packing, table.hot_rows) = (Packing::Lookup, HOT_ROWS);
    }
    // The rows that the requests below ask for most, in no order.
    plan.hot = vec![vec![3, 30, 11, 0, 39, 7]; plan.tables.len()];
    plan
}

/// Ids with repeated, empty and pruned ones.
fn ids(samples: usize) -> (Vec<i64>, Vec<i64>) {
    let (mut ids, mut offsets) = (Vec::new(), vec![0]);
    for bag in 0..3 * samples {
        let count = [0, 3, 1, 9, 4][bag % 5];
        ids.extend(
            (0..count).map(|k| if k == 7 { -1 } else { ((bag * 7 + k * 11) % ROWS) as i64 }),
        );
        offsets.push(ids.len() as i64);
    }
    (ids, offsets)
}

fn dense(samples: usize) -> Vec<f32> {
    (0..samples * 7).map(|at| (at % 13) as f32 / 6.0 - 1.0).collect()
}

fn scores(engine: &Engine, request: &Request) -> Result<Vec<f32>, Error> {
    let mut out = vec![0.0; request.samples() * engine.outputs()];
    engine.infer_one(request, &mut out, &mut Worker::default(), None)?;
    Ok(out)
}

fn near(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= 1e-5, "{a} on the GPU, {b} on the CPU");
    }
}

/// The scores of a model on the device are those of the CPU.
fn compare(
    dtype: Dtype,
    pooling: Pooling,
    interaction: Interaction,
    variant: &str,
    cold_on_host: bool,
) {
    let (_directory, model) = model(dtype, pooling, interaction);
    let options = || Options { out_of_range: vec![OutOfRange::Clamp], ..self::options() };
    let load = |plan: &Plan| Engine::load(&model, plan, options(), &|_| {}).expect("loaded");
    let host = load(&Plan::standard(&model.spec));
    let device = load(&cuda_plan(&model, variant, cold_on_host));
    let (mut ids, offsets) = ids(SAMPLES);
    // Clamped in the first table.
    ids[0] = ROWS as i64 + 5;
    let dense = dense(SAMPLES);
    let request = Request::new(SAMPLES, &dense, &ids, &offsets);
    near(&scores(&device, &request).expect("scored"), &scores(&host, &request).expect("scored"));
    if pooling == Pooling::Max {
        return;
    }
    let weights: Vec<f32> = (0..ids.len()).map(|at| at as f32 / 10.0 - 1.0).collect();
    let bags =
        Bags { batch: SAMPLES, ids: Ids::I64(&ids), offsets: &offsets, weights: Some(&weights) };
    let weighted = Request { sparse: hither_dlrm::run::Sparse::Joined(bags), ..request };
    near(&scores(&device, &weighted).expect("scored"), &scores(&host, &weighted).expect("scored"));
}

#[test]
#[ignore = "runs in a child with the stand-in"]
fn child_scores() {
    compare(Dtype::F32, Pooling::Sum, Interaction::Dot, "vec4", false);
    compare(Dtype::F16, Pooling::Mean, Interaction::Cat, "shared", true);
    compare(Dtype::Int8, Pooling::Sum, Interaction::DotItself, "combined", false);
    compare(Dtype::Int4, Pooling::Max, Interaction::Dot, "base", false);
    compare(Dtype::Bf16, Pooling::Sum, Interaction::Dot, "pin-prefetch", true);
    compare(Dtype::F16, Pooling::Sum, Interaction::Dcn, "l1", false);
    compare(Dtype::F16, Pooling::Sum, Interaction::Projection, "register", false);
}

fn scores_as_on_the_cpu(arch: &str) {
    let log = passes("child_scores", &[("HITHER_CUDA_ARCH", arch)]);
    let kernels = [
        "bags_fp32_sum",
        "bags_fp16_weighted",
        "bags_int8_max",
        "linear",
        "interact_dot",
        "interact_cross",
        "interact_products",
        "pin",
    ];
    for kernel in kernels {
        let launch = format!("launch {kernel} ");
        assert!(log.lines().any(|line| line.starts_with(&launch)), "{kernel}\n{log}");
    }
    // Bags, all tables of a model in one launch.
    let launches = log.lines().filter(|line| line.contains("bags_fp32_sum")).count();
    assert_eq!(launches, 2, "{log}");
}

#[test]
fn a_model_on_sm_80_scores_as_on_the_cpu() {
    scores_as_on_the_cpu("80");
}

#[test]
fn a_model_on_sm_90_scores_as_on_the_cpu() {
    scores_as_on_the_cpu("90");
}

#[test]
#[ignore = "runs in a child with the stand-in"]
fn child_window() {
    let (_directory, model) = model(Dtype::F32, Pooling::Sum, Interaction::Dot);
    let plan = cuda_plan(&model, "combined", false);
    let engine = Engine::load(&model, &plan, options(), &|_| {}).expect("loaded");
    println!("pinned {}", engine.pinned_bytes());
    // The module is compiled once: a second batch compiles nothing.
    let ((ids, offsets), dense) = (ids(SAMPLES), dense(SAMPLES));
    let request = Request::new(SAMPLES, &dense, &ids, &offsets);
    for _ in 0..2 {
        scores(&engine, &request).expect("scored");
    }
}

#[test]
fn the_window_covers_the_hot_rows_of_all_tables() {
    let log = passes("child_window", &[]);
    // Six rows of twelve floats in each of three tables; each table's begin on a line.
    let planned = 3 * (HOT_ROWS * 12 * 4usize).next_multiple_of(128);
    let window: Vec<&str> = log
        .lines()
        .find_map(|line| line.strip_prefix("window "))
        .expect("a window")
        .split(' ')
        .collect();
    assert_eq!(window[1..], [planned.to_string().as_str(), "1", "2", "1"], "{log}");
    // What is set aside is what the window needs; 6 names the limit.
    assert!(log.contains(&format!("limit 6 {planned}")), "{log}");
    assert_eq!(log.lines().filter(|line| line.starts_with("module ")).count(), 2, "{log}");
    assert_eq!(log.lines().filter(|line| line.starts_with("window ")).count(), 1, "{log}");
    // A model that is dropped leaves nothing on the device.
    for (made, count) in [("unloaded module", 2), ("destroyed stream", 2)] {
        assert_eq!(log.lines().filter(|line| *line == made).count(), count, "{made}: {log}");
    }
}

#[test]
#[ignore = "runs in a child with the stand-in"]
fn child_measure() {
    let (_directory, model) = model(Dtype::F32, Pooling::Sum, Interaction::Dot);
    let plan = cuda_plan(&model, "vec4", false);
    let drawn = lookups::Shape { batches: 2, batch: SAMPLES, pooling: 4 };
    let lookups = Lookups::draw(Hotness::High, &[ROWS; 3], drawn, 1);
    let how =
        |name: &str| CudaPlan { variant: name.parse().expect("a variant"), ..CudaPlan::default() };
    let candidates = [how("vec4"), how("pin-prefetch")];
    let measured = hither_cuda::measure(&model, &plan, &lookups, 0, &candidates, 2, &|_, _| {})
        .expect("measured");
    // The stand-in's clock says a millisecond for anything: two launches, and one more that pins.
    let took: Vec<f64> = measured.iter().map(|one| one.ns_per_lookup * 120.0 / 1e6).collect();
    assert!((took[0] - 2.0).abs() < 1e-9 && (took[1] - 3.0).abs() < 1e-9, "{took:?}");
}

#[test]
fn variants_are_measured_with_the_cost_of_pinning() {
    let log = passes("child_measure", &[]);
    assert_eq!(log.lines().filter(|line| line.contains("bags_fp32_sum")).count(), 8, "{log}");
    assert_eq!(log.lines().filter(|line| line.starts_with("launch pin ")).count(), 2, "{log}");
}

#[test]
#[ignore = "runs in a child with the stand-in"]
fn child_lost() {
    let (_directory, model) = model(Dtype::F32, Pooling::Sum, Interaction::Dot);
    let engine = Engine::load(&model, &cuda_plan(&model, "vec4", false), options(), &|_| {});
    let engine = engine.expect("loaded");
    let ((ids, offsets), dense) = (ids(SAMPLES), dense(SAMPLES));
    let good = Request::new(SAMPLES, &dense, &ids, &offsets);
    let mut out = vec![0.0; 2 * SAMPLES];
    let mut results = [Ok(()), Ok(())];
    engine.infer(&[good, good], &mut out, &mut results, &mut Worker::default(), None);
    for result in results {
        let error = result.expect_err("a lost device");
        assert!(error.to_string().contains("CUDA_ERROR_LAUNCH_FAILED"), "{error}");
        assert!(matches!(&error, Error::Gpu { is_lost: true, .. }), "{error}");
    }
    assert!(out.iter().all(|score| score.is_nan()));
}

#[test]
fn a_lost_device_is_an_error_of_each_request() {
    passes("child_lost", &[("HITHER_CUDA_FAULT", "lost")]);
}

#[test]
#[ignore = "runs in a child with the stand-in"]
fn child_memory() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut shape = Shape::preset("micro24").expect("a preset");
    shape = Shape { tables: 1, rows: 4000, dim: 12, ..shape };
    (shape.bottom, shape.top) = (vec![7, 12], vec![1]);
    generate(&shape.spec("large"), 1, directory.path(), false, &|_| {}).expect("generated");
    let model = Model::open(directory.path()).expect("opened");
    let plan = Plan { device: Device::Cuda(0), ..Plan::standard(&model.spec) };
    let error = Engine::load(&model, &plan, options(), &|_| {}).err().expect("no room");
    assert!(error.to_string().contains("no room for 192000 bytes"), "{error}");
    // The same tables in host memory need little of the device's.
    let cuda = CudaPlan { cold_on_host: true, ..CudaPlan::default() };
    let plan = Plan { cuda: Some(cuda), ..plan };
    Engine::load(&model, &plan, options(), &|_| {}).expect("loaded");
}

#[test]
fn a_full_device_is_an_error_and_host_memory_a_way_out() {
    passes("child_memory", &[("HITHER_CUDA_FAULT", "memory")]);
}

#[test]
#[ignore = "runs in a child with the stand-in"]
fn child_limit() {
    let (_directory, model) = model(Dtype::F32, Pooling::Sum, Interaction::Dot);
    let engine = Engine::load(&model, &cuda_plan(&model, "combined", false), options(), &|_| {});
    assert_eq!(engine.expect("loaded").pinned_bytes(), 0);
    let missing = Plan { device: Device::Cuda(4), ..Plan::standard(&model.spec) };
    let error = Engine::load(&model, &missing, options(), &|_| {}).err().expect("one GPU");
    assert!(error.to_string().contains("no GPU 4; the driver shows 1"), "{error}");
}

#[test]
fn a_device_that_cannot_pin_serves_without() {
    let log = passes("child_limit", &[("HITHER_CUDA_FAULT", "limit")]);
    assert!(!log.contains("window"), "{log}");
}

#[test]
#[ignore = "runs in a child without a driver"]
fn child_no_driver() {
    let (_directory, model) = model(Dtype::F32, Pooling::Sum, Interaction::Dot);
    let plan = Plan { device: Device::Cuda(0), ..Plan::standard(&model.spec) };
    let (_, problem) = Engine::load_or_cpu(&model, &plan, options(), &|_| {}).expect("loaded");
    println!("problem: {}", problem.expect("a reason"));
}

#[test]
fn without_a_usable_driver_the_cpu_serves() {
    let (is_good, said, _) = in_child("child_no_driver", None, &[]);
    assert!(is_good && said.contains("problem: no CUDA driver found"), "{said}");
    // A driver that lacks what is needed.
    let directory = tempfile::tempdir().expect("a directory");
    let (source, library) = (directory.path().join("old.c"), directory.path().join("old.so"));
    std::fs::write(&source, "int cuInit(unsigned flags) { return 0; }").expect("written");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(built.expect("a C compiler").success());
    let (is_good, said, _) = in_child("child_no_driver", Some(&library), &[]);
    assert!(is_good && said.contains("problem: the CUDA driver is too old"), "{said}");
}
