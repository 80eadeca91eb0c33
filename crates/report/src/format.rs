//! Formats numbers for people.

use hither_core::record::{ClusterRow, LevelRow};

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 86400.0;

/// Three significant digits in the unit that keeps the number small: `420 ms`, `3.42 h`, `12.5 d`.
pub fn duration(seconds: f64) -> String {
    match seconds.abs() {
        size if !size.is_finite() => "–".to_owned(),
        0.0 => "0 s".to_owned(),
        size => {
            let (unit_s, unit) = unit_of(size);
            let decimals = decimals(size / unit_s);
            format!("{:.decimals$} {unit}", seconds / unit_s)
        }
    }
}

fn unit_of(size_s: f64) -> (f64, &'static str) {
    match size_s {
        s if s < 1.0 => (0.001, "ms"),
        s if s < 2.0 * MINUTE => (1.0, "s"),
        s if s < 2.0 * HOUR => (MINUTE, "min"),
        s if s < 3.0 * DAY => (HOUR, "h"),
        _ => (DAY, "d"),
    }
}

/// Decimals that make three significant digits.
fn decimals(value: f64) -> usize {
    match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    }
}

/// The unit and the decimals that all times of a column share: with a unit per cell, 107 min above
/// 4.02 h would look larger.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeUnit {
    pub name: &'static str,
    pub size_s: f64,
    pub decimals: usize,
}

impl TimeUnit {
    /// The unit that fits the middle of the range, on a log scale, with decimals enough for the
    /// smallest value.
    pub fn for_column(seconds: impl IntoIterator<Item = f64>) -> Self {
        let sizes = seconds.into_iter().map(f64::abs).filter(|s| s.is_finite() && *s > 0.0);
        let (low, high) = sizes
            .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), s| (low.min(s), high.max(s)));
        if high == 0.0 {
            return Self { name: "s", size_s: 1.0, decimals: 0 };
        }
        let (size_s, name) = unit_of((low.ln() / 2.0 + high.ln() / 2.0).exp());
        let smallest = low / size_s;
        let decimals = match smallest {
            // Two significant digits, as far as that is of use.
            s if s < 0.1 => (1.0 - s.log10().floor()).min(5.0) as usize,
            s => decimals(s),
        };
        Self { name, size_s, decimals }
    }

    /// The figure without its unit; a dash where there is none.
    pub fn number(&self, seconds: f64) -> String {
        match seconds.is_finite() {
            true => format!("{:.*}", self.decimals, seconds / self.size_s),
            false => "–".to_owned(),
        }
    }

    pub fn text(&self, seconds: f64) -> String {
        match seconds.is_finite() {
            true => format!("{} {}", self.number(seconds), self.name),
            false => "–".to_owned(),
        }
    }
}

pub fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.1} %", share * 100.0) } else { "–".to_owned() }
}

/// The cluster in one line: `demo: 16 machines in 4 racks in 2 pods, 128 GPUs (V100)`.
pub fn cluster(cluster: &ClusterRow) -> String {
    let mut types: Vec<&str> = cluster.machines.iter().map(|m| m.gpu_type.as_str()).collect();
    types.sort_unstable();
    types.dedup();
    let places = |(at, level): (usize, &LevelRow)| {
        let count = if at == 0 { cluster.machines.len() } else { level.places.len() };
        plural(count, &level.name)
    };
    let below_network = &cluster.levels[..cluster.levels.len().saturating_sub(1)];
    let places: Vec<String> = below_network.iter().enumerate().map(places).collect();
    format!(
        "{}: {}, {} ({})",
        cluster.name,
        places.join(" in "),
        plural(gpus(cluster), "GPU"),
        types.join(", "),
    )
}

/// What a placement of each tier is: `inside a machine`, `inside a rack`, `across racks`.
pub fn tiers(cluster: &ClusterRow) -> Vec<String> {
    let names: Vec<&str> = cluster.levels.iter().map(|level| level.name.as_str()).collect();
    let Some((_, below_network)) = names.split_last() else { return Vec::new() };
    let inside = |name: &&str| {
        let article = if name.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
        format!("inside {article} {name}")
    };
    let across = below_network.last().map(|name| format!("across {name}s"));
    below_network.iter().map(inside).chain(across).collect()
}

pub fn gpus(cluster: &ClusterRow) -> usize {
    cluster.machines.iter().map(|m| m.gpus as usize).sum()
}

/// A number with its noun: `1 job`, `2 jobs`.
pub fn plural(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// With separators between thousands: `100,000`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Replaces control characters, which could move the cursor of a terminal. Names come from traces.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Five significant digits: more cannot be seen in a plot and would only make the page larger.
pub fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powi(4 - value.abs().log10().floor() as i32);
    let rounded = (value * scale).round() / scale;
    if rounded.is_finite() { rounded } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_take_the_unit_that_fits() {
        let cases = [
            (0.0, "0 s"),
            (0.42, "420 ms"),
            (1.0, "1.00 s"),
            (119.0, "119 s"),
            (120.0, "2.00 min"),
            (12312.0, "3.42 h"),
            (86400.0, "24.0 h"),
            (1_080_000.0, "12.5 d"),
            (f64::NAN, "–"),
            (f64::INFINITY, "–"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn a_column_of_times_has_one_unit() {
        let texts = |seconds: &[f64]| {
            let unit = TimeUnit::for_column(seconds.iter().copied());
            seconds.iter().map(|s| unit.text(*s)).collect::<Vec<_>>()
        };
        assert_eq!(texts(&[6420.0, 14_472.0]), ["1.78 h", "4.02 h"]);
        assert_eq!(texts(&[25_668.0, 950_400.0]), ["7.13 h", "264.00 h"]);
        assert_eq!(texts(&[0.0, 1_296_000.0, 31_104_000.0]), ["0.0 d", "15.0 d", "360.0 d"]);
        assert_eq!(texts(&[60.0, 8_640_000.0]), ["0.017 h", "2400.000 h"]);
        assert_eq!(texts(&[f64::NAN, 0.0]), ["–", "0 s"]);
        assert_eq!(texts(&[1e-300, 1e300]).len(), 2);
    }

    #[test]
    fn counts_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn rounding_keeps_five_digits() {
        assert_eq!(rounded(123456.789), 123460.0);
        assert_eq!(rounded(0.00123456789), 0.0012346);
        assert_eq!(rounded(-1.0), -1.0);
        assert_eq!(rounded(f64::MIN_POSITIVE), f64::MIN_POSITIVE);
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb"), "a\u{fffd}[2Jb");
    }
}
