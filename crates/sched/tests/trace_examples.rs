//! The shipped examples say what they show.

use hither_sched::profile::Library;
use hither_sched::topo;
use hither_sched::trace::{self, Generate, ReadOptions};

#[test]
fn clusters() {
    for (text, levels, racks, machines, gpus) in [
        (include_str!("../../../examples/cluster-3tier.toml"), 3, 8, 64, 512),
        (include_str!("../../../examples/cluster-uneven.toml"), 3, 5, 33, 232),
        (include_str!("../../../examples/cluster-mixed.toml"), 3, 5, 30, 160),
        (include_str!("../../../examples/cluster-4level.toml"), 4, 16, 128, 1024),
    ] {
        let cluster = topo::read(&[(text.as_bytes(), "example")], None).unwrap().topology;
        assert_eq!((cluster.levels.len(), cluster.levels[1].places.len()), (levels, racks));
        assert_eq!((cluster.machines.len(), cluster.gpus()), (machines, gpus));
    }
}

/// Run with `HITHER_UPDATE=1` after a change of the generator.
#[test]
fn the_sample_is_what_its_settings_draw() {
    let settings = include_str!("../../../examples/workload.toml");
    let settings = Generate::parse_toml(settings, "workload.toml").unwrap();
    let library = Library::builtin();
    let drawn = trace::write(&trace::generate(&settings, &library).unwrap());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/sample.csv");
    if std::env::var_os("HITHER_UPDATE").is_some() {
        std::fs::write(path, &drawn).unwrap();
    }
    let sample = std::fs::read_to_string(path).unwrap();
    assert_eq!(sample, drawn);
    let options = ReadOptions { format: None, seed: 0, library: &library };
    let trace = trace::read(sample.as_bytes(), "sample.csv", &options).unwrap();
    assert_eq!(trace.jobs.len(), 200);
    let load = trace::describe(&trace, Some(512)).offered_load.unwrap();
    assert!((load - 0.9).abs() < 0.02, "{load}");
}

#[test]
fn profiles() {
    let text = include_str!("../../../examples/profiles.toml");
    let library = Library::parse_toml(text, "profiles.toml").unwrap();
    let library = Library::builtin().merge(library).unwrap();
    assert_eq!(library.get("Detector (Large)").unwrap().name, "our-detector");
}
