//! `compat::muri` against Muri's published results, against an independent reference on a sample
//! of ours (made by data/muri-sample.py), and against what must hold for any trace.

use std::path::{Path, PathBuf};

use hither_sched::compat::muri::{Error, Outcome, Policy, Row, run};
use proptest::prelude::*;

const POLICIES: [(&str, Policy); 3] =
    [("srtf", Policy::Srtf), ("srsf", Policy::Srsf), ("tiresias", Policy::Tiresias)];

fn read(path: &Path) -> Vec<Row> {
    let mut reader = csv::Reader::from_path(path).expect("the trace opens");
    let head = reader.headers().expect("the trace has a header").clone();
    let column = |name: &str| head.iter().position(|h| h == name).expect("the column is there");
    let [id, gpus, submit, iterations, model, iteration] =
        ["job_id", "num_gpu", "submit_time", "iterations", "model_name", "iteration_time"]
            .map(column);
    let row = |record: csv::StringRecord| Row {
        job_id: record[id].to_owned(),
        gpus: record[gpus].parse().expect("gpus"),
        submit_ms: record[submit].parse().expect("submit time"),
        iterations: record[iterations].parse().expect("iterations"),
        model: record[model].to_owned(),
        iteration_ms: record[iteration].parse().expect("iteration time"),
    };
    reader.records().map(|record| row(record.expect("a row reads"))).collect()
}

/// Where the public traces are, if they are.
fn traces() -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/traces/muri");
    if !dir.is_dir() {
        println!("skipped: ../shared/data/traces/muri is absent");
        return None;
    }
    Some(dir)
}

/// As published: mean completion, makespan and p99 in seconds. trace1_pr is trace1 with all jobs
/// at zero, as trace3_pr is to trace3.
#[rustfmt::skip]
const PUBLISHED: [(&str, [[&str; 3]; 3]); 4] = [
    ("trace1", [
        ["1370603.198", "26045465.532945", "16647148.09074"],
        ["980140.5699", "26065759.044845", "15529913.227905"],
        ["3330371.307", "23556410.217355", "14739851.5052"],
    ]),
    ("trace1_pr", [
        ["2303543.816", "24513543.937825", "19871388.29092"],
        ["1801859.995", "24272529.59311", "18267307.81118"],
        ["6921682.793", "21990477.824095", "21765400.784095"],
    ]),
    ("trace3", [
        ["193081.796", "8174135.28", "4538890.607"],
        ["185021.8802", "8174135.28", "4189699.177"],
        ["347213.2481", "8174226.28", "4983397.254"],
    ]),
    ("trace3_pr", [
        ["844394.78", "7261795.828", "6363099.549"],
        ["798057.6829", "6907790.403", "6228160.594"],
        ["2213110.128", "6761641.42", "6739568.999"],
    ]),
];

/// `value` with as many decimals as `like` has.
fn printed(value: f64, like: &str) -> String {
    let decimals = like.split_once('.').map_or(0, |(_, digits)| digits.len());
    format!("{value:.decimals$}")
}

fn published_trace(dir: &Path, name: &str) -> Vec<Row> {
    let Some(base) = name.strip_suffix("_pr") else {
        return read(&dir.join(format!("{name}.csv")));
    };
    let mut rows = read(&dir.join(format!("{base}.csv")));
    rows.iter_mut().for_each(|row| row.submit_ms = 0.0);
    rows
}

#[test]
fn published_results_to_the_last_digit() {
    let Some(dir) = traces() else { return };
    assert_eq!(published_trace(&dir, "trace3_pr"), read(&dir.join("trace3_pr.csv")));
    for (name, results) in PUBLISHED {
        let rows = published_trace(&dir, name);
        for ((label, policy), expected) in POLICIES.into_iter().zip(results) {
            let out = run(&rows, 8, 8, policy).expect("the trace runs");
            let got = [out.mean_jct_s, out.makespan_s, out.p99_jct_s];
            let got: Vec<String> =
                got.iter().zip(expected).map(|(&value, like)| printed(value, like)).collect();
            assert_eq!(got, expected, "{name} {label}");
        }
    }
}

/// As data/muri-sample.py writes it. Text, because it pins every bit: both sides print a float
/// with the fewest digits that read back as the same float, and JSON readers may round.
fn render(label: &str, out: &Outcome) -> String {
    let jobs: Vec<String> = out
        .jobs
        .iter()
        .map(|job| {
            let start = job.start_s.expect("it started");
            format!("   [{start:?}, {:?}, {:?}, {}]", job.finish_s, job.run_s, job.preemptions)
        })
        .collect();
    let Outcome { mean_jct_s, makespan_s, p99_jct_s, events, preemptions, busy_gpu_s, .. } = out;
    format!(
        " \"{label}\": {{\n  \"mean_jct_s\": {mean_jct_s:?},\n  \"makespan_s\": {makespan_s:?},\n  \
         \"p99_jct_s\": {p99_jct_s:?},\n  \"events\": {events},\n  \"preemptions\": {preemptions},\n  \
         \"busy_gpu_s\": {busy_gpu_s:?},\n  \"jobs\": [\n{}\n  ]\n }}",
        jobs.join(",\n")
    )
}

#[test]
fn sample_equals_the_reference() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let rows = read(&data.join("muri-sample.csv"));
    let expected =
        std::fs::read_to_string(data.join("muri-sample.expected.json")).expect("it reads");
    let results = POLICIES.map(|(label, policy)| {
        let out = run(&rows, 8, 8, policy).expect("the sample runs");
        assert!(out.preemptions > 10, "{label}: the sample is meant to be loaded");
        render(label, &out)
    });
    let got = format!("{{\n{}\n}}\n", results.join(",\n"));
    for (line, (got, expected)) in got.lines().zip(expected.lines()).enumerate() {
        assert_eq!(got, expected, "line {}", line + 1);
    }
    assert_eq!(got.len(), expected.len());
}

fn row(gpus: u32, submit_ms: f64, iterations: f64, model: &str) -> Row {
    let job_id = format!("{gpus}-{submit_ms}-{iterations}");
    Row { job_id, gpus, submit_ms, iterations, model: model.to_owned(), iteration_ms: 100.0 }
}

#[test]
fn refused_with_a_reason() {
    let one = || row(1, 0.0, 10.0, "bert");
    let refused = |rows: &[Row], nodes| run(rows, nodes, 8, Policy::Srtf).unwrap_err();
    assert_eq!(refused(&[], 8), Error::NoJobs);
    assert_eq!(refused(&[one()], 0), Error::NoCluster { nodes: 0, gpus_per_node: 8 });
    for (bad, part) in [
        (Row { gpus: 0, ..one() }, "asks for no gpus"),
        (Row { gpus: 65, ..one() }, "65 gpus and the cluster has 64"),
        (Row { submit_ms: -1.0, ..one() }, "submit_time = -1"),
        (Row { iterations: f64::NAN, ..one() }, "iterations = NaN"),
        (Row { iterations: 1e300, ..one() }, "check the units"),
        (Row { iteration_ms: 0.0, ..one() }, "iteration_time = 0"),
        (Row { iteration_ms: f64::INFINITY, ..one() }, "iteration_time = inf"),
    ] {
        for (_, policy) in POLICIES {
            let error = run(&[one(), bad.clone()], 8, 8, policy).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn start_up_is_charged_on_every_stretch() {
    // The 10 s job would end at 10.15 s. A second job arrives at 8 s and keeps out of its way,
    // yet 8 s less bert's 10 s of start-up leave nothing done.
    let rows = [row(8, 0.0, 100.0, "bert"), row(8, 8000.0, 1.0, "bert")];
    let out = run(&rows, 2, 8, Policy::Srtf).expect("it runs");
    assert_eq!(out.jobs[1].finish_s, 8.0 + 1.0 * (100.0 * 1.015 / 1000.0));
    assert!((out.jobs[0].finish_s - (8.1015 + 10.15)).abs() < 1e-9, "{out:?}");
    assert_eq!(out.preemptions, 0);
}

#[test]
fn tiresias_keeps_an_end_promised_for_an_arrival() {
    // 400 iterations of 34.51 s end at 13 804 s if nothing happens. Two queue jumps happen, each
    // costs bert's 10 s, and yet the arrival at that second ends the job, as in the original.
    let long = |submit_ms| Row { iteration_ms: 34_000.0, ..row(1, submit_ms, 400.0, "bert") };
    let finish = |rows: &[Row]| {
        let out = run(rows, 8, 8, Policy::Tiresias).expect("it runs");
        out.jobs[0].finish_s
    };
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} is not {b}");
    near(finish(&[long(0.0)]), 13_824.0);
    near(finish(&[long(0.0), long(13_803_000.0)]), 13_834.0);
    assert_eq!(finish(&[long(0.0), long(13_804_000.0)]), 13_804.0);
}

#[test]
fn odd_sizes_unknown_models_and_empty_jobs_run() {
    let rows = [
        row(64, 0.0, 0.0, "bert"),
        row(64, 0.0, 5000.0, "mine"),
        row(24, 1000.0, 5000.0, "vgg16"),
        row(3, 1000.0, 50.0, "a2c"),
        row(63, 1000.0, 50.0, ""),
    ];
    for (label, policy) in POLICIES {
        let out = run(&rows, 8, 8, policy).expect("it runs");
        assert_eq!(out.jobs[0].finish_s, 0.0, "{label}");
        assert!(out.jobs.iter().all(|job| job.finish_s.is_finite()), "{label}");
        // More nodes than the jobs could ever fill cost nothing.
        let wide = run(&rows, u32::MAX, u32::MAX, policy).expect("it runs");
        assert_eq!(wide.preemptions, 0, "{label}");
    }
}

fn any_row() -> impl Strategy<Value = Row> {
    let models = ["vgg16", "resnet18", "bert", "a2c", "dqn", "unheard-of"];
    let gpus = prop_oneof![6 => 1u32..=4, 2 => Just(8u32), 1 => 1u32..=16];
    (gpus, 0u32..40, 0u32..2000, prop::sample::select(models.to_vec()), 1u32..8).prop_map(
        |(gpus, submit, iterations, model, step)| Row {
            job_id: String::new(),
            gpus,
            submit_ms: f64::from(submit) * 25_000.0,
            iterations: f64::from(iterations) * 10.0,
            model: model.to_owned(),
            iteration_ms: f64::from(step) * 250.0,
        },
    )
}

fn holds(rows: &[Row], out: &Outcome) -> Result<(), TestCaseError> {
    let mut marks: Vec<(f64, i64)> = Vec::new();
    for (row, job) in rows.iter().zip(&out.jobs) {
        let start = job.start_s.expect("it started");
        let slack = 1e-8 * job.finish_s + 1e-9;
        prop_assert!(start >= row.submit_ms / 1000.0);
        prop_assert!(job.finish_s >= start);
        prop_assert!(job.run_s >= row.iterations * row.iteration_ms * 1.015e-3 - slack);
        prop_assert!(job.run_s <= job.finish_s - start + slack);
        if job.preemptions == 0 {
            marks.push((start, i64::from(row.gpus)));
            marks.push((job.finish_s, -i64::from(row.gpus)));
        }
    }
    // Jobs that never stopped are known to hold their GPUs from start to finish.
    marks.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut held = 0;
    for (_, change) in marks {
        held += change;
        prop_assert!(held <= 16);
    }
    prop_assert!(out.busy_gpu_s <= 16.0 * out.makespan_s * (1.0 + 1e-9));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn any_trace_ends_and_stays_within_the_cluster(rows in prop::collection::vec(any_row(), 1..40)) {
        for (_, policy) in POLICIES {
            let out = run(&rows, 2, 8, policy).expect("it runs");
            holds(&rows, &out)?;
        }
    }
}
