//! Runs in folders: that they go on, what they refuse, and what configurations make of graphs.

use std::fs;
use std::path::Path;

use hither_core::record::train::{Bytes, Work};
use hither_gnn::config::{Facts, ServerConfig, StepCount, TrainBy, WorkerConfig};
use hither_gnn::generate::{self, Family};
use hither_gnn::local::Learnt;
use hither_gnn::run::Run;
use hither_gnn::train::Mode;
use hither_gnn::transport::{Answer, Order, PartFacts, Workers};
use hither_gnn::{Dataset, Error, Features, TrainConfig};
use tempfile::TempDir;

fn graph(seed: u64) -> Dataset {
    let family = generate::Settings::for_family(Family::NoisyFeatures, 400, seed);
    generate::generate(&generate::Settings { communities: 8, ..family }).expect("a graph")
}

/// Rounds of a small model, with llcg over four parts.
fn config(rounds: u32) -> TrainConfig {
    let mut config = TrainConfig::default();
    config.model.hidden = 8;
    config.steps.local_steps = 2;
    config.run.rounds = rounds;
    let workers = WorkerConfig { parts: Some(4), ..WorkerConfig::default() };
    config.by = TrainBy::Llcg(workers, ServerConfig::default());
    config
}

fn train(dir: &Path, config: &TrainConfig, data: Dataset, stop: Option<usize>) -> Run {
    let mut run = Run::open(dir, config, data).expect("a run");
    while !run.is_done() && stop.is_none_or(|stop| run.rounds().len() < stop) {
        run.step(&|| 0.0).expect("a round");
    }
    run.save().expect("a checkpoint");
    run
}

fn read(dir: &TempDir, name: &str) -> Vec<u8> {
    fs::read(dir.path().join(name)).expect("a file")
}

#[test]
fn a_stopped_run_goes_on_and_ends_with_the_same_files() {
    let (whole, stopped) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let mut run = train(whole.path(), &config(8), graph(1), None);
    let record = run.finish().expect("files");
    drop(train(stopped.path(), &config(8), graph(1), Some(3)));
    // A round after the checkpoint, whose row is there already: it is repeated.
    let mut again = Run::open(stopped.path(), &config(8), graph(1)).expect("the run");
    assert_eq!(again.rounds().len(), 3);
    again.step(&|| 0.0).expect("a round");
    drop(again);
    let mut run = train(stopped.path(), &config(8), graph(1), None);
    assert_eq!(run.finish().expect("files"), record);
    for name in ["model.safetensors", "metrics.jsonl", "predictions.csv", "summary.json"] {
        assert!(read(&whole, name) == read(&stopped, name), "{name} differs");
    }
    assert_eq!(run.predict().expect("outputs").logits.len(), 400 * record.header.classes as usize);
}

#[test]
fn changed_data_and_options_are_noticed() {
    let dir = TempDir::new().expect("a folder");
    drop(train(dir.path(), &config(4), graph(1), Some(2)));
    let refused = |config: &TrainConfig, data: Dataset| {
        Run::open(dir.path(), config, data).err().expect("a refusal").to_string()
    };
    // As many nodes and edges, and other numbers in one row of features.
    let mut changed = graph(1);
    let Features::Dense { values, dim } = &changed.features else { panic!("dense features") };
    let mut values = values.to_vec();
    values[7] += 1.0;
    changed.features = Features::Dense { values: values.into(), dim: *dim };
    let told = refused(&config(4), changed);
    assert!(told.contains("the files of the dataset have changed"), "{told}");
    let mut other = config(4);
    other.steps.lr = 0.5;
    let told = refused(&other, graph(1));
    assert!(told.contains("its lr is 0.01, not 0.5"), "{told}");
    Run::open(dir.path(), &config(9), graph(1)).expect("more rounds are fine");
}

#[test]
fn a_checkpoint_does_not_grow_with_the_rounds() {
    let dir = TempDir::new().expect("a folder");
    let size = |rounds: usize| {
        let mut config = config(60);
        config.run.eval_every = 60;
        drop(train(dir.path(), &config, graph(1), Some(rounds)));
        read(&dir, "checkpoint.safetensors").len()
    };
    assert!(size(50) <= size(2) + 64, "{} bytes, then {}", size(2), size(50));
}

#[test]
fn rows_that_were_changed_are_no_start() {
    let dir = TempDir::new().expect("a folder");
    drop(train(dir.path(), &config(6), graph(1), Some(4)));
    let path = dir.path().join("metrics.jsonl");
    let text = fs::read_to_string(&path).expect("rows");
    let three: Vec<&str> = text.lines().take(3).collect();
    for changed in [three.join("\n"), text.replacen("\"local_steps\":2", "\"local_steps\":3", 1)] {
        fs::write(&path, changed).expect("written");
        let told = Run::open(dir.path(), &config(6), graph(1)).err().expect("a refusal");
        assert!(told.to_string().contains("are not all in metrics.jsonl"), "{told}");
    }
}

#[test]
fn patience_counts_evaluations() {
    let rounds = |patience: u32, eval_every: u32| {
        let mut config = config(30);
        // Nothing is learnt, so nothing becomes better.
        (config.steps.lr, config.by) = (1e-9, TrainBy::Single);
        (config.run.patience, config.run.eval_every) = (Some(patience), eval_every);
        let mut run = Run::new(&config, graph(1)).expect("a run");
        while !run.is_done() {
            run.step(&|| 0.0).expect("a round");
        }
        run.rounds().len()
    };
    // The first evaluation is the best.
    assert_eq!(rounds(3, 1), 4);
    assert_eq!(rounds(2, 3), 9);
    // The product is more than 32 bits hold.
    assert_eq!(rounds(65_536, 65_536), 30);
}

/// Workers that hold no training nodes, and so have learnt nothing.
struct Idle(Vec<PartFacts>);

impl Workers for Idle {
    fn parts(&self) -> &[PartFacts] {
        &self.0
    }

    fn round(&mut self, order: &Order, _: &mut (dyn FnMut() + Send)) -> Result<Vec<Answer>, Error> {
        let learnt = || Learnt {
            weights: order.start.clone(),
            steps: 0,
            loss: 0.0,
            bytes: Bytes::default(),
            work: Work::default(),
        };
        Ok((0..self.0.len()).map(|part| Answer { part, learnt: learnt(), change: None }).collect())
    }

    fn save(&mut self, _: &Path, _: &str, _: u32) -> Result<(), Error> {
        Ok(())
    }

    fn restore(&mut self, _: &Path, _: &str, _: u32) -> Result<(), Error> {
        Ok(())
    }
}

#[test]
fn an_average_over_parts_without_training_nodes_changes_nothing() {
    let mut config = config(1);
    config.by = TrainBy::PsgdPa(WorkerConfig { parts: Some(4), ..WorkerConfig::default() });
    let data = std::sync::Arc::new(config.prepare(graph(1)).expect("a graph"));
    let plan = config.resolve(&Facts::of(&data)).expect("a plan");
    let cut = hither_gnn::run::Cut::of(&config, &data).expect("parts");
    let idle = Idle(vec![PartFacts { train_nodes: 0, bytes: 0 }; 4]);
    let mut run = Run::from_plan(plan, data, cut, Some(Box::new(idle))).expect("a run");
    let before = run.trainer.global.clone();
    run.step(&|| 0.0).expect("a round");
    assert_eq!(run.trainer.global, before);
}

type Change<'a> = &'a dyn Fn(&mut TrainConfig);

#[test]
fn options_that_nothing_uses_are_refused() {
    let data = graph(1);
    let refused = |change: &dyn Fn(&mut TrainConfig)| {
        let mut config = TrainConfig::default();
        change(&mut config);
        config.resolve(&Facts::of(&data)).expect_err("a refusal").to_string()
    };
    let cases: [(&str, Change); 9] = [
        ("--heads", &|config| config.model.heads = Some(4)),
        ("--alpha", &|config| config.model.alpha = Some(0.5)),
        ("--norm", &|config| config.model.norm = Some(hither_gnn::layer::Norm::Mean)),
        ("--negatives", &|config| config.links.negatives = Some(9)),
        ("--temperature", &|config| config.links.temperature = Some(0.2)),
        ("--length-power", &|config| config.links.length_power = Some(0.2)),
        ("--valid-share", &|config| config.links.valid_share = Some(0.2)),
        ("--test-share", &|config| config.links.test_share = Some(0.2)),
        ("--fanout", &|config| {
            config.steps.batch = Some(hither_gnn::config::Batch::Full);
            config.steps.fanout = Some(hither_gnn::sample::Fanout::AtMost(3));
        }),
    ];
    for (option, change) in cases {
        let told = refused(change);
        assert!(told.contains(option), "{told}");
    }
    let told = refused(&|config| {
        let server = ServerConfig { server_steps: Some(StepCount::Auto), ..Default::default() };
        config.by = TrainBy::ServerOnly(server);
    });
    assert!(told.contains("give a number of --server-steps"), "{told}");
}

#[test]
fn a_configuration_is_read_from_its_own_json_and_nothing_else() {
    let mut config = config(7);
    config.steps.fanout = Some(hither_gnn::sample::Fanout::PerHop(vec![5, 3]));
    let json = serde_json::to_string(&config).expect("JSON");
    assert_eq!(serde_json::from_str::<TrainConfig>(&json).expect("a configuration"), config);
    let some: TrainConfig = serde_json::from_str(r#"{"run": {"rounds": 3}}"#).expect("defaults");
    assert_eq!((some.run.rounds, some.by.mode()), (3, Mode::Single));
    let unknown = serde_json::from_str::<TrainConfig>(r#"{"run": {"round": 3}}"#);
    assert!(unknown.expect_err("unknown").to_string().contains("unknown field `round`"));
}

/// The example in `examples/train.rs`, as a program would be written.
#[path = "../examples/train.rs"]
mod example;

#[test]
fn the_example_trains_stops_and_goes_on() {
    let dir = TempDir::new().expect("a folder");
    let graph = Path::new("../../examples/graph");
    assert!(!example::train(graph, dir.path(), 10).expect("ten rounds"));
    assert!(!dir.path().join("model.safetensors").exists());
    assert!(example::train(graph, dir.path(), usize::MAX).expect("the rest"));
    assert_eq!(read(&dir, "metrics.jsonl").iter().filter(|byte| **byte == b'\n').count(), 20);
    assert!(dir.path().join("predictions.csv").exists());
}
