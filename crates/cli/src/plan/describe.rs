//! The plan and what it rests on, for people.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hither_dlrm::hotness::Histogram;
use hither_dlrm::model::TableData;
use hither_dlrm::plan::advice::Smaller;
use hither_dlrm::plan::levers::Setting;
use hither_dlrm::plan::measure::{Effect, Group, Timing};
use hither_dlrm::plan::{Packing, PageChoice};
use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::gemm::Precision;
use hither_report::plan::*;

use super::Planned;

/// Points of a curve.
const POINTS: usize = 120;
/// Of all curves together.
const POINTS_MAX: usize = 200_000;

impl Planned<'_> {
    pub fn report(&self) -> PlanReport {
        let (curves, places) = self.curves();
        let tables = self.tables(&places);
        let trace = self.args.ids.file_name().unwrap_or_default().to_string_lossy();
        PlanReport {
            hither: env!("CARGO_PKG_VERSION").into(),
            model: self.plan.model.clone(),
            trace: trace.into_owned(),
            machine: PlanMachine {
                cpu: self.machine.cpu.clone(),
                cores: self.machine.cores,
                l2_bytes: self.bounds.l2_bytes,
                l3_bytes: self.bounds.l3_bytes,
                transparent_huge_pages: self.machine.transparent_huge_pages.clone(),
            },
            batch: self.batch,
            pooling: self.pooling,
            threads: self.plan.threads,
            mlp: if self.plan.mlp == Precision::F32 { "fp32" } else { "bf16" }.into(),
            curves,
            levers: self.levers(),
            groups: self.groups.iter().map(|group| self.group(group)).collect(),
            notes: self.notes(),
            commands: self.commands(&tables),
            tables,
        }
    }

    /// What to type next: how to use the plan, and how to follow its advice.
    fn commands(&self, tables: &[PlannedTable]) -> Vec<PlanCommand> {
        let model = quoted(&self.args.model);
        let plan = quoted(self.args.output.as_ref().unwrap_or(&self.args.model));
        let ids = quoted(&self.args.ids);
        let batch = self.args.batch.map_or_else(String::new, |batch| format!(" --batch {batch}"));
        let command = |purpose: String, command: String| PlanCommand { purpose, command };
        let mut commands = vec![
            command(
                "score your own inputs with this plan".into(),
                format!(
                    "hither model run {model} --inputs requests.csv --plan {plan} -o scores.csv"
                ),
            ),
            command(
                "measure the whole model with this plan".into(),
                format!("hither bench model {model} --plan {plan} --ids {ids}{batch}"),
            ),
        ];
        let mut advised = BTreeMap::<&str, Vec<&str>>::new();
        for table in tables {
            if let Some(smaller) = table.smaller.iter().rev().find(|smaller| smaller.advised) {
                advised.entry(&smaller.dtype).or_default().push(&table.name);
            }
        }
        for (dtype, names) in advised {
            let only = match names.len() == tables.len() {
                true => String::new(),
                false => format!(" --tables {}", quoted(Path::new(&names.join(",")))),
            };
            let smaller = quoted(Path::new(&format!("{}-{dtype}", self.args.model.display())));
            commands.push(command(
                format!("take the advice of {dtype} elements, and plan again"),
                format!(
                    "hither model quantise {model} --dtype {dtype}{only} -o {smaller}\n\
                     hither plan {smaller} --ids {ids}{batch}"
                ),
            ));
        }
        commands
    }

    /// One curve for all tables of one hotness and one size of rows; and which each table has.
    fn curves(&self) -> (Vec<HotnessCurve>, Vec<usize>) {
        let specs = &self.model.spec.tables;
        let mut known = BTreeMap::<(*const Histogram, usize), usize>::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut places = Vec::new();
        for (t, (hot, spec)) in self.hot.iter().zip(specs).enumerate() {
            let place = *known.entry((Arc::as_ptr(hot), spec.row_bytes())).or_insert(members.len());
            if place == members.len() {
                members.push(Vec::new());
            }
            members[place].push(t);
            places.push(place);
        }
        let curve = |tables: &Vec<usize>| {
            let first = tables[0];
            let name = &specs[first].name;
            let label = match tables.len() {
                1 => name.clone(),
                n => format!("{name} and {} more", n - 1),
            };
            let points = self.hot[first].curve((POINTS_MAX / members.len()).clamp(2, POINTS));
            HotnessCurve { label, row_bytes: specs[first].row_bytes(), points }
        };
        (members.iter().map(curve).collect(), places)
    }

    fn tables(&self, curves: &[usize]) -> Vec<PlannedTable> {
        let data: Vec<_> = self.model.tables().collect();
        let mut groups = vec![0; data.len()];
        for (place, group) in self.groups.iter().enumerate() {
            group.tables.iter().for_each(|t| groups[*t] = place);
        }
        let mut tables = Vec::with_capacity(data.len());
        for (t, (spec, planned)) in self.model.spec.tables.iter().zip(&self.plan.tables).enumerate()
        {
            let group = groups[t];
            let hot = &self.hot[t];
            let fitting = self.hot_rows[t].min(hot.unique());
            tables.push(PlannedTable {
                name: spec.name.clone(),
                rows: spec.rows,
                dim: spec.dim,
                dtype: spec.dtype.name().into(),
                row_bytes: spec.row_bytes(),
                lookups: hot.lookups(),
                unique: hot.unique(),
                hot_fitting: fitting,
                hot_share: hot.share(fitting),
                pages: pages_name(planned.pages).into(),
                prefetch: planned.prefetch.to_string(),
                packing: packing_name(planned.packing).into(),
                hot_rows: planned.hot_rows,
                smaller: self.smaller(&data[t], &self.groups[group]),
                curve: curves[t],
                group,
            });
        }
        tables
    }

    fn smaller(&self, table: &TableData, group: &Group) -> Vec<SmallerType> {
        let Some(timing) = group.timing(self.plan.threads) else { return Vec::new() };
        Smaller::types_for(table, &timing.types)
            .iter()
            .map(|smaller| SmallerType {
                dtype: smaller.dtype.name().into(),
                row_bytes: smaller.row_bytes,
                error: smaller.error,
                speedup: smaller.speedup,
                advised: smaller.is_advised(),
            })
            .collect()
    }

    /// All groups together, each by its lookups.
    fn levers(&self) -> Vec<Lever> {
        let mut levers = Vec::new();
        let chosen = self.chosen();
        let planned_threads = self
            .groups
            .iter()
            .filter_map(|g| g.timing(self.plan.threads))
            .map(|t| t.threads)
            .next();
        let planned_threads = planned_threads.unwrap_or(0);
        let timings = self.groups.iter().map(|group| group.timings.len()).min().unwrap_or(0);
        for i in 0..timings {
            let base = self.mean(i, Setting::NONE);
            let threads = self.groups[0].timings[i].threads;
            for setting in Setting::all() {
                let (Some(base), Some(mean)) = (base, self.mean(i, setting)) else { continue };
                levers.push(Lever {
                    name: setting.to_string(),
                    threads,
                    ns: mean.ns,
                    speedup: base.ns / mean.ns,
                    gb_s: mean.row_bytes / mean.ns,
                    of_touch: mean.touch_ns / mean.ns,
                    chosen: threads == planned_threads && chosen == Some(setting),
                });
            }
        }
        levers
    }

    /// The setting that the plan has for all groups of tables; `None` where they differ.
    fn chosen(&self) -> Option<Setting> {
        let of_group = |group: &Group| {
            let tables = group.tables.iter().map(|t| Setting::planned(&self.plan.tables[*t]));
            // Tables without hot rows pack nothing, whatever their group does.
            tables.max_by_key(|setting| setting.packing != Packing::Off)
        };
        let mut settings = self.groups.iter().map(of_group);
        let first = settings.next()??;
        settings.all(|setting| setting == Some(first)).then_some(first)
    }

    /// `None` where some group could not be measured so.
    fn mean(&self, timing: usize, setting: Setting) -> Option<Mean> {
        let mut mean = Mean::default();
        let mut weights = 0.0;
        for group in self.groups {
            let effect = group.timings[timing].effect(setting)?;
            let lookups: u64 = group.tables.iter().map(|t| self.hot[*t].lookups()).sum();
            let weight = lookups.max(1) as f64;
            let row_bytes = self.model.spec.tables[group.tables[0]].row_bytes();
            weights += weight;
            mean.ns += effect.ns * weight;
            mean.touch_ns += effect.touch_ns * weight;
            mean.row_bytes += row_bytes as f64 * weight;
        }
        let Mean { ns, touch_ns, row_bytes } = mean;
        let by = |sum: f64| sum / weights;
        Some(Mean { ns: by(ns), touch_ns: by(touch_ns), row_bytes: by(row_bytes) })
    }

    fn group(&self, group: &Group) -> PlanGroup {
        let names = |tables: &[usize]| {
            tables.iter().map(|t| self.model.spec.tables[*t].name.clone()).collect()
        };
        PlanGroup {
            tables: names(&group.tables),
            sampled: names(&group.sampled),
            copied: group.copied,
            huge_share: group.huge_share,
            timings: group.timings.iter().map(timing).collect(),
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.chosen().is_none() {
            notes.push(
                "groups of tables differ in their levers; no single row is the plan's".into(),
            );
        }
        if let Some(prefetch) = self.args.prefetch {
            let is_other = |effect: &Effect| effect.setting.prefetch && effect.prefetch != prefetch;
            let differs = |group: &Group| {
                let timing = group.timing(self.plan.threads);
                timing.is_some_and(|timing| timing.effects.iter().any(is_other))
            };
            if prefetch != Prefetch::Off && self.groups.iter().any(differs) {
                notes.push(format!(
                    "--prefetch {prefetch} is fixed; the figures are of the fastest prefetch"
                ));
            }
        }
        if self.args.pages == Some(PageChoice::Small) {
            notes.push("--pages small is fixed; the figures are of mapped and huge pages".into());
        }
        let sampled: usize = self.groups.iter().map(|g| g.sampled.len()).sum();
        let all = self.model.spec.tables.len();
        if sampled < all {
            notes.push(format!("{sampled} of {all} tables were measured and stand for the others"));
        }
        if self.groups.iter().any(|group| !group.copied) {
            notes.push(
                "no memory for copies of tables (see --memory): only the mapped file was measured"
                    .into(),
            );
        }
        let given = self.groups.iter().filter_map(|group| group.huge_share);
        if let Some(least) = given.min_by(f64::total_cmp)
            && least < 0.9
        {
            notes.push(format!(
                "the system put only {:.0} % of the copies on huge pages; see `hither doctor`",
                least * 100.0
            ));
        }
        notes
    }
}

#[derive(Clone, Copy, Default)]
struct Mean {
    ns: f64,
    touch_ns: f64,
    row_bytes: f64,
}

fn timing(timing: &Timing) -> PlanTiming {
    let effects = timing.effects.iter();
    let schemes = effects.map(|effect| SettingPrefetch {
        setting: effect.setting.to_string(),
        prefetch: effect.prefetch.to_string(),
        ns: effect.ns,
    });
    PlanTiming { threads: timing.threads, prefetch: schemes.collect() }
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-,+=@%".contains(c);
    match text.chars().all(plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

fn pages_name(pages: PageChoice) -> &'static str {
    match pages {
        PageChoice::Mapped => "mapped",
        PageChoice::Small => "small",
        PageChoice::Huge => "huge",
    }
}

fn packing_name(packing: Packing) -> &'static str {
    match packing {
        Packing::Off => "off",
        Packing::Lookup => "lookup",
    }
}
