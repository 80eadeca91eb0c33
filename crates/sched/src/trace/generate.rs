//! Draws a workload. The distributions are data: `profiles/workloads.toml`, made by `profiles/fit.py`
//! from the Philly trace and Helios' summary, and `profiles/llm_workloads.toml`.

use std::sync::{Arc, LazyLock};

use hither_core::seed;
use rand::RngExt;
use rand_distr::{Exp1, StandardNormal};
use rand_pcg::Pcg64Mcg;
use serde::Deserialize;

use super::settings::{Arrivals, Demand, Duration, Generate, SettingError, Weights, wrong};
use crate::job::{Job, Length, Profile, Terms};
use crate::profile::Library;
use crate::read::table::TIME_MAX_S;

/// Drawn durations stay within these: a log-normal's tail has no end.
const DURATION_S: (f64, f64) = (1.0, 1e7);
const HOUR_S: f64 = 3600.0;
/// Share of the gaps between bursty arrivals that are nil. A job shares its moment unless the gaps on
/// both sides are longer: 1 − (1 − 0.1835)² is a third, as in the trace of Kalos.
const TOGETHER: f64 = 0.1835;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fitted {
    philly: Philly,
    helios: Helios,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Philly {
    gpus: Vec<u32>,
    weights: Vec<f64>,
    /// Relative arrival rates by hour of the day and day of the week.
    hours: Vec<f64>,
    days: Vec<f64>,
    quantiles: Vec<f64>,
    duration: Vec<DurationClass>,
}

/// Durations of jobs of up to `gpus_max` GPUs at the quantiles.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DurationClass {
    gpus_max: u32,
    seconds: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Helios {
    gpus: Vec<u32>,
    weights: Vec<f64>,
    median_s: f64,
    sigma: f64,
    growth: f64,
}

/// Clusters of which a few quantiles of the run time are known.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    lingjun: Histogram,
    kalos: Histogram,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Histogram {
    gpus: Vec<u32>,
    weights: Vec<f64>,
    quantiles: Vec<f64>,
    seconds: Vec<f64>,
}

static PUBLISHED: LazyLock<Published> = LazyLock::new(|| {
    toml::from_str(include_str!("../../profiles/llm_workloads.toml"))
        .expect("a test parses the shipped workloads")
});

static FITTED: LazyLock<Fitted> = LazyLock::new(|| {
    toml::from_str(include_str!("../../profiles/workloads.toml"))
        .expect("a test parses the shipped workloads")
});

/// The jobs in order of submission, the first at 0. Each quantity draws from a stream of its own,
/// so that a change of one setting leaves the other quantities as they were.
pub fn generate(settings: &Generate, library: &Library) -> Result<Vec<Job>, SettingError> {
    settings.check()?;
    let count = settings.jobs as usize;
    let demand = demands(&settings.demand, count, settings.seed);
    let duration_s = durations(&settings.duration, &demand, settings.seed);
    let span_s = match (settings.load, settings.gpus) {
        (Some(load), Some(gpus)) => {
            let offered: f64 = demand.iter().zip(&duration_s).map(|(&g, d)| f64::from(g) * d).sum();
            offered / (load * f64::from(gpus))
        }
        _ => settings.span_s.unwrap_or(0.0),
    };
    if span_s > TIME_MAX_S {
        let must_be =
            format!("higher: the jobs would arrive over {span_s} s, above {TIME_MAX_S} s");
        return Err(wrong("load", settings.load.unwrap_or(0.0), must_be));
    }
    let submit_s = arrivals(settings.arrivals, span_s, count, settings.seed);
    let models = models(settings, library)?;
    let mut model_draws = seed::stream(settings.seed, "generate models");
    let mut user_draws = seed::stream(settings.seed, "generate users");
    let jobs = (0..count).map(|i| {
        let profile = match &models {
            Some(mix) => mix.profiles[mix.wheel.draw(&mut model_draws)].clone(),
            None => library.assign(demand[i], duration_s[i], &mut model_draws),
        };
        // The square of a uniform draw: a few users submit most of the jobs, as on real clusters.
        let user: f64 = user_draws.random();
        let user = 1 + (user * user * f64::from(settings.users)) as u32;
        Job {
            name: (i + 1).to_string(),
            user: format!("user{user}"),
            gpus: demand[i],
            terms: Terms::default(),
            gpu_type: None,
            submit_s: submit_s[i],
            length: Length::Seconds(duration_s[i]),
            profile,
        }
    });
    Ok(jobs.collect())
}

/// Models by weight, as the settings ask for.
struct Mix {
    profiles: Vec<Arc<Profile>>,
    wheel: Wheel,
}

/// None where the GPU-time class decides.
fn models(settings: &Generate, library: &Library) -> Result<Option<Mix>, SettingError> {
    if settings.models.is_empty() {
        return Ok(None);
    }
    let profiles: Result<Vec<Arc<Profile>>, SettingError> = settings
        .models
        .keys()
        .map(|model| {
            library.get(model).cloned().ok_or_else(|| {
                let known = library.known();
                let must_be =
                    format!("described in a file given by --profiles FILE, or one of {known}");
                wrong("models", model, must_be)
            })
        })
        .collect();
    Ok(Some(Mix { profiles: profiles?, wheel: Wheel::new(settings.models.values()) }))
}

/// Draws an index by weight.
struct Wheel {
    sums: Vec<f64>,
}

impl Wheel {
    fn new<'a>(weights: impl IntoIterator<Item = &'a f64>) -> Self {
        let mut sum = 0.0;
        let sums = weights
            .into_iter()
            .map(|weight| {
                sum += weight;
                sum
            })
            .collect();
        Self { sums }
    }

    fn draw(&self, draws: &mut Pcg64Mcg) -> usize {
        let last = self.sums.len() - 1;
        let target = draws.random::<f64>() * self.sums[last];
        self.sums.partition_point(|&sum| sum <= target).min(last)
    }
}

fn demands(demand: &Demand, count: usize, seed: u64) -> Vec<u32> {
    let heavy = || Weights {
        gpus: vec![1, 2, 4, 8, 16, 32, 64],
        weights: vec![5.0, 5.0, 20.0, 30.0, 20.0, 12.0, 8.0],
    };
    let of =
        |gpus: &[u32], weights: &[f64]| Weights { gpus: gpus.to_vec(), weights: weights.to_vec() };
    let table = match demand {
        Demand::Philly => of(&FITTED.philly.gpus, &FITTED.philly.weights),
        Demand::Helios => of(&FITTED.helios.gpus, &FITTED.helios.weights),
        Demand::Lingjun => of(&PUBLISHED.lingjun.gpus, &PUBLISHED.lingjun.weights),
        Demand::Kalos => of(&PUBLISHED.kalos.gpus, &PUBLISHED.kalos.weights),
        Demand::Heavy => heavy(),
        Demand::Custom(weights) => weights.clone(),
    };
    let wheel = Wheel::new(&table.weights);
    let mut draws = seed::stream(seed, "generate demand");
    (0..count).map(|_| table.gpus[wheel.draw(&mut draws)]).collect()
}

fn durations(duration: &Duration, demand: &[u32], seed: u64) -> Vec<f64> {
    let mut draws = seed::stream(seed, "generate duration");
    let log_normal = |draws: &mut Pcg64Mcg, median_s: f64, sigma: f64| {
        median_s * (sigma * draws.sample::<f64, _>(StandardNormal)).exp()
    };
    let draw = |&gpus: &u32| {
        let seconds = match *duration {
            Duration::Philly => philly_duration_s(gpus, draws.random()),
            Duration::Helios => {
                let fit = &FITTED.helios;
                let median_s = fit.median_s * f64::from(gpus).powf(fit.growth);
                log_normal(&mut draws, median_s, fit.sigma)
            }
            Duration::Lingjun => published_duration_s(&PUBLISHED.lingjun, draws.random()),
            Duration::Kalos => published_duration_s(&PUBLISHED.kalos, draws.random()),
            Duration::LogNormal { median_s, sigma } => log_normal(&mut draws, median_s, sigma),
        };
        milliseconds(seconds.clamp(DURATION_S.0, DURATION_S.1))
    };
    demand.iter().map(draw).collect()
}

fn philly_duration_s(gpus: u32, uniform: f64) -> f64 {
    let fit = &FITTED.philly;
    let class = fit.duration.iter().find(|class| gpus <= class.gpus_max);
    let class = class.unwrap_or(&fit.duration[fit.duration.len() - 1]);
    between(&fit.quantiles, &class.seconds, uniform)
}

fn published_duration_s(histogram: &Histogram, uniform: f64) -> f64 {
    between(&histogram.quantiles, &histogram.seconds, uniform)
}

/// Between two known quantiles the logarithm of the duration is taken as linear.
fn between(quantiles: &[f64], seconds: &[f64], uniform: f64) -> f64 {
    let upper = quantiles.partition_point(|&q| q <= uniform).clamp(1, seconds.len() - 1);
    let (q0, q1) = (quantiles[upper - 1], quantiles[upper]);
    let (s0, s1) = (seconds[upper - 1], seconds[upper]);
    s0 * (s1 / s0).powf((uniform - q0) / (q1 - q0))
}

/// Sorted times from 0 to below `span_s`.
fn arrivals(arrivals: Arrivals, span_s: f64, count: usize, seed: u64) -> Vec<f64> {
    let mut draws = seed::stream(seed, "generate arrivals");
    // Gaps in any unit: dividing by their sum makes them fill the span.
    let gaps: Vec<f64> = match arrivals {
        Arrivals::Batch => return vec![0.0; count],
        Arrivals::Poisson | Arrivals::Diurnal => (0..count).map(|_| draws.sample(Exp1)).collect(),
        Arrivals::Bursty => (0..count)
            .map(|_| {
                // A third of the jobs arrive at the same moment as another. Most other gaps are a
                // tenth of the mean, one in twenty is long: bursts of about 20.
                let mean = match draws.random::<f64>() {
                    u if u < TOGETHER => 0.0,
                    u if u < 0.95 => 0.1,
                    _ => 18.5,
                };
                mean * draws.sample::<f64, _>(Exp1)
            })
            .collect(),
    };
    let total: f64 = gaps.iter().sum();
    let mut clock = 0.0;
    let shares = gaps.iter().map(|gap| {
        let share = clock / total;
        clock += gap;
        share
    });
    match arrivals {
        Arrivals::Diurnal => diurnal(shares, span_s),
        _ => shares.map(|share| milliseconds(share * span_s)).collect(),
    }
}

/// Moves each share of the span's jobs to the time by which that share has arrived.
fn diurnal(shares: impl Iterator<Item = f64>, span_s: f64) -> Vec<f64> {
    let fit = &FITTED.philly;
    let hours = (span_s / HOUR_S).ceil().max(1.0) as usize;
    // Jobs of the hour, relative; the last hour may be cut short by the end of the span.
    let weight = |hour: usize| {
        let part = (span_s / HOUR_S - hour as f64).clamp(0.0, 1.0);
        fit.hours[hour % 24] * fit.days[hour / 24 % 7] * part
    };
    let total: f64 = (0..hours).map(weight).sum();
    let (mut hour, mut before) = (0, 0.0);
    let mut first_s = None;
    let time = |share: f64| {
        let target = share * total;
        while hour + 1 < hours && before + weight(hour) <= target {
            before += weight(hour);
            hour += 1;
        }
        let part = ((target - before) / weight(hour).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
        let length_s = (span_s - hour as f64 * HOUR_S).min(HOUR_S);
        let time_s = milliseconds(hour as f64 * HOUR_S + part * length_s);
        time_s - *first_s.get_or_insert(time_s)
    };
    shares.map(time).collect()
}

/// Whole milliseconds keep files short and lose nothing that matters.
fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}
