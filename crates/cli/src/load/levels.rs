//! The values of the command line: levels of load, times, shares.

use std::time::Duration;

use hither_load::drive::Arrivals;
use hither_load::measure::Percentile;

/// More levels than anybody waits for.
const LEVELS_MAX: usize = 1000;

/// Rates or numbers of callers, in the order given.
#[derive(Debug, Clone, PartialEq)]
pub struct Levels(pub Vec<f64>);

/// Parses `1,2,4`, `1:8` or `100:1000:100`.
pub fn parse(text: &str) -> Result<Levels, String> {
    let number = |text: &str| match text.trim().parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err(format!("`{text}` is not a number above 0")),
    };
    let levels = match text.split(':').collect::<Vec<_>>().as_slice() {
        [list] => list.split(',').map(number).collect::<Result<Vec<_>, _>>()?,
        [from, to] => range(number(from)?, number(to)?, 1.0)?,
        [from, to, step] => range(number(from)?, number(to)?, number(step)?)?,
        _ => return Err("expected a list such as 1,2,4 or FROM:TO:STEP".into()),
    };
    Ok(Levels(levels))
}

fn range(from: f64, to: f64, step: f64) -> Result<Vec<f64>, String> {
    // The last step may miss its end by a rounding error.
    let count = ((to - from) / step + 1e-9).floor();
    match count {
        count if count < 0.0 => Err(format!("{from}:{to} is empty; the first must be the smaller")),
        count if count >= LEVELS_MAX as f64 => {
            Err(format!("{:.0} levels; at most {LEVELS_MAX} are measured", count + 1.0))
        }
        count => Ok((0..=count as usize).map(|i| from + step * i as f64).collect()),
    }
}

/// Parses `10ms`, `2s`, `500us` or `1min`.
pub fn time(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit_s = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        _ => return Err("expected a number with us, ms, s or min, such as 10ms".into()),
    };
    match number.trim().parse::<f64>().map(|n| n * unit_s) {
        Ok(seconds) if (1e-6..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("must be between 1us and a day".into()),
    }
}

pub fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.001..=10.0).contains(&share) => Ok(share),
        _ => Err("must be between 0.001 and 10".into()),
    }
}

pub fn percentile(text: &str) -> Result<Percentile, String> {
    match text {
        "50" => Ok(Percentile::P50),
        "90" => Ok(Percentile::P90),
        "95" => Ok(Percentile::P95),
        "99" => Ok(Percentile::P99),
        "99.9" => Ok(Percentile::P999),
        _ => Err("must be 50, 90, 95, 99 or 99.9".into()),
    }
}

pub fn percentile_name(percentile: Percentile) -> &'static str {
    match percentile {
        Percentile::P50 => "p50",
        Percentile::P90 => "p90",
        Percentile::P95 => "p95",
        Percentile::P99 => "p99",
        Percentile::P999 => "p99.9",
    }
}

pub fn arrivals(text: &str) -> Result<Arrivals, String> {
    match text {
        "poisson" => Ok(Arrivals::Poisson),
        "constant" => Ok(Arrivals::Constant),
        _ => Err("must be poisson or constant".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_lists_or_ranges() {
        assert_eq!(parse("1,2,4").unwrap().0, [1.0, 2.0, 4.0]);
        assert_eq!(parse("1:3").unwrap().0, [1.0, 2.0, 3.0]);
        assert_eq!(parse("0.1:0.3:0.1").unwrap().0.len(), 3);
        for bad in ["", "0", "1,,2", "3:1", "1:2:0", "1:2:3:4", "x", "inf", "1:1e9"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(time("10ms").unwrap(), Duration::from_millis(10));
        assert_eq!(time("1.5s").unwrap(), Duration::from_millis(1500));
        for bad in ["", "10", "ms", "-1s", "1h", "1e9s", "nans"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
