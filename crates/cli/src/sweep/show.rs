//! The figures of a sweep: CSV, tables for the terminal, and a page with heat maps.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use hither_core::record::Summary;
use hither_core::summary::Estimate;

use super::grid::Axis;
use super::store::Finished;

/// Every figure of a summary but `sim_cpu_s`, which would make equal sweeps differ.
type Column = (&'static str, fn(&Summary) -> f64);
const COLUMNS: [Column; 24] = [
    ("jobs", |s| s.jobs as f64),
    ("finished", |s| s.finished as f64),
    ("cancelled", |s| s.cancelled as f64),
    ("jct_mean_s", |s| s.jct_s.mean),
    ("jct_p50_s", |s| s.jct_s.p50),
    ("jct_p95_s", |s| s.jct_s.p95),
    ("jct_p99_s", |s| s.jct_s.p99),
    ("jct_max_s", |s| s.jct_s.max),
    ("queue_mean_s", |s| s.queue_s.mean),
    ("queue_p50_s", |s| s.queue_s.p50),
    ("queue_p95_s", |s| s.queue_s.p95),
    ("queue_p99_s", |s| s.queue_s.p99),
    ("queue_max_s", |s| s.queue_s.max),
    ("makespan_s", |s| s.makespan_s),
    ("gpu_utilisation", |s| s.gpu_utilisation),
    ("fragmentation", |s| s.fragmentation),
    ("comm_s_total", |s| s.comm_s_total),
    ("comm_share", |s| s.comm_share),
    ("machine_share", |s| s.tier_share[0]),
    ("rack_share", |s| s.tier_share[1]),
    ("network_share", |s| s.tier_share[2]),
    ("preemptions", |s| s.preemptions as f64),
    ("failures", |s| s.failures as f64),
    ("events", |s| s.events as f64),
];

/// What is compared: in seconds, less is better.
const METRICS: [Column; 3] = [
    ("average JCT", |s| s.jct_s.mean),
    ("makespan", |s| s.makespan_s),
    ("communication time of all jobs", |s| s.comm_s_total),
];

pub fn csv(axes: &[Axis], cells: &[Finished]) -> anyhow::Result<Vec<u8>> {
    let mut csv = csv::Writer::from_writer(Vec::new());
    let keys = axes.iter().map(|axis| axis.key.as_str());
    csv.write_record(keys.chain(["policy"]).chain(COLUMNS.iter().map(|c| c.0)))?;
    for Finished { cell, runs } in cells {
        for run in runs {
            let place = axes.iter().map(|axis| cell[&axis.key].clone());
            let figures = COLUMNS.iter().map(|(_, figure)| figure(run).to_string());
            csv.write_record(place.chain([run.policy.clone()]).chain(figures))?;
        }
    }
    Ok(csv.into_inner()?)
}

/// Cells that differ by their seed only, as one.
struct Row<'a> {
    /// Values of the axes other than the seed.
    place: Vec<&'a str>,
    cells: Vec<&'a Finished>,
}

pub struct Comparison<'a> {
    keys: Vec<&'a str>,
    policies: Vec<&'a str>,
    rows: Vec<Row<'a>>,
}

impl<'a> Comparison<'a> {
    pub fn new(axes: &'a [Axis], policies: Vec<&'a str>, cells: &'a [Finished]) -> Self {
        let keys: Vec<&str> =
            axes.iter().map(|axis| axis.key.as_str()).filter(|key| *key != "seed").collect();
        let mut rows: Vec<Row> = Vec::new();
        for finished in cells {
            let place: Vec<&str> = keys.iter().map(|key| finished.cell[*key].as_str()).collect();
            match rows.iter_mut().find(|row| row.place == place) {
                Some(row) => row.cells.push(finished),
                None => rows.push(Row { place, cells: vec![finished] }),
            }
        }
        Self { keys, policies, rows }
    }

    /// By policy.
    fn estimates(&self, row: &Row, figure: fn(&Summary) -> f64) -> Vec<Estimate> {
        let of = |at: usize| {
            let values: Vec<f64> = row.cells.iter().map(|cell| figure(&cell.runs[at])).collect();
            Estimate::of(&values)
        };
        (0..self.policies.len()).map(of).collect()
    }

    /// One table a metric; the best policy of each row is marked.
    pub fn tables(&self) -> String {
        let mut text = String::new();
        for (name, figure) in METRICS {
            let mut table = Table::new();
            table.load_style(presets::UTF8_FULL_CONDENSED);
            table.set_header(self.keys.iter().chain(&self.policies));
            for row in &self.rows {
                let estimates = self.estimates(row, figure);
                let best = best(&estimates);
                let cells = estimates.iter().map(|e| {
                    let mark = if self.policies.len() > 1 && e.mean == best { '*' } else { ' ' };
                    format!("{}{mark}", shown(e))
                });
                table.add_row(row.place.iter().map(|p| (*p).to_owned()).chain(cells));
            }
            for column in table.column_iter_mut() {
                column.set_cell_alignment(CellAlignment::Right);
            }
            let _ = writeln!(text, "{name}{}\n{table}", self.spread());
        }
        text
    }

    fn spread(&self) -> String {
        match self.rows.first().map_or(0, |row| row.cells.len()) {
            0 | 1 => String::new(),
            seeds => format!(", mean of {seeds} seeds ± 95 % confidence"),
        }
    }

    /// A page without scripts: tables whose cells are the darker the further from the best.
    pub fn html(&self, title: &str) -> String {
        let mut text = format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
             <title>{0}</title>\n<style>\n\
             body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; \
             padding: 0 1rem; color: #1b1b1f; background: #fff }}\n\
             table {{ border-collapse: collapse; margin: .5rem 0 2rem }}\n\
             th, td {{ padding: .3rem .8rem; text-align: right; \
             font-variant-numeric: tabular-nums }}\n\
             th {{ border-bottom: 1px solid #999 }}\n.best {{ font-weight: 700 }}\n</style>\n\
             <h1>{0}</h1>\n\
             <p>Bold: the best policy of the row. Colour: how many times the best.</p>\n",
            escape(title)
        );
        for (name, figure) in METRICS {
            let _ = write!(text, "<h2>{}{}</h2>\n<table>\n<tr>", escape(name), self.spread());
            for head in self.keys.iter().chain(&self.policies) {
                let _ = write!(text, "<th scope=\"col\">{}</th>", escape(head));
            }
            text.push_str("</tr>\n");
            for row in &self.rows {
                text.push_str("<tr>");
                for place in &row.place {
                    let _ = write!(text, "<th scope=\"row\">{}</th>", escape(place));
                }
                let estimates = self.estimates(row, figure);
                let best = best(&estimates);
                for e in &estimates {
                    let class = if e.mean == best { " class=\"best\"" } else { "" };
                    let (colour, shown) = (colour(e.mean, best), shown(e));
                    let _ = write!(text, "<td{class} style=\"background:{colour}\">{shown}</td>");
                }
                text.push_str("</tr>\n");
            }
            text.push_str("</table>\n");
        }
        text + "</html>\n"
    }
}

fn best(estimates: &[Estimate]) -> f64 {
    estimates.iter().map(|e| e.mean).fold(f64::INFINITY, f64::min)
}

/// White at the best, full red at eight times the best; steps are factors.
fn colour(value: f64, best: f64) -> String {
    let ratio = if best > 0.0 {
        value / best
    } else if value > 0.0 {
        8.0
    } else {
        1.0
    };
    let depth = (ratio.log2() / 3.0).clamp(0.0, 1.0);
    let fade = |to: f64| (255.0 - depth * (255.0 - to)).round() as u8;
    format!("#{:02x}{:02x}{:02x}", fade(240.0), fade(150.0), fade(130.0))
}

fn shown(estimate: &Estimate) -> String {
    let (unit_s, unit) = match estimate.mean {
        s if s < 120.0 => (1.0, "s"),
        s if s < 7200.0 => (60.0, "min"),
        s if s < 48.0 * 3600.0 => (3600.0, "h"),
        _ => (86_400.0, "d"),
    };
    let mean = estimate.mean / unit_s;
    match estimate.n {
        0 | 1 => format!("{mean:.2} {unit}"),
        _ => format!("{mean:.2} ± {:.2} {unit}", estimate.half_width / unit_s),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
