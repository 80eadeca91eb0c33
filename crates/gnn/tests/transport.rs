//! Workers behind sockets end with the same bytes as workers in threads.

use std::io;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use hither_core::Seconds;
use hither_core::record::train::Machine;
use hither_gnn::average::average;
use hither_gnn::correct::ServerSteps;
use hither_gnn::generate::{self, Family};
use hither_gnn::layer::Norm;
use hither_gnn::local::Pace;
use hither_gnn::model::{Kind, Model, Spec, Weights};
use hither_gnn::optim::Method;
use hither_gnn::partition::Partition;
use hither_gnn::sample::Fanout;
use hither_gnn::schedule::Schedule;
use hither_gnn::task::Task;
use hither_gnn::train::{Mode, Settings, Trainer};
use hither_gnn::transport::{
    Channel, Framed, Home, Lost, Order, Patience, ProcessFacts, Processes, Reduction, Straggler,
    Threads, Workers, serve,
};
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
        task: Task::Nodes,
        mode,
        rounds: 4,
        local_steps: 3,
        rho: 1.0,
        local: pace.clone(),
        server: pace,
        schedule: Schedule::Constant,
        server_steps: ServerSteps::Auto,
        server_share: 1.0,
        machine: Machine { sums_per_s: 1e9, products_per_s: 1e10, link_bytes_per_s: 1e9 },
        optimiser: Method::Adam,
        decay: 0.0,
        evaluate_every: 1,
        probe_every: 2,
        patience: None,
        copies: 0.0,
        updates: Updates::Fp32,
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
        layer_norm: false,
        residual: false,
        dropout: 0.2,
        steps: 1,
        alpha: 0.0,
        length_power: 1.0,
    })
    .expect("a model")
}

/// A process that holds some parts; here it is a thread.
struct Process {
    settings: Settings,
    parts: Range<usize>,
    hidden: usize,
    isa: &'static str,
    reduction: Option<Adding>,
}

/// Adds vectors of threads up: the others send theirs to the server.
#[derive(Clone)]
enum Adding {
    Server { from: Arc<Mutex<Receiver<Vec<f32>>>>, others: usize },
    Other(Sender<Vec<f32>>),
}

impl Reduction for Adding {
    fn sum(&mut self, mut own: Vec<f32>) -> io::Result<Vec<f32>> {
        match self {
            Self::Server { from, others } => {
                let from = from.lock().expect("no panic");
                for _ in 0..*others {
                    let other = from.recv().map_err(io::Error::other)?;
                    assert_eq!(own.len(), other.len());
                    own.iter_mut().zip(other).for_each(|(sum, value)| *sum += value);
                }
                Ok(own)
            }
            Self::Other(server) => {
                server.send(own).map_err(io::Error::other)?;
                Ok(vec![])
            }
        }
    }
}

fn options(settings: &Settings) -> String {
    format!("{settings:?}")
}

impl Home for Process {
    fn workers(&mut self, seed: u64, asked: &str) -> Result<Threads, Error> {
        assert_eq!((seed, asked), (self.settings.seed, &*options(&self.settings)));
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

    fn reduction(&mut self) -> Option<Box<dyn Reduction>> {
        self.reduction.clone().map(|adding| Box::new(adding) as Box<dyn Reduction>)
    }
}

type Served = Vec<JoinHandle<Result<bool, Error>>>;
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
    let run = (settings.seed, options(settings));
    (Processes::begin(channels, run, ISA, Box::new(|| 0.0), Patience::default()), served)
}

fn processes(settings: &Settings, parts: &[Range<usize>], hidden: usize) -> Vec<Process> {
    let process = |parts: &Range<usize>| Process {
        settings: settings.clone(),
        parts: parts.clone(),
        hidden,
        isa: ISA,
        reduction: None,
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

/// A trainer whose workers' models are added up on the way.
fn reduced(settings: &Settings, mut processes: Vec<Process>) -> Trainer {
    let (data, partition) = graph();
    let (to_server, from) = channel();
    for process in &mut processes {
        process.reduction = Some(Adding::Other(to_server.clone()));
    }
    let (from, others) = (Arc::new(Mutex::new(from)), processes.len());
    let parts: Vec<Range<usize>> = processes.iter().map(|process| process.parts.clone()).collect();
    let (workers, _) = sockets(processes, &parts, settings);
    let adding = Box::new(Adding::Server { from, others });
    let workers = Box::new(workers.expect("all are ready").reduced_by(adding));
    let model = Arc::new(model(&data, 16));
    Trainer::with_workers(settings.clone(), model, data, &partition, workers)
}

#[test]
fn models_added_up_on_the_way_differ_in_last_bits_only() {
    let settings = Settings { probe_every: 0, ..settings(Mode::PsgdPa) };
    let mut threads = over_threads(&settings);
    run(&mut threads, 1);
    for dealt in DEALT {
        let mut trainer = reduced(&settings, processes(&settings, dealt, 16));
        run(&mut trainer, 1);
        let both = |of: fn(&Weights) -> &Vec<f32>| {
            assert!(!of(&threads.global).is_empty());
            assert_eq!(of(&trainer.global).len(), of(&threads.global).len());
            of(&trainer.global).iter().zip(of(&threads.global))
        };
        for (a, b) in both(|weights| &weights.params).chain(both(|weights| &weights.stats)) {
            assert!((a - b).abs() <= 1e-6 * b.abs().max(0.1), "{a} {b}");
        }
        assert_eq!(trainer.rounds[0].bytes, threads.rounds[0].bytes);
        // One model comes from each process, however many parts it has.
        let model_bytes = trainer.global.bytes();
        for process in trainer.workers.report().expect("a report") {
            assert_eq!(process.up_bytes / model_bytes, 1);
        }
    }
}

#[test]
fn a_process_that_cannot_answer_holds_up_no_sum() {
    let settings = settings(Mode::PsgdPa);
    let mut processes = processes(&settings, DEALT[0], 16);
    processes[1].hidden = 8;
    let mut trainer = reduced(&settings, processes);
    let error = trainer.round(&|| 0.0).expect_err("another model").to_string();
    assert!(error.contains("give all processes the same options"), "{error}");
}

const COMPRESSED: [Updates; 2] = [Updates::Bf16, Updates::TopK { share: 0.1 }];

#[test]
fn compressed_updates_are_the_same_over_sockets_and_send_fewer_bytes() {
    for updates in COMPRESSED {
        let settings = Settings { updates, probe_every: 0, ..settings(Mode::Llcg) };
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
        checkpoint::restore(&mut second, &path).expect("restored");
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
        checkpoint::restore(second, &path).expect("restored");
        run(second, 4);
        assert_eq!(second.global, whole.global);
    }
}

#[test]
fn processes_report_what_they_sent_and_used() {
    // Without measuring drift, only models are sent.
    let settings = Settings { probe_every: 0, ..settings(Mode::PsgdPa) };
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
    assert!(gone.to_string().starts_with("the server stopped"), "{gone}");

    let (lost, other_end) = UnixStream::pair().expect("a pair of sockets");
    drop(other_end);
    let run = (settings.seed, options(&settings));
    let channels = [(Framed(lost), 2..3)];
    let begun = Processes::begin(channels, run, ISA, Box::new(|| 0.0), Patience::default());
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

/// A channel that can tell whether a message is there. At the end with a gate a message leaves only once the
/// gate is opened for it, and says so.
struct Pipe {
    to: Sender<Vec<u8>>,
    from: Receiver<Vec<u8>>,
    gate: Option<(Receiver<()>, Sender<()>)>,
}

impl Channel for Pipe {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if let Some((open, _)) = &self.gate {
            let _ = open.recv();
        }
        self.to.send(message.into()).map_err(io::Error::other)?;
        if let Some((_, passed)) = &self.gate {
            let _ = passed.send(());
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        self.from.recv().map_err(io::Error::other)
    }

    fn poll(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self.from.try_recv() {
            Ok(message) => Ok(Some(message)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

/// The gate of a worker, from outside. Dropped, it stays open.
struct Gate {
    open: Sender<()>,
    passed: Receiver<()>,
}

impl Gate {
    fn open_once(&self) {
        self.open.send(()).expect("a worker");
    }

    fn let_one_pass(&self) {
        self.open_once();
        self.passed.recv().expect("a message");
    }
}

/// A trainer with one process per part, of which the last is behind a gate.
fn behind_a_gate(settings: &Settings, patience: Patience) -> (Trainer, Gate) {
    let mut channels = vec![];
    let ((open, opened), (passes, passed)) = (channel(), channel());
    let mut gate = Some((opened, passes));
    for mut process in processes(settings, DEALT[0], 16) {
        let ((to_worker, from_server), (to_server, from_worker)) = (channel(), channel());
        let gate = if process.parts.end == PARTS { gate.take() } else { None };
        channels
            .push((Pipe { to: to_worker, from: from_worker, gate: None }, process.parts.clone()));
        let mut end = Pipe { to: to_server, from: from_server, gate };
        thread::spawn(move || serve(&mut process, &mut end));
    }
    let gate = Gate { open, passed };
    // For its reply that it is ready.
    gate.open_once();
    let start = Instant::now();
    let clock = Box::new(move || start.elapsed().as_secs_f64());
    let run = (settings.seed, options(settings));
    let workers = Processes::begin(channels, run, ISA, clock, patience).expect("all are ready");
    gate.passed.recv().expect("the reply");
    let (data, partition) = graph();
    let model = Arc::new(model(&data, 16));
    let workers = Box::new(workers);
    (Trainer::with_workers(settings.clone(), model, data, &partition, workers), gate)
}

/// What the workers learn in a round that begins at `start`, and the average over some of them.
fn averaged(workers: &mut Threads, round: u32, start: &Weights, parts: Range<usize>) -> Weights {
    let order = Order { round, steps: 3, start, probe: false, sums: None };
    let answers = workers.round(&order, &mut || {}).expect("answers");
    let nodes = |part: usize| workers.parts()[part].train_nodes;
    let all: usize = parts.clone().map(nodes).sum();
    let shares: Vec<f32> = parts.clone().map(|part| nodes(part) as f32 / all as f32).collect();
    let models: Vec<&Weights> =
        answers[parts].iter().map(|answer| &answer.learnt.weights).collect();
    average(&models, &shares)
}

#[test]
fn a_late_worker_is_left_out_of_one_round_and_gets_the_next_model() {
    let settings = Settings { probe_every: 0, ..settings(Mode::PsgdPa) };
    let straggler = Straggler::Skip { factor: 2.0 };
    let patience = Patience { straggler, lost: Lost::Wait };
    let (mut trainer, gate) = behind_a_gate(&settings, patience);
    let (data, partition) = graph();
    let mut workers = Threads::new(&settings, &Arc::new(model(&data, 16)), &data, &partition, None);

    let expected = averaged(&mut workers, 1, &trainer.global, 0..2);
    let first = trainer.round(&|| 0.0).expect("a round");
    assert_eq!(first.left_out, [2]);
    assert_eq!(trainer.global, expected);

    // Its answer comes too late: it is neither in the next average nor in the way of the next answer.
    gate.let_one_pass();
    gate.open_once();
    let expected = averaged(&mut workers, 2, &trainer.global, 0..3);
    let second = trainer.round(&|| 0.0).expect("a round");
    assert_eq!(second.left_out, Vec::<u32>::new());
    assert_eq!(trainer.global, expected);
    drop(gate);
}

#[test]
fn a_checkpoint_without_a_late_worker_lets_it_begin_anew() {
    let settings = settings(Mode::PsgdPa);
    let patience = Patience { straggler: Straggler::Wait, lost: Lost::Skip { silent_s: 0.2 } };
    let (mut trainer, gate) = behind_a_gate(&settings, patience);
    let round = trainer.round(&|| 0.0).expect("a round");
    assert_eq!(round.left_out, [2]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("checkpoint.safetensors");
    checkpoint::write(&mut trainer, &path).expect("written");
    let mut resumed = over_threads(&settings);
    checkpoint::restore(&mut resumed, &path).expect("restored");
    assert_eq!(resumed.global, trainer.global);
    assert_eq!(resumed.rounds, trainer.rounds);
    run(&mut resumed, 4);
    drop(gate);
}

#[test]
fn a_run_without_workers_that_answer_ends() {
    let settings = settings(Mode::PsgdPa);
    let patience = Patience { straggler: Straggler::Wait, lost: Lost::Skip { silent_s: 0.2 } };
    let ((to_worker, _kept), (_to_server, from_worker)) = (channel(), channel());
    let silent = Pipe { to: to_worker, from: from_worker, gate: None };
    let start = Instant::now();
    let clock = Box::new(move || start.elapsed().as_secs_f64());
    let run = (settings.seed, options(&settings));
    let begun = Processes::begin([(silent, 0..3)], run, ISA, clock, patience);
    let error = begun.err().expect("nobody is there").to_string();
    assert!(error.contains("nothing is heard of it"), "{error}");
}
