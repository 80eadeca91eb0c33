//! One self-contained HTML page: the template, styles, scripts and data in one string.

use std::collections::BTreeSet;

use hither_core::record::{Header, RunRecord, Summary};
use minijinja::{Environment, Value, context};

use crate::breakdown;
use crate::curve::SMOOTH_SHARE;
use crate::data::data;
use crate::format::{cluster, count, duration, gpus, percent, plural};
use crate::label::{CLAIRVOYANT, labels, marked, notes};
use crate::metric::{METRICS, Metric};

const TEMPLATE: &str = include_str!("../assets/report.html");
/// The table that policies or modes are compared in.
const COMPARISON: &str = include_str!("../assets/comparison.html");
/// The list of settings that several pages end with.
const SETTINGS: &str = include_str!("../assets/settings.html");
/// The frame of every page.
const PAGE: &str = include_str!("../assets/page.html");
const STYLES: [&str; 2] =
    [include_str!("../assets/vendor/uplot/uPlot.min.css"), include_str!("../assets/report.css")];
const PLOT_LIBRARY: &str = include_str!("../assets/vendor/uplot/uPlot.iife.min.js");
/// In the order in which they build on each other.
const SCRIPTS: [&str; 9] = [
    include_str!("../assets/js/data.js"),
    include_str!("../assets/js/select.js"),
    include_str!("../assets/js/draw.js"),
    include_str!("../assets/js/charts.js"),
    include_str!("../assets/js/schedule-draw.js"),
    include_str!("../assets/js/schedule.js"),
    include_str!("../assets/js/history.js"),
    include_str!("../assets/js/table.js"),
    include_str!("../assets/js/main.js"),
];

/// The runs that share a header: one directory of `hither simulate`.
pub struct Group<'a> {
    pub header: &'a Header,
    pub runs: &'a [RunRecord],
}

/// One page for all groups. It needs no network, no other file, and no script for its table.
pub fn html(groups: &[Group]) -> String {
    let named: Vec<(&Header, Vec<String>)> = groups
        .iter()
        .map(|g| (g.header, g.runs.iter().map(|run| marked(&run.summary)).collect()))
        .collect();
    let labels = labels(&named);
    let (data, blocks) = data(groups, &labels);
    let json = serde_json::to_string(&data).expect("rows of numbers and strings are JSON");

    let own = context! {
        title => title(groups),
        headline => headline(groups),
        smooth => percent(SMOOTH_SHARE),
        facts => facts(groups),
        groups => groups.len(),
        settings => settings(groups),
        clairvoyant => is_any_clairvoyant(groups).then_some(CLAIRVOYANT),
        notes => notes(labels.iter().map(String::as_str).zip(
            groups.iter().flat_map(|g| g.runs).map(|r| r.summary.notes.as_slice()),
        )),
        row_head => "policy",
        columns => METRICS.iter().map(|m| context! {
            name => m.name,
            meaning => m.meaning,
            larger => !m.smaller,
        }).collect::<Vec<_>>(),
        rows => table_rows(groups, &labels),
        figures => breakdown::figures(),
        breakdowns => breakdowns(groups, &labels),
        labels => labels,
        blocks => blocks,
    };
    render(TEMPLATE, "", &SCRIPTS, &json, own)
}

/// The jobs behind the figures, for each group.
fn breakdowns(groups: &[Group], labels: &[String]) -> Vec<Value> {
    let mut first = 0;
    let mut all = Vec::new();
    for group in groups {
        let own = &labels[first..first + group.runs.len()];
        all.push(context! {
            tables => breakdown::tables(group, own, first),
            pairs => breakdown::pairs(group, own),
        });
        first += group.runs.len();
    }
    all
}

/// Renders a page from its template, styles, scripts and data; `own` holds the values of the template.
pub(crate) fn render(
    template: &str,
    style: &str,
    scripts: &[&str],
    json: &str,
    own: Value,
) -> String {
    let mut environment = Environment::new();
    let parts = [("page.html", PAGE), ("comparison.html", COMPARISON), ("settings.html", SETTINGS)];
    for (name, text) in parts {
        environment.add_template(name, text).expect("it is part of the program");
    }
    let template = environment.template_from_named_str("own.html", template);
    template
        .and_then(|template| {
            template.render(context! {
                style => STYLES.concat() + style,
                plot_library => PLOT_LIBRARY,
                script => scripts.concat(),
                data => inert_json(json),
                ..own
            })
        })
        .expect("it is part of the program and uses only the names that it is given")
}

fn policies(runs: &[RunRecord]) -> Vec<&str> {
    runs.iter().map(|r| r.summary.policy.as_str()).collect()
}

/// Escapes JSON so that no string in it can end the script element around it.
fn inert_json(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn title(groups: &[Group]) -> String {
    let mut names: Vec<&str> = groups.iter().flat_map(|g| policies(g.runs)).collect();
    names.sort_unstable();
    names.dedup();
    let policies = match names.len() {
        1 => names[0].to_owned(),
        n => format!("{n} policies"),
    };
    match groups {
        [] => "Nothing to report".to_owned(),
        [one] => format!("{policies} on {}", plural(gpus(&one.header.cluster), "GPU")),
        _ => format!("{policies} in {} settings", groups.len()),
    }
}

/// The result in one sentence; `None` where there is nothing to compare.
fn headline(groups: &[Group]) -> Option<String> {
    let [group] = groups else { return None };
    let mut runs: Vec<&Summary> = group.runs.iter().map(|r| &r.summary).collect();
    runs.retain(|s| s.finished > 0 && s.jct_s.mean.is_finite());
    runs.sort_by(|a, b| a.jct_s.mean.total_cmp(&b.jct_s.mean));
    let name = |s: &Summary| format!("{} {}", s.policy, duration(s.jct_s.mean));
    match runs.as_slice() {
        [] | [_] => None,
        [best, last] => {
            Some(format!("Lowest average completion time: {}; then {}.", name(best), name(last)))
        }
        [best, next, .., last] => Some(format!(
            "Lowest average completion time: {}; next {}, last {}.",
            name(best),
            name(next),
            name(last)
        )),
    }
}

/// Each fact once, with all its values where the groups differ in it.
fn facts(groups: &[Group]) -> Vec<Value> {
    type Read = fn(&Group) -> String;
    let facts: [(&str, Read); 6] = [
        ("Trace", |g| g.header.trace.clone()),
        ("Jobs", |g| count(g.runs.iter().map(|r| r.summary.jobs).max().unwrap_or(0))),
        ("Cluster", |g| cluster(&g.header.cluster)),
        ("Seed", |g| g.header.seed.to_string()),
        ("Congestion", |g| format!("{}×", g.header.congestion)),
        ("Version", |g| format!("hither {}", g.header.hither)),
    ];
    let fact = |(name, value): (&str, Read)| {
        context! { name => name, values => distinct(groups.iter().map(value)) }
    };
    facts.into_iter().map(fact).collect()
}

fn is_any_clairvoyant(groups: &[Group]) -> bool {
    groups.iter().flat_map(|g| g.runs).any(|run| run.summary.clairvoyant)
}

/// Every recorded setting, with all its values where the groups differ in it.
fn settings(groups: &[Group]) -> Vec<Value> {
    let keys: BTreeSet<&String> = groups.iter().flat_map(|g| g.header.settings.keys()).collect();
    let value = |key: &String, group: &Group| {
        group.header.settings.get(key).map_or_else(|| "–".to_owned(), String::clone)
    };
    let setting = |key: &String| {
        let values = distinct(groups.iter().map(|group| value(key, group)));
        context! { name => key, value => values.join(" | ") }
    };
    keys.into_iter().map(setting).collect()
}

/// Each value once, in the order of first occurrence.
pub(crate) fn distinct(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut values = Vec::new();
    for value in all {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// The best of a column is the best within its group, because groups have different tasks.
fn table_rows(groups: &[Group], labels: &[String]) -> Vec<Value> {
    // One unit per column, over all groups.
    let all: Vec<&Summary> = groups.iter().flat_map(|g| g.runs).map(|r| &r.summary).collect();
    let texts: Vec<Vec<String>> = METRICS.iter().map(|m| m.texts(&all)).collect();
    let mut rows = Vec::new();
    for group in groups {
        let summaries: Vec<&Summary> = group.runs.iter().map(|r| &r.summary).collect();
        let winners: Vec<Vec<bool>> = METRICS.iter().map(|m| m.winners(&summaries)).collect();
        for (i, summary) in summaries.iter().enumerate() {
            let run = rows.len();
            let cell = |((m, wins), texts): ((&Metric, &Vec<bool>), &Vec<String>)| {
                // The sort key; empty where the run has no such figure.
                let value = (m.value)(summary).filter(|v| v.is_finite());
                context! {
                    text => texts[run].as_str(),
                    value => value.map_or_else(String::new, |v| v.to_string()),
                    best => wins[i],
                }
            };
            let cells: Vec<Value> = METRICS.iter().zip(&winners).zip(&texts).map(cell).collect();
            rows.push(context! { label => labels[run].as_str(), cells => cells });
        }
    }
    rows
}
