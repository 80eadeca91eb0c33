//! The generator: what is asked for is what comes out, and it resembles what it was fitted to.

use std::collections::BTreeMap;

use hither_core::summary::quantile;
use hither_sched::job::{Job, Length};
use hither_sched::profile::Library;
use hither_sched::trace::{self, Arrivals, Demand, Duration, Generate, ReadOptions, Trace};
use proptest::prelude::*;

fn draw(settings: &Generate) -> Vec<Job> {
    trace::generate(settings, &Library::builtin()).unwrap_or_else(|error| panic!("{error}"))
}

fn seconds(job: &Job) -> f64 {
    match job.length {
        Length::Seconds(seconds) => seconds,
        Length::Iterations(_) | Length::Unknown => panic!("the generator draws seconds"),
    }
}

#[test]
fn offered_load_is_met() {
    for arrivals in [Arrivals::Poisson, Arrivals::Bursty, Arrivals::Diurnal] {
        let settings = Generate {
            jobs: 20_000,
            load: Some(0.8),
            gpus: Some(512),
            arrivals,
            seed: 3,
            ..Generate::default()
        };
        let jobs = draw(&settings);
        assert_eq!(jobs[0].submit_s, 0.0);
        assert!(jobs.is_sorted_by(|a, b| a.submit_s <= b.submit_s));
        let offered: f64 = jobs.iter().map(|job| f64::from(job.gpus) * seconds(job)).sum();
        let load = offered / (512.0 * jobs.last().unwrap().submit_s);
        assert!((load - 0.8).abs() < 0.02, "{arrivals:?} {load}");
    }
}

#[test]
fn one_setting_does_not_disturb_the_others() {
    let base = Generate { jobs: 500, span_s: Some(1e5), seed: 9, ..Generate::default() };
    let changed = Generate {
        models: BTreeMap::from([("bert".into(), 1.0)]),
        arrivals: Arrivals::Bursty,
        ..base.clone()
    };
    let (base, changed) = (draw(&base), draw(&changed));
    for (a, b) in base.iter().zip(&changed) {
        assert_eq!((a.gpus, seconds(a), &a.user), (b.gpus, seconds(b), &b.user));
        assert_eq!(b.profile.name, "bert");
    }
}

#[test]
fn arrivals_have_their_shapes() {
    let of = |arrivals| {
        let span_s = (arrivals != Arrivals::Batch).then_some(28.0 * 86_400.0);
        draw(&Generate { jobs: 50_000, span_s, arrivals, seed: 5, ..Generate::default() })
    };
    let variation = |jobs: &[Job]| {
        let gaps: Vec<f64> = jobs.windows(2).map(|w| w[1].submit_s - w[0].submit_s).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64 / mean / mean
    };
    assert!((variation(&of(Arrivals::Poisson)) - 1.0).abs() < 0.1);
    assert!((25.0..40.0).contains(&variation(&of(Arrivals::Bursty))));
    let diurnal = of(Arrivals::Diurnal);
    let at = |hour: u64| {
        diurnal.iter().filter(|job| (job.submit_s / 3600.0) as u64 % 24 == hour).count() as f64
    };
    assert!((at(7) / at(14) - 7159.0 / 2185.0).abs() < 0.4, "{} {}", at(7), at(14));
    assert!(of(Arrivals::Batch).iter().all(|job| job.submit_s == 0.0));
}

/// Helios publishes means and medians; the fit meets them.
#[test]
fn helios_means_and_medians() {
    let jobs = draw(&Generate {
        jobs: 1_000_000,
        span_s: Some(1e7),
        demand: Demand::Helios,
        duration: Duration::Helios,
        seed: 1,
        ..Generate::default()
    });
    let count = jobs.len() as f64;
    let gpus = jobs.iter().map(|job| f64::from(job.gpus)).sum::<f64>() / count;
    let gpu_s = jobs.iter().map(|job| f64::from(job.gpus) * seconds(job)).sum::<f64>() / count;
    let mut durations: Vec<f64> = jobs.iter().map(seconds).collect();
    durations.sort_by(f64::total_cmp);
    let near = |value: f64, wanted: f64, tolerance: f64| {
        assert!((value / wanted - 1.0).abs() < tolerance, "{value} for {wanted}");
    };
    near(gpus, 3.716, 0.02);
    near(quantile(&durations, 0.5), 206.0, 0.03);
    near(durations.iter().sum::<f64>() / count, 6651.681, 0.10);
    near(gpu_s, 49_351.0, 0.15);
}

/// Quantiles over all jobs within a tenth of the trace's. By class of demand the cumulated shares
/// differ by at most 0.03: where durations jump from minutes to hours within a hundredth of the
/// jobs, quantiles of a sample say little.
#[test]
fn philly_quantiles() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/traces/philly.csv");
    let Ok(bytes) = std::fs::read(path) else {
        eprintln!("skipped: {path} absent");
        return;
    };
    let library = Library::builtin();
    let options = ReadOptions { format: None, seed: 1, library: &library };
    let real = trace::read(&bytes, "philly.csv", &options).unwrap().jobs;
    let drawn =
        draw(&Generate { jobs: 400_000, span_s: Some(1e7), seed: 2, ..Generate::default() });
    for class in [1..=1_000_000, 1..=1, 4..=4, 8..=8] {
        let of = |jobs: &[Job]| {
            let mut durations: Vec<f64> =
                jobs.iter().filter(|job| class.contains(&job.gpus)).map(seconds).collect();
            durations.sort_by(f64::total_cmp);
            durations
        };
        let (real_s, drawn_s) = (of(&real), of(&drawn));
        let below = |sorted: &[f64], s: f64| {
            sorted.partition_point(|&value| value <= s) as f64 / sorted.len() as f64
        };
        for &s in real_s.iter().step_by(real_s.len() / 100) {
            let (wanted, found) = (below(&real_s, s), below(&drawn_s, s));
            assert!((found - wanted).abs() < 0.03, "{class:?} {s} s: {found} for {wanted}");
        }
        let share = |part: usize, all: usize| part as f64 / all as f64;
        let (wanted, found) = (share(real_s.len(), real.len()), share(drawn_s.len(), drawn.len()));
        assert!((found / wanted - 1.0).abs() < 0.05, "{class:?}: {found} for {wanted}");
        for q in [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99] {
            let (wanted, found) = (quantile(&real_s, q), quantile(&drawn_s, q));
            let close = (found / wanted - 1.0).abs() < 0.1;
            assert!(close || *class.start() > 1, "{class:?} {q}: {found} for {wanted}");
        }
    }
    let mean = |jobs: &[Job]| {
        jobs.iter().map(|job| f64::from(job.gpus) * seconds(job)).sum::<f64>() / jobs.len() as f64
    };
    let ratio = mean(&drawn) / mean(&real);
    assert!((ratio - 1.0).abs() < 0.1, "GPU time a job: {ratio}");
}

#[test]
fn settings_from_toml_and_words() {
    let text = "jobs = 10\nload = 0.9\ngpus = 64\narrivals = \"bursty\"\nseed = 4\n\
                demand = { gpus = [1, 8], weights = [3, 1] }\n\
                duration = { median_s = 600, sigma = 1.5 }\nmodels = { bert = 1, vgg16 = 2 }\n";
    let settings = Generate::parse_toml(text, "g.toml").unwrap();
    assert_eq!(settings.demand, "1:3,8:1".parse().unwrap());
    assert_eq!(settings.duration, "600:1.5".parse().unwrap());
    assert_eq!(settings.arrivals, "bursty".parse().unwrap());
    assert_eq!(draw(&settings).len(), 10);
    for (text, word) in [
        ("jobs = 0\nspan_s = 10", "jobs"),
        ("jobs = 99999999999\nspan_s = 10", "jobs"),
        ("jobs = 5", "span_s"),
        ("jobs = 5\nspan_s = nan", "span_s"),
        ("jobs = 5\nspan_s = 10\nload = 1\ngpus = 8", "span_s"),
        ("jobs = 5\nload = -1\ngpus = 8", "load"),
        ("jobs = 5\nspan_s = 10\nspeed = 1", "speed"),
        ("jobs = 5\nspan_s = 10\narrivals = \"batch\"", "batch"),
        ("jobs = 5\nspan_s = 10\ndemand = { gpus = [0], weights = [1] }", "demand"),
        ("jobs = 5\nspan_s = 10\nmodels = { bert = -1 }", "bert"),
        ("jobs = 5\nspan_s = 10\nduration = { median_s = inf, sigma = 1 }", "median_s"),
    ] {
        let error = Generate::parse_toml(text, "g.toml").unwrap_err().to_string();
        assert!(error.starts_with("g.toml") && error.contains(word), "{error}");
    }
    let unknown = Generate {
        jobs: 5,
        span_s: Some(10.0),
        models: BTreeMap::from([("my-net".into(), 1.0)]),
        ..Generate::default()
    };
    let error = trace::generate(&unknown, &Library::builtin()).unwrap_err().to_string();
    assert!(error.contains("--profiles"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// What is written is read back unchanged.
    #[test]
    fn csv_round_trip(seed in any::<u64>(), jobs in 1u64..200, name in "[ -~]{1,20}") {
        let mut jobs = draw(&Generate { jobs, span_s: Some(1e6), seed, ..Generate::default() });
        jobs[0].user = name.trim().into();
        let last = jobs.len() - 1;
        jobs[last].gpu_type = Some("a100".into());
        jobs[last].length = Length::Iterations(seed as f64 / 1e5 + 0.1);
        let library = Library::builtin();
        let options = ReadOptions { format: None, seed: 0, library: &library };
        let Trace { jobs: back, notes, .. } =
            trace::read(trace::write(&jobs).as_bytes(), "x.csv", &options).unwrap();
        prop_assert_eq!(back, jobs);
        prop_assert!(notes.is_empty());
    }
}

#[test]
fn clusters_that_train_language_models() {
    let of = |demand, duration| {
        draw(&Generate {
            jobs: 20_000,
            span_s: Some(1e6),
            arrivals: Arrivals::Bursty,
            demand,
            duration,
            ..Generate::default()
        })
    };
    let lingjun = of(Demand::Lingjun, Duration::Lingjun);
    let share = |jobs: &[Job], gpus: u32| {
        jobs.iter().filter(|job| job.gpus == gpus).count() as f64 / jobs.len() as f64
    };
    // 910 of 2,701 jobs ask for eight GPUs; 73 of Kalos' 319 for 512.
    assert!((share(&lingjun, 8) - 910.0 / 2701.0).abs() < 0.01);
    let kalos = of(Demand::Kalos, Duration::Kalos);
    assert!((share(&kalos, 512) - 73.0 / 319.0).abs() < 0.01);
    let median_s = |jobs: &[Job]| {
        let mut all: Vec<f64> = jobs.iter().map(seconds).collect();
        all.sort_by(f64::total_cmp);
        quantile(&all, 0.5)
    };
    assert!((median_s(&lingjun) / 240.0 - 1.0).abs() < 0.1);
    assert!((median_s(&kalos) / 310.0 - 1.0).abs() < 0.1);
    // A third arrive at the same moment as another.
    let together = |at: usize| {
        let beside = [at.checked_sub(1), Some(at + 1)].into_iter().flatten();
        let mut times = beside.filter_map(|n| kalos.get(n)).map(|job| job.submit_s);
        times.any(|s| s == kalos[at].submit_s)
    };
    let shared = (0..kalos.len()).filter(|&at| together(at)).count() as f64 / kalos.len() as f64;
    assert!((shared - 1.0 / 3.0).abs() < 0.05, "{shared}");
}
