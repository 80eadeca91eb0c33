//! The header of a training page in words: what was trained, on what, and with which result.

use hither_core::record::train::RunRecord;
use serde_json::{Map, Value};

use super::figure::{Figures, megabytes, times};
use super::group::{ModeGroup, is_cut};
use crate::format::{count, percent, plural};
use crate::page::distinct;

pub fn title(groups: &[ModeGroup]) -> String {
    let names = |read: fn(&ModeGroup) -> String, many: &str| match distinct(groups.iter().map(read))
        .as_slice()
    {
        [one] => one.clone(),
        all => format!("{} {many}", all.len()),
    };
    if groups.is_empty() {
        return "Nothing was trained".to_owned();
    }
    let modes = distinct(groups.iter().map(|g| g.header().mode.clone()));
    format!(
        "{} trained on {} {}",
        names(|g| g.header().model.clone(), "models"),
        names(|g| g.header().dataset.clone(), "datasets"),
        match modes.as_slice() {
            [mode] => format!("by {mode}"),
            modes => format!("in {} modes", modes.len()),
        }
    )
}

/// The result in one sentence; `None` where groups had different tasks.
pub fn headline(groups: &[ModeGroup], figures: &[Figures]) -> Option<String> {
    let first = groups.first()?;
    if !groups.iter().all(|group| group.same_task(first)) {
        return None;
    }
    let metric = &first.header().metric;
    let mut scored: Vec<_> =
        groups.iter().zip(figures).filter_map(|(g, f)| Some((g, f.test?))).collect();
    scored.sort_by(|a, b| b.1.mean.total_cmp(&a.1.mean));
    let list: Vec<String> = scored
        .iter()
        .map(|(group, test)| format!("{} {} %", group.label, test.percent()))
        .collect();
    let scores = match list.as_slice() {
        [] => return None,
        [one] => format!("Test {metric} at the best validation round: {one}."),
        list => format!("Test {metric}, best first: {}.", list.join(", ")),
    };
    let bytes_of = |mode: &str| {
        let at = groups.iter().position(|group| group.header().mode == mode)?;
        Some(figures[at].round_bytes()).filter(|bytes| *bytes > 0.0)
    };
    let traffic = bytes_of("ggs").zip(bytes_of("llcg")).map(|(ggs, llcg)| {
        format!(" A round of ggs sends {} the bytes of a round of llcg.", times(ggs / llcg))
    });
    Some(scores + &traffic.unwrap_or_default())
}

/// Each fact once, with all its values where runs differ in it.
pub fn facts(runs: &[RunRecord]) -> Vec<(&'static str, Vec<String>)> {
    type Read = fn(&RunRecord) -> Option<String>;
    let facts: [(&str, Read); 8] = [
        ("Dataset", |r| Some(r.header.dataset.clone())),
        ("Graph", |r| {
            let h = &r.header;
            Some(format!(
                "{} nodes, {} edges, {} features, {} classes",
                count(h.nodes),
                count(h.edges),
                count(h.features),
                count(h.classes)
            ))
        }),
        ("Model", |r| {
            Some(format!("{}, {} parameters", r.header.model, count(r.header.parameters)))
        }),
        ("Metric", |r| Some(r.header.metric.clone())),
        ("Cut", |r| {
            let h = &r.header;
            is_cut(h).then(|| format!("{} by {}", plural(h.parts as usize, "part"), h.partition))
        }),
        ("Rounds", |r| Some(count(u64::from(r.header.rounds)))),
        ("Seed", |r| Some(r.header.seed.to_string())),
        ("Version", |r| Some(format!("hither {}", r.header.hither))),
    ];
    let mut all: Vec<(&str, Vec<String>)> = facts
        .into_iter()
        .map(|(name, read)| (name, distinct(runs.iter().filter_map(read))))
        .collect();
    all.insert(5, ("Edges cut", cut_shares(runs)));
    all.retain(|(_, values)| !values.is_empty());
    all
}

/// Settings in the order in which a reader looks for them; others follow.
const ORDER: [&str; 23] = [
    "optimiser",
    "lr",
    "weight-decay",
    "batch",
    "fanout",
    "local-steps",
    "rho",
    "hidden",
    "layers",
    "dropout",
    "batch-norm",
    "heads",
    "norm",
    "alpha",
    "copies",
    "server-steps",
    "server-share",
    "server-lr",
    "server-batch",
    "server-fanout",
    "eval-every",
    "link-gbit",
    "machine",
];
/// Settings that the page shows in its header or table.
const ELSEWHERE: [&str; 10] =
    ["hither", "data", "dataset", "mode", "modes", "model", "parts", "partition", "rounds", "seed"];

/// Each setting once, by the name of its flag, with all its values where directories differ.
pub fn settings(all: &[Map<String, Value>]) -> Vec<(String, String)> {
    let place = |key: &str| ORDER.iter().position(|known| *known == key).unwrap_or(ORDER.len());
    let mut keys: Vec<&String> = all.iter().flat_map(Map::keys).collect();
    keys.sort_by_key(|key| (place(key), *key));
    keys.dedup();
    keys.retain(|key| !ELSEWHERE.contains(&key.as_str()));
    let values = |key: &str| {
        let set = all.iter().filter_map(|map| map.get(key)).filter(|value| !value.is_null());
        distinct(set.map(text)).join(" | ")
    };
    let pairs = keys.into_iter().map(|key| (key.clone(), values(key)));
    pairs.filter(|(_, value)| !value.is_empty()).collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(set) => if *set { "yes" } else { "no" }.to_owned(),
        Value::Object(map) => {
            let pairs = map.iter().map(|(key, value)| format!("{key} {}", text(value)));
            pairs.collect::<Vec<_>>().join(", ")
        }
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(","),
        // 1, not 1.0.
        Value::Number(number) if number.is_f64() => {
            number.as_f64().map_or_else(String::new, |number| number.to_string())
        }
        other => other.to_string(),
    }
}

/// Partitions differ from seed to seed, and so do the edges that they cut.
fn cut_shares(runs: &[RunRecord]) -> Vec<String> {
    let shares = runs.iter().map(|run| &run.header).filter(|h| is_cut(h)).map(|h| h.cut_share);
    let shares: Vec<f64> = shares.filter(|share| share.is_finite()).collect();
    let low = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let high = shares.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match (percent(low), percent(high)) {
        _ if shares.is_empty() => Vec::new(),
        (low, high) if low == high => vec![low],
        (low, high) => vec![format!("{low} to {high}")],
    }
}

/// What a reader has to know to read the figures correctly.
pub fn notes(groups: &[ModeGroup], figures: &[Figures]) -> Vec<String> {
    let mut notes = Vec::new();
    for (group, figures) in groups.iter().zip(figures) {
        if figures.setup_bytes > 0.0 {
            notes.push(format!(
                "{} sends {} MB once, before its first round; only its total includes them.",
                group.label,
                megabytes(figures.setup_bytes)
            ));
        }
        if figures.partition_s > 0.0 || figures.setup_path_s > 0.0 {
            notes.push(format!(
                "Set-up of {}, in no other time: {:.2} s of partitioning, measured; {:.3} s of probes and copies, computed.",
                group.label, figures.partition_s, figures.setup_path_s
            ));
        }
        let lengths = || group.runs.iter().map(|run| run.summary.rounds);
        if let (Some(shortest), Some(longest)) = (lengths().min(), lengths().max())
            && shortest < longest
        {
            notes.push(format!(
                "Runs of {} ended after {} to {} rounds; later means are over the runs that went on.",
                group.label,
                count(u64::from(shortest)),
                count(u64::from(longest))
            ));
        }
    }
    notes
}
