//! The jobs behind the means: figures by demand and by model, and job by job against a rival.

use std::collections::{BTreeMap, BTreeSet};

use hither_core::record::{JobRow, JobState, RunRecord};
use minijinja::{Value, context};

use crate::format::{TimeUnit, count, duration, percent, plural};
use crate::metric::winners;
use crate::page::Group;

/// Models with a row of their own; the rarest are pooled.
const MODELS_MAX: usize = 16;
/// The jobs listed of those that lose most.
const LOSERS_MAX: usize = 8;
/// Completion times that differ by less count as the same.
const SAME_SHARE: f64 = 0.01;
const SAME_S: f64 = 1.0;

/// A figure of a set of jobs.
struct Figure {
    name: &'static str,
    meaning: &'static str,
    is_time: bool,
    /// `None` where nobody knows.
    value: fn(&[&JobRow]) -> Option<f64>,
}

const FIGURES: [Figure; 3] = [
    Figure {
        name: "completion time",
        meaning: "mean time from submission to end",
        is_time: true,
        value: |jobs| mean(jobs, |job| Some(job.jct_s())),
    },
    Figure {
        name: "queueing time",
        meaning: "mean time without GPUs between submission and end",
        is_time: true,
        value: |jobs| mean(jobs, |job| Some(job.queue_s)),
    },
    Figure {
        name: "communication",
        meaning: "share of the running time that was spent waiting for the network",
        is_time: false,
        value: |jobs| {
            let comm_s: Option<f64> = jobs.iter().map(|job| job.comm_s).sum();
            let run_s: f64 = jobs.iter().map(|job| job.run_s).sum();
            comm_s.filter(|_| run_s > 0.0).map(|comm_s| comm_s / run_s)
        },
    },
];

fn mean(jobs: &[&JobRow], value: fn(&JobRow) -> Option<f64>) -> Option<f64> {
    let sum: Option<f64> = jobs.iter().map(|job| value(job)).sum();
    sum.filter(|_| !jobs.is_empty()).map(|sum| sum / jobs.len() as f64)
}

fn finished(run: &RunRecord) -> impl Iterator<Item = &JobRow> {
    run.jobs.iter().filter(|job| job.state == JobState::Finished)
}

/// A set of jobs: the name of its row, by which it is sorted too.
type Class = (u64, String);

/// Demands by power of two, named by the demands that there are.
fn by_demand(group: &Group) -> impl Fn(&JobRow) -> Class + use<> {
    let power = |gpus: u32| u64::from(gpus.max(1)).next_power_of_two();
    let mut demands: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    for job in group.runs.iter().flat_map(|run| &run.jobs) {
        demands.entry(power(job.gpus)).or_default().insert(job.gpus);
    }
    let name = |demands: BTreeSet<u32>| match (demands.first(), demands.last()) {
        (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
        (first, _) => first.map_or_else(String::new, u32::to_string),
    };
    let names: BTreeMap<u64, String> = demands.into_iter().map(|(p, d)| (p, name(d))).collect();
    move |job| (power(job.gpus), names.get(&power(job.gpus)).cloned().unwrap_or_default())
}

fn by_model(group: &Group) -> impl Fn(&JobRow) -> Class + use<> {
    let mut jobs: BTreeMap<&str, usize> = BTreeMap::new();
    for job in group.runs.iter().take(1).flat_map(|run| &run.jobs) {
        *jobs.entry(&job.model).or_default() += 1;
    }
    let mut by_count: Vec<(&str, usize)> = jobs.into_iter().collect();
    by_count.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let own = if by_count.len() > MODELS_MAX { MODELS_MAX - 1 } else { by_count.len() };
    let rest = plural(by_count.len() - own, "other model");
    let named: BTreeSet<String> = by_count[..own].iter().map(|m| m.0.to_owned()).collect();
    move |job| match named.contains(&job.model) {
        true => (0, job.model.clone()),
        false => (1, rest.clone()),
    }
}

/// Tables by demand and by model, one for each figure and group of runs. `labels` are those of the group's
/// runs; `first` is the page's number of the first of them.
pub fn tables(group: &Group, labels: &[String], first: usize) -> Vec<Value> {
    let demand = table(group, labels, first, "GPUs", &by_demand(group));
    let model = table(group, labels, first, "model", &by_model(group));
    demand.into_iter().zip(model).flat_map(|(demand, model)| [demand, model]).collect()
}

fn table(
    group: &Group,
    labels: &[String],
    first: usize,
    head: &str,
    class: &dyn Fn(&JobRow) -> Class,
) -> Vec<Value> {
    let mut rows: BTreeMap<Class, Vec<Vec<&JobRow>>> = BTreeMap::new();
    for (at, run) in group.runs.iter().enumerate() {
        for job in finished(run) {
            let runs = rows.entry(class(job)).or_insert_with(|| vec![vec![]; group.runs.len()]);
            runs[at].push(job);
        }
    }
    let of_figure = |(nth, figure): (usize, &Figure)| {
        let values: Vec<Vec<Option<f64>>> = rows
            .values()
            .map(|runs| runs.iter().map(|jobs| (figure.value)(jobs)).collect())
            .collect();
        let unit = TimeUnit::for_column(values.iter().flatten().flatten().copied());
        let text = |value: &Option<f64>| match (value, figure.is_time) {
            (None, _) => "–".to_owned(),
            (Some(value), true) => unit.number(*value),
            (Some(value), false) => percent(*value).replace(" %", ""),
        };
        let row = |class: &Class, runs: &[Vec<&JobRow>], values: &[Option<f64>]| {
            let best = winners(values, true);
            let cells = values.iter().zip(best).map(|(v, best)| context! { text => text(v), best });
            let jobs = runs.iter().map(Vec::len).max().unwrap_or(0) as u64;
            context! { name => class.1.as_str(), jobs => count(jobs), cells => cells.collect::<Vec<_>>() }
        };
        context! {
            figure => nth,
            name => figure.name,
            meaning => figure.meaning,
            unit => if figure.is_time { unit.name } else { "%" },
            head,
            first,
            labels => labels.to_vec(),
            rows => rows
                .iter()
                .zip(&values)
                .map(|((class, runs), values)| row(class, runs, values))
                .collect::<Vec<_>>(),
        }
    };
    FIGURES.iter().enumerate().map(of_figure).collect()
}

/// The names of the figures, in order.
pub fn figures() -> Vec<&'static str> {
    FIGURES.iter().map(|figure| figure.name).collect()
}

/// The first run of the group against each other one, job by job; empty where there is nothing to compare.
pub fn pairs(group: &Group, labels: &[String]) -> Vec<Value> {
    let Some((own, rivals)) = group.runs.split_first() else { return Vec::new() };
    let completed: BTreeMap<u32, &JobRow> = finished(own).map(|job| (job.job, job)).collect();
    let against = |(rival, label): (&RunRecord, &String)| {
        let pairs: Vec<(&JobRow, &JobRow)> = finished(rival)
            .filter_map(|job| completed.get(&job.job).map(|own| (*own, job)))
            .collect();
        (!pairs.is_empty()).then(|| compared(&pairs, &labels[0], label))
    };
    rivals.iter().zip(&labels[1..]).filter_map(against).collect()
}

/// Jobs that end sooner, at the same time and later under the first of two runs.
fn compared(pairs: &[(&JobRow, &JobRow)], own: &str, rival: &str) -> Value {
    let later_s = |pair: &(&JobRow, &JobRow)| pair.0.jct_s() - pair.1.jct_s();
    let is_same =
        |pair: &(&JobRow, &JobRow)| later_s(pair).abs() <= SAME_S.max(SAME_SHARE * pair.1.jct_s());
    let (same, differ): (Vec<_>, Vec<_>) = pairs.iter().partition(|pair| is_same(pair));
    let (mut later, sooner): (Vec<_>, Vec<_>) =
        differ.into_iter().partition(|pair| later_s(pair) > 0.0);
    later.sort_by(|a, b| later_s(b).total_cmp(&later_s(a)));
    let share = |part: usize| percent(part as f64 / pairs.len() as f64);
    let mean_s = |part: &[(&JobRow, &JobRow)]| match part.is_empty() {
        true => "–".to_owned(),
        false => duration((part.iter().map(later_s).sum::<f64>() / part.len() as f64).abs()),
    };
    let loser = |pair: &(&JobRow, &JobRow)| {
        context! {
            name => pair.0.name.as_str(),
            model => pair.0.model.as_str(),
            gpus => pair.0.gpus,
            own => duration(pair.0.jct_s()),
            rival => duration(pair.1.jct_s()),
            later => duration(later_s(pair)),
        }
    };
    context! {
        own,
        rival,
        jobs => count(pairs.len() as u64),
        sooner => share(sooner.len()),
        sooner_by => mean_s(&sooner),
        same => share(same.len()),
        later => share(later.len()),
        later_by => mean_s(&later),
        losers => later.iter().take(LOSERS_MAX).map(loser).collect::<Vec<_>>(),
    }
}

#[cfg(test)]
mod tests {
    use hither_core::record::{ClusterRow, Header};

    use super::*;

    fn header() -> Header {
        let cluster = ClusterRow { name: "c".into(), levels: Vec::new(), machines: Vec::new() };
        let (hither, trace) = ("0".into(), "t".into());
        Header { hither, trace, seed: 0, congestion: 1.0, cluster, settings: BTreeMap::new() }
    }

    fn job(job: u32, gpus: u32, model: &str, jct_s: f64) -> JobRow {
        JobRow {
            job,
            name: format!("j{job}"),
            user: String::new(),
            model: model.into(),
            gpus,
            submit_s: 100.0,
            start_s: Some(100.0),
            finish_s: 100.0 + jct_s,
            run_s: jct_s,
            queue_s: 0.0,
            comm_s: Some(0.25 * jct_s),
            ideal_s: jct_s,
            tier: 0,
            preemptions: 0,
            failures: 0,
            state: JobState::Finished,
            machines: Vec::new(),
        }
    }

    fn run(policy: &str, jobs: Vec<JobRow>) -> RunRecord {
        let summary = serde_json::json!({
            "policy": policy, "seed": 0, "jobs": jobs.len(), "finished": jobs.len(), "cancelled": 0,
            "jct_s": { "mean": 0.0, "p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0 },
            "queue_s": { "mean": 0.0, "p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0 },
            "makespan_s": 0.0, "gpu_utilisation": 0.0, "fragmentation": null, "comm_s_total": null,
            "comm_share": null, "tier_share": [], "preemptions": 0, "failures": 0, "events": 0,
            "sim_cpu_s": 0.0,
        });
        let summary = serde_json::from_value(summary).expect("all fields are there");
        RunRecord { summary, jobs, events: Vec::new() }
    }

    /// The text at a path such as `rows.0.name`.
    fn at(value: &Value, path: &str) -> String {
        let step = |value: Value, part: &str| match part.parse::<usize>() {
            Ok(index) => value.get_item_by_index(index),
            Err(_) => value.get_attr(part),
        };
        let found = path.split('.').try_fold(value.clone(), step);
        found.expect("there is such a path").to_string()
    }

    #[test]
    fn rows_are_means_over_the_jobs_of_a_class() {
        let header = header();
        let jobs = |scale: f64| {
            vec![
                job(0, 3, "a", 60.0 * scale),
                job(1, 4, "b", 80.0 * scale),
                job(2, 8, "b", 10.0 * scale),
            ]
        };
        let runs = [run("x", jobs(1.0)), run("y", jobs(2.0))];
        let labels = ["x".to_owned(), "y".to_owned()];
        let tables = tables(&Group { header: &header, runs: &runs }, &labels, 0);
        assert_eq!(tables.len(), 2 * FIGURES.len());
        let expect = |nth: usize, path: &str, text: &str| assert_eq!(at(&tables[nth], path), text);
        expect(0, "rows.0.name", "3 to 4");
        expect(0, "rows.0.jobs", "2");
        expect(0, "rows.0.cells.0.text", "70.0");
        expect(0, "rows.0.cells.0.best", "True");
        expect(0, "rows.0.cells.1.text", "140.0");
        expect(0, "rows.1.name", "8");
        expect(1, "rows.0.name", "a");
        expect(1, "rows.1.name", "b");
        expect(1, "rows.1.cells.0.text", "45.0");
        expect(4, "rows.0.cells.0.text", "25.0");
    }

    #[test]
    fn rare_models_are_pooled() {
        let header = header();
        let jobs = (0..40).map(|n| job(n, 1, &format!("m{}", n.min(20)), 1.0)).collect();
        let runs = [run("x", jobs)];
        let tables = tables(&Group { header: &header, runs: &runs }, &["x".to_owned()], 0);
        let rows = tables[1].get_attr("rows").expect("a list");
        assert_eq!(rows.len(), Some(MODELS_MAX));
        let names: Vec<String> =
            (0..MODELS_MAX).map(|row| at(&tables[1], &format!("rows.{row}.name"))).collect();
        assert_eq!(names[MODELS_MAX - 1], "6 other models");
        assert!(names.contains(&"m20".to_owned()), "the most frequent");
    }

    #[test]
    fn jobs_are_paired_and_the_worst_losers_come_first() {
        let header = header();
        let own = [100.0, 200.0, 1000.0, 50.0].into_iter().zip(0..).map(|(s, n)| job(n, 1, "a", s));
        let mut other: Vec<JobRow> = own.clone().collect();
        other[0].finish_s += 300.0; // own is sooner
        other[1].finish_s -= 100.0; // later by 100 s
        other[2].finish_s -= 500.0; // later by 500 s
        other[3].finish_s += 0.5; // the same
        let runs = [run("x", own.collect()), run("y", other)];
        let labels = ["x".to_owned(), "y".to_owned()];
        let pairs = pairs(&Group { header: &header, runs: &runs }, &labels);
        let shares = ["sooner", "same", "later"].map(|share| at(&pairs[0], share));
        assert_eq!(shares, ["25.0 %", "25.0 %", "50.0 %"]);
        assert_eq!(at(&pairs[0], "sooner_by"), "5.00 min");
        assert_eq!(at(&pairs[0], "later_by"), "5.00 min");
        assert_eq!(at(&pairs[0], "losers.0.name"), "j2");
        assert_eq!(at(&pairs[0], "losers.0.later"), "8.33 min");
        assert_eq!(pairs[0].get_attr("losers").expect("a list").len(), Some(2));
    }
}
