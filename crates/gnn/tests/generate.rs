//! Generated graphs are as they were asked for, and the same for any number of threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use hither_gnn::generate::{self, Family, Settings};
use hither_gnn::load::{self, Options};
use hither_gnn::{Dataset, Features, Labels};

/// Large enough that few edges are drawn twice.
fn settings(family: Family) -> Settings {
    Settings {
        communities: 10,
        degree: 8.0,
        feature_dim: 4,
        ..Settings::for_family(family, 20_000, 7)
    }
}

fn classes(dataset: &Dataset) -> &[u32] {
    match &dataset.labels {
        Labels::Classes { of, .. } => of,
        Labels::Tasks { .. } => panic!("tasks"),
    }
}

fn values(dataset: &Dataset) -> &[f32] {
    match &dataset.features {
        Features::Dense { values, .. } => values,
        Features::Sparse { .. } => panic!("sparse"),
    }
}

fn degree(dataset: &Dataset) -> f64 {
    2.0 * dataset.graph.edges() as f64 / dataset.graph.nodes() as f64
}

/// Share of edges between nodes of one class.
fn homophily(dataset: &Dataset) -> f64 {
    let of = classes(dataset);
    let nodes = 0..dataset.graph.nodes() as u32;
    let same = |u: u32| {
        let neighbours = dataset.graph.neighbours(u).iter();
        neighbours.filter(|v| of[**v as usize] == of[u as usize]).count()
    };
    nodes.map(same).sum::<usize>() as f64 / dataset.graph.targets().len() as f64
}

#[test]
fn degree_and_homophily_are_as_asked() {
    for family in Family::ALL {
        for (inside, outside, leaving) in [(0.125, 0.8, 0.3), (0.6, 0.6, 0.1), (0.0, 1.0, 0.5)] {
            let settings = Settings {
                homophily_inside: inside,
                homophily_outside: outside,
                leaving,
                skew: 0.0,
                ..settings(family)
            };
            let dataset = generate::generate(&settings).expect("a graph");
            assert!((degree(&dataset) / 8.0 - 1.0).abs() < 0.06, "{}", degree(&dataset));
            let expected = inside * (1.0 - leaving) + outside * leaving;
            assert!((homophily(&dataset) - expected).abs() < 0.03, "{}", homophily(&dataset));
        }
    }
}

#[test]
fn a_tail_makes_few_nodes_large_and_keeps_the_mean() {
    let largest = |tail: f64| {
        let settings = Settings { tail, skew: 0.0, ..settings(Family::NoisyFeatures) };
        let dataset = generate::generate(&settings).expect("a graph");
        assert!((degree(&dataset) / 8.0 - 1.0).abs() < 0.12, "{}", degree(&dataset));
        (0..20_000).map(|node| dataset.graph.degree(node)).max().expect("nodes")
    };
    let (even, heavy) = (largest(0.0), largest(0.6));
    assert!(even < 30 && heavy > 80, "{even} {heavy}");
}

#[test]
fn splits_and_classes_have_their_shares() {
    let settings = Settings { train: 0.5, valid: 0.3, skew: 0.0, ..settings(Family::CutHomophily) };
    let dataset = generate::generate(&settings).expect("a graph");
    let split = &dataset.split;
    assert_eq!([split.train.len(), split.valid.len(), split.test.len()], [10_000, 6_000, 4_000]);
    for class in 0..8 {
        let count = classes(&dataset).iter().filter(|of| **of == class).count();
        assert!(count.abs_diff(2_500) <= 10, "{count}");
    }
}

#[test]
fn features_tell_of_the_class_as_much_as_asked() {
    let length = |signal: f64| {
        let settings = Settings { signal, ..settings(Family::CutHomophily) };
        let dataset = generate::generate(&settings).expect("a graph");
        let mut sum = [0.0_f64; 4];
        let of_class = classes(&dataset).iter().zip(values(&dataset).chunks(4));
        let rows: Vec<&[f32]> = of_class.filter(|(of, _)| **of == 3).map(|(_, row)| row).collect();
        for row in &rows {
            sum.iter_mut().zip(*row).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        sum.iter().map(|sum| (sum / rows.len() as f64).powi(2)).sum::<f64>().sqrt()
    };
    assert!(length(0.0) < 0.1 && (length(2.0) - 2.0).abs() < 0.1);
}

#[test]
fn the_same_for_any_number_of_threads_and_in_a_file() {
    let settings = Settings { nodes: 70_000, ..settings(Family::CutHomophily) };
    let dir = tempfile::tempdir().expect("a directory");
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        let path = dir.path().join(format!("{threads}.graph.safetensors"));
        pool.install(|| {
            let done = AtomicUsize::new(0);
            let add = |nodes| {
                done.fetch_add(nodes, Ordering::Relaxed);
            };
            generate::write(&settings, &path, &add).expect("written");
            assert_eq!(done.into_inner(), 2 * settings.nodes, "edges and features of each node");
            let written = std::fs::metadata(&path).expect("there").len();
            let told = settings.file_bytes();
            assert!(written < told + 4096 && written > told * 9 / 10, "{written}, not {told}");
            (std::fs::read(&path).expect("read"), generate::generate(&settings).expect("a graph"))
        })
    };
    let ((bytes_one, one), (bytes_three, three)) = (with(1), with(3));
    assert!(bytes_one == bytes_three);
    assert_eq!(one.graph.targets(), three.graph.targets());
    assert!(values(&one) == values(&three) && one.split == three.split);
    let path = dir.path().join("1.graph.safetensors");
    let mapped = load::open(&path, &Options::default()).expect("mapped");
    assert_eq!(mapped.graph.targets(), one.graph.targets());
    assert_eq!(classes(&mapped), classes(&one));
    assert!(values(&mapped) == values(&one) && mapped.split == one.split);
    let other = Settings { seed: 8, ..settings.clone() };
    assert_ne!(generate::generate(&other).expect("a graph").graph.targets(), one.graph.targets());
}

#[test]
fn settings_that_make_no_graph_are_errors() {
    let base = settings(Family::CutHomophily);
    for (settings, expected) in [
        (Settings { leaving: 1.5, ..base.clone() }, "leaving is 1.5; expected 0 to 1"),
        (Settings { tail: f64::NAN, ..base.clone() }, "tail is NaN; expected 0 to 0.9"),
        (Settings { nodes: 50, ..base.clone() }, "50 nodes are too few for 8 classes"),
        (Settings { classes: 1, ..base.clone() }, "at least 2 classes"),
        (
            Settings { communities: 1, ..base.clone() },
            "a single community has no edges that leave it",
        ),
        (Settings { degree: 1e9, ..base.clone() }, "the degree is 1000000000; expected 0 to 2000"),
        (
            Settings { valid: 0.7, ..base.clone() },
            "train is 0.6 and valid is 0.7; expected shares that",
        ),
        (Settings { train: 0.0, valid: 0.5, ..base.clone() }, "the train set is empty"),
        (Settings { nodes: usize::MAX, ..base.clone() }, "nodes; expected 1 to"),
        (Settings { feature_dim: 0, ..base }, "expected 1 to 1048576 features"),
    ] {
        let error = generate::generate(&settings).expect_err("an error").to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!("planted".parse::<Family>().is_err());
}
