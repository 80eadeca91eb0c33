//! `config.toml` of a model in a repository.

use std::path::Path;
use std::time::Duration;

use hither_dlrm::plan::PageChoice;
use serde::{Deserialize, Serialize};

use crate::inputs::Form;
use crate::queue::Policy;

pub const CONFIG_FILE: &str = "config.toml";

/// All fields have defaults: a model needs no file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// The form of ids that the metadata describes; by default `matrix` if `ids_per_bag` is given,
    /// else `joined`.
    pub inputs: Option<Form>,
    /// Ids per bag, where it is fixed: one number for all tables, or one per table.
    pub ids_per_bag: Option<IdsPerBag>,
    /// Samples per request.
    pub max_batch_size: usize,
    /// Which versions are served.
    pub version_policy: VersionPolicy,
    /// The arithmetic of the MLPs; overrides the plan's.
    pub mlp: Option<Mlp>,
    /// Where tables are read from; overrides the plan's. Tables that are to be copied are served from
    /// the mapped file until the copy is complete.
    pub pages: Option<PageChoice>,
    /// What to do with ids outside their table.
    pub out_of_range: Reaction,
    /// Longer bags are refused.
    pub ids_per_bag_max: usize,
    /// Return scores that are not finite; by default a request with one is refused.
    pub allow_not_finite: bool,
    /// Microseconds that a request may wait, unless it says so itself; 0 for ever.
    pub timeout_us: u64,
    pub batching: Batching,
}

/// When batches are cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Batching {
    /// Samples per batch.
    pub samples_max: usize,
    /// Sizes that a waiting batch is cut at.
    pub samples_preferred: Vec<usize>,
    /// Microseconds that an incomplete batch waits for more requests.
    pub window_us: u64,
    /// Requests that may wait.
    pub queue_requests_max: usize,
    /// Samples that may wait.
    pub queue_samples_max: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IdsPerBag {
    All(usize),
    Each(Vec<usize>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VersionPolicy {
    /// The highest version numbers, this many.
    Latest(usize),
    All,
    Specific(Vec<u64>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mlp {
    Fp32,
    Bf16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reaction {
    /// The request fails.
    Refuse,
    /// The nearest row is taken, and metrics count it.
    Clamp,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            inputs: None,
            ids_per_bag: None,
            max_batch_size: 4096,
            version_policy: VersionPolicy::Latest(1),
            mlp: None,
            pages: None,
            out_of_range: Reaction::Refuse,
            ids_per_bag_max: 1 << 16,
            allow_not_finite: false,
            timeout_us: 0,
            batching: Batching::default(),
        }
    }
}

impl Default for Batching {
    fn default() -> Self {
        Self {
            samples_max: 4096,
            samples_preferred: Vec::new(),
            window_us: 0,
            queue_requests_max: 1024,
            queue_samples_max: 1 << 16,
        }
    }
}

impl ModelConfig {
    /// Reads a model's file; all defaults where there is none.
    pub fn read(dir: &Path) -> Result<Self, String> {
        let path = dir.join(CONFIG_FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
        };
        let config: Self = toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
            let line = before.matches('\n').count() + 1;
            format!("{}:{line}: {}", path.display(), error.message())
        })?;
        config.check().map_err(|problem| format!("{}: {problem}", path.display()))?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        let Batching {
            samples_max, samples_preferred, queue_requests_max, queue_samples_max, ..
        } = &self.batching;
        let within = |name: &str, value: usize, most: usize| match value {
            0 => Err(format!("{name} = 0: must be at least 1")),
            _ if value > most => Err(format!("{name} = {value}: must be at most {most}")),
            _ => Ok(()),
        };
        within("max_batch_size", self.max_batch_size, 1 << 20)?;
        within("ids_per_bag_max", self.ids_per_bag_max, 1 << 30)?;
        within("batching.samples_max", *samples_max, 1 << 20)?;
        within("batching.queue_requests_max", *queue_requests_max, 1 << 20)?;
        within("batching.queue_samples_max", *queue_samples_max, 1 << 30)?;
        if self.max_batch_size > *queue_samples_max {
            let max = self.max_batch_size;
            return Err(format!(
                "batching.queue_samples_max = {queue_samples_max}: must be at least max_batch_size, {max}"
            ));
        }
        if !samples_preferred.is_sorted() || samples_preferred.first() == Some(&0) {
            return Err("batching.samples_preferred: sizes must rise and be at least 1".into());
        }
        if matches!(self.version_policy, VersionPolicy::Latest(0)) {
            return Err("version_policy: latest = 0 would serve nothing".into());
        }
        if self.batching.window_us > 60_000_000 {
            return Err("batching.window_us: must be at most 60000000, a minute".into());
        }
        Ok(())
    }

    pub fn policy(&self) -> Policy {
        let batching = &self.batching;
        Policy {
            // A request is never cut.
            batch_cost_max: batching.samples_max.max(self.max_batch_size),
            batch_cost_preferred: batching.samples_preferred.clone(),
            window: Duration::from_micros(batching.window_us),
            queue_requests_max: batching.queue_requests_max,
            queue_cost_max: batching.queue_samples_max,
        }
    }

    pub fn timeout(&self) -> Option<Duration> {
        (self.timeout_us > 0).then(|| Duration::from_micros(self.timeout_us))
    }

    /// The form of the metadata, and the ids per bag of each of so many tables where they are fixed.
    pub fn form(&self, tables: usize) -> Result<(Form, Vec<usize>), String> {
        let ids_per_bag = match &self.ids_per_bag {
            None => Vec::new(),
            Some(IdsPerBag::All(ids)) => vec![*ids; tables],
            Some(IdsPerBag::Each(ids)) if ids.len() == tables => ids.clone(),
            Some(IdsPerBag::Each(ids)) => {
                let found = ids.len();
                return Err(format!(
                    "ids_per_bag has {found} numbers; the model has {tables} tables"
                ));
            }
        };
        if ids_per_bag.iter().any(|ids| *ids == 0 || *ids > self.ids_per_bag_max) {
            let max = self.ids_per_bag_max;
            return Err(format!("ids_per_bag: numbers must be between 1 and {max}"));
        }
        match (self.inputs, ids_per_bag.is_empty()) {
            (Some(Form::Matrix), true) => {
                Err("inputs = \"matrix\" needs ids_per_bag: 1 where every bag has one id".into())
            }
            (Some(form), _) => Ok((form, ids_per_bag)),
            (None, true) => Ok((Form::Joined, ids_per_bag)),
            (None, false) => Ok((Form::Matrix, ids_per_bag)),
        }
    }
}
