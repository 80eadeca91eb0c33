//! Metrics as Prometheus reads them, under Triton's names and some of our own. Triton's counters do
//! not end in `_total`, which client libraries for OpenMetrics append, so the text is written here.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::extract::State;
use axum::response::{Html, IntoResponse};
use axum::routing::get;

use crate::served::Served;
use crate::server::Server;
use crate::stats::{BUCKETS_US, STAGES};

/// The content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Shows the metrics to people; it reads the same text.
const PAGE: &str = include_str!("page.html");

/// The metrics port.
pub fn router(server: Arc<Server>) -> axum::Router {
    let page = async || Html(PAGE);
    axum::Router::new().route("/", get(page)).route("/metrics", get(metrics)).with_state(server)
}

async fn metrics(State(server): State<Arc<Server>>) -> impl IntoResponse {
    ([(http::header::CONTENT_TYPE, CONTENT_TYPE)], text(&server))
}

struct Text {
    text: String,
    models: Vec<Arc<Served>>,
}

pub fn text(server: &Server) -> String {
    let mut text = Text { text: String::new(), models: server.repository.served() };
    triton(&mut text);
    own(&mut text);
    text.family("hither_copied_bytes", "gauge", "Bytes of tables copied into memory.");
    text.line("hither_copied_bytes", "", server.repository.copied_bytes() as f64);
    let name = "hither_model_load_failures";
    text.family(name, "counter", "Attempts to load a model that failed.");
    for (model, failures) in server.repository.load_failures() {
        text.line(name, &format!("model=\"{}\"", quoted(&model)), failures as f64);
    }
    text.family(
        "hither_requests_unknown_model",
        "counter",
        "Requests for models that are not served.",
    );
    text.line("hither_requests_unknown_model", "", server.answered.refused.load(Relaxed) as f64);
    text.text
}

fn triton(text: &mut Text) {
    type Pick = fn(&Served) -> u64;
    let counters: [(&str, &str, Pick); 9] = [
        ("request_success", "Number of successful inference requests.", |served| {
            served.stats.success.read().count
        }),
        ("request_failure", "Number of failed inference requests.", |served| {
            served.stats.fail.read().count
        }),
        ("count", "Number of samples that were scored.", |served| {
            served.stats.samples.load(Relaxed)
        }),
        ("exec_count", "Number of batches that were computed.", |served| {
            served.stats.batches.load(Relaxed)
        }),
        ("request_duration_us", "Time from arrival to answer.", |served| {
            served.stats.success.read().ns / 1000
        }),
        ("queue_duration_us", "Time that requests waited.", |served| {
            served.stats.queue.read().ns / 1000
        }),
        ("compute_input_duration_us", "Time to gather inputs.", |served| {
            served.stats.compute_input.read().ns / 1000
        }),
        ("compute_infer_duration_us", "Time in the engine.", |served| {
            served.stats.compute_infer.read().ns / 1000
        }),
        ("compute_output_duration_us", "Time to hand out scores.", |served| {
            served.stats.compute_output.read().ns / 1000
        }),
    ];
    for (name, help, pick) in counters {
        let name = format!("nv_inference_{name}");
        text.each(&name, "counter", help, |served| pick(served) as f64);
    }
    let name = "nv_inference_pending_request_count";
    text.each(name, "gauge", "Requests that wait.", |served| served.pending() as f64);
}

fn own(text: &mut Text) {
    let name = "hither_requests_refused";
    text.family(name, "counter", "Requests that were not computed, by reason.");
    for served in text.models.clone() {
        let stats = &served.stats;
        for (reason, count) in [
            ("queue_full", &stats.refused),
            ("timeout", &stats.expired),
            ("client_gone", &stats.cancelled),
        ] {
            let labels = format!("{},reason=\"{reason}\"", labels(&served));
            text.line(name, &labels, count.load(Relaxed) as f64);
        }
    }
    let name = "hither_stage_duration_us";
    text.family(name, "counter", "Time in each stage of the engine, summed over threads.");
    for served in text.models.clone() {
        for (stage, ns) in STAGES.iter().zip(&served.stats.stages) {
            let labels = format!("{},stage=\"{stage}\"", labels(&served));
            text.line(name, &labels, (ns.load(Relaxed) / 1000) as f64);
        }
    }
    text.each("hither_clamped_ids", "counter", "Ids replaced by the nearest row.", |served| {
        served.stats.clamped.load(Relaxed) as f64
    });
    text.each(
        "hither_not_finite_requests",
        "counter",
        "Requests refused for scores that are not finite.",
        |served| served.stats.not_finite.load(Relaxed) as f64,
    );
    text.each("hither_tables_settled", "gauge", "1 when tables lie as planned.", |served| {
        f64::from(served.is_settled())
    });
    text.each("hither_model_healthy", "gauge", "0 when the model's device is lost.", |served| {
        f64::from(served.is_healthy())
    });
    latency(text);
}

fn latency(text: &mut Text) {
    let name = "hither_request_latency_seconds";
    text.family(name, "histogram", "Time from arrival to answer of successful requests.");
    for served in text.models.clone() {
        let labels = labels(&served);
        let latency = &served.stats.latency;
        let mut sum = 0;
        let bounds = BUCKETS_US.iter().map(|us| (*us as f64 / 1e6).to_string());
        for (count, bound) in latency.counts().iter().zip(bounds.chain(["+Inf".into()])) {
            sum += count;
            text.line(&format!("{name}_bucket"), &format!("{labels},le=\"{bound}\""), sum as f64);
        }
        text.line(&format!("{name}_sum"), &labels, latency.sum().as_secs_f64());
        text.line(&format!("{name}_count"), &labels, sum as f64);
    }
}

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn line(&mut self, name: &str, labels: &str, value: f64) {
        let _ = match labels {
            "" => writeln!(self.text, "{name} {value}"),
            _ => writeln!(self.text, "{name}{{{labels}}} {value}"),
        };
    }

    /// A family with one value per model version.
    fn each(&mut self, name: &str, kind: &str, help: &str, value: impl Fn(&Served) -> f64) {
        self.family(name, kind, help);
        for served in self.models.clone() {
            self.line(name, &labels(&served), value(&served));
        }
    }
}

fn labels(served: &Served) -> String {
    let name = quoted(&served.name);
    format!("model=\"{name}\",version=\"{}\"", served.version)
}

/// A name within quotes.
fn quoted(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
