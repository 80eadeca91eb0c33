//! Parses `--vary key=values` and makes the cells of the full grid.

use anyhow::{Context as _, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::runs::{self, Cell, Plan};
use crate::settings;

const CELLS_MAX: usize = 100_000;
/// Number of values in a range without a step, including both ends.
const STEPS: usize = 5;

/// Settings of the scenario that can be varied, named as results record them.
const SCENARIO_KEYS: &[&str] = &[
    "congestion",
    "load",
    "rate",
    "seed",
    "lengths",
    "profile_error",
    "hide_congestion",
    "restart_scale",
];

/// One varied key and its values, spelled as in the results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    pub key: String,
    pub values: Vec<String>,
}

impl Axis {
    /// Reads `congestion=1,2,4`, `load=0.5..1.5`, `seed=1..5` or `dally.round_s=100..500:100`.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let expected = "expected KEY=VALUE,… or KEY=FROM..TO[:STEP]";
        let (key, list) =
            text.split_once('=').ok_or_else(|| anyhow!("--vary {text}: {expected}"))?;
        let key = key.trim();
        ensure!(
            SCENARIO_KEYS.contains(&key) || key.contains('.'),
            "--vary {text}: unknown key {key:?}; vary {} or POLICY.OPTION",
            SCENARIO_KEYS.join(", ")
        );
        let mut values = Vec::new();
        for item in split(list) {
            let item = item.trim();
            ensure!(!item.is_empty(), "--vary {text}: {expected}");
            match item.split_once("..") {
                Some((from, rest)) => {
                    values.extend(range(key, from, rest).with_context(|| format!("--vary {text}"))?)
                }
                None => values.push(item.to_owned()),
            }
            ensure!(values.len() <= CELLS_MAX, "--vary {text}: more than {CELLS_MAX} values");
        }
        for (at, value) in values.iter().enumerate() {
            ensure!(!values[..at].contains(value), "--vary {text}: {value} is given twice");
        }
        Ok(Self { key: key.into(), values })
    }
}

/// Splits at commas outside of brackets, because options may be lists.
fn split(list: &str) -> Vec<&str> {
    let mut depth = 0i32;
    list.split(|c| {
        depth += match c {
            '[' => 1,
            ']' => -1,
            _ => 0,
        };
        c == ',' && depth <= 0
    })
    .collect()
}

fn range(key: &str, from: &str, rest: &str) -> anyhow::Result<Vec<String>> {
    let (to, step) = match rest.split_once(':') {
        Some((to, step)) => (to, Some(step)),
        None => (rest, None),
    };
    if key == "seed" {
        let seed = |text: &str| text.trim().parse::<u64>().context("seeds are whole numbers");
        let (from, to, step) = (seed(from)?, seed(to)?, step.map_or(Ok(1), seed)?);
        ensure!(from <= to, "the start of a range must not be above its end");
        ensure!(step > 0, "the step must be above 0");
        ensure!((to - from) / step < CELLS_MAX as u64, "more than {CELLS_MAX} seeds");
        return Ok((0..=(to - from) / step).map(|i| (from + i * step).to_string()).collect());
    }
    let number = |text: &str| match text.trim().parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(anyhow!("{text:?} is not a number")),
    };
    let (from, to) = (number(from)?, number(to)?);
    ensure!(from < to, "the start of a range must be below its end");
    let steps = match step {
        None => STEPS,
        Some(step) => {
            let step = number(step)?;
            ensure!(step > 0.0, "the step must be above 0");
            // The tolerance lets ranges with steps such as 0.1 reach their end.
            ((to - from) / step + 1e-9).floor().min(1e9) as usize + 1
        }
    };
    ensure!(steps <= CELLS_MAX, "more than {CELLS_MAX} values");
    let step = match step {
        None => (to - from) / (STEPS - 1) as f64,
        Some(step) => number(step)?,
    };
    Ok((0..steps).map(|i| round(from + i as f64 * step).to_string()).collect())
}

/// Rounds to twelve digits, so that results say 0.3 and not 0.30000000000000004.
fn round(value: f64) -> f64 {
    format!("{value:.11e}").parse().unwrap_or(value)
}

/// All combinations; the last axis varies fastest.
pub fn cells(axes: &[Axis]) -> anyhow::Result<Vec<Vec<String>>> {
    for (at, axis) in axes.iter().enumerate() {
        if axes[..at].iter().any(|other| other.key == axis.key) {
            bail!("--vary {}: give all values of a key at once", axis.key);
        }
    }
    let mut cells = vec![Vec::new()];
    for axis in axes {
        let count = cells.len().saturating_mul(axis.values.len());
        ensure!(count <= CELLS_MAX, "the grid has more than {CELLS_MAX} cells");
        let longer = |cell: Vec<String>| {
            let with = move |value: &String| [&cell[..], &[value.clone()][..]].concat();
            axis.values.iter().map(with)
        };
        cells = cells.into_iter().flat_map(longer).collect();
    }
    Ok(cells)
}

/// The cell of the plan with the values of one combination.
pub fn cell(plan: &Plan, axes: &[Axis], values: &[String]) -> anyhow::Result<Cell> {
    let mut cell = plan.cell();
    let scenario = &mut cell.scenario;
    for (axis, value) in axes.iter().zip(values) {
        let wrong = |error: String| anyhow!("--vary {}={value}: {error}", axis.key);
        match axis.key.as_str() {
            "congestion" => scenario.congestion = runs::congestion(value).map_err(wrong)?,
            "load" => scenario.load = Some(runs::load(value).map_err(wrong)?),
            "rate" => scenario.rate = Some(runs::load(value).map_err(wrong)?),
            "seed" => {
                let seed = value.parse().map_err(|_| wrong("expected a whole number".into()))?;
                scenario.seed = Some(seed);
            }
            "lengths" => scenario.lengths = value.parse().map_err(wrong)?,
            "profile_error" => scenario.profile_error = runs::error(value).map_err(wrong)?,
            "restart_scale" => scenario.restart_scale = runs::scale(value).map_err(wrong)?,
            "hide_congestion" => {
                let hidden = value.parse().map_err(|_| wrong("expected true or false".into()))?;
                scenario.hide_congestion = hidden;
            }
            key => settings::put(&mut cell.settings, key, value)?,
        }
    }
    if scenario.load.is_some() && scenario.rate.is_some() {
        bail!("load and rate both set how fast jobs arrive; give or vary one of them");
    }
    settings::settings(&cell.settings)?;
    Ok(cell)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Result<Vec<String>, String> {
        Axis::parse(text).map(|axis| axis.values).map_err(|e| format!("{e:#}"))
    }

    #[test]
    fn lists_and_ranges() {
        let all: [(&str, &[&str]); 8] = [
            ("congestion=1,2, 4", &["1", "2", "4"]),
            ("load=0.5..1.5", &["0.5", "0.75", "1", "1.25", "1.5"]),
            ("load=0.1..0.4:0.1", &["0.1", "0.2", "0.3", "0.4"]),
            ("seed=1..5", &["1", "2", "3", "4", "5"]),
            ("seed=0..10:5", &["0", "5", "10"]),
            ("dally.score=left,2d-las", &["left", "2d-las"]),
            ("tiresias.thresholds=[1,2],[3]", &["[1,2]", "[3]"]),
            ("lengths=unknown,noisy:0.5", &["unknown", "noisy:0.5"]),
        ];
        for (text, expected) in all {
            assert_eq!(values(text).as_deref(), Ok(&expected.map_to_strings()[..]), "{text}");
        }
    }

    #[test]
    fn what_is_no_axis() {
        for text in [
            "congestion",
            "congestion=",
            "speed=1",
            "load=2..1",
            "load=a..b",
            "load=1..2:0",
            "seed=1..2.5",
            "seed=5..1",
            "load=1..nan",
            "seed=1,1",
            "load=0..1:1e-9",
            "seed=0..18446744073709551615",
            "congestion=1,,2",
        ] {
            assert!(values(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_grid_is_full_and_ordered() {
        let axes = [Axis::parse("load=1,2").unwrap(), Axis::parse("seed=1..3").unwrap()];
        let cells: Vec<String> = cells(&axes).unwrap().iter().map(|c| c.join(" ")).collect();
        assert_eq!(cells, ["1 1", "1 2", "1 3", "2 1", "2 2", "2 3"]);
        assert!(super::cells(&[axes[0].clone(), axes[0].clone()]).is_err());
    }

    trait ToStrings {
        fn map_to_strings(&self) -> Vec<String>;
    }
    impl ToStrings for &[&str] {
        fn map_to_strings(&self) -> Vec<String> {
            self.iter().map(|s| (*s).to_owned()).collect()
        }
    }
}
