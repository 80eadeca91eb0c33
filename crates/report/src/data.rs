//! The data of the page's scripts: curves as JSON, bars and jobs as packed blocks.

use std::collections::HashMap;

use hither_core::record::{Header, JobRow, JobState, RunRecord};
use serde::Serialize;

use crate::curve::{LinkCurves, OverTime, Timers, bounds, cdf, links, log_grid, over_time, timers};
use crate::format::{rounded, tiers};
use crate::page::Group;
use crate::{history, pack, span};

/// Colours in the page's palette: `--c0` and on in report.css.
pub const COLOURS: usize = 8;

/// The data of the page's scripts, as JSON.
#[derive(Serialize)]
pub struct Data {
    /// Length of the longest run.
    length_s: f64,
    jct_grid_s: Vec<f64>,
    queue_grid_s: Vec<f64>,
    groups: Vec<GroupData>,
    runs: Vec<RunData>,
}

#[derive(Serialize)]
struct GroupData {
    /// What a placement of each tier is.
    tiers: Vec<String>,
    /// Names of the levels.
    levels: Vec<String>,
    /// Places of level 1: their names, and the names of all places around them.
    places: Vec<(String, String)>,
    /// In the order in which they are drawn.
    machines: Vec<MachineData>,
}

#[derive(Serialize)]
struct MachineData {
    name: String,
    /// Index into `places`.
    place: u32,
    gpus: u32,
    gpu_type: String,
}

#[derive(Serialize)]
struct RunData {
    label: String,
    /// Policies differ by colour; runs of one policy in other settings differ by dashes.
    colour: usize,
    dash: usize,
    group: usize,
    has_events: bool,
    length_s: f64,
    jct: Vec<f64>,
    queue: Vec<f64>,
    over_time: OverTime,
    links: Vec<LinkCurves>,
    timers: Vec<Timers>,
    tier_share: Vec<f64>,
    spans_dropped: usize,
    /// Indices of packed blocks.
    spans: usize,
    jobs: usize,
    names: usize,
    models: usize,
    history: usize,
    reasons: usize,
}

/// Packed columns, each stored once, because all policies of a trace share the names of its jobs.
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

/// The data and the blocks that it refers to by index.
pub fn data(groups: &[Group], labels: &[String]) -> (Data, Vec<String>) {
    let mut blocks = Blocks::default();
    let runs: Vec<(usize, &RunRecord)> = groups
        .iter()
        .enumerate()
        .flat_map(|(i, group)| group.runs.iter().map(move |run| (i, run)))
        .collect();
    let mut policies: Vec<&str> = runs.iter().map(|(_, r)| r.summary.policy.as_str()).collect();
    policies.sort_unstable();
    policies.dedup();
    let length = |run: &RunRecord| bounds(&run.events).map_or(0.0, |(start, end)| end - start);
    let length_s = runs.iter().map(|(_, run)| length(run)).fold(0.0, f64::max);
    let jct: Vec<Vec<f64>> = runs.iter().map(|(_, r)| finished(r, JobRow::jct_s)).collect();
    let queue: Vec<Vec<f64>> = runs.iter().map(|(_, r)| finished(r, |job| job.queue_s)).collect();
    let (jct_grid_s, queue_grid_s) = (log_grid(&jct), log_grid(&queue));
    let run_data = |(i, &(group, run)): (usize, &(usize, &RunRecord))| {
        let cluster = &groups[group].header.cluster;
        let (colour, dash) = match groups {
            [_] => (i % COLOURS, i / COLOURS),
            _ => (policies.partition_point(|p| *p < run.summary.policy.as_str()) % COLOURS, group),
        };
        let position: HashMap<u32, u32> =
            run.jobs.iter().zip(0..).map(|(job, at)| (job.job, at)).collect();
        let schedule = span::schedule(cluster, &run.events, &position);
        let (jobs, names, models) = job_blocks(run, &mut blocks);
        let (history, reasons) = history::blocks(&run.events, &position);
        RunData {
            label: labels[i].clone(),
            colour,
            dash,
            group,
            has_events: !run.events.is_empty(),
            length_s: length(run),
            jct: cdf(&jct[i], &jct_grid_s),
            queue: cdf(&queue[i], &queue_grid_s),
            over_time: over_time(cluster, &run.events),
            links: links(&run.events),
            timers: timers(cluster, &run.events),
            tier_share: run.summary.tier_share.iter().map(|&share| rounded(share)).collect(),
            spans_dropped: schedule.dropped,
            spans: blocks.add(pack_spans(&schedule.spans)),
            jobs,
            names,
            models,
            history: blocks.add(history),
            reasons: blocks.add(reasons),
        }
    };
    let run_data = runs.iter().enumerate().map(run_data).collect();
    let data = Data {
        length_s,
        groups: groups.iter().map(|g| group_data(g.header)).collect(),
        runs: run_data,
        jct_grid_s,
        queue_grid_s,
    };
    (data, blocks.texts)
}

fn finished(run: &RunRecord, value: impl Fn(&JobRow) -> f64) -> Vec<f64> {
    run.jobs.iter().filter(|job| job.state == JobState::Finished).map(value).collect()
}

fn group_data(header: &Header) -> GroupData {
    let machine = |m: usize| {
        let machine = &header.cluster.machines[m];
        MachineData {
            name: machine.name.clone(),
            place: machine.parent,
            gpus: machine.gpus,
            gpu_type: machine.gpu_type.clone(),
        }
    };
    let cluster = &header.cluster;
    let name = |level: usize, place: u32| cluster.levels[level].places[place as usize].0.clone();
    let place = |at: u32| {
        // The network, which holds all, needs no mention.
        let path = cluster.path(at);
        let around = (1..).zip(&path).take(path.len().saturating_sub(1));
        let around: Vec<String> = around.map(|(level, &place)| name(level, place)).collect();
        (name(1, at), around.join(", "))
    };
    let places = cluster.levels.get(1).map_or(0, |level| level.places.len() as u32);
    GroupData {
        tiers: tiers(cluster),
        levels: cluster.levels.iter().map(|level| level.name.clone()).collect(),
        places: (0..places).map(place).collect(),
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

/// The facts about jobs that the schedule's tooltip shows: numbers, job names, model names.
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
