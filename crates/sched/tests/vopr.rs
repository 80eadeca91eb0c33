//! Random clusters, workloads, options and faults under the outside checkers.

use std::collections::BTreeSet;

use hither_sched::policy::Settings;
use hither_sched::vopr::{Case, OPTIONS};
use toml::Value;

fn run(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        // The driver of real clusters has the other half.
        if let Err(error) = Case::new(seed).run() {
            panic!("{error}\nto reproduce: hither vopr --first {seed} --seeds 1");
        }
    }
}

#[test]
fn random_cases_keep_all_invariants_1() {
    run(0..500);
}

#[test]
fn random_cases_keep_all_invariants_2() {
    run(500..1000);
}

#[test]
fn random_cases_keep_all_invariants_3() {
    run(1000..1500);
}

#[test]
fn random_cases_keep_all_invariants_4() {
    run(1500..2000);
}

fn names(path: &str, value: &Value, all: &mut BTreeSet<String>) {
    match value {
        Value::Table(table) if !table.is_empty() => {
            for (name, value) in table {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                names(&path, value, all);
            }
        }
        _ => {
            all.insert(path.into());
        }
    }
}

#[test]
fn every_option_of_every_policy_is_drawn() {
    let defaults = Value::try_from(Settings::default()).expect("options are plain values");
    let mut all = BTreeSet::new();
    names("", &defaults, &mut all);
    let drawn: BTreeSet<String> = OPTIONS.iter().map(|o| o.option.to_owned()).collect();
    assert_eq!(drawn, all);
}

#[test]
fn the_shipped_defaults_are_drawn_most_of_all() {
    let defaults = (0..200).filter(|&seed| Case::new(seed).settings == Settings::default()).count();
    assert!((60..140).contains(&defaults), "{defaults} of 200");
}

#[test]
fn every_drawn_setting_is_allowed() {
    for seed in 0..500 {
        Case::new(seed).settings.check().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}
