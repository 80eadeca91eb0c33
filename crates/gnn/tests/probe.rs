//! Probes of partitions: what must be 0, what must be larger, and what they choose.

use std::sync::Arc;

use hither_gnn::config::{Batch, PartitionBy, TrainBy, WorkerConfig};
use hither_gnn::generate::{self, Family};
use hither_gnn::local::Pace;
use hither_gnn::model::{Kind, Model, Spec};
use hither_gnn::partition::{self, Method, Partition};
use hither_gnn::probe::{Drift, Probe};
use hither_gnn::run::Run;
use hither_gnn::train::Settings;
use hither_gnn::{Dataset, TrainConfig};

fn graph() -> Arc<Dataset> {
    let family = generate::Settings::for_family(Family::NoisyFeatures, 3000, 1);
    Arc::new(
        generate::generate(&generate::Settings { communities: 16, ..family }).expect("a graph"),
    )
}

fn parts(data: &Dataset, method: Method) -> Partition {
    let settings = partition::Settings { method, parts: 4, ..partition::Settings::default() };
    partition::partition(&data.graph, &data.labels, &data.split.train, &settings).expect("parts")
}

/// What is measured of some partitions, with full batches or with draws of nodes.
fn drifts(batch: Option<usize>, partitions: &[Partition]) -> Vec<Drift> {
    let data = graph();
    let local = Pace { batch, ..Settings::default().local };
    let settings = Settings { local, seed: 3, ..Settings::default() };
    let (inputs, outputs) = (data.features.dim(), data.labels.count());
    let spec = Spec { layers: vec![Kind::Sage, Kind::Gcn], inputs, outputs, ..Spec::default() };
    let model = Model::new(Spec { hidden: 16, dropout: 0.3, ..spec }).expect("a model");
    let mut probe = Probe::new(&settings, &model, &data).expect("a probe");
    partitions.iter().map(|partition| probe.drift(partition)).collect()
}

#[test]
fn one_part_pulls_where_the_whole_graph_does() {
    let data = graph();
    let whole = Partition { of: vec![0; data.graph.nodes()], parts: 1 };
    assert_eq!(drifts(None, &[whole]), [Drift { cut: 0.0, uneven: 0.0 }]);
}

#[test]
fn cut_edges_and_uneven_parts_are_told_apart() {
    let data = graph();
    let all = [Method::Metis, Method::Random, Method::Label].map(|method| parts(&data, method));
    let [metis, random, label] = drifts(None, &all)[..] else { panic!() };
    assert!(label.uneven > 10.0 * random.uneven, "{label:?} {random:?}");
    assert!(metis.uneven > random.uneven, "{metis:?} {random:?}");
    assert!(random.cut > 2.0 * metis.cut, "{metis:?} {random:?}");
    // Draws of nodes estimate the same.
    let [_, drawn_random, drawn_label] = drifts(Some(64), &all)[..] else { panic!() };
    let near = |a: f64, b: f64| (a - b).abs() < 0.5 * b;
    assert!(near(drawn_label.uneven, label.uneven), "{drawn_label:?} {label:?}");
    assert!(near(drawn_random.cut, random.cut), "{drawn_random:?} {random:?}");
}

#[test]
fn a_run_without_further_word_probes_its_parts() {
    let mut config = TrainConfig::default();
    (config.run.rounds, config.steps.local_steps) = (1, 1);
    let run = |by: WorkerConfig| {
        let config = TrainConfig { by: TrainBy::PsgdPa(by), ..config.clone() };
        let mut run = Run::new(&config, Dataset::clone(&graph())).expect("a run");
        run.step(&|| 0.0).expect("a round");
        run.finish().expect("a record")
    };
    let usual = run(WorkerConfig::default());
    let tried: Vec<&str> =
        usual.summary.setup.probed.iter().map(|probed| &probed.partition[..]).collect();
    assert!(["metis-even", "clusters", "random"].starts_with(&tried) && !tried.is_empty());
    assert_eq!(Some(&&usual.header.partition[..]), tried.last());
    assert!(usual.summary.setup.path_s > 0.0 && usual.summary.setup.probe.total() > 0);
    let named = WorkerConfig {
        partition: Some(PartitionBy::Method(Method::Ldg)),
        ..WorkerConfig::default()
    };
    assert_eq!(run(named).summary.setup.probed, []);
}

#[test]
fn workers_share_the_batch_of_one_machine() {
    let data = graph();
    let batch = |by: TrainBy, asked: Option<Batch>| {
        let mut config = TrainConfig { by, ..TrainConfig::default() };
        config.steps.batch = asked;
        let cut = hither_gnn::run::Cut::of(&config, &data).expect("parts");
        config.resolve(&cut.facts(&data)).expect("a plan").settings.local.batch
    };
    let workers = |parts| {
        let partition = Some(PartitionBy::Method(Method::Random));
        TrainBy::PsgdPa(WorkerConfig { parts: Some(parts), partition, ..WorkerConfig::default() })
    };
    assert_eq!(batch(TrainBy::Single, None), Some(256));
    assert_eq!([2, 8, 300].map(|parts| batch(workers(parts), None)), [128, 32, 1].map(Some));
    assert_eq!(batch(workers(8), Some(Batch::Of(100))), Some(100));
}
