//! A measurement of a server under load: for the terminal ([`text`](LoadReport::text)) and as one
//! page ([`html`](LoadReport::html)).

use comfy_table::{CellAlignment, Table, presets};
use minijinja::{Value, context};
use serde::Serialize;

use crate::format::{count, percent, printable};
use crate::page::render;

const TEMPLATE: &str = include_str!("../assets/load.html");
/// In the order in which they build on each other.
const SCRIPTS: [&str; 4] = [
    include_str!("../assets/js/data.js"),
    include_str!("../assets/js/select.js"),
    include_str!("../assets/js/draw.js"),
    include_str!("../assets/js/load.js"),
];

/// The names of [`LoadLevel::latency_us`].
pub const PERCENTILES: [&str; 5] = ["p50", "p90", "p95", "p99", "p99.9"];

/// All levels of load that one server was offered.
#[derive(Clone, Debug)]
pub struct LoadReport {
    pub hither: String,
    /// The server's address.
    pub target: String,
    pub model: String,
    /// Samples per request.
    pub samples: usize,
    /// What requests hold, in words.
    pub ids: String,
    /// True where requests came at their own times, false where callers waited for answers.
    pub is_open: bool,
    pub slo_us: Option<f64>,
    /// The outcome of a search, in one sentence.
    pub found: Option<String>,
    pub settings: Vec<(String, String)>,
    pub levels: Vec<LoadLevel>,
}

/// One level of load.
#[derive(Clone, Debug)]
pub struct LoadLevel {
    /// Requests per second, or callers.
    pub offered: f64,
    pub requests_per_s: f64,
    pub answered_per_s: f64,
    pub samples_per_s: f64,
    /// Answered within the SLO.
    pub good_per_s: f64,
    pub refused: u64,
    pub failed: u64,
    pub timed_out: u64,
    pub requests: u64,
    /// In the order of [`PERCENTILES`].
    pub latency_us: [f64; 5],
    /// False where the figures still changed at the end.
    pub is_stable: bool,
}

impl LoadLevel {
    fn lost(&self) -> String {
        let share = |count: u64| percent(count as f64 / self.requests.max(1) as f64);
        let kinds =
            [("refused", self.refused), ("failed", self.failed), ("timed out", self.timed_out)];
        let told: Vec<String> = kinds
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| format!("{} {kind}", share(*count)))
            .collect();
        if told.is_empty() { "–".into() } else { told.join(", ") }
    }

    /// The cells of its row, in the order of [`LoadReport::columns`].
    fn cells(&self) -> Vec<String> {
        let mut cells = vec![
            number(self.offered),
            number(self.answered_per_s),
            number(self.samples_per_s),
            number(self.good_per_s),
        ];
        cells.extend(self.latency_us.iter().map(|us| milliseconds(*us)));
        cells.push(self.lost());
        cells.push(if self.is_stable { "yes" } else { "no" }.into());
        cells
    }
}

#[derive(Serialize)]
struct Data {
    /// The page's common script asks for it.
    runs: [(); 0],
    is_open: bool,
    slo_ms: Option<f64>,
    percentiles: [&'static str; 5],
    /// Requests that were sent per second, ascending.
    sent: Vec<f64>,
    /// By percentile and level.
    latency_ms: Vec<Vec<f64>>,
    answered: Vec<f64>,
    good: Vec<f64>,
}

impl LoadReport {
    fn columns(&self) -> [String; 11] {
        let offered = if self.is_open { "requests/s offered" } else { "callers" };
        let [p50, p90, p95, p99, p999] = PERCENTILES.map(|name| format!("{name} ms"));
        let text = |text: &str| text.to_owned();
        [
            text(offered),
            text("answered/s"),
            text("samples/s"),
            text("good/s"),
            p50,
            p90,
            p95,
            p99,
            p999,
            text("lost"),
            text("stable"),
        ]
    }

    /// One line per level. Plain UTF-8 without colour.
    pub fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(self.columns());
        for level in &self.levels {
            table.add_row(level.cells());
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = format!(
            "server       {}, model {}\nrequests     {} samples, {}\n",
            printable(&self.target),
            printable(&self.model),
            self.samples,
            printable(&self.ids)
        );
        if let Some(slo_us) = self.slo_us {
            text += &format!("good         answered within {} ms\n", milliseconds(slo_us));
        }
        text += &format!("\n{table}\n");
        if let Some(found) = &self.found {
            text += &format!("{found}\n");
        }
        text
    }

    /// It needs no network, no other file, and no script for its table.
    pub fn html(&self) -> String {
        let json = serde_json::to_string(&self.data()).expect("numbers and strings are JSON");
        let own = context! {
            title => format!("{} under load", self.model),
            headline => self.found.clone(),
            facts => self.facts(),
            columns => self.columns().to_vec(),
            rows => self.levels.iter().map(LoadLevel::cells).collect::<Vec<_>>(),
            is_open => self.is_open,
            slo => self.slo_us.map(milliseconds),
            settings => self.settings.iter().map(|(name, value)| context! { name, value })
                .collect::<Vec<_>>(),
        };
        render(TEMPLATE, "", &SCRIPTS, &json, own)
    }

    fn facts(&self) -> Vec<Value> {
        let kind = match self.is_open {
            true => "open loop: requests come at their own times",
            false => "closed loop: callers wait for answers",
        };
        let facts = [
            ("Server", self.target.clone()),
            ("Requests", format!("{} samples", self.samples)),
            ("Ids", self.ids.clone()),
            ("Load", kind.to_owned()),
            ("Version", format!("hither {}", self.hither)),
        ];
        facts.into_iter().map(|(name, value)| context! { name, values => [value] }).collect()
    }

    fn data(&self) -> Data {
        let mut levels: Vec<&LoadLevel> = self.levels.iter().collect();
        levels.sort_by(|a, b| a.requests_per_s.total_cmp(&b.requests_per_s));
        levels.dedup_by(|a, b| a.requests_per_s == b.requests_per_s);
        let column = |read: &dyn Fn(&LoadLevel) -> f64| -> Vec<f64> {
            levels.iter().map(|level| read(level)).collect()
        };
        Data {
            runs: [],
            is_open: self.is_open,
            slo_ms: self.slo_us.map(|us| us / 1e3),
            percentiles: PERCENTILES,
            sent: column(&|level| level.requests_per_s),
            latency_ms: (0..PERCENTILES.len())
                .map(|p| column(&|level| level.latency_us[p] / 1e3))
                .collect(),
            answered: column(&|level| level.answered_per_s),
            good: column(&|level| level.good_per_s),
        }
    }
}

fn milliseconds(us: f64) -> String {
    match us / 1e3 {
        ms if ms < 10.0 => format!("{ms:.2}"),
        ms if ms < 100.0 => format!("{ms:.1}"),
        ms => format!("{ms:.0}"),
    }
}

/// A rate: whole from a hundred on.
fn number(value: f64) -> String {
    match value {
        v if v >= 100.0 => count(v.round() as u64),
        v if v == v.trunc() => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}
