//! Real graphs, where they are at hand, against the figures that their publishers give.

use std::path::{Path, PathBuf};

use hither_gnn::load::{self, Options};
use hither_gnn::{Dataset, Features, Metric};

const GRAPHS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/graphs");

fn path(name: &str) -> Option<PathBuf> {
    let path = Path::new(GRAPHS).join(name);
    if !path.exists() {
        eprintln!("skipped: {} absent", path.display());
        return None;
    }
    Some(path)
}

fn open(name: &str) -> Option<Dataset> {
    let dataset = load::open(&path(name)?, &Options::default());
    Some(dataset.unwrap_or_else(|error| panic!("{error}")))
}

/// Nodes, edges, features, classes.
fn figures(dataset: &Dataset) -> [usize; 4] {
    let Dataset { graph, features, labels, .. } = dataset;
    [graph.nodes(), graph.edges(), features.dim(), labels.count()]
}

fn split(dataset: &Dataset) -> [usize; 3] {
    let split = &dataset.split;
    [split.train.len(), split.valid.len(), split.test.len()]
}

#[test]
fn shchur() {
    for (name, expected) in [
        ("amazon_cs", [13_752, 245_861, 767, 10]),
        ("coauthor_cs", [18_333, 81_894, 6_805, 15]),
        ("dblp", [17_716, 52_867, 1_639, 4]),
        ("flickr", [7_575, 239_738, 12_047, 10]),
    ] {
        let Some(dataset) = open(&format!("shchur/{name}.npz")) else { return };
        assert_eq!(dataset.name, name);
        assert_eq!(figures(&dataset), expected, "{name}");
        let nodes = expected[0];
        assert_eq!(split(&dataset).iter().sum::<usize>(), nodes);
        assert_eq!(dataset.split.train.len(), nodes * 6 / 10);
        assert!(matches!(dataset.features, Features::Sparse { .. }));
        assert_eq!(dataset.metric, Metric::Accuracy);
    }
}

#[test]
fn a_drawn_split_is_the_seeds() {
    let Some(path) = path("shchur/dblp.npz") else { return };
    let draw = |split_seed| {
        load::open(&path, &Options { split_seed, ..Options::default() }).expect("a graph").split
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn tolokers() {
    let Some(dataset) = open("tolokers.npz") else { return };
    assert_eq!(figures(&dataset), [11_758, 519_000, 10, 2]);
    assert_eq!(dataset.metric, Metric::RocAuc);
    assert_eq!(split(&dataset), [5_879, 2_939, 2_940]);
    let path = path("tolokers.npz").expect("seen above");
    let other = |split_index| load::open(&path, &Options { split_index, ..Options::default() });
    assert_ne!(other(9).expect("the last").split, dataset.split);
    let error = other(10).expect_err("there are ten").to_string();
    assert!(error.contains("`train_masks` has splits 0 to 9; there is no split 10"), "{error}");
}

#[test]
fn debian() {
    for (name, edges) in [("run", 321_636), ("all", 1_204_022)] {
        let Some(dataset) = open(&format!("debian/debian-{name}.npz")) else { return };
        assert_eq!(figures(&dataset), [63_436, edges, 1_262, 41]);
        assert!(matches!(&dataset.features, Features::Sparse { values: None, .. }));
        assert!(split(&dataset).iter().sum::<usize>() <= 63_436);
    }
}

#[test]
fn planetoid() {
    let Some(dataset) = open("planetoid-pubmed") else { return };
    assert_eq!(dataset.name, "pubmed");
    assert_eq!(figures(&dataset), [19_717, 44_324, 500, 3]);
    assert_eq!(split(&dataset), [60, 500, 1_000]);
    assert_eq!(dataset.split.valid[0], 60);
    let Features::Sparse { indices, values, .. } = &dataset.features else { panic!("dense") };
    assert_eq!(indices.len(), 988_031);
    assert!(values.is_some());
}

#[test]
fn musae() {
    let Some(dataset) = open("facebook-page") else { return };
    assert_eq!(figures(&dataset), [22_470, 170_823, 4_714, 4]);
    let classes = dataset.class_names.as_ref().expect("names").iter().collect::<Vec<_>>();
    assert_eq!(classes, ["company", "government", "politician", "tvshow"]);
    assert_eq!(dataset.graph.listed().self_loops, 179);
    assert_eq!(split(&dataset).iter().sum::<usize>(), 22_470);
}

#[test]
fn our_own_form_is_the_same_graph_and_is_mapped() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["tolokers.npz", "debian/debian-run.npz", "planetoid-pubmed"] {
        let Some(dataset) = open(name) else { return };
        let path = dir.path().join("one.graph.safetensors");
        load::write(&dataset, &path).expect("written");
        let again = load::open(&path, &Options::default()).expect("read");
        assert_eq!(again.name, dataset.name);
        assert_eq!(again.graph.offsets(), dataset.graph.offsets());
        assert_eq!(again.graph.targets(), dataset.graph.targets());
        assert_eq!(again.split, dataset.split);
        assert_eq!(again.metric, dataset.metric);
        match (&again.features, &dataset.features) {
            (Features::Dense { values: a, dim }, Features::Dense { values: b, dim: d }) => {
                assert!(a.is_mapped() && a[..] == b[..] && dim == d);
            }
            (
                Features::Sparse { offsets: a, indices: b, values: c, dim },
                Features::Sparse { offsets: e, indices: f, values: g, dim: d },
            ) => {
                assert!(a.is_mapped() && a[..] == e[..] && b[..] == f[..] && dim == d);
                assert_eq!(c.as_deref(), g.as_deref());
            }
            _ => panic!("features changed their kind"),
        }
    }
}
