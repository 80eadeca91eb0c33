//! Random clusters, workloads, options and faults under the outside checkers.

use std::collections::BTreeSet;

use hither_sched::policy::Settings;
use hither_sched::vopr::{Bug, Case, KINDS, OPTIONS};
use toml::Value;

fn run(seeds: std::ops::Range<u64>) {
    for seed in seeds {
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

/// The complaints about the first hundred live cases with this bug.
fn complaints(bug: Bug) -> Vec<String> {
    let cases = (0..400).map(Case::new).filter(|case| case.live).take(100);
    cases.filter_map(|case| case.run_live(Some(bug)).err()).map(|e| e.to_string()).collect()
}

#[track_caller]
fn found(bug: Bug, words: &[&str]) {
    let complaints = complaints(bug);
    let said = complaints.iter().filter(|c| words.iter().any(|word| c.contains(word))).count();
    assert!(said >= 3, "{bug:?}: {complaints:#?}");
}

#[test]
fn gpus_that_are_freed_too_early_are_found() {
    found(Bug::FreedTooEarly, &["booked twice", "started twice"]);
}

#[test]
fn a_gang_that_is_started_twice_is_found() {
    found(Bug::StartedTwice, &["started twice"]);
}

#[test]
fn a_timer_that_a_restart_loses_is_found() {
    found(Bug::TimerLost, &["the restart lost"]);
}

#[test]
fn every_kind_of_news_is_told() {
    let mut told = BTreeSet::new();
    for case in (0..150).map(Case::new).filter(|case| case.live) {
        let (kinds, verdict) = case.watch_live(None);
        verdict.unwrap_or_else(|error| panic!("{error}"));
        told.extend(kinds);
    }
    assert_eq!(told, KINDS.iter().copied().collect());
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
