//! Options of all policies that have any, as `--set policy.option=value` or TOML gives them.

use hither_core::topology::Level;
use serde::{Deserialize, Serialize};

use super::{dally, gandiva, leases, shortest, tiresias};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    pub dally: dally::Options,
    pub tiresias: tiresias::Options,
    pub gandiva: gandiva::Options,
    pub themis: leases::ThemisOptions,
    pub las: leases::LasOptions,
    pub srtf: shortest::Options,
}

/// A value that no policy can work with.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{option} = {found}: expected {expected}")]
pub struct Error {
    pub option: &'static str,
    pub found: String,
    pub expected: String,
}

impl Settings {
    /// The first level that has a timer and is not among these.
    pub fn unknown_level(&self, levels: &[Level]) -> Option<&str> {
        let mut named = self.dally.level_s.keys();
        named.find(|name| levels.iter().all(|level| level.name != **name)).map(String::as_str)
    }

    /// Refuses values with which a policy would stand still, or silently not do what it says.
    pub fn check(&self) -> Result<(), Error> {
        let dally = &self.dally;
        let ever = f64::INFINITY;
        let within = [
            ("dally.round_s", dally.round_s, 1.0, ever),
            ("dally.quantum_s", dally.quantum_s, 0.0, ever),
            ("dally.machine_s", dally.machine_s, 0.0, ever),
            ("dally.rack_s", dally.rack_s, 0.0, ever),
            ("dally.damping", dally.damping, 1.0, ever),
            ("dally.upgrade_gain", dally.upgrade_gain, 0.0, ever),
            ("dally.overdue_s", dally.overdue_s, 0.0, ever),
            ("tiresias.promote_knob", self.tiresias.promote_knob, 1e-6, ever),
            ("gandiva.slice_s", self.gandiva.slice_s, 1.0, ever),
            ("gandiva.rebalance_s", self.gandiva.rebalance_s, 1.0, ever),
            ("themis.lease_s", self.themis.lease_s, 1.0, ever),
            ("las.lease_s", self.las.lease_s, 1.0, ever),
        ];
        for (option, value, min, max) in within {
            if !(min..=max).contains(&value) {
                let expected = match max {
                    f64::INFINITY => format!("a number of at least {min}"),
                    f64::MAX => format!("a finite number of at least {min}"),
                    _ => format!("a number from {min} to {max}"),
                };
                return Err(Error { option, found: value.to_string(), expected });
            }
        }
        for (level, timer_s) in &dally.level_s {
            if timer_s.is_nan() || *timer_s < 0.0 {
                return Err(Error {
                    option: "dally.level_s",
                    found: format!("{level} = {timer_s}"),
                    expected: "a number of at least 0".into(),
                });
            }
        }
        let quantiles = &self.tiresias.quantiles;
        if !quantiles.iter().all(|q| (0.0..1.0).contains(q)) || !quantiles.is_sorted() {
            return Err(Error {
                option: "tiresias.quantiles",
                found: format!("{quantiles:?}"),
                expected: "rising numbers from 0 to below 1".into(),
            });
        }
        let thresholds = &self.tiresias.thresholds;
        if !thresholds.iter().all(|t| *t > 0.0) || !thresholds.is_sorted() {
            return Err(Error {
                option: "tiresias.thresholds",
                found: format!("{thresholds:?}"),
                expected: "rising numbers above 0".into(),
            });
        }
        Ok(())
    }
}
