//! One self-contained page for training runs.

use hither_core::record::train::{Round, RunRecord};
use minijinja::{Value, context};
use serde::Serialize;
use serde_json::Map;

use super::about::{facts, headline, notes, settings, title};
use super::classes::classes;
use super::curve::{Curve, RoundGrid, curve, positions};
use super::figure::{Best, Column, Figures, both, columns, figures, setup};
use super::group::{ModeGroup, groups};
use crate::page::{distinct, render};

const TEMPLATE: &str = include_str!("../../assets/train.html");
const STYLE: &str = include_str!("../../assets/train.css");
/// In the order in which they build on each other.
const SCRIPTS: [&str; 5] = [
    include_str!("../../assets/js/data.js"),
    include_str!("../../assets/js/select.js"),
    include_str!("../../assets/js/draw.js"),
    include_str!("../../assets/js/table.js"),
    include_str!("../../assets/js/train.js"),
];

/// A chart over rounds.
struct Chart {
    id: &'static str,
    title: &'static str,
    note: &'static str,
    /// Whether a group has figures of it. A chart that no group has is left out.
    is_in: fn(&ModeData) -> bool,
}

const CHARTS: [Chart; 4] = [
    Chart {
        id: "loss",
        title: "Loss",
        note: "Mean over the local steps of a round; over the server's steps in modes without local ones",
        is_in: |g| g.loss.is_some(),
    },
    Chart {
        id: "steps",
        title: "Server steps",
        note: "Correction steps on the whole graph, per round",
        is_in: |g| g.server_steps.is_some(),
    },
    Chart {
        id: "kept",
        title: "Share of the average that is kept",
        note: "How far the global model moves towards the workers' average. With automatic correction it \
         moves to where the loss of held-back training nodes, seen with all their neighbours, is lowest; \
         that is not far where cut edges mislead.",
        is_in: |g| g.kept.is_some(),
    },
    Chart {
        id: "gain",
        title: "What corrections gain",
        note: "Share by which the server's steps lower the loss of held-back training nodes. Steps that raise \
         it clearly are undone, and none follow until the next comparison.",
        is_in: |g| g.gain.is_some(),
    },
];

#[derive(Serialize)]
struct Data {
    /// What scores are.
    metric: String,
    /// Middle round of each point of a curve, and the rounds that it stands for.
    rounds: Vec<f64>,
    span: u32,
    /// One per group: the page's common scripts know its selectable things by this name.
    runs: Vec<ModeData>,
}

#[derive(Serialize)]
struct ModeData {
    label: String,
    colour: usize,
    dash: usize,
    /// Where scores stand on the axes of bytes and of computed time; empty where there are none.
    bytes: Vec<Option<f64>>,
    seconds: Vec<Option<f64>>,
    /// One per run.
    best: Vec<BestRound>,
    test: Option<Curve>,
    valid: Option<Curve>,
    loss: Option<Curve>,
    server_steps: Option<Curve>,
    kept: Option<Curve>,
    gain: Option<Curve>,
}

/// The round whose model was tested, and where it lies on each axis.
#[derive(Serialize)]
struct BestRound {
    round: u32,
    bytes: Option<f64>,
    seconds: Option<f64>,
    test: Option<f64>,
    valid: Option<f64>,
}

/// One page for a run, or for several modes and seeds; `asked` are the settings of each directory
/// that the runs come from. It needs no network, no other file, and no script for its table.
pub fn page(runs: &[RunRecord], asked: &[Map<String, serde_json::Value>]) -> String {
    let groups = groups(runs);
    let figures = figures(&groups);
    let grid = RoundGrid::over(&groups);
    let metric = distinct(runs.iter().map(|run| run.header.metric.clone())).join(" or ");
    let data = Data {
        metric: metric.clone(),
        rounds: grid.rounds(),
        span: grid.span,
        runs: groups.iter().map(|group| group_data(group, &grid)).collect(),
    };
    let json = serde_json::to_string(&data).expect("numbers and strings are JSON");
    let columns = columns(&figures);

    let fact = |(name, values): (_, Vec<String>)| context! { name, values => [values.join(" · ")] };
    let own = context! {
        title => title(&groups),
        headline => headline(&groups, &figures),
        facts => facts(runs).into_iter().map(fact).collect::<Vec<_>>(),
        labels => groups.iter().map(|group| group.label.clone()).collect::<Vec<_>>(),
        metric => metric,
        span => grid.span,
        repeated => groups.iter().any(|group| group.runs.len() > 1),
        silent => silent(&groups, &figures),
        charts => charts(&data.runs),
        absent => absent(&data.runs),
        settings => settings(asked).into_iter().map(|(name, value)| context! { name, value })
            .collect::<Vec<_>>(),
        row_head => "mode",
        columns => columns.iter().map(|column| context! {
            name => column.name,
            meaning => column.meaning,
            larger => matches!(column.best, Best::Largest),
        }).collect::<Vec<_>>(),
        rows => rows(&groups, &figures, &columns),
        notes => notes(&groups, &figures),
        classes => classes(&groups).map(|classes| context! {
            columns => classes.columns,
            rows => classes.rows,
            left_out => classes.left_out,
        }),
    };
    render(TEMPLATE, STYLE, &SCRIPTS, &json, own)
}

fn group_data(group: &ModeGroup, grid: &RoundGrid) -> ModeData {
    let of = |read: fn(&Round) -> Option<f64>| curve(group, grid, read);
    let steps = group.runs.iter().flat_map(|run| &run.rounds).any(|row| row.server_steps > 0);
    let damped = group.runs.iter().flat_map(|run| &run.rounds).any(|row| row.kept < 1.0);
    let before = group.mean(setup).unwrap_or(0.0);
    ModeData {
        label: group.label.clone(),
        colour: group.colour,
        dash: group.dash,
        best: group.runs.iter().map(|run| best_round(run)).collect(),
        bytes: positions(group, grid, before, |row| both(&row.bytes)),
        seconds: positions(group, grid, 0.0, |row| row.path.total()),
        test: of(|row| row.test),
        valid: of(|row| row.valid),
        loss: of(|row| Some(row.loss)),
        // A line of zeros would lie on the axis.
        server_steps: of(|row| Some(f64::from(row.server_steps))).filter(|_| steps),
        kept: of(|row| Some(row.kept)).filter(|_| damped),
        gain: of(|row| row.gain),
    }
}

fn best_round(run: &RunRecord) -> BestRound {
    let summary = &run.summary;
    let before = run.rounds.iter().filter(|row| row.round <= summary.best_round);
    let bytes = setup(run) + before.clone().map(|row| both(&row.bytes)).sum::<f64>();
    let seconds = before.map(|row| row.path.total()).sum::<f64>();
    let positive = |value: f64| (value.is_finite() && value > 0.0).then_some(value);
    BestRound {
        round: summary.best_round,
        bytes: positive(bytes),
        seconds: positive(seconds),
        test: Some(summary.test).filter(|score| score.is_finite()),
        valid: summary.valid.filter(|score| score.is_finite()),
    }
}

/// The charts that have something to show, in pairs: the first is wide where one is left over.
fn charts(groups: &[ModeData]) -> Vec<Value> {
    let shown: Vec<&Chart> = CHARTS.iter().filter(|chart| groups.iter().any(chart.is_in)).collect();
    let is_odd = shown.len() % 2 == 1;
    let value = |(i, chart): (usize, &&Chart)| {
        let Chart { id, title, note, .. } = **chart;
        context! { id, title, note, wide => is_odd && i == 0 }
    };
    shown.iter().enumerate().map(value).collect()
}

/// Titles of the charts that have nothing to show.
fn absent(groups: &[ModeData]) -> String {
    let absent = CHARTS.iter().filter(|chart| !groups.iter().any(chart.is_in));
    absent.map(|chart| chart.title).collect::<Vec<_>>().join("; ")
}

/// Modes that send no bytes are left out of that chart: zero has no place on a log axis.
fn silent(groups: &[ModeGroup], figures: &[Figures]) -> String {
    let silent = groups.iter().zip(figures).filter(|(_, f)| f.total_bytes == 0.0);
    silent.map(|(group, _)| group.label.clone()).collect::<Vec<_>>().join(", ")
}

fn rows(groups: &[ModeGroup], figures: &[Figures], columns: &[&Column]) -> Vec<Value> {
    let winners: Vec<Vec<bool>> = columns.iter().map(|c| c.winners(figures)).collect();
    let texts: Vec<Vec<String>> = columns.iter().map(|c| c.texts(figures)).collect();
    let row = |(i, (group, own)): (usize, (&ModeGroup, &Figures))| {
        let cell = |((column, wins), texts): ((&&Column, &Vec<bool>), &Vec<String>)| {
            // The sort key; empty where there is no figure.
            let value = (column.value)(own).filter(|v| v.is_finite());
            context! {
                text => texts[i].as_str(),
                value => value.map_or_else(String::new, |v| v.to_string()),
                best => wins[i],
            }
        };
        let cells: Vec<Value> = columns.iter().zip(&winners).zip(&texts).map(cell).collect();
        context! { label => group.label.as_str(), cells => cells }
    };
    groups.iter().zip(figures).enumerate().map(row).collect()
}
