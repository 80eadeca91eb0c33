//! One self-contained page for training runs.

use hither_core::record::train::{Drift, Round, RunRecord};
use minijinja::{Value, context};
use serde::Serialize;

use super::about::{facts, headline, notes, title};
use super::curve::{Curve, Grid, curve, positions};
use super::figure::{Best, Column, Figures, both, columns, figures, setup};
use super::group::{Group, groups};
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

#[derive(Serialize)]
struct Data {
    /// Middle round of each point of a curve, and the rounds that it stands for.
    rounds: Vec<f64>,
    span: u32,
    /// One a group: the page's common scripts know its selectable things by this name.
    runs: Vec<GroupData>,
}

#[derive(Serialize)]
struct GroupData {
    label: String,
    colour: usize,
    dash: usize,
    /// Where scores stand on the axes of bytes and of time; empty where there are none.
    bytes: Vec<Option<f64>>,
    seconds: Vec<Option<f64>>,
    test: Option<Curve>,
    valid: Option<Curve>,
    loss: Option<Curve>,
    server_steps: Option<Curve>,
    kept: Option<Curve>,
    kappa_a: Option<Curve>,
    kappa_x: Option<Curve>,
    sigma: Option<Curve>,
    gradient: Option<Curve>,
}

/// One page for a run, or for several modes and seeds. It needs no network, no other file, and no
/// script for its table.
pub fn page(runs: &[RunRecord]) -> String {
    let groups = groups(runs);
    let figures = figures(&groups);
    let grid = Grid::over(&groups);
    let data = Data {
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
        metric => distinct(runs.iter().map(|run| run.header.metric.clone())).join(" or "),
        span => grid.span,
        repeated => groups.iter().any(|group| group.runs.len() > 1),
        silent => silent(&groups, &figures),
        columns => columns.iter().map(|column| context! {
            name => column.name,
            meaning => column.meaning,
            larger => matches!(column.best, Best::Largest),
        }).collect::<Vec<_>>(),
        rows => rows(&groups, &figures, &columns),
        notes => notes(&groups, &figures),
    };
    render(TEMPLATE, STYLE, &SCRIPTS, &json, own)
}

fn group_data(group: &Group, grid: &Grid) -> GroupData {
    let of = |read: fn(&Round) -> Option<f64>| curve(group, grid, read);
    let steps = group.runs.iter().flat_map(|run| &run.rounds).any(|row| row.server_steps > 0);
    let damped = group.runs.iter().flat_map(|run| &run.rounds).any(|row| row.kept < 1.0);
    let before = group.mean(setup).unwrap_or(0.0);
    GroupData {
        label: group.label.clone(),
        colour: group.colour,
        dash: group.dash,
        bytes: positions(group, grid, before, |row| both(&row.bytes)),
        seconds: positions(group, grid, 0.0, |row| row.time.local_s + row.time.server_s),
        test: of(|row| row.test),
        valid: of(|row| row.valid),
        loss: of(|row| Some(row.loss)),
        // A line of zeros would only lie on the axis.
        server_steps: of(|row| Some(f64::from(row.server_steps))).filter(|_| steps),
        kept: of(|row| Some(row.kept)).filter(|_| damped),
        kappa_a: of(|row| drift(row, |d| d.kappa_a)),
        kappa_x: of(|row| drift(row, |d| d.kappa_x)),
        sigma: of(|row| drift(row, |d| d.bias_squared.sqrt())),
        gradient: of(|row| drift(row, |d| d.local_squared.sqrt())),
    }
}

fn drift(row: &Round, read: fn(&Drift) -> f64) -> Option<f64> {
    row.drift.as_ref().map(read).filter(|v| v.is_finite())
}

/// Who sends nothing has no place on a logarithmic axis of bytes.
fn silent(groups: &[Group], figures: &[Figures]) -> String {
    let silent = groups.iter().zip(figures).filter(|(_, f)| f.total_bytes == 0.0);
    silent.map(|(group, _)| group.label.clone()).collect::<Vec<_>>().join(", ")
}

fn rows(groups: &[Group], figures: &[Figures], columns: &[&Column]) -> Vec<Value> {
    let winners: Vec<Vec<bool>> = columns.iter().map(|c| c.winners(figures)).collect();
    let row = |(i, (group, own)): (usize, (&Group, &Figures))| {
        let cell = |(column, wins): (&&Column, &Vec<bool>)| {
            // What the column sorts by; empty where there is no figure.
            let value = (column.value)(own).filter(|v| v.is_finite());
            context! {
                text => (column.text)(own),
                value => value.map_or_else(String::new, |v| v.to_string()),
                best => wins[i],
            }
        };
        let cells: Vec<Value> = columns.iter().zip(&winners).map(cell).collect();
        context! { label => group.label.as_str(), cells => cells }
    };
    groups.iter().zip(figures).enumerate().map(row).collect()
}
