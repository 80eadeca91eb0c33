//! Stored sums over remote neighbours: with fresh ones a part computes what the whole graph does.

use std::sync::Arc;

use hither_core::record::train::{Machine, Round};
use hither_core::seed;
use hither_gnn::correct::ServerSteps;
use hither_gnn::generate::{self, Family};
use hither_gnn::layer::{Norm, Rows};
use hither_gnn::local::Pace;
use hither_gnn::model::{Kind, Model, Pass, Spec, Weights};
use hither_gnn::optim::Method;
use hither_gnn::partition::Partition;
use hither_gnn::remote::{Remote, is_supported};
use hither_gnn::sample::{Batch, Fanout, Sampler};
use hither_gnn::schedule::Schedule;
use hither_gnn::task::Task;
use hither_gnn::train::{Mode, Settings, Trainer};
use hither_gnn::update::Updates;
use hither_gnn::{Dataset, Features, checkpoint};

const NODES: usize = 300;

fn graph(is_sparse: bool) -> (Dataset, Partition) {
    let settings = generate::Settings {
        communities: 6,
        feature_dim: 12,
        ..generate::Settings::for_family(Family::NoisyFeatures, NODES, 3)
    };
    let mut data = generate::generate(&settings).expect("a graph");
    if is_sparse {
        let Features::Dense { values, dim } = &data.features else { panic!("dense features") };
        let (mut offsets, mut indices, mut kept) = (vec![0_u64], vec![], vec![]);
        for row in values.chunks(*dim) {
            for (index, value) in row.iter().enumerate().filter(|(_, value)| **value > 0.0) {
                indices.push(index as u32);
                kept.push(*value);
            }
            offsets.push(indices.len() as u64);
        }
        data.features = Features::Sparse {
            offsets: offsets.into(),
            indices: indices.into(),
            values: Some(kept.into()),
            dim: *dim,
        };
    }
    // Scattered, so that nearly every node has neighbours in each part.
    let of = (0..NODES as u32).map(|node| node * 7 % 5 % 3).collect();
    (data, Partition { of, parts: 3 })
}

fn model(data: &Dataset, layers: &[Kind], norm: Norm) -> Model {
    Model::new(Spec {
        layers: layers.to_vec(),
        inputs: data.features.dim(),
        hidden: 16,
        outputs: data.labels.count(),
        heads: 1,
        norm,
        batch_norm: false,
        layer_norm: false,
        residual: false,
        dropout: 0.0,
        steps: 1,
        alpha: 0.0,
        length_power: 1.0,
    })
    .expect("a model")
}

fn loss(model: &Model, weights: &Weights, data: &Dataset, batch: &Batch) -> f64 {
    let mut grads = vec![0.0; weights.params.len()];
    model.gradient(&mut weights.clone(), data, batch, Pass::Probe, &mut grads)
}

const STACKS: [(&[Kind], Norm); 5] = [
    (&[Kind::Gcn, Kind::Gcn], Norm::Symmetric),
    (&[Kind::Gcn, Kind::Gcn, Kind::Linear], Norm::Mean),
    (&[Kind::Sage, Kind::Sage], Norm::Symmetric),
    (&[Kind::Sage, Kind::Gcn, Kind::Sage], Norm::Symmetric),
    (&[Kind::Linear, Kind::Gcn, Kind::Sage], Norm::Mean),
];

#[test]
fn a_part_with_fresh_sums_has_the_loss_of_the_whole_graph() {
    for is_sparse in [false, true] {
        let (data, partition) = graph(is_sparse);
        for (layers, norm) in STACKS {
            let model = model(&data, layers, norm);
            assert!(is_supported(&model));
            let weights = model.start(5);
            let mut remote = Remote::new(&data, &partition);
            let (parts, bytes) = remote.parts(&model, &data, &partition);
            assert!(bytes > 0);
            let (fresh, work) = remote.refresh(&model, &weights, &data);
            assert!(work.total() > 0 && remote.refresh_bytes(&model) > 0);
            let nodes_of = partition.nodes_of();
            for (((part, mut sums), hidden), nodes) in parts.into_iter().zip(fresh).zip(&nodes_of) {
                sums.refresh(hidden);
                let train = &part.split.train;
                let originals: Vec<u32> = train.iter().map(|node| nodes[*node as usize]).collect();
                let needs = model.needs();
                let expected =
                    loss(&model, &weights, &data, &Batch::whole(&data, &originals, needs));
                let alone = Batch::whole(&part, train, needs);
                assert!((loss(&model, &weights, &part, &alone) - expected).abs() > 1e-4);
                let whole = Batch::whole(&part, train, needs).with_remote(&sums);
                let mut sampler = Sampler::new(part.graph.nodes());
                let mut random = seed::stream(1, "test");
                let drawn = sampler.batch(&part, train.clone(), &Fanout::All, needs, &mut random);
                for batch in [whole, drawn.with_remote(&sums)] {
                    let found = loss(&model, &weights, &part, &batch);
                    let error = (found - expected).abs() / expected;
                    assert!(error < 1e-5, "{layers:?} {norm:?}: {found}, not {expected}");
                }
            }
        }
    }
}

/// With all factors equal, sums of sparse features are those of the same numbers written out.
#[test]
fn sums_of_sparse_and_dense_features_agree() {
    let (sparse, partition) = graph(true);
    let (mut dense, _) = graph(false);
    if let Features::Dense { values, dim } = &dense.features {
        let kept: Vec<f32> = values.iter().map(|value| value.max(0.0)).collect();
        dense.features = Features::Dense { values: kept.into(), dim: *dim };
    }
    let first = |data: &Dataset| -> Vec<Vec<f32>> {
        let model = model(data, &[Kind::Gcn, Kind::Gcn], Norm::Symmetric);
        let (parts, _) = Remote::new(data, &partition).parts(&model, data, &partition);
        parts.iter().map(|(_, sums)| written_out(&sums.layers[0])).collect()
    };
    for (dense, sparse) in first(&dense).iter().zip(first(&sparse)) {
        assert!(dense.iter().zip(sparse).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}

fn written_out(rows: &Rows) -> Vec<f32> {
    match rows {
        Rows::Dense { values, .. } => values.to_vec(),
        Rows::Sparse { offsets, indices, values, dim } => {
            let mut out = vec![0.0; (offsets.len() - 1) * dim];
            for row in 0..offsets.len() - 1 {
                for at in offsets[row] as usize..offsets[row + 1] as usize {
                    let value = values.as_ref().map_or(1.0, |values| values[at]);
                    out[row * dim + indices[at] as usize] = value;
                }
            }
            out
        }
    }
}

#[test]
fn attention_and_propagation_read_rows_that_no_sum_replaces() {
    let (data, _) = graph(false);
    for layers in [&[Kind::Gat][..], &[Kind::Linear, Kind::Propagate, Kind::Linear]] {
        assert!(!is_supported(&model(&data, layers, Norm::Symmetric)));
    }
}

#[test]
fn nothing_is_stored_where_nothing_was_cut() {
    let (data, _) = graph(false);
    let partition = Partition { of: vec![0; NODES], parts: 1 };
    let model = model(&data, &[Kind::Gcn, Kind::Gcn], Norm::Symmetric);
    let remote = Remote::new(&data, &partition);
    assert_eq!(remote.refresh_bytes(&model), 0);
    let (parts, _) = remote.parts(&model, &data, &partition);
    assert!(written_out(&parts[0].1.layers[0]).iter().all(|value| *value == 0.0));
}

fn settings(rounds: u32, server_share: f64) -> Settings {
    let pace = Pace { batch: None, fanout: Fanout::All, rate: 0.01, clip: None };
    Settings {
        task: Task::Nodes,
        mode: Mode::PsgdSums,
        rounds,
        local_steps: 2,
        rho: 1.0,
        local: pace.clone(),
        server: pace,
        schedule: Schedule::Constant,
        server_steps: ServerSteps::Auto,
        server_share,
        machine: Machine { sums_per_s: 1e9, products_per_s: 1e10, link_bytes_per_s: 1e9 },
        optimiser: Method::Adam,
        decay: 0.0,
        evaluate_every: 1,
        probe_every: 0,
        patience: None,
        copies: 0.0,
        updates: Updates::Fp32,
        seed: 7,
    }
}

fn trainer(settings: Settings) -> Trainer {
    let (data, partition) = graph(false);
    let model = model(&data, &[Kind::Sage, Kind::Gcn], Norm::Symmetric);
    Trainer::new(settings, model, Arc::new(data), &partition)
}

fn train(trainer: &mut Trainer, rounds: usize) {
    while trainer.rounds.len() < rounds {
        trainer.round(&|| 0.0).expect("a round");
    }
}

#[test]
fn refreshes_keep_to_the_budget_and_a_resumed_run_has_the_old_sums() {
    let share = 0.6;
    let mut whole = trainer(settings(9, share));
    train(&mut whole, 9);
    let is_refreshed = |round: &Round| round.work.server.total() > 0;
    let refreshed = whole.rounds.iter().filter(|round| is_refreshed(round)).count();
    assert!((2..9).contains(&refreshed), "{refreshed} of 9 rounds");
    assert!(is_refreshed(&whole.rounds[0]));
    for round in &whole.rounds {
        assert_eq!(round.bytes.features_down_bytes > 0, is_refreshed(round));
        assert_eq!(round.path.server_s > 0.0, is_refreshed(round));
    }
    // The first refresh is not waited for; all others are paid for when they come.
    let machine = whole.settings.machine;
    let (mut earned_s, mut spent_s) = (0.0, 0.0);
    for round in &whole.rounds {
        spent_s += machine.seconds(round.work.server);
        assert!(round.round == 1 || !is_refreshed(round) || spent_s <= earned_s + 1e-12);
        earned_s += share * machine.seconds(round.work.slowest);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("checkpoint.safetensors");
    for stop in 1..8 {
        let mut first = trainer(settings(9, share));
        train(&mut first, stop);
        checkpoint::write(&mut first, &path).expect("written");
        let mut second = trainer(settings(9, share));
        checkpoint::restore(&mut second, &path).expect("restored");
        train(&mut second, 9);
        assert_eq!(second.global, whole.global, "after round {stop}");
        assert_eq!(second.rounds, whole.rounds);
    }
}
