//! Curves with few points, whatever the run's length: time series as means over equal spans of
//! the run's own time, so that a short run beside a long one keeps its shape; distributions on a
//! logarithmic grid that all runs of a page share.

use std::collections::BTreeMap;

use hither_core::record::{ClusterRow, EventRow, Happening};
use serde::Serialize;

use crate::format::rounded;
use crate::replay::{Gauges, Replay};

pub const POINTS: usize = 480;

/// Utilisation and fragmentation jump with every job on a small cluster: their curves are moving
/// means over this many points to either side.
const SMOOTH_REACH: usize = 10;
/// The same as a share of the run's length.
pub const SMOOTH_SHARE: f64 = (2 * SMOOTH_REACH + 1) as f64 / POINTS as f64;

/// When the run's record begins and ends.
pub fn bounds(events: &[EventRow]) -> Option<(f64, f64)> {
    let mut times = events.iter().map(|e| e.t).filter(|t| t.is_finite());
    let first = times.next()?;
    Some(times.fold((first, first), |(lo, hi), t| (lo.min(t), hi.max(t))))
}

/// Time-weighted means of the gauges in each of `POINTS` equal spans of the run; empty for a run
/// without length.
#[derive(Debug, Default, Serialize)]
pub struct OverTime {
    pub utilisation: Vec<f64>,
    pub fragmentation: Vec<f64>,
    pub waiting: Vec<f64>,
}

pub fn over_time(cluster: &ClusterRow, events: &[EventRow]) -> OverTime {
    let Some((start, end)) = bounds(events) else { return OverTime::default() };
    let mut sums = Means::new(end - start);
    let mut replay = Replay::new(cluster);
    let mut now = 0.0;
    for event in events.iter().filter(|e| e.t.is_finite()) {
        let t = event.t - start;
        let Gauges { utilisation, fragmentation, waiting } = replay.gauges();
        sums.add(now, t, [utilisation, fragmentation, waiting]);
        replay.apply(event);
        now = t;
    }
    let [utilisation, fragmentation, waiting] = sums.curves();
    let (utilisation, fragmentation) = (smoothed(&utilisation), smoothed(&fragmentation));
    OverTime { utilisation, fragmentation, waiting }
}

/// How loaded the links of one level are over time, as shares of their bandwidth.
#[derive(Debug, Serialize)]
pub struct LinkCurves {
    pub mean: Vec<f64>,
    pub busiest: Vec<f64>,
}

/// By level, the machines' links first; empty if the run has no rows about links.
pub fn links(events: &[EventRow]) -> Vec<LinkCurves> {
    let Some((start, end)) = bounds(events) else { return Vec::new() };
    let mut levels: Vec<Means<2>> = Vec::new();
    let mut from = 0.0;
    for event in events.iter().filter(|e| e.t.is_finite()) {
        let Happening::Links { mean, busiest } = &event.what else { continue };
        let to = event.t - start;
        levels.resize_with(levels.len().max(mean.len()), || Means::new(end - start));
        for (sums, loads) in levels.iter_mut().zip(mean.iter().zip(busiest)) {
            sums.add(from, to, [*loads.0, *loads.1]);
        }
        from = to;
    }
    let curves = |sums: Means<2>| {
        let [mean, busiest] = sums.curves();
        LinkCurves { mean, busiest }
    };
    levels.into_iter().map(curves).collect()
}

/// Means of N quantities over each of `POINTS` equal spans.
struct Means<const N: usize> {
    width_s: f64,
    sums: Vec<[f64; N]>,
}

impl<const N: usize> Means<N> {
    fn new(length_s: f64) -> Self {
        Self { width_s: length_s / POINTS as f64, sums: vec![[0.0; N]; POINTS] }
    }

    fn slot(&self, t: f64) -> usize {
        ((t / self.width_s) as usize).min(POINTS - 1)
    }

    fn add(&mut self, from: f64, to: f64, values: [f64; N]) {
        // Not `from >= to`: rows out of order or a record without length must add nothing.
        if !(from < to && self.width_s > 0.0) {
            return;
        }
        for slot in self.slot(from)..=self.slot(to) {
            let lo = from.max(slot as f64 * self.width_s);
            let hi = to.min((slot + 1) as f64 * self.width_s);
            for (sum, value) in self.sums[slot].iter_mut().zip(values) {
                *sum += value * (hi - lo).max(0.0);
            }
        }
    }

    /// Empty without length.
    fn curves(self) -> [Vec<f64>; N] {
        std::array::from_fn(|at| match self.width_s > 0.0 {
            true => self.sums.iter().map(|sums| rounded(sums[at] / self.width_s)).collect(),
            false => Vec::new(),
        })
    }
}

fn smoothed(values: &[f64]) -> Vec<f64> {
    let around = |i: usize| {
        let window =
            &values[i.saturating_sub(SMOOTH_REACH)..values.len().min(i + SMOOTH_REACH + 1)];
        rounded(window.iter().sum::<f64>() / window.len() as f64)
    };
    (0..values.len()).map(around).collect()
}

/// The delay timers of one demand at the end of each of `POINTS` equal spans of the run; `None`
/// before they were set.
#[derive(Debug, PartialEq, Serialize)]
pub struct Timers {
    pub gpus: u32,
    /// By level of the cluster.
    pub levels: Vec<Vec<Option<f64>>>,
}

/// The moments at which the timers of a demand changed, and what they changed to.
type Changes<'a> = Vec<(f64, &'a BTreeMap<String, f64>)>;

pub fn timers(cluster: &ClusterRow, events: &[EventRow]) -> Vec<Timers> {
    let Some((start, end)) = bounds(events) else { return Vec::new() };
    let width_s = (end - start) / POINTS as f64;
    // The widest level has no timer: a job takes it when all others have run out.
    let timed = cluster.levels.len().saturating_sub(1);
    let names: Vec<String> =
        cluster.levels[..timed].iter().map(|level| format!("{}_s", level.name)).collect();
    let mut changes: BTreeMap<u32, Changes<'_>> = BTreeMap::new();
    for event in events {
        if let Happening::Timers { gpus, timers_s } = &event.what {
            changes.entry(*gpus).or_default().push((event.t - start, timers_s));
        }
    }
    let curve = |(gpus, changes): (u32, Changes<'_>)| {
        let mut levels = vec![Vec::new(); names.len()];
        for slot in 0..POINTS {
            let until = (slot + 1) as f64 * width_s;
            let seen = changes.partition_point(|change| change.0 <= until);
            let current = seen.checked_sub(1).map(|i| changes[i].1);
            for (name, level) in names.iter().zip(&mut levels) {
                level.push(current.and_then(|timers_s| timers_s.get(name)).map(|s| rounded(*s)));
            }
        }
        Timers { gpus, levels }
    };
    changes.into_iter().map(curve).collect()
}

/// The shortest time that a logarithmic axis shows; shorter ones count as this.
pub const LOG_FLOOR_S: f64 = 1.0;

/// A logarithmic grid over all samples.
pub fn log_grid(samples: &[Vec<f64>]) -> Vec<f64> {
    let finite = || samples.iter().flatten().copied().filter(|v| v.is_finite());
    let lo = finite().fold(f64::INFINITY, f64::min).max(LOG_FLOOR_S);
    let hi = finite().fold(LOG_FLOOR_S, f64::max);
    if !lo.is_finite() {
        return Vec::new();
    }
    // A little room on both sides, and an axis even where all values are equal.
    let (lo, hi) = ((lo / 1.1).max(LOG_FLOOR_S).ln(), (hi.max(lo) * 1.1).ln());
    let step = (hi - lo) / (POINTS - 1) as f64;
    (0..POINTS).map(|i| rounded((lo + step * i as f64).exp())).collect()
}

/// Share of the values that are at most each grid point.
pub fn cdf(values: &[f64], grid: &[f64]) -> Vec<f64> {
    if values.is_empty() {
        return Vec::new();
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let share = |x: &f64| sorted.partition_point(|v| v <= x) as f64 / sorted.len() as f64;
    grid.iter().map(share).map(rounded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::record::{LevelRow, MachineRow};

    fn cluster() -> ClusterRow {
        let machine = MachineRow { name: "m".into(), parent: 0, gpus: 4, gpu_type: "x".into() };
        ClusterRow { name: "c".into(), levels: LevelRow::racks(["r"]), machines: vec![machine] }
    }

    fn at(t: f64, what: Happening) -> EventRow {
        EventRow { t, what }
    }

    #[test]
    fn means_keep_the_area_under_the_curve() {
        // 4 of 4 GPUs from 10.3 to 57.9 of 100 seconds, whatever the grid cuts.
        let events = [
            at(0.0, Happening::Arrive { job: 0, gpus: 4 }),
            at(10.3, Happening::Start { job: 0, tier: 0, machines: vec![(0, 4)], why: None }),
            at(57.9, Happening::Finish { job: 0 }),
            at(100.0, Happening::Arrive { job: 1, gpus: 1 }),
        ];
        let curves = over_time(&cluster(), &events);
        assert_eq!(curves.utilisation.len(), POINTS);
        let area = curves.utilisation.iter().sum::<f64>() * 100.0 / POINTS as f64;
        assert!((area - 47.6).abs() < 1e-2, "{area}");
        let waited = curves.waiting.iter().sum::<f64>() * 100.0 / POINTS as f64;
        assert!((waited - 10.3).abs() < 1e-3, "{waited}");
    }

    #[test]
    fn smoothing_is_a_mean_of_the_neighbours_there_are() {
        assert_eq!(smoothed(&[0.0, 1.0]), [0.5, 0.5]);
        let mut spike = vec![0.0; 40];
        spike[20] = 21.0;
        let curve = smoothed(&spike);
        assert_eq!((curve[9], curve[10], curve[29], curve[31]), (0.0, 1.0, 1.0, 0.0));
        assert!(smoothed(&[]).is_empty());
    }

    #[test]
    fn a_short_run_has_as_many_points_as_a_long_one() {
        let run = |length_s: f64| {
            [
                at(1000.0, Happening::Arrive { job: 0, gpus: 4 }),
                at(1000.0 + length_s, Happening::Cancel { job: 0 }),
            ]
        };
        for length_s in [50.0, 5e6] {
            let curves = over_time(&cluster(), &run(length_s));
            assert_eq!(curves.waiting.len(), POINTS);
            assert!(curves.waiting.iter().all(|w| *w == 1.0));
        }
    }

    #[test]
    fn a_record_without_length_or_order_is_survived() {
        let one = [at(5.0, Happening::Arrive { job: 0, gpus: 1 })];
        assert!(over_time(&cluster(), &one).waiting.is_empty());
        let wild = [
            at(9.0, Happening::Arrive { job: 0, gpus: 1 }),
            at(f64::NAN, Happening::Finish { job: 3 }),
            at(1.0, Happening::Finish { job: 0 }),
        ];
        assert_eq!(over_time(&cluster(), &wild).waiting.len(), POINTS);
        assert!(over_time(&cluster(), &[]).waiting.is_empty());
    }

    #[test]
    fn loads_of_links_hold_back_to_the_row_before() {
        let row = |t, racks: f64| {
            let (mean, busiest) = (vec![0.5, racks], vec![1.0, 2.0 * racks]);
            at(t, Happening::Links { mean, busiest })
        };
        let events = [
            at(1000.0, Happening::Arrive { job: 0, gpus: 1 }),
            row(1025.0, 0.4),
            row(1100.0, 0.1),
            at(1100.0, Happening::Finish { job: 0 }),
        ];
        let curves = links(&events);
        assert_eq!(curves.len(), 2);
        assert!(curves[0].mean.iter().all(|m| *m == 0.5));
        let (mean, busiest) = (&curves[1].mean, &curves[1].busiest);
        assert_eq!((mean[0], mean[POINTS / 4 - 1], mean[POINTS / 4]), (0.4, 0.4, 0.1));
        assert_eq!((busiest[0], *busiest.last().unwrap()), (0.8, 0.2));
        assert!(links(&events[..1]).is_empty());
    }

    #[test]
    fn timers_hold_until_they_change() {
        let timers_s =
            |machine_s| [("machine_s".into(), machine_s), ("rack_s".into(), 60.0)].into();
        let set =
            |t, machine_s| at(t, Happening::Timers { gpus: 8, timers_s: timers_s(machine_s) });
        let events = [at(0.0, Happening::Finish { job: 0 }), set(50.0, 30.0), set(75.0, 10.0)];
        let curves = timers(&cluster(), &events);
        assert_eq!(curves.len(), 1);
        assert_eq!(curves[0].levels.len(), 2, "machine and rack");
        let machine = &curves[0].levels[0];
        assert_eq!(
            (machine[0], machine[POINTS * 3 / 4], *machine.last().unwrap()),
            (None, Some(30.0), Some(10.0))
        );
        assert_eq!(machine.len(), POINTS);
    }

    #[test]
    fn cdf_counts_zeros_and_ends_at_one() {
        let values = vec![0.0, 0.0, 10.0, 1000.0];
        let grid = log_grid(std::slice::from_ref(&values));
        let curve = cdf(&values, &grid);
        assert_eq!(grid.len(), POINTS);
        assert_eq!((grid[0], curve[0], curve[POINTS - 1]), (LOG_FLOOR_S, 0.5, 1.0));
        assert!(curve.windows(2).all(|w| w[0] <= w[1]));
        assert!(grid.windows(2).all(|w| w[0] < w[1]));
    }

    #[test]
    fn cdf_of_nothing_or_of_equal_values() {
        assert!(log_grid(&[vec![]]).is_empty());
        let grid = log_grid(&[vec![60.0, 60.0]]);
        assert!(grid[0] < 60.0 && grid[POINTS - 1] > 60.0);
        let zeros = log_grid(&[vec![0.0]]);
        assert!(zeros.windows(2).all(|w| w[0] <= w[1]) && zeros[POINTS - 1] > zeros[0]);
    }
}
