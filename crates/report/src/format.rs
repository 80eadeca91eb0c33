//! Numbers as people read them.

use hither_core::record::Header;

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 86400.0;

/// Three significant digits in the unit that keeps the number small: `420 ms`, `3.42 h`, `12.5 d`.
pub fn duration(seconds: f64) -> String {
    let size = seconds.abs();
    match size {
        _ if !size.is_finite() => "–".to_owned(),
        0.0 => "0 s".to_owned(),
        _ if size < 1.0 => format!("{} ms", digits(seconds * 1000.0)),
        _ if size < 2.0 * MINUTE => format!("{} s", digits(seconds)),
        _ if size < 2.0 * HOUR => format!("{} min", digits(seconds / MINUTE)),
        _ if size < 3.0 * DAY => format!("{} h", digits(seconds / HOUR)),
        _ => format!("{} d", digits(seconds / DAY)),
    }
}

fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

pub fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.1} %", share * 100.0) } else { "–".to_owned() }
}

/// The cluster in one line: `demo: 16 machines in 4 racks, 128 GPUs (V100)`.
pub fn cluster(header: &Header) -> String {
    let cluster = &header.cluster;
    let mut types: Vec<&str> = cluster.machines.iter().map(|m| m.gpu_type.as_str()).collect();
    types.sort_unstable();
    types.dedup();
    format!(
        "{}: {} in {}, {} ({})",
        cluster.name,
        plural(cluster.machines.len(), "machine"),
        plural(cluster.racks.len(), "rack"),
        plural(gpus(header), "GPU"),
        types.join(", "),
    )
}

pub fn gpus(header: &Header) -> usize {
    header.cluster.machines.iter().map(|m| m.gpus as usize).sum()
}

pub fn plural(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Thousands apart: `100,000`.
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

/// A trace's strings go to a terminal: control characters could move its cursor.
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
