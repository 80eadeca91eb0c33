//! Workers behind sockets end with the same bytes as workers in threads.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use hither_core::record::train::Machine;
use hither_gnn::correct::ServerSteps;
use hither_gnn::generate::{self, Family};
use hither_gnn::layer::Norm;
use hither_gnn::local::Pace;
use hither_gnn::model::{Kind, Model, Spec};
use hither_gnn::optim::Method;
use hither_gnn::partition::Partition;
use hither_gnn::sample::Fanout;
use hither_gnn::train::{Mode, Settings, Trainer};
use hither_gnn::transport::{Framed, PartFacts, Processes, Worker, serve};
use hither_gnn::{Dataset, Error, checkpoint, parts};

const PARTS: usize = 3;

fn graph() -> (Arc<Dataset>, Partition) {
    let family = generate::Settings::for_family(Family::CutHomophily, 600, 1);
    let data = generate::generate(&generate::Settings { communities: 6, ..family });
    let of = (0..600_u32).map(|node| node.wrapping_mul(2_654_435_761) >> 8).map(|of| of % 3);
    (Arc::new(data.expect("a graph")), Partition { of: of.collect(), parts: PARTS })
}

fn settings(mode: Mode) -> Settings {
    let pace = Pace { batch: Some(64), fanout: Fanout::AtMost(5), rate: 0.01 };
    Settings {
        mode,
        rounds: 4,
        local_steps: 3,
        rho: 1.0,
        local: pace.clone(),
        server: pace,
        server_steps: ServerSteps::Auto,
        server_share: 1.0,
        machine: Machine { sums_per_s: 1e9, products_per_s: 1e10, link_bytes_per_s: 1e9 },
        optimiser: Method::Adam,
        decay: 0.0,
        evaluate_every: 1,
        probe_every: 2,
        patience: None,
        copies: 0.0,
        seed: 7,
    }
}

fn model(data: &Dataset, hidden: usize) -> Model {
    Model::new(Spec {
        layers: vec![Kind::Sage, Kind::Gcn],
        inputs: data.features.dim(),
        hidden,
        outputs: data.labels.count(),
        heads: 1,
        norm: Norm::Symmetric,
        batch_norm: true,
        dropout: 0.2,
        steps: 1,
        alpha: 0.0,
    })
    .expect("a model")
}

type Served = Vec<JoinHandle<Result<(), Error>>>;

/// A trainer whose workers sit behind sockets and have `hidden` units, and what became of them.
fn over_sockets(settings: &Settings, hidden: usize) -> (Trainer, Served) {
    let (data, partition) = graph();
    let mut served = vec![];
    let mut ends = vec![];
    for (number, part) in parts::cut(&data, &partition).into_iter().enumerate() {
        let (server, worker) = UnixStream::pair().expect("a pair of sockets");
        let model = Arc::new(model(&data, hidden));
        let learner = settings.learner(&model, Arc::new(part));
        ends.push((Framed(server), PartFacts { train_nodes: learner.train.len() }));
        let mut worker_side = Worker::new(number, learner, model, settings);
        served.push(thread::spawn(move || serve(&mut worker_side, &mut Framed(worker))));
    }
    let mut trainer = Trainer::new(settings.clone(), model(&data, 16), data, &partition);
    trainer.workers = Box::new(Processes::new(ends));
    (trainer, served)
}

fn over_threads(settings: &Settings) -> Trainer {
    let (data, partition) = graph();
    Trainer::new(settings.clone(), model(&data, 16), data, &partition)
}

fn run(trainer: &mut Trainer, rounds: usize) {
    while trainer.rounds.len() < rounds {
        trainer.round(&|| 0.0).expect("a round");
    }
}

#[test]
fn sockets_and_threads_end_with_the_same_model() {
    for mode in [Mode::PsgdPa, Mode::Llcg, Mode::LlcgStale] {
        let settings = settings(mode);
        let mut threads = over_threads(&settings);
        run(&mut threads, 4);
        let (mut sockets, served) = over_sockets(&settings, 16);
        run(&mut sockets, 4);
        assert_eq!(sockets.global, threads.global, "{}", mode.name());
        assert_eq!(sockets.rounds, threads.rounds);
        drop(sockets);
        for worker in served {
            worker.join().expect("no panic").expect("an orderly end");
        }
    }
}

#[test]
fn a_run_over_sockets_resumes_and_may_go_on_with_threads() {
    let settings = settings(Mode::Llcg);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("checkpoint.safetensors");
    let mut whole = over_threads(&settings);
    run(&mut whole, 4);
    let (mut first, _) = over_sockets(&settings, 16);
    run(&mut first, 2);
    checkpoint::write(&mut first, &path).expect("written");
    let (mut again, _) = over_sockets(&settings, 16);
    for second in [&mut again, &mut over_threads(&settings)] {
        checkpoint::restore(second, &path).expect("restored");
        run(second, 4);
        assert_eq!(second.global, whole.global);
    }
}

#[test]
fn a_lost_worker_ends_the_run_and_is_named() {
    let settings = settings(Mode::PsgdPa);
    let (data, partition) = graph();
    let mut trainer = Trainer::new(settings, model(&data, 16), data, &partition);
    let facts = PartFacts { train_nodes: 1 };
    let (alive, _other_end) = UnixStream::pair().expect("a pair of sockets");
    let (lost, other_end) = UnixStream::pair().expect("a pair of sockets");
    drop(other_end);
    trainer.workers = Box::new(Processes::new([(Framed(alive), facts), (Framed(lost), facts)]));
    let error = trainer.round(&|| 0.0).expect_err("a lost worker").to_string();
    assert!(error.starts_with("the worker of part 1 stopped: it is lost"), "{error}");
    assert!(error.contains("--resume"), "{error}");
}

#[test]
fn a_worker_with_other_options_says_so() {
    let (mut trainer, _) = over_sockets(&settings(Mode::PsgdPa), 8);
    let error = trainer.round(&|| 0.0).expect_err("another model").to_string();
    assert!(error.contains("give all processes the same options"), "{error}");
}
