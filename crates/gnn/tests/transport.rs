//! Workers behind sockets end with the same bytes as workers in threads.

use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use hither_core::Seconds;
use hither_core::record::train::Machine;
use hither_gnn::generate::{self, Family};
use hither_gnn::local::Pace;
use hither_gnn::model::{Kind, Model, Spec};
use hither_gnn::partition::Partition;
use hither_gnn::sample::Fanout;
use hither_gnn::train::{Mode, Settings, Trainer};
use hither_gnn::transport::{Framed, Home, ProcessFacts, Processes, Threads, serve};
use hither_gnn::update::Updates;
use hither_gnn::{Dataset, Error, checkpoint, parts};

const PARTS: usize = 3;
const ISA: &str = "isa";

fn graph() -> (Arc<Dataset>, Partition) {
    let family = generate::Settings::for_family(Family::CutHomophily, 600, 1);
    let data = generate::generate(&generate::Settings { communities: 6, ..family });
    let of = (0..600_u32).map(|node| node.wrapping_mul(2_654_435_761) >> 8).map(|of| of % 3);
    (Arc::new(data.expect("a graph")), Partition { of: of.collect(), parts: PARTS })
}

fn settings(mode: Mode) -> Settings {
    let pace = Pace { batch: Some(64), fanout: Fanout::AtMost(5), rate: 0.01, clip: None };
    Settings {
        mode,
        rounds: 4,
        local_steps: 3,
        local: pace.clone(),
        server: pace,
        machine: Machine { sums_per_s: 1e9, products_per_s: 1e10, link_bytes_per_s: 1e9 },
        seed: 7,
        ..Settings::default()
    }
}

fn model(data: &Dataset, hidden: usize) -> Model {
    Model::new(Spec {
        layers: vec![Kind::Sage, Kind::Gcn],
        inputs: data.features.dim(),
        hidden,
        outputs: data.labels.count(),
        batch_norm: true,
        dropout: 0.2,
        ..Spec::default()
    })
    .expect("a model")
}

/// A process that holds some parts; here it is a thread.
struct Process {
    settings: Settings,
    parts: Range<usize>,
    hidden: usize,
    isa: &'static str,
}

fn options(settings: &Settings) -> String {
    format!("{settings:?}")
}

impl Home for Process {
    fn workers(&mut self, orders: &str) -> Result<Threads, Error> {
        assert_eq!(orders, options(&self.settings));
        let (data, partition) = graph();
        let model = Arc::new(model(&data, self.hidden));
        let all = parts::cut(&data, &partition).into_iter().map(Arc::new).enumerate();
        let own = all.filter(|(part, _)| self.parts.contains(part));
        Ok(Threads::from_parts(&self.settings, &model, own))
    }

    fn facts(&self) -> ProcessFacts {
        ProcessFacts { host: "here".into(), place: "rack.here".into(), isa: self.isa.into() }
    }

    fn now_s(&self) -> Seconds {
        0.0
    }

    fn peak_bytes(&self) -> u64 {
        7
    }
}

type Served = Vec<JoinHandle<Result<(), Error>>>;
type Sockets = Processes<Framed<UnixStream>>;

/// Processes behind sockets, the parts that the server expects of each, and what becomes of them.
fn sockets(
    processes: Vec<Process>,
    parts: &[Range<usize>],
    settings: &Settings,
) -> (Result<Sockets, Error>, Served) {
    let (mut served, mut channels) = (vec![], vec![]);
    for (mut process, parts) in processes.into_iter().zip(parts) {
        let (server, worker) = UnixStream::pair().expect("a pair of sockets");
        channels.push((Framed(server), parts.clone()));
        served.push(thread::spawn(move || serve(&mut process, &mut Framed(worker))));
    }
    (Processes::begin(channels, options(settings), ISA, Box::new(|| 0.0)), served)
}

fn processes(settings: &Settings, parts: &[Range<usize>], hidden: usize) -> Vec<Process> {
    let process = |parts: &Range<usize>| Process {
        settings: settings.clone(),
        parts: parts.clone(),
        hidden,
        isa: ISA,
    };
    parts.iter().map(process).collect()
}

/// A trainer whose workers sit behind sockets, each process with some of the parts.
fn over_sockets(settings: &Settings, parts: &[Range<usize>], hidden: usize) -> (Trainer, Served) {
    let (data, partition) = graph();
    let (workers, served) = sockets(processes(settings, parts, hidden), parts, settings);
    let workers = Box::new(workers.expect("all are ready"));
    let model = Arc::new(model(&data, 16));
    (Trainer::with_workers(settings.clone(), model, data, &partition, workers), served)
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

/// One process per part, and fewer processes than parts.
const DEALT: [&[Range<usize>]; 2] = [&[0..1, 1..2, 2..3], &[0..2, 2..3]];

#[test]
fn sockets_and_threads_end_with_the_same_model() {
    for mode in [Mode::PsgdPa, Mode::Llcg, Mode::LlcgStale] {
        let settings = settings(mode);
        let mut threads = over_threads(&settings);
        run(&mut threads, 4);
        for dealt in DEALT {
            let (mut sockets, _) = over_sockets(&settings, dealt, 16);
            run(&mut sockets, 4);
            assert_eq!(sockets.global, threads.global, "{} {dealt:?}", mode.name());
            assert_eq!(sockets.rounds, threads.rounds);
        }
    }
}

const COMPRESSED: [Updates; 2] = [Updates::Bf16, Updates::TopK { share: 0.1 }];

#[test]
fn compressed_updates_are_the_same_over_sockets_and_send_fewer_bytes() {
    for updates in COMPRESSED {
        let settings = Settings { updates, ..settings(Mode::Llcg) };
        let mut threads = over_threads(&settings);
        run(&mut threads, 4);
        let (mut sockets, _) = over_sockets(&settings, DEALT[1], 16);
        run(&mut sockets, 4);
        assert_eq!(sockets.global, threads.global, "{updates}");
        assert_eq!(sockets.rounds, threads.rounds);
        // What is counted is what was sent, but for a few numbers beside each model.
        let report = sockets.workers.report().expect("a report");
        let sent: u64 = report.iter().map(|process| process.up_bytes).sum();
        let counted: u64 = sockets.rounds.iter().map(|round| round.bytes.model_up_bytes).sum();
        let models = 4 * PARTS as u64;
        assert!(
            (counted..counted + 200 * models).contains(&sent),
            "{sent} sent, {counted} counted"
        );
        assert!(counted < models * sockets.global.bytes());
    }
}

#[test]
fn a_resumed_run_has_not_forgotten_what_was_left_out() {
    for updates in COMPRESSED {
        let settings = Settings { updates, ..settings(Mode::PsgdPa) };
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("checkpoint.safetensors");
        let mut whole = over_threads(&settings);
        run(&mut whole, 4);
        let (mut first, _) = over_sockets(&settings, DEALT[0], 16);
        run(&mut first, 2);
        checkpoint::write(&mut first, &path).expect("written");
        let mut second = over_threads(&settings);
        checkpoint::restore(&mut second, &path, first.rounds.clone()).expect("restored");
        run(&mut second, 4);
        assert_eq!(second.global, whole.global, "{updates}");
    }
}

#[test]
fn a_run_over_sockets_resumes_with_other_processes_or_threads() {
    let settings = settings(Mode::Llcg);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("checkpoint.safetensors");
    let mut whole = over_threads(&settings);
    run(&mut whole, 4);
    let (mut first, _) = over_sockets(&settings, DEALT[0], 16);
    run(&mut first, 2);
    checkpoint::write(&mut first, &path).expect("written");
    let (mut same, _) = over_sockets(&settings, DEALT[0], 16);
    let (mut fewer, _) = over_sockets(&settings, DEALT[1], 16);
    for second in [&mut same, &mut fewer, &mut over_threads(&settings)] {
        checkpoint::restore(second, &path, first.rounds.clone()).expect("restored");
        run(second, 4);
        assert_eq!(second.global, whole.global);
    }
}

#[test]
fn processes_report_what_they_sent_and_used() {
    let settings = settings(Mode::PsgdPa);
    let (mut trainer, _) = over_sockets(&settings, DEALT[1], 16);
    run(&mut trainer, 2);
    let report = trainer.workers.report().expect("a report");
    assert_eq!(report.len(), 2);
    assert_eq!(report[0].parts, 0..2);
    assert_eq!((&*report[0].facts.place, report[0].peak_bytes), ("rack.here", Some(7)));
    // Two models come back from the first process in each round, but one is sent to it.
    let model_bytes = trainer.global.bytes();
    let rounds = 2;
    let models = |bytes: u64| bytes / model_bytes / rounds;
    assert_eq!((models(report[0].down_bytes), models(report[0].up_bytes)), (1, 2));
    assert_eq!((models(report[1].down_bytes), models(report[1].up_bytes)), (1, 1));
}

#[test]
fn a_lost_process_ends_the_run_and_is_named() {
    let settings = settings(Mode::PsgdPa);
    let parts = DEALT[0];
    let (alive, mut served) = sockets(processes(&settings, parts, 16), parts, &settings);
    drop(alive);
    // Its server is gone, which a process of workers says.
    let gone = served.remove(0).join().expect("no panic").expect_err("no server");
    assert!(gone.to_string().starts_with("lost the connection to rank 0"), "{gone}");

    let (lost, other_end) = UnixStream::pair().expect("a pair of sockets");
    drop(other_end);
    let channels = [(Framed(lost), 2..3)];
    let begun = Processes::begin(channels, options(&settings), ISA, Box::new(|| 0.0));
    let error = begun.err().expect("a lost worker").to_string();
    assert!(error.starts_with("the worker of part 2: it is lost"), "{error}");
    assert!(error.contains("--resume"), "{error}");
}

#[test]
fn a_process_with_other_options_parts_or_instructions_says_so() {
    let settings = settings(Mode::PsgdPa);
    let (mut trainer, _) = over_sockets(&settings, DEALT[0], 8);
    let error = trainer.round(&|| 0.0).expect_err("another model").to_string();
    assert!(error.contains("give all processes the same options"), "{error}");

    let refusal = |change: fn(&mut Process)| {
        let mut all = processes(&settings, DEALT[0], 16);
        change(&mut all[1]);
        let (begun, _) = sockets(all, DEALT[0], &settings);
        begun.err().expect("a refusal").to_string()
    };
    let error = refusal(|process| process.isa = "another");
    assert!(error.contains("computes with another") && error.contains("HITHER_ISA"), "{error}");
    let error = refusal(|process| process.parts = 0..3);
    assert!(error.contains("it has 3 parts, not 1"), "{error}");
}
