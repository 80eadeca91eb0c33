//! The public traces, where they are at hand.

use std::path::Path;

use hither_sched::job::Length;
use hither_sched::profile::Library;
use hither_sched::topo;
use hither_sched::trace::{self, Format, ReadOptions, Trace};

const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/traces");

fn bytes(name: &str) -> Option<Vec<u8>> {
    let path = Path::new(TRACES).join(name);
    let bytes = std::fs::read(&path).ok();
    if bytes.is_none() {
        eprintln!("skipped: {} absent", path.display());
    }
    bytes
}

fn read(name: &str) -> Option<Trace> {
    let library = Library::builtin();
    let options = ReadOptions { format: None, seed: 1, library: &library };
    Some(trace::read(&bytes(name)?, name, &options).unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn philly_keeps_every_job() {
    let Some(trace) = read("philly.csv") else { return };
    assert_eq!((trace.format, trace.jobs.len()), (Format::Philly, 82_247));
    let info = trace::describe(&trace, Some(2490));
    assert!((info.span_s / 86_400.0 - 108.9).abs() < 0.1, "{}", info.span_s);
    assert_eq!(info.demand[&1], 76_627);
    assert_eq!(info.demand.last_key_value(), Some((&128, &3)));
    assert_eq!(info.users, 15, "virtual clusters");
    assert_eq!(info.duration_s.p50, 1144.0);
    assert_eq!(trace.notes.len(), 2, "{:?}", trace.notes);
}

#[test]
fn muri() {
    for (name, count) in
        [("muri/trace1.csv", 1494), ("muri/trace3.csv", 992), ("muri/trace3_pr.csv", 992)]
    {
        let Some(trace) = read(name) else { return };
        assert_eq!((trace.format, trace.jobs.len()), (Format::Muri, count), "{name}");
        assert_eq!(trace::muri_rows(&bytes(name).unwrap(), name).unwrap().len(), count);
    }
}

#[test]
fn gavel() {
    for (name, count) in [
        ("debug.trace", 14),
        ("small_test.trace", 20),
        ("medium_test.trace", 20),
        ("highmem_test.trace", 8),
        ("artifact_evaluation.trace", 15),
        ("minimize_makespan.trace", 100),
        ("max_min_fairness.trace", 96),
    ] {
        let Some(trace) = read(&format!("gavel/{name}")) else { return };
        assert_eq!((trace.format, trace.jobs.len()), (Format::Gavel, count), "{name}");
    }
}

#[test]
fn pollux() {
    for number in 1..=8 {
        let Some(trace) = read(&format!("pollux/workload-{number}.csv")) else { return };
        assert_eq!((trace.format, trace.jobs.len()), (Format::Pollux, 160));
        assert!(
            trace.jobs.iter().all(|job| matches!(job.length, Length::Iterations(n) if n > 1.0))
        );
    }
}

#[test]
fn tiresias() {
    let Some(trace) = read("tiresias/60_job.csv") else { return };
    assert_eq!((trace.format, trace.jobs.len()), (Format::Tiresias, 60));
}

#[test]
fn cluster_specs() {
    for (name, racks, gpus) in [
        ("muri/n8g8.csv", 1, 64),
        ("tiresias/n160g8.csv", 5, 1280),
        ("tiresias/n256g8.csv", 8, 2048),
        ("tiresias/cluster_spec.csv", 1, 64),
    ] {
        let Some(bytes) = bytes(name) else { return };
        let cluster = topo::read(&[(&bytes[..], name)], None).unwrap().topology;
        assert_eq!((cluster.levels[1].places.len(), cluster.gpus()), (racks, gpus), "{name}");
    }
}
