//! Every option that a scenario draws, and from which range. A test holds the table against the
//! options that there are.

use hither_core::Seconds;
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

use crate::policy::{Placing, Settings, dally};

/// One option of a policy.
#[derive(Debug)]
pub struct Drawn {
    pub option: &'static str,
    pub range: &'static str,
    draw: fn(&mut Settings, &mut Pcg64Mcg),
}

fn pick<T: Copy>(rng: &mut Pcg64Mcg, all: &[T]) -> T {
    all[rng.random_range(0..all.len())]
}

/// Seconds between two bounds, small and large ones equally likely.
fn seconds(rng: &mut Pcg64Mcg, min: Seconds, max: Seconds) -> Seconds {
    min * (max / min).powf(rng.random_range(0.0..1.0))
}

macro_rules! drawn {
    ($($option:literal, $range:literal, |$s:ident, $rng:ident| $draw:expr;)*) => {
        &[$(Drawn { option: $option, range: $range, draw: |$s, $rng| $draw }),*]
    };
}

const PLACINGS: &[Placing] = &[Placing::Skew, Placing::Close, Placing::Strict, Placing::ByProfile];

pub const OPTIONS: &[Drawn] = drawn![
    "dally.timers", "auto, fixed", |s, rng| s.dally.timers =
        pick(rng, &[dally::Timers::Auto, dally::Timers::Fixed]);
    "dally.machine_s", "1 to 50,000, or infinite", |s, rng| s.dally.machine_s =
        if rng.random_bool(0.1) { f64::INFINITY } else { seconds(rng, 1.0, 5e4) };
    "dally.rack_s", "1 to 50,000, or infinite", |s, rng| s.dally.rack_s =
        if rng.random_bool(0.1) { f64::INFINITY } else { seconds(rng, 1.0, 5e4) };
    "dally.level_s", "any level, 1 to 50,000", |s, rng| {
        let level = pick(rng, &["machine", "rack", "pod", "hall", "site"]);
        s.dally.level_s = [(level.into(), seconds(rng, 1.0, 5e4))].into();
    };
    "dally.score", "all", |s, rng| s.dally.score = pick(rng, &[
        dally::Score::TwoDLas,
        dally::Score::Left,
    ]);
    "dally.preempt", "true, false", |s, rng| s.dally.preempt = rng.random_bool(0.8);
    "dally.upgrade", "true, false", |s, rng| s.dally.upgrade = rng.random_bool(0.8);
    "dally.round_s", "10 to 3,600", |s, rng| s.dally.round_s = seconds(rng, 10.0, 3600.0);
    "dally.quantum_s", "0, or 1 to 3,600", |s, rng| s.dally.quantum_s =
        if rng.random_bool(0.1) { 0.0 } else { seconds(rng, 1.0, 3600.0) };
    "dally.damping", "1 to 4", |s, rng| s.dally.damping = rng.random_range(1.0..4.0);
    "dally.upgrade_gain", "0 to 4", |s, rng| s.dally.upgrade_gain = rng.random_range(0.0..4.0);
    "dally.overdue_s", "100 to 50,000, or infinite", |s, rng| s.dally.overdue_s =
        if rng.random_bool(0.2) { f64::INFINITY } else { seconds(rng, 100.0, 5e4) };
    "dally.anticipate", "true, false", |s, rng| s.dally.anticipate = rng.random_bool(0.8);
    "tiresias.thresholds", "none to three of 10 to 100,000", |s, rng| {
        let mut thresholds: Vec<f64> =
            (0..rng.random_range(0..4)).map(|_| seconds(rng, 10.0, 1e5)).collect();
        thresholds.sort_by(f64::total_cmp);
        s.tiresias.thresholds = thresholds;
    };
    "tiresias.promote_knob", "0.5 to 10, or infinite", |s, rng| s.tiresias.promote_knob =
        if rng.random_bool(0.5) { f64::INFINITY } else { rng.random_range(0.5..10.0) };
    "tiresias.quantiles", "none to three", |s, rng| {
        let mut quantiles: Vec<f64> =
            (0..rng.random_range(0..4)).map(|_| rng.random_range(0.0..1.0)).collect();
        quantiles.sort_by(f64::total_cmp);
        s.tiresias.quantiles = quantiles;
    };
    "tiresias.placing", "all", |s, rng| s.tiresias.placing = pick(rng, PLACINGS);
    "gandiva.slice_s", "10 to 600", |s, rng| s.gandiva.slice_s = seconds(rng, 10.0, 600.0);
    "gandiva.rebalance_s", "10 to 6,000", |s, rng| s.gandiva.rebalance_s =
        seconds(rng, 10.0, 6000.0);
    "gandiva.racks", "true, false", |s, rng| s.gandiva.racks = rng.random_bool(0.5);
    "themis.lease_s", "40 to 6,000", |s, rng| s.themis.lease_s = seconds(rng, 40.0, 6000.0);
    "themis.sensitive", "true, false", |s, rng| s.themis.sensitive = rng.random_bool(0.5);
    "themis.placing", "all", |s, rng| s.themis.placing = pick(rng, PLACINGS);
    "las.lease_s", "40 to 6,000", |s, rng| s.las.lease_s = seconds(rng, 40.0, 6000.0);
    "las.placing", "all", |s, rng| s.las.placing = pick(rng, PLACINGS);
    "srtf.placing", "all", |s, rng| s.srtf.placing = pick(rng, PLACINGS);
];

/// In half of the scenarios the shipped defaults, otherwise some or all options anew.
pub fn settings(rng: &mut Pcg64Mcg) -> Settings {
    let mut settings = Settings::default();
    let share = pick(rng, &[0.0, 0.0, 0.2, 1.0]);
    for option in OPTIONS {
        if rng.random_bool(share) {
            (option.draw)(&mut settings, rng);
        }
    }
    settings
}
