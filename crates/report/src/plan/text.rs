//! The plan's two tables for the terminal.

use comfy_table::{CellAlignment, Table, presets};

use super::{PlanCommand, PlanReport, PlannedTable, SmallerType};
use crate::format::{count, percent, printable};

impl PlanReport {
    /// One line per table, with neighbours that are alike on one line unless `all` is set; then the
    /// levers. Plain UTF-8 without colour.
    pub fn text(&self, all: bool) -> String {
        let threads = match self.threads {
            0 => format!("all {} cores", self.machine.cores),
            1 => "1 thread".into(),
            n => format!("{n} threads"),
        };
        let mut text = format!(
            "plan         {} on {threads}, MLPs in {}\nids          {}, batches of {}, {:.0} ids per bag\n\
             machine      {}, L2 {}, L3 {}\n\n",
            printable(&self.model),
            self.mlp,
            printable(&self.trace),
            self.batch,
            self.pooling,
            printable(&self.machine.cpu),
            mebibytes(self.machine.l2_bytes),
            mebibytes(self.machine.l3_bytes),
        );
        text.push_str(&self.tables_text(all));
        text.push('\n');
        text.push_str(&self.levers_text());
        self.notes.iter().for_each(|note| text.push_str(&format!("note: {}\n", printable(note))));
        for PlanCommand { purpose, command } in &self.commands {
            text.push_str(&format!("to {purpose}:\n  {}\n", printable(command)));
        }
        text
    }

    fn tables_text(&self, all: bool) -> String {
        let head = [
            "table",
            "count",
            "rows",
            "dim",
            "dtype",
            "used",
            "hot rows",
            "of lookups",
            "pages",
            "prefetch",
            "packing",
            "smaller",
        ];
        let mut table = table(&head, &[1, 2, 3, 5, 6, 7]);
        let alike = |a: &PlannedTable, b: &PlannedTable| !all && same(a, b);
        for run in self.tables.chunk_by(alike) {
            let (first, last) = (&run[0], &run[run.len() - 1]);
            let name = match run.len() {
                1 => printable(&first.name),
                _ => format!("{} … {}", printable(&first.name), printable(&last.name)),
            };
            let packing = match first.hot_rows {
                0 => first.packing.clone(),
                rows => format!("{} {}", first.packing, count(rows as u64)),
            };
            table.add_row([
                name,
                run.len().to_string(),
                count(first.rows as u64),
                first.dim.to_string(),
                first.dtype.clone(),
                percent(first.unique as f64 / first.rows.max(1) as f64),
                count(first.hot_fitting as u64),
                percent(first.hot_share),
                first.pages.clone(),
                first.prefetch.clone(),
                packing,
                smaller(&first.smaller),
            ]);
        }
        lines(&table)
    }

    fn levers_text(&self) -> String {
        let head = ["levers", "threads", "ns per row", "speed-up", "GB/s", "of touch"];
        let mut table = table(&head, &[1, 2, 3, 4, 5]);
        for lever in &self.levers {
            table.add_row([
                if lever.chosen { format!("{}  ← plan", lever.name) } else { lever.name.clone() },
                lever.threads.to_string(),
                format!("{:.1}", lever.ns),
                format!("{:.2}×", lever.speedup),
                format!("{:.1}", lever.gb_s),
                format!("{:.0} %", lever.of_touch * 100.0),
            ]);
        }
        lines(&table)
    }
}

/// Whether one line can stand for both tables.
fn same(a: &PlannedTable, b: &PlannedTable) -> bool {
    let choice = |t: &PlannedTable| {
        (t.pages.clone(), t.prefetch.clone(), t.packing.clone(), t.dtype.clone(), t.rows, t.dim)
    };
    // The line would show no difference between the figures.
    let close = |a: f64, b: f64| (a - b).abs() < 0.01;
    choice(a) == choice(b)
        && close(a.hot_share, b.hot_share)
        && a.hot_fitting.abs_diff(b.hot_fitting) * 20 <= a.hot_fitting
        && advised(&a.smaller).map(|s| &s.dtype) == advised(&b.smaller).map(|s| &s.dtype)
}

fn advised(smaller: &[SmallerType]) -> Option<&SmallerType> {
    smaller.iter().rev().find(|s| s.advised)
}

fn smaller(types: &[SmallerType]) -> String {
    match advised(types) {
        Some(s) => {
            format!("{}: {:.1}×, error {:.1} %", s.dtype, s.speedup, s.error * 100.0)
        }
        None => "–".into(),
    }
}

pub(super) fn mebibytes(bytes: usize) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib >= 1.0 { format!("{mib:.0} MiB") } else { format!("{} KiB", bytes >> 10) }
}

fn table(head: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(head.iter().copied());
    for column in right {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn lines(table: &Table) -> String {
    format!("{table}\n")
}
