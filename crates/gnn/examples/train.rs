//! Trains on a graph from a program: with progress, a stop, a resumption and predictions.
//!
//! ```text
//! cargo run --release -p hither-gnn --example train -- examples/graph out/
//! ```

use std::path::Path;
use std::time::Instant;

use hither_gnn::load::{self, Options};
use hither_gnn::run::Run;
use hither_gnn::{Error, TrainConfig};

pub fn train(graph: &Path, out: &Path, rounds_now: usize) -> Result<bool, Error> {
    let data = load::open(graph, &Options::default())?;
    let mut config = TrainConfig::default();
    (config.model.model, config.model.hidden) = (Some("gcn".into()), 32);
    config.run.rounds = 20;
    // A new run, or the one in `out`, from its last checkpoint.
    let mut run = Run::open(out, &config, data)?;
    let (start, before) = (Instant::now(), run.rounds().len());
    while !run.is_done() {
        let round = run.step(&|| start.elapsed().as_secs_f64())?;
        println!("round {}: loss {:.3}, validation {:?}", round.round, round.loss, round.valid);
        if run.rounds().len() - before == rounds_now {
            return run.save().map(|()| false);
        }
    }
    let summary = run.finish()?.summary;
    let logits = run.predict()?.logits;
    println!("test {:.3}, {} outputs", summary.test, logits.len());
    Ok(true)
}

#[allow(dead_code)]
fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().collect();
    let (graph, out) = (Path::new(&words[1]), Path::new(&words[2]));
    // Stopped half way, as by a signal, and taken up again.
    let is_done = train(graph, out, 10)?;
    assert!(is_done || train(graph, out, usize::MAX)?);
    Ok(())
}
