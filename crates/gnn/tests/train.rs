//! Whole runs: the same whatever the threads and interruptions, honest about bytes, and worth it.

use std::collections::BTreeSet;
use std::sync::Arc;

use hither_core::record::train::{Machine, Round, Work};
use hither_core::seed;
use hither_gnn::correct::ServerSteps;
use hither_gnn::generate::{self, Family};
use hither_gnn::local::Pace;
use hither_gnn::model::{Kind, Model, Spec};
use hither_gnn::partition::{self, Partition};
use hither_gnn::sample::{Fanout, Sampler, draw};
use hither_gnn::train::{Mode, Settings, Trainer};
use hither_gnn::{Dataset, Error, Features, checkpoint, save};

fn graph(family: Family, nodes: usize) -> (Arc<Dataset>, Partition) {
    let family = generate::Settings::for_family(family, nodes, 1);
    let settings = generate::Settings { communities: 16, ..family };
    let data = generate::generate(&settings).expect("a graph");
    let cut = partition::Settings {
        method: partition::Method::Metis,
        parts: 4,
        seed: 1,
        imbalance: 1.05,
        balance_train: false,
    };
    let partition =
        partition::partition(&data.graph, &data.labels, &data.split.train, &cut).expect("parts");
    (Arc::new(data), partition)
}

fn settings(mode: Mode) -> Settings {
    let pace = Pace { batch: Some(64), fanout: Fanout::AtMost(5), rate: 0.01, clip: None };
    Settings {
        mode,
        rounds: 4,
        local_steps: 3,
        rho: 1.2,
        local: pace.clone(),
        server: pace,
        machine: Machine { sums_per_s: 1e9, products_per_s: 1e10, link_bytes_per_s: 1e9 },
        evaluate_every: 2,
        seed: 7,
        ..Settings::default()
    }
}

fn model(data: &Dataset) -> Model {
    Model::new(Spec {
        layers: vec![Kind::Sage, Kind::Gcn],
        inputs: data.features.dim(),
        hidden: 16,
        outputs: data.labels.count(),
        batch_norm: true,
        dropout: 0.3,
        ..Spec::default()
    })
    .expect("a model")
}

fn trainer(settings: Settings) -> Trainer {
    let (data, partition) = graph(Family::NoisyFeatures, 1500);
    Trainer::new(settings, model(&data), data, &partition)
}

fn run(trainer: &mut Trainer, rounds: usize) {
    while !trainer.is_done() && trainer.rounds.len() < rounds {
        trainer.round(&|| 0.0).expect("a round");
    }
}

#[test]
fn every_mode_learns_the_same_with_any_number_of_threads() {
    for mode in Mode::ALL {
        let with = |threads: usize| {
            let pool =
                rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
            pool.install(|| {
                let mut trainer = trainer(settings(mode));
                run(&mut trainer, 4);
                (trainer.global.clone(), trainer.rounds.clone())
            })
        };
        let one = with(1);
        assert!(one == with(2) && one == with(5), "{} depends on threads", mode.name());
        assert_eq!(one.1.len(), 4);
    }
}

#[test]
fn a_run_that_was_interrupted_ends_like_one_that_was_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("checkpoint.safetensors");
    for mode in Mode::ALL {
        let mut whole = trainer(settings(mode));
        run(&mut whole, 4);
        for stop in [1, 3] {
            let mut first = trainer(settings(mode));
            run(&mut first, stop);
            checkpoint::write(&mut first, &path).expect("written");
            let mut second = trainer(settings(mode));
            checkpoint::restore(&mut second, &path, first.rounds.clone()).expect("restored");
            assert_eq!(second.rounds, first.rounds);
            run(&mut second, 4);
            assert_eq!(second.global, whole.global, "{} after round {stop}", mode.name());
            assert_eq!(second.rounds, whole.rounds);
            assert_eq!(second.summary(), whole.summary());
            let best = |trainer: &Trainer| trainer.best.clone().expect("a best").weights;
            assert_eq!(best(&second), best(&whole));
        }
    }
}

#[test]
fn a_checkpoint_of_another_run_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("checkpoint.safetensors");
    let mut first = trainer(settings(Mode::Llcg));
    run(&mut first, 1);
    checkpoint::write(&mut first, &path).expect("written");
    let more_rounds = Settings { rounds: 9, ..settings(Mode::Llcg) };
    checkpoint::restore(&mut trainer(more_rounds), &path, first.rounds.clone())
        .expect("more rounds are fine");
    for other in [
        Settings { seed: 8, ..settings(Mode::Llcg) },
        Settings { local_steps: 5, ..settings(Mode::Llcg) },
        settings(Mode::PsgdPa),
    ] {
        let refused = checkpoint::restore(&mut trainer(other), &path, first.rounds.clone());
        assert!(matches!(refused, Err(Error::Resume { .. })), "{refused:?}");
    }
    // Bytes that were lost are noticed.
    let bytes = std::fs::read(&path).expect("bytes");
    std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("written");
    assert!(checkpoint::restore(&mut trainer(settings(Mode::Llcg)), &path, first.rounds).is_err());
}

#[test]
fn bytes_are_those_that_a_network_would_carry() {
    for mode in Mode::ALL {
        let mut trainer = trainer(settings(mode));
        run(&mut trainer, 1);
        let bytes = trainer.rounds[0].bytes;
        // Per worker and direction: two matrices of 16 × features and a bias, one of classes × 16 and a
        // bias, and four vectors of 16 of the batch norm, 4 bytes each.
        let (features, classes) = (trainer.data.features.dim(), trainer.data.labels.count());
        let numbers = 16 * (2 * features + 1) + classes * (16 + 1) + 4 * 16;
        let models = match mode {
            Mode::Single | Mode::ServerOnly => 0,
            _ => 4 * 4 * numbers as u64,
        };
        assert_eq!((bytes.model_down_bytes, bytes.model_up_bytes), (models, models));
        match mode {
            Mode::Ggs => {}
            _ => assert_eq!((bytes.features_down_bytes, bytes.requests_up_bytes), (0, 0)),
        }
        assert_eq!(trainer.setup_bytes > 0, mode == Mode::PsgdSa);
    }
}

/// Without sampling, each step fetches all nodes of other parts within two hops of the part's
/// training nodes.
#[test]
fn workers_that_see_the_whole_graph_fetch_every_remote_row_once_per_step() {
    let (data, partition) = graph(Family::NoisyFeatures, 600);
    let mut settings = settings(Mode::Ggs);
    settings.local.batch = None;
    let mut trainer = Trainer::new(settings, model(&data), data.clone(), &partition);
    run(&mut trainer, 1);
    let mut remote = 0;
    for part in 0..4 {
        let is_home = |node: &u32| partition.of[*node as usize] == part;
        let mut reached: BTreeSet<u32> = data.split.train.iter().copied().filter(is_home).collect();
        for _ in 0..2 {
            let next: Vec<u32> =
                reached.iter().flat_map(|node| data.graph.neighbours(*node)).copied().collect();
            reached.extend(next);
        }
        remote += reached.iter().filter(|node| !is_home(node)).count() as u64;
    }
    let bytes = trainer.rounds[0].bytes;
    let row = 4 * data.features.dim() as u64;
    assert_eq!(bytes.features_down_bytes, 3 * remote * row);
    assert_eq!(bytes.requests_up_bytes, 3 * remote * 4);
}

#[test]
fn correction_undoes_what_cut_edges_did() {
    let (data, partition) = graph(Family::CutHomophily, 3000);
    let test = |mode: Mode| {
        let settings = Settings { rounds: 15, local_steps: 5, rho: 1.0, ..settings(mode) };
        let mut trainer = Trainer::new(settings, model(&data), data.clone(), &partition);
        run(&mut trainer, 15);
        trainer.summary().test
    };
    let (local, corrected) = (test(Mode::PsgdPa), test(Mode::Llcg));
    assert!(corrected > local + 0.03, "{corrected} is not better than {local}");
}

/// At first parts teach much that holds for the whole graph, later what misleads.
#[test]
fn only_what_helps_the_whole_graph_is_kept() {
    let (data, partition) = graph(Family::CutHomophily, 3000);
    let kept = |mode: Mode, server_steps: ServerSteps, rounds: u32| -> Vec<f64> {
        let settings = settings(mode);
        let local = Pace { batch: None, ..settings.local.clone() };
        // On a graph this small a judgement costs as much as a few rounds of a worker.
        let (rho, server_share) = (1.0, 2.0);
        let settings = Settings { rounds, local_steps: 10, rho, server_share, ..settings };
        let settings = Settings { local, server_steps, ..settings };
        let mut trainer = Trainer::new(settings, model(&data), data.clone(), &partition);
        run(&mut trainer, rounds as usize);
        trainer.rounds.iter().map(|round| round.kept).collect()
    };
    let auto = kept(Mode::Llcg, ServerSteps::Auto, 20);
    let late = auto[15..].iter().sum::<f64>() / 5.0;
    assert!(auto[0] > 0.95 && late < 0.9, "{auto:?}");
    // The published algorithms take averages as they are.
    assert_eq!(kept(Mode::Llcg, ServerSteps::Fixed(3), 3), [1.0; 3]);
    assert_eq!(kept(Mode::PsgdPa, ServerSteps::Auto, 3), [1.0; 3]);
}

#[test]
fn the_server_stays_within_its_budget() {
    let (data, partition) = graph(Family::NoisyFeatures, 3000);
    for (mode, server_share) in [(Mode::Llcg, 0.25), (Mode::Llcg, 0.1), (Mode::LlcgStale, 0.25)] {
        let settings = Settings { rounds: 20, rho: 1.0, server_share, ..settings(mode) };
        let machine = settings.machine;
        let mut trainer = Trainer::new(settings, model(&data), data.clone(), &partition);
        run(&mut trainer, 20);
        let sum = |of: &dyn Fn(&Round) -> Work| -> f64 {
            trainer.rounds.iter().map(|round| machine.seconds(of(round))).sum()
        };
        let earned = server_share * sum(&|round| round.work.workers);
        let (steps, judging) = (sum(&|round| round.work.server), sum(&|round| round.work.judge));
        // The last step may go beyond, and the first judgement comes before it is earned.
        let step = steps / f64::from(trainer.summary().server_steps as u32);
        let first = machine.seconds(trainer.rounds[0].work.judge);
        assert!(steps <= 0.75 * earned + step, "{steps} of {earned}");
        assert!(judging <= 0.25 * earned + first, "{judging} of {earned}");
        assert!(steps > 0.3 * earned, "{steps} of {earned}");
    }
}

#[test]
fn the_critical_path_is_the_slowest_worker_the_transfers_and_the_waiting() {
    let path = |mode: Mode| {
        let settings = Settings { server_steps: ServerSteps::Fixed(3), ..settings(mode) };
        let machine = settings.machine;
        let mut trainer = trainer(settings);
        run(&mut trainer, 1);
        let Round { work, path, bytes, .. } = trainer.rounds[0].clone();
        // Four workers and the server are three levels of a tree, each a model down and one up; a star would be eight
        // models through one link.
        let models = machine.transfer_s((bytes.model_down_bytes + bytes.model_up_bytes) * 6 / 8);
        assert_eq!(path.transfer_s, models, "{}", mode.name());
        (path, machine.seconds(work.slowest), machine.seconds(work.server))
    };
    let (llcg, slowest, server) = path(Mode::Llcg);
    assert_eq!((llcg.workers_s, llcg.server_s), (slowest, server));
    assert!(server > 0.0);
    // Three steps of the server take less than three of the slowest worker and are hidden behind it.
    let (stale, slowest, server) = path(Mode::LlcgStale);
    assert_eq!(stale.server_s, (server - slowest).max(0.0));
    let (single, whole, _) = path(Mode::Single);
    assert_eq!((single.workers_s, single.server_s), (whole, 0.0));
    let (fetching, slowest, _) = path(Mode::Ggs);
    assert!(fetching.workers_s > slowest, "fetching takes time");
}

#[test]
fn a_model_comes_back_from_its_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let mut trainer = trainer(settings(Mode::Llcg));
    run(&mut trainer, 2);
    let names = (0..trainer.model.spec.outputs).map(|class| format!("class {class}")).collect();
    let target = save::Target { has_tasks: false, names: Some(names), is_links: false };
    save::model(&path, &trainer.model, &trainer.global, &target).expect("written");
    let save::Trained { model, weights, target: read } = save::open_model(&path).expect("read");
    assert_eq!((&model.spec, &weights), (&trainer.model.spec, &trainer.global));
    assert_eq!(read, target);
    // Some nodes by themselves, a few at once, as all of them together.
    let (data, all) = (&trainer.data, model.infer(&weights, &trainer.data));
    let nodes = [7usize, 0, 3, 7];
    let some = model.infer_nodes(&weights, data, &nodes.map(|node| node as u32), 3, |_| {});
    let rows = |values: &[f32], dim: usize| -> Vec<f32> {
        nodes.iter().flat_map(|node| values[node * dim..][..dim].to_vec()).collect()
    };
    let near = |some: &[f32], all: &[f32]| {
        assert_eq!(some.len(), all.len());
        // Neighbours are summed in another order.
        some.iter().zip(all).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{a} {b}"));
    };
    near(&some.logits, &rows(&all.logits, model.spec.outputs));
    let (embeddings, all) = (some.embeddings.expect("layers"), all.embeddings.expect("layers"));
    near(&embeddings, &rows(&all, model.embedding_dim()));
    let bytes = std::fs::read(&path).expect("bytes");
    for len in (0..bytes.len()).step_by(97) {
        std::fs::write(&path, &bytes[..len]).expect("written");
        assert!(save::open_model(&path).is_err(), "{len} bytes are no model");
    }
}

/// PyTorch Geometric's GIN has ε among its tensors, and `load_state_dict` asks for all of them.
#[test]
fn a_gin_is_written_with_its_epsilon() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let (data, _) = graph(Family::NoisyFeatures, 600);
    let spec = Spec { layers: vec![Kind::Gin, Kind::Gin], batch_norm: true, ..model(&data).spec };
    let model = Model::new(spec).expect("a model");
    save::model(&path, &model, &model.start(1), &save::Target::of(&data)).expect("written");
    let file = hither_data::Checkpoint::open(&path).expect("a file");
    for name in ["convs.0.eps", "convs.1.eps"] {
        let tensor = &file.tensors[name];
        assert_eq!((&tensor.shape[..], tensor.as_f32().expect("numbers")[0]), (&[1][..], 0.0));
    }
    assert_eq!(save::open_model(&path).expect("a model").weights, model.start(1));
}

/// Both the workers and the server move the running statistics from the same start; the sum of both
/// changes would make variances negative.
#[test]
fn a_stale_correction_keeps_variances_positive() {
    let server_steps = ServerSteps::Fixed(10);
    let settings = Settings { local_steps: 10, server_steps, ..settings(Mode::LlcgStale) };
    let (data, partition) = graph(Family::NoisyFeatures, 1500);
    // Hidden units of small variance, far below the 1 that running variances start from.
    let Features::Dense { values, dim } = &data.features else { panic!("dense features") };
    let values: Vec<f32> = values.iter().map(|value| value / 100.0).collect();
    let features = Features::Dense { values: values.into(), dim: *dim };
    let data = Arc::new(Dataset { features, ..(*data).clone() });
    let mut trainer = Trainer::new(settings, model(&data), data, &partition);
    run(&mut trainer, 1);
    let stats = &trainer.global.stats;
    assert!(stats.iter().all(|value| value.is_finite()), "{stats:?}");
    for piece in trainer.model.stats.iter().filter(|piece| piece.name.ends_with("running_var")) {
        assert!(stats[piece.at.clone()].iter().all(|variance| *variance > 0.0), "{stats:?}");
    }
}

/// Nodes to look at are drawn from the stream of a name; neighbours drawn from the same stream would
/// follow from the nodes.
#[test]
fn neighbours_are_drawn_from_a_stream_of_their_own() {
    let mut trainer = trainer(settings(Mode::Llcg));
    let (data, model, weights) = (trainer.data.clone(), &trainer.model, &trainer.global);
    let (name, fanout) = ((7, "judge/1"), Fanout::AtMost(2));
    let nodes = draw(&data.split.train, 64, &mut seed::stream(7, "judge/1"));
    let mut sampler = Sampler::new(data.graph.nodes());
    let mut again = seed::stream(7, "judge/1");
    let batch = sampler.batch(&data, nodes.clone(), &fanout, model.needs(), &mut again);
    let own = trainer.server.neighbourhood(&data, model, nodes, &fanout, name);
    assert_ne!(model.loss(weights, &data, &own), model.loss(weights, &data, &batch));
}
