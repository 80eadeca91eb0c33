//! What a measurement leaves behind: load.csv, load.json and load.html.

use std::path::Path;

use hither_load::drive::{Level, Measured};
use hither_report::load::{LoadLevel, LoadReport};
use serde_json::{Value, json};

use super::inputs::Asked;
use super::levels::percentile_name;
use crate::outputs;

/// All levels of one command.
pub struct Results<'a> {
    pub args: &'a super::Args,
    pub asked: &'a Asked,
    pub measured: &'a [Measured],
    /// Of a search: the highest rate, if any kept the target.
    pub found: Option<Option<f64>>,
}

impl Results<'_> {
    pub fn write(&self, dir: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(&self.json())? + "\n";
        outputs::write_file(&dir.join("load.csv"), &self.csv()?)?;
        outputs::write_file(&dir.join("load.html"), self.report().html().as_bytes())?;
        // The last one: a directory with it is complete.
        outputs::write_file(&dir.join("load.json"), text.as_bytes())
    }

    pub fn json(&self) -> Value {
        json!({
            "hither": env!("CARGO_PKG_VERSION"),
            "server": self.args.url.to_string(),
            "model": self.asked.model,
            "samples": self.asked.samples,
            "requests": self.asked.requests,
            "request_bytes": self.asked.request_bytes,
            "ids": self.asked.ids,
            "slo_us": self.slo_us(),
            "settings": self.settings().into_iter().collect::<serde_json::Map<_, _>>(),
            "search": self.found.map(|rate| json!({
                "percentile": percentile_name(self.args.percentile),
                "rate": rate,
            })),
            "levels": self.measured,
        })
    }

    fn slo_us(&self) -> Option<f64> {
        self.args.slo.map(|slo| slo.as_secs_f64() * 1e6)
    }

    fn settings(&self) -> Vec<(String, Value)> {
        let args = self.args;
        let seconds = |time: std::time::Duration| json!(time.as_secs_f64());
        [
            ("warmup_s", seconds(args.warmup)),
            ("window_s", seconds(args.window)),
            ("windows", json!(args.windows)),
            ("windows_max", json!(args.windows_max)),
            ("stability", json!(args.stability)),
            ("timeout_s", seconds(args.timeout)),
            ("arrivals", json!(args.arrivals)),
            ("in_flight_max", json!(args.in_flight_max)),
            ("connections", json!(args.connections)),
            ("seed", json!(args.seed)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// perf_analyzer's columns first, in its order and units, then ours.
    fn csv(&self) -> anyhow::Result<Vec<u8>> {
        let mut out = csv::Writer::from_writer(Vec::new());
        let first = if self.is_open() { "Request Rate" } else { "Concurrency" };
        out.write_record([
            first,
            "Inferences/Second",
            "Client Send",
            "Network+Server Send/Recv",
            "Server Queue",
            "Server Compute Input",
            "Server Compute Infer",
            "Server Compute Output",
            "Client Recv",
            "p50 latency",
            "p90 latency",
            "p95 latency",
            "p99 latency",
            "p99.9 latency",
            "Avg latency",
            "Requests/Second Sent",
            "Requests/Second Answered",
            "Goodput",
            "Refused",
            "Failed",
            "Timed Out",
            "Stable",
        ])?;
        for measured in self.measured {
            let (figures, latency) = (&measured.figures, &measured.figures.latency);
            let server = measured.server.map_or([0.0; 4], |server| {
                [
                    server.queue_us,
                    server.compute_input_us,
                    server.compute_infer_us,
                    server.compute_output_us,
                ]
            });
            let inside: f64 = server.iter().sum::<f64>() + figures.send_delay_us;
            let whole = |us: f64| format!("{us:.0}");
            let mut row = vec![
                offered(measured).to_string(),
                format!("{:.3}", figures.samples_per_s),
                whole(figures.send_delay_us),
                whole((latency.mean_us - inside).max(0.0)),
            ];
            row.extend(server.map(whole));
            row.push("0".into());
            row.extend(
                [latency.p50_us, latency.p90_us, latency.p95_us, latency.p99_us, latency.p999_us]
                    .map(whole),
            );
            row.push(whole(latency.mean_us));
            row.extend(
                [figures.requests_per_s, figures.answered_per_s, figures.good_per_s]
                    .map(|rate| format!("{rate:.3}")),
            );
            row.extend([figures.refused, figures.failed, figures.timed_out].map(|n| n.to_string()));
            row.push(measured.is_stable.to_string());
            out.write_record(row)?;
        }
        Ok(out.into_inner()?)
    }

    fn is_open(&self) -> bool {
        self.measured.iter().any(|measured| matches!(measured.level, Level::Open { .. }))
    }

    pub fn report(&self) -> LoadReport {
        let shown = |(name, value): (String, Value)| match value {
            Value::String(text) => (name, text),
            value => (name, value.to_string()),
        };
        LoadReport {
            hither: env!("CARGO_PKG_VERSION").into(),
            target: self.args.url.to_string(),
            model: self.asked.model.clone(),
            samples: self.asked.samples,
            ids: self.asked.ids.clone(),
            is_open: self.is_open(),
            slo_us: self.slo_us(),
            found: self.found.map(|rate| self.found_text(rate)),
            settings: self.settings().into_iter().map(shown).collect(),
            levels: self.measured.iter().map(level).collect(),
        }
    }

    fn found_text(&self, rate: Option<f64>) -> String {
        let percentile = percentile_name(self.args.percentile);
        let slo_ms = self.slo_us().unwrap_or_default() / 1e3;
        match rate {
            Some(rate) => format!(
                "Highest rate with {percentile} within {slo_ms} ms: {rate:.0} requests/s, {:.0} samples/s.",
                rate * self.asked.samples as f64
            ),
            None => format!("No rate kept {percentile} within {slo_ms} ms."),
        }
    }
}

fn offered(measured: &Measured) -> f64 {
    match measured.level {
        Level::Closed { concurrency } => concurrency as f64,
        Level::Open { rate, .. } => rate,
    }
}

fn level(measured: &Measured) -> LoadLevel {
    let (figures, latency) = (&measured.figures, &measured.figures.latency);
    LoadLevel {
        offered: offered(measured),
        requests_per_s: figures.requests_per_s,
        answered_per_s: figures.answered_per_s,
        samples_per_s: figures.samples_per_s,
        good_per_s: figures.good_per_s,
        refused: figures.refused,
        failed: figures.failed,
        timed_out: figures.timed_out,
        requests: figures.requests,
        latency_us: [
            latency.p50_us,
            latency.p90_us,
            latency.p95_us,
            latency.p99_us,
            latency.p999_us,
        ],
        is_stable: measured.is_stable,
    }
}
