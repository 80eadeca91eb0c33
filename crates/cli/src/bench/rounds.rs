//! Variants that take turns, so that other work on the machine hits all of them alike.

use std::collections::BTreeMap;
use std::io::BufRead as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::bail;
use comfy_table::{CellAlignment, Table, presets};
use hither_core::summary::quantile;
use hither_data::output;
use hither_kernels::detect;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::Common;
use crate::machine::Machine;
use crate::outputs::{self, Force};

#[derive(Debug, Clone, clap::Args)]
pub struct RoundArgs {
    /// Timed passes of each variant [default: as many as fit into --seconds, at least 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: Option<u32>,
    /// Measure all variants together for about S seconds; making and loading the model comes first
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    #[arg(value_parser = |t: &str| crate::inputs::number(t, 0.01, 1e6))]
    pub seconds: f64,
    /// Print JSON lines instead of a table: one for the machine, one per variant
    #[arg(long)]
    pub json: bool,
    /// Write the first variant's results for all batches as safetensors
    #[arg(long, value_name = "FILE")]
    pub write_output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    /// Run one pass per line of standard input and print its times, for programs that compare
    #[arg(long, hide = true, conflicts_with_all = ["rounds", "json"])]
    driven: bool,
}

impl RoundArgs {
    /// Refuses what cannot be written, before anything is made or measured.
    pub fn check(&self) -> anyhow::Result<()> {
        match &self.write_output {
            Some(path) if output::is_stdout(path) => bail!(
                "--write-output {}: the times go to standard output; give a file",
                path.display()
            ),
            Some(path) => self.force.check_file_of("--write-output", path),
            None => Ok(()),
        }
    }
}

const ROUNDS_MIN: usize = 5;
const ROUNDS_MAX: usize = 1000;
/// Longer measurements than this say beforehand how long they take.
const LONG_S: f64 = 10.0;

/// Something that is timed: one pass over all batches.
pub type Pass<'a> = Box<dyn FnMut() -> anyhow::Result<()> + 'a>;

pub struct Variant<'a> {
    pub name: String,
    pub pass: Pass<'a>,
    /// What one pass moves or computes.
    pub work: PassWork,
    /// The place of the variant that reads the same rows and does nothing else, if there is one.
    pub touch: Option<usize>,
    /// Further columns of the result.
    pub facts: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PassWork {
    pub samples: u64,
    /// Rows looked up.
    pub rows: u64,
    /// Of the rows looked up.
    pub bytes: u64,
    /// Of the layers, with two for a multiplication and an addition.
    pub flops: u64,
}

#[derive(Serialize)]
struct VariantFigures<'a> {
    bench: &'static str,
    variant: &'a str,
    rounds: usize,
    ns_median: f64,
    ns_min: f64,
    samples_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gb_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gflop_per_s: Option<f64>,
    /// The smallest time of a reference that only reads the same rows, over the smallest of this
    /// variant: 1 at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_touch: Option<f64>,
    #[serde(flatten)]
    facts: &'a Map<String, Value>,
}

/// Runs all variants in turn for a share of the measuring time and prints the results.
pub fn run(
    bench: &'static str,
    subject: Map<String, Value>,
    mut variants: Vec<Variant>,
    args: &RoundArgs,
    share: f64,
    common: &Common,
) -> anyhow::Result<()> {
    // Once without a clock: pages are there, caches are warm.
    variants.iter_mut().try_for_each(|variant| (variant.pass)())?;
    let head = head(bench, subject);
    if args.driven {
        return driven(head, &mut variants);
    }
    let start = Instant::now();
    one_round(&mut variants)?;
    let first_s = start.elapsed().as_secs_f64().max(1e-9);
    let fitting = (args.seconds * share / first_s) as usize;
    let rounds = args.rounds.map_or(fitting.clamp(ROUNDS_MIN, ROUNDS_MAX), |n| n as usize);
    let expected_s = rounds as f64 * first_s;
    if expected_s > args.seconds.max(LONG_S) {
        common.say(&format!("{rounds} rounds take about {expected_s:.0} s"));
    }
    let bar = common.bar(rounds as u64, "rounds");
    let mut times = vec![Vec::with_capacity(rounds); variants.len()];
    for _ in 0..rounds {
        for (times, took) in times.iter_mut().zip(one_round(&mut variants)?) {
            times.push(took.as_nanos() as f64);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let results: Vec<VariantFigures> =
        (0..variants.len()).map(|v| result(bench, v, &variants, &times)).collect();
    if args.json {
        let lines = std::iter::once(serde_json::to_string(&head)?);
        let rows = results.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        let lines: Vec<String> = lines.chain(rows).collect();
        return outputs::print(&(lines.join("\n") + "\n"));
    }
    outputs::print(&shown(&head, &results))
}

/// The machine and what is measured on it.
fn head(bench: &'static str, subject: Map<String, Value>) -> Map<String, Value> {
    let cpu = detect::cpu();
    let mut head = Map::new();
    head.insert("bench".into(), json!(bench));
    head.insert("hither".into(), json!(env!("CARGO_PKG_VERSION")));
    head.insert("machine".into(), json!(Machine::read()));
    head.insert("isa".into(), json!(cpu.isa.name()));
    head.insert("bf16".into(), json!(cpu.bf16.name()));
    head.extend(subject);
    head
}

fn driven(mut head: Map<String, Value>, variants: &mut [Variant]) -> anyhow::Result<()> {
    let names: Vec<&str> = variants.iter().map(|v| v.name.as_str()).collect();
    head.insert("variants".into(), json!(names));
    let facts: BTreeMap<&str, _> = variants.iter().map(|v| (v.name.as_str(), &v.facts)).collect();
    head.insert("variant_facts".into(), json!(facts));
    head.insert("ready".into(), json!(true));
    outputs::print(&(serde_json::to_string(&head)? + "\n"))?;
    for line in std::io::stdin().lock().lines() {
        line?;
        // The program on the other side decides what runs before a pass.
        let times = variants.iter_mut().map(|variant| timed(&mut variant.pass));
        let times = times.collect::<anyhow::Result<Vec<_>>>()?;
        let named: Map<String, Value> = variants
            .iter()
            .zip(times)
            .map(|(variant, took)| (variant.name.clone(), json!(took.as_nanos() as u64)))
            .collect();
        outputs::print(&(json!({ "ns": named }).to_string() + "\n"))?;
    }
    Ok(())
}

/// Each timed pass follows an untimed one of the same variant. Otherwise a variant would find
/// rows in the caches that its neighbour left there, and others would not.
fn one_round(variants: &mut [Variant]) -> anyhow::Result<Vec<Duration>> {
    variants
        .iter_mut()
        .map(|variant| {
            (variant.pass)()?;
            timed(&mut variant.pass)
        })
        .collect()
}

fn timed(pass: &mut Pass) -> anyhow::Result<Duration> {
    let start = Instant::now();
    pass()?;
    Ok(start.elapsed())
}

fn result<'a>(
    bench: &'static str,
    v: usize,
    variants: &'a [Variant],
    times: &[Vec<f64>],
) -> VariantFigures<'a> {
    let Variant { name, work, touch, facts, .. } = &variants[v];
    let median = median(times[v].clone());
    // Per nanosecond is billions per second.
    let rate = |amount: u64| (amount > 0).then(|| amount as f64 / median);
    let least = |v: usize| times[v].iter().copied().fold(f64::INFINITY, f64::min);
    VariantFigures {
        bench,
        variant: name,
        rounds: times[v].len(),
        ns_median: median,
        ns_min: least(v),
        samples_per_s: work.samples as f64 / median * 1e9,
        rows_per_s: rate(work.rows).map(|r| r * 1e9),
        gb_per_s: rate(work.bytes),
        gflop_per_s: rate(work.flops),
        of_touch: touch.map(|touch| {
            // A lookup does all that a touch of the same rows does: where noise made the touch
            // slower than a lookup, that lookup's time is nearer to what touching takes.
            let same = (0..variants.len()).filter(|other| variants[*other].touch == Some(touch));
            same.map(least).fold(least(touch), f64::min) / least(v)
        }),
        facts,
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5)
}

fn shown(head: &Map<String, Value>, results: &[VariantFigures]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    let first = &results[0];
    let mut columns = vec!["variant", "ms/pass", "samples/s"];
    columns.extend(first.rows_per_s.is_some().then_some("M rows/s"));
    columns.extend(first.gb_per_s.is_some().then_some("GB/s"));
    columns.extend(results.iter().any(|r| r.gflop_per_s.is_some()).then_some("GFLOP/s"));
    columns.extend(results.iter().any(|r| r.of_touch.is_some()).then_some("of touch"));
    let keys: Vec<&String> = first.facts.keys().collect();
    columns.extend(keys.iter().map(|key| key.as_str()));
    table.set_header(columns.clone());
    for result in results {
        let mut row = vec![
            result.variant.to_owned(),
            format!("{:.3}", result.ns_median * 1e-6),
            format!("{:.0}", result.samples_per_s),
        ];
        let mut cell = |column: &str, text: Option<String>| {
            if columns.contains(&column) {
                row.push(text.unwrap_or_default());
            }
        };
        cell("M rows/s", result.rows_per_s.map(|r| format!("{:.2}", r * 1e-6)));
        cell("GB/s", result.gb_per_s.map(|r| format!("{r:.2}")));
        cell("GFLOP/s", result.gflop_per_s.map(|r| format!("{r:.1}")));
        cell("of touch", result.of_touch.map(|r| format!("{r:.2}")));
        for key in &keys {
            row.push(match result.facts.get(*key) {
                Some(Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
                None => String::new(),
            });
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let text: Vec<String> = head
        .iter()
        .filter(|(key, _)| !["bench", "machine"].contains(&key.as_str()))
        .map(|(key, value)| format!("{key} {}", value.to_string().trim_matches('"')))
        .collect();
    format!("{}\n{table}\n", text.join(", "))
}
