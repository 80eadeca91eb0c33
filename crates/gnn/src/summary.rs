//! What a run says of itself: the header of its record, and its summary.

use hither_core::record::train::{Bytes, CriticalPath, Header, Setup, Summary, Times, Works};

use crate::train::Trainer;

impl Trainer {
    /// What is trained, on what. `partition` says how it was cut.
    pub fn header(&self, hither: &str, partition: &str, cut_share: f64) -> Header {
        let (data, settings) = (&self.data, &self.settings);
        let kinds: Vec<&str> = self.model.spec.layers.iter().map(|kind| kind.name()).collect();
        Header {
            hither: hither.into(),
            dataset: data.name.clone(),
            nodes: data.graph.nodes() as u64,
            edges: data.graph.edges() as u64,
            features: data.features.dim() as u64,
            classes: data.labels.count() as u64,
            metric: settings.task.metric(data),
            mode: settings.mode.name().into(),
            model: kinds.join(","),
            parameters: self.model.params_len() as u64,
            parts: self.parts as u32,
            partition: partition.into(),
            cut_share,
            rounds: settings.rounds,
            seed: settings.seed,
        }
    }

    /// The result of the rounds so far.
    pub fn summary(&self) -> Summary {
        let mut bytes = Bytes { features_down_bytes: self.setup_bytes, ..Bytes::default() };
        let (mut work, mut path) = (Works::default(), CriticalPath::default());
        let mut time = Times::default();
        for round in &self.rounds {
            bytes.add(&round.bytes);
            work.add(&round.work);
            path.add(&round.path);
            time.add(&round.time);
        }
        let best = self.best.as_ref();
        Summary {
            mode: self.settings.mode.name().into(),
            seed: self.settings.seed,
            rounds: self.rounds.len() as u32,
            best_round: best.map_or(0, |best| best.round),
            valid: best.and_then(|best| best.valid),
            test: best.map_or(0.0, |best| best.test),
            server_steps: self.rounds.iter().map(|round| u64::from(round.server_steps)).sum(),
            bytes,
            work,
            path,
            time,
            setup: Setup::default(),
            classes: vec![],
        }
    }
}
