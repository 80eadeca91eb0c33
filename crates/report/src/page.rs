//! One self-contained HTML page: the template, styles, scripts and data in one string.

use std::collections::HashMap;

use hither_core::record::{Header, JobRow, JobState, RunRecord, Summary};
use minijinja::{Environment, Value, context};
use serde::Serialize;

use crate::curve::{OverTime, Timers, bounds, cdf, log_grid, over_time, time_grid, timers};
use crate::format::{cluster, gpus, plural, rounded};
use crate::label::{differences, labels, notes};
use crate::metric::METRICS;
use crate::{pack, span};

const TEMPLATE: &str = include_str!("../assets/report.html");
const STYLES: [&str; 2] =
    [include_str!("../assets/vendor/uplot/uPlot.min.css"), include_str!("../assets/report.css")];
const PLOT_LIBRARY: &str = include_str!("../assets/vendor/uplot/uPlot.iife.min.js");
/// In the order in which they build on each other.
const SCRIPTS: [&str; 7] = [
    include_str!("../assets/js/data.js"),
    include_str!("../assets/js/select.js"),
    include_str!("../assets/js/charts.js"),
    include_str!("../assets/js/schedule-draw.js"),
    include_str!("../assets/js/schedule.js"),
    include_str!("../assets/js/table.js"),
    include_str!("../assets/js/main.js"),
];

/// The runs that share a header: one directory of `hither simulate`.
pub struct Group<'a> {
    pub header: &'a Header,
    pub runs: &'a [RunRecord],
}

/// What the scripts read.
#[derive(Serialize)]
struct Data {
    time_s: Vec<f64>,
    length_s: f64,
    jct_grid_s: Vec<f64>,
    queue_grid_s: Vec<f64>,
    groups: Vec<GroupData>,
    runs: Vec<RunData>,
}

#[derive(Serialize)]
struct GroupData {
    racks: Vec<String>,
    /// In the order in which they are drawn.
    machines: Vec<MachineData>,
}

#[derive(Serialize)]
struct MachineData {
    name: String,
    rack: u32,
    gpus: u32,
    gpu_type: String,
}

#[derive(Serialize)]
struct RunData {
    label: String,
    group: usize,
    has_events: bool,
    length_s: f64,
    jct: Vec<f64>,
    queue: Vec<f64>,
    over_time: OverTime,
    timers: Vec<Timers>,
    tier_share: [f64; 3],
    spans_dropped: usize,
    /// Indices of packed blocks.
    spans: usize,
    jobs: usize,
    names: usize,
    models: usize,
}

/// One page for all groups. It needs no network, no other file, and no script for its table.
pub fn html(groups: &[Group]) -> String {
    let named: Vec<(&Header, Vec<&str>)> =
        groups.iter().map(|g| (g.header, policies(g.runs))).collect();
    let labels = labels(&named);
    let mut blocks = Blocks::default();
    let data = data(groups, &labels, &mut blocks);
    let json = serde_json::to_string(&data).expect("rows of numbers and strings are JSON");

    let mut environment = Environment::new();
    environment.add_template("report.html", TEMPLATE).expect("the template is part of the program");
    let template = environment.get_template("report.html").expect("it was added above");
    template
        .render(context! {
            title => title(groups),
            facts => facts(groups),
            notes => notes(labels.iter().map(String::as_str).zip(
                groups.iter().flat_map(|g| g.runs).map(|r| r.summary.notes.as_slice()),
            )),
            metrics => METRICS.iter().map(|m| context! {
                name => m.name,
                meaning => m.meaning,
                smaller => m.smaller,
            }).collect::<Vec<_>>(),
            rows => table_rows(groups, &labels),
            labels => labels,
            style => STYLES.concat(),
            plot_library => PLOT_LIBRARY,
            script => SCRIPTS.concat(),
            data => inert_json(&json),
            blocks => blocks.texts,
        })
        .expect("the template uses only the names above")
}

fn policies(runs: &[RunRecord]) -> Vec<&str> {
    runs.iter().map(|r| r.summary.policy.as_str()).collect()
}

/// JSON that cannot end the script element it stands in, whatever the strings in it say.
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
        [one] => format!("{policies} on {}", plural(gpus(one.header), "GPU")),
        _ => format!("{policies} in {} settings", groups.len()),
    }
}

fn facts(groups: &[Group]) -> Vec<Value> {
    let headers: Vec<&Header> = groups.iter().map(|g| g.header).collect();
    let fact = |(group, difference): (&Group, String)| {
        context! {
            difference => difference,
            trace => group.header.trace.as_str(),
            cluster => cluster(group.header),
            seed => group.header.seed,
            congestion => group.header.congestion.to_string(),
            version => group.header.hither.as_str(),
            jobs => group.runs.iter().map(|r| r.summary.jobs).max().unwrap_or(0),
        }
    };
    groups.iter().zip(differences(&headers)).map(fact).collect()
}

/// The best of a column is the best within its group: other groups had another task.
fn table_rows(groups: &[Group], labels: &[String]) -> Vec<Value> {
    let mut rows = Vec::new();
    for group in groups {
        let summaries: Vec<&Summary> = group.runs.iter().map(|r| &r.summary).collect();
        let winners: Vec<Vec<bool>> = METRICS.iter().map(|m| m.winners(&summaries)).collect();
        for (i, summary) in summaries.iter().enumerate() {
            let cell = |(m, wins): (&crate::metric::Metric, &Vec<bool>)| {
                // What the column sorts by; empty where there is no figure.
                let value = (m.value)(summary).filter(|v| v.is_finite());
                context! {
                    text => (m.text)(summary),
                    value => value.map_or_else(String::new, |v| v.to_string()),
                    best => wins[i],
                }
            };
            let run = rows.len();
            let cells: Vec<Value> = METRICS.iter().zip(&winners).map(cell).collect();
            rows.push(context! { label => labels[run].as_str(), run => run, cells => cells });
        }
    }
    rows
}

/// Packed columns, each text once: policies of one trace share their jobs' names.
#[derive(Default)]
struct Blocks {
    texts: Vec<String>,
    known: HashMap<String, usize>,
}

impl Blocks {
    fn add(&mut self, text: String) -> usize {
        if let Some(&at) = self.known.get(&text) {
            return at;
        }
        self.known.insert(text.clone(), self.texts.len());
        self.texts.push(text);
        self.texts.len() - 1
    }
}

fn data(groups: &[Group], labels: &[String], blocks: &mut Blocks) -> Data {
    let runs: Vec<(usize, &RunRecord)> = groups
        .iter()
        .enumerate()
        .flat_map(|(i, group)| group.runs.iter().map(move |run| (i, run)))
        .collect();
    let length = |run: &RunRecord| bounds(&run.events).map_or(0.0, |(start, end)| end - start);
    let length_s = runs.iter().map(|(_, run)| length(run)).fold(0.0, f64::max);
    let jct: Vec<Vec<f64>> = runs.iter().map(|(_, r)| finished(r, JobRow::jct_s)).collect();
    let queue: Vec<Vec<f64>> = runs.iter().map(|(_, r)| finished(r, |job| job.queue_s)).collect();
    let (jct_grid_s, queue_grid_s) = (log_grid(&jct), log_grid(&queue));
    let run_data = |(i, &(group, run)): (usize, &(usize, &RunRecord))| {
        let cluster = &groups[group].header.cluster;
        let position: HashMap<u32, u32> =
            run.jobs.iter().zip(0..).map(|(job, at)| (job.job, at)).collect();
        let schedule = span::schedule(cluster, &run.events, &position);
        let (jobs, names, models) = job_blocks(run, blocks);
        RunData {
            label: labels[i].clone(),
            group,
            has_events: !run.events.is_empty(),
            length_s: rounded(length(run)),
            jct: cdf(&jct[i], &jct_grid_s),
            queue: cdf(&queue[i], &queue_grid_s),
            over_time: over_time(cluster, &run.events, length_s),
            timers: timers(&run.events, length_s),
            tier_share: run.summary.tier_share.map(rounded),
            spans_dropped: schedule.dropped,
            spans: blocks.add(pack_spans(&schedule.spans)),
            jobs,
            names,
            models,
        }
    };
    let run_data = runs.iter().enumerate().map(run_data).collect();
    Data {
        time_s: time_grid(length_s),
        length_s,
        groups: groups.iter().map(|g| group_data(g.header)).collect(),
        runs: run_data,
        jct_grid_s,
        queue_grid_s,
    }
}

fn finished(run: &RunRecord, value: impl Fn(&JobRow) -> f64) -> Vec<f64> {
    run.jobs.iter().filter(|job| job.state == JobState::Finished).map(value).collect()
}

fn group_data(header: &Header) -> GroupData {
    let machine = |m: usize| {
        let machine = &header.cluster.machines[m];
        MachineData {
            name: machine.name.clone(),
            rack: machine.rack,
            gpus: machine.gpus,
            gpu_type: machine.gpu_type.clone(),
        }
    };
    GroupData {
        racks: header.cluster.racks.clone(),
        machines: span::rows(&header.cluster).into_iter().map(machine).collect(),
    }
}

fn pack_spans(spans: &[span::Span]) -> String {
    let columns: [fn(&span::Span) -> i64; 7] = [
        |s| s.row,
        |s| s.lane,
        |s| s.start_ms,
        |s| s.end_ms - s.start_ms,
        |s| s.gpus,
        |s| s.job,
        |s| s.tier,
    ];
    pack::columns(&columns.map(|column| spans.iter().map(column).collect()))
}

/// What hovering over a bar tells about its job: numbers, names, names of models.
fn job_blocks(run: &RunRecord, blocks: &mut Blocks) -> (usize, usize, usize) {
    let start = bounds(&run.events).map_or(0.0, |(start, _)| start);
    let ms = |t: f64| ((t - start) * 1000.0).round() as i64;
    let mut models: Vec<&str> = run.jobs.iter().map(|job| job.model.as_str()).collect();
    models.sort_unstable();
    models.dedup();
    let model = |job: &JobRow| models.partition_point(|m| *m < job.model.as_str()) as i64;
    let numbers = pack::columns(&[
        run.jobs.iter().map(|job| i64::from(job.gpus)).collect(),
        run.jobs.iter().map(model).collect(),
        run.jobs.iter().map(|job| ms(job.submit_s)).collect(),
        run.jobs.iter().map(|job| ms(job.finish_s)).collect(),
    ]);
    (
        blocks.add(numbers),
        blocks.add(pack::lines(run.jobs.iter().map(|job| job.name.as_str()))),
        blocks.add(pack::lines(models.into_iter())),
    )
}
