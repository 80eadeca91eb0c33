//! Settings of the workload generator, from a TOML file or from command-line words.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::read::Error;
use crate::read::table::{GPUS_MAX, TIME_MAX_S};

const JOBS_MAX: u64 = 10_000_000;

/// A workload to draw. Either `span_s`, or `load` with `gpus`, sets how fast jobs arrive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generate {
    pub jobs: u64,
    /// Time within which all jobs arrive, in seconds.
    #[serde(default)]
    pub span_s: Option<f64>,
    /// Offered GPU time over what `gpus` GPUs give in the span.
    #[serde(default)]
    pub load: Option<f64>,
    #[serde(default)]
    pub gpus: Option<u32>,
    #[serde(default)]
    pub arrivals: Arrivals,
    #[serde(default)]
    pub demand: Demand,
    #[serde(default)]
    pub duration: Duration,
    /// Weights by model. Empty: by GPU-time class, as for traces that name no models.
    #[serde(default)]
    pub models: BTreeMap<String, f64>,
    #[serde(default = "default_users")]
    pub users: u32,
    #[serde(default)]
    pub seed: u64,
}

fn default_users() -> u32 {
    20
}

/// How arrivals are spread over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Independent of each other.
    #[default]
    Poisson,
    /// In bursts: the squared coefficient of variation of the gaps is about 34, and a third of the jobs
    /// arrive at the same moment as another.
    Bursty,
    /// At a rate that follows Philly's hours and days of the week, from Monday midnight.
    Diurnal,
    /// All at once.
    Batch,
}

/// How many GPUs jobs ask for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Demand {
    #[default]
    Philly,
    Helios,
    /// Of a cluster that trains language models, 1 to 600 GPUs.
    Lingjun,
    /// Of another, 1 to 1,024 GPUs.
    Kalos,
    /// Mostly 4 to 64 GPUs.
    Heavy,
    #[serde(untagged)]
    Custom(Weights),
}

/// Numbers of GPUs and how often each is drawn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    pub gpus: Vec<u32>,
    pub weights: Vec<f64>,
}

/// How long jobs run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Duration {
    /// By class of demand, as in the Philly trace.
    #[default]
    Philly,
    /// Log-normal with a median that grows with the demand, as in Helios' summary.
    Helios,
    /// Whatever the demand, as Lingjun's quantiles tell.
    Lingjun,
    Kalos,
    #[serde(untagged)]
    LogNormal {
        median_s: f64,
        sigma: f64,
    },
}

impl Default for Generate {
    fn default() -> Self {
        Self {
            jobs: 1000,
            span_s: None,
            load: None,
            gpus: None,
            arrivals: Arrivals::default(),
            demand: Demand::default(),
            duration: Duration::default(),
            models: BTreeMap::new(),
            users: default_users(),
            seed: 0,
        }
    }
}

/// A setting of the generator with a value that it cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {found}: must be {must_be}")]
pub struct SettingError {
    /// The key as in TOML: `jobs`, `span_s`, `duration.sigma`.
    pub key: Box<str>,
    pub found: Box<str>,
    /// Completes the sentence "must be …".
    pub must_be: Box<str>,
}

pub(super) fn wrong(key: &str, found: impl ToString, must_be: impl Into<Box<str>>) -> SettingError {
    SettingError { key: key.into(), found: found.to_string().into(), must_be: must_be.into() }
}

/// The line of a TOML file that sets a key; none where it is a key inside of an inline table.
fn line_of(text: &str, key: &str) -> Option<u64> {
    let first = key.split('.').next().unwrap_or(key);
    let sets = |line: &str| line.split('=').next().is_some_and(|word| word.trim() == first);
    (1..).zip(text.lines()).find(|(_, line)| sets(line)).map(|(number, _)| number)
}

impl Generate {
    pub fn parse_toml(text: &str, file: &str) -> Result<Self, Error> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let settings: Self = toml::from_str(text)
            .map_err(|error| Error::toml(file, text, "settings of the generator", &error))?;
        settings.check().map_err(|error| {
            let placed = Error::about(file, error.to_string());
            placed.at(line_of(text, &error.key).unwrap_or(1))
        })?;
        Ok(settings)
    }

    /// Whether every setting is within its bounds.
    pub fn check(&self) -> Result<(), SettingError> {
        if !(1..=JOBS_MAX).contains(&self.jobs) {
            return Err(wrong("jobs", self.jobs, format!("between 1 and {JOBS_MAX}")));
        }
        if !(1..=1_000_000).contains(&self.users) {
            return Err(wrong("users", self.users, "between 1 and 1000000"));
        }
        match (self.span_s, self.load, self.gpus) {
            (None, None, None) if self.arrivals == Arrivals::Batch => {}
            _ if self.arrivals == Arrivals::Batch => {
                let must_be = "another one than batch where span_s or load say when jobs arrive";
                return Err(wrong("arrivals", "batch", must_be));
            }
            (Some(span_s), None, None) if (1.0..=TIME_MAX_S).contains(&span_s) => {}
            (Some(span_s), None, None) => {
                return Err(wrong("span_s", span_s, format!("between 1 and {TIME_MAX_S}")));
            }
            (None, Some(load), Some(gpus)) => {
                if !(1e-6..=1e6).contains(&load) {
                    return Err(wrong("load", load, "between 0.000001 and 1000000"));
                }
                if gpus == 0 {
                    return Err(wrong("gpus", gpus, "at least 1"));
                }
            }
            (None, None, None) => {
                let must_be = "given, or else load together with gpus";
                return Err(wrong("span_s", "nothing", must_be));
            }
            (Some(span_s), ..) => {
                return Err(wrong("span_s", span_s, "left out where load and gpus are given"));
            }
            (None, Some(load), None) => {
                return Err(wrong("load", load, "given together with gpus"));
            }
            (None, None, Some(gpus)) => {
                return Err(wrong("gpus", gpus, "given together with load"));
            }
        }
        if let Demand::Custom(demand) = &self.demand {
            demand.check()?;
        }
        if let Duration::LogNormal { median_s, sigma } = self.duration {
            if !(1e-3..=1e7).contains(&median_s) {
                return Err(wrong("duration.median_s", median_s, "between 0.001 and 10000000"));
            }
            if !(0.0..=10.0).contains(&sigma) {
                return Err(wrong("duration.sigma", sigma, "between 0 and 10"));
            }
        }
        for (model, &weight) in &self.models {
            check_weight(&format!("models.{model}"), weight)?;
        }
        if !self.models.is_empty() && self.models.values().sum::<f64>() <= 0.0 {
            return Err(wrong("models", "only zeros", "weights of which one is above 0"));
        }
        Ok(())
    }
}

impl Weights {
    fn check(&self) -> Result<(), SettingError> {
        if self.gpus.len() != self.weights.len() || self.gpus.is_empty() {
            let found = format!("{} gpus, {} weights", self.gpus.len(), self.weights.len());
            return Err(wrong("demand", found, "as many weights as gpus, at least one of each"));
        }
        if let Some(gpus) = self.gpus.iter().find(|&&g| !(1..=GPUS_MAX).contains(&u64::from(g))) {
            return Err(wrong(
                "demand",
                gpus,
                format!("a number of GPUs between 1 and {GPUS_MAX}"),
            ));
        }
        for &weight in &self.weights {
            check_weight("demand", weight)?;
        }
        if self.weights.iter().sum::<f64>() <= 0.0 {
            return Err(wrong("demand", "only zeros", "weights of which one is above 0"));
        }
        Ok(())
    }
}

fn check_weight(key: &str, weight: f64) -> Result<(), SettingError> {
    if (0.0..=1e12).contains(&weight) {
        return Ok(());
    }
    Err(wrong(key, weight, "a weight between 0 and 1000000000000"))
}

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "poisson" => Ok(Self::Poisson),
            "bursty" => Ok(Self::Bursty),
            "diurnal" => Ok(Self::Diurnal),
            "batch" => Ok(Self::Batch),
            _ => Err("must be poisson, bursty, diurnal or batch".into()),
        }
    }
}

impl FromStr for Demand {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "philly" => return Ok(Self::Philly),
            "helios" => return Ok(Self::Helios),
            "lingjun" => return Ok(Self::Lingjun),
            "kalos" => return Ok(Self::Kalos),
            "heavy" => return Ok(Self::Heavy),
            _ => {}
        }
        let pairs: Option<Vec<(u32, f64)>> = text
            .split(',')
            .map(|pair| {
                let (gpus, weight) = pair.split_once(':')?;
                Some((gpus.trim().parse().ok()?, weight.trim().parse().ok()?))
            })
            .collect();
        let must_be =
            "must be philly, helios, lingjun, kalos, heavy, or GPUS:WEIGHT,… such as 1:5,8:1";
        let (gpus, weights) = pairs.ok_or(must_be)?.into_iter().unzip();
        let demand = Weights { gpus, weights };
        demand.check().map_err(|error| format!("{}: must be {}", error.found, error.must_be))?;
        Ok(Self::Custom(demand))
    }
}

impl FromStr for Duration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "philly" => return Ok(Self::Philly),
            "helios" => return Ok(Self::Helios),
            "lingjun" => return Ok(Self::Lingjun),
            "kalos" => return Ok(Self::Kalos),
            _ => {}
        }
        let numbers = text.split_once(':').and_then(|(median, sigma)| {
            Some((median.trim().parse().ok()?, sigma.trim().parse().ok()?))
        });
        let must_be = "must be philly, helios, lingjun, kalos, or MEDIAN_S:SIGMA such as 600:1.5";
        let (median_s, sigma) = numbers.ok_or(must_be)?;
        Ok(Self::LogNormal { median_s, sigma })
    }
}
