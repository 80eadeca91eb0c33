//! The sweep's tables for the terminal.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use hither_core::summary::Estimate;

use super::savings::{Comparison, saved_metrics, saved_text};
use super::{METRICS, Sweep, best, unit};
use crate::format::printable;

impl Sweep<'_> {
    /// One table per metric, in one unit; the best policy of each row is marked. Plain UTF-8 without
    /// colour.
    pub fn tables(&self) -> String {
        let grid = self.pooled();
        let mut text = String::new();
        for metric in METRICS.iter().filter(|metric| metric.is_brief) {
            let rows = self.estimates(&grid, metric);
            let unit = unit(metric, &rows);
            let mut table = Table::new();
            table.load_style(presets::UTF8_FULL_CONDENSED);
            let keys = grid.axes.iter().map(|axis| axis.key);
            table.set_header(keys.chain(self.policies.iter().copied()).map(printable));
            for (place, row) in grid.places.iter().zip(&rows) {
                let values = grid.axes.iter().zip(&place.at).map(|(axis, at)| &axis.values[*at]);
                let cells = row.iter().zip(best(metric, row, &unit)).map(|(estimate, is_best)| {
                    format!("{}{}", unit.text(*estimate), if is_best { '*' } else { ' ' })
                });
                table.add_row(values.map(|v| printable(v)).chain(cells));
            }
            for column in table.column_iter_mut() {
                column.set_cell_alignment(CellAlignment::Right);
            }
            let _ = writeln!(text, "{}, {}{}\n{table}", metric.name, unit.name(), self.spread());
        }
        let savings = self.comparisons();
        text + &savings.iter().map(|compared| self.savings_table(compared)).collect::<String>()
    }

    /// One row per setting, one column per rival and metric.
    fn savings_table(&self, compared: &Comparison) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        let keys = compared.axes.iter().map(|axis| printable(axis.key));
        let columns = compared.rivals.iter().flat_map(|rival| {
            let rival = printable(rival);
            saved_metrics().map(move |metric| format!("{rival}\n{}", metric.name))
        });
        table.set_header(keys.chain(columns));
        let texts = |saved: &[Vec<Option<Estimate>>]| -> Vec<String> {
            saved.iter().flatten().map(|estimate| saved_text(*estimate)).collect()
        };
        for (place, saved) in &compared.rows {
            let values =
                compared.axes.iter().zip(place).map(|(axis, at)| printable(&axis.values[*at]));
            table.add_row(values.chain(texts(saved)));
        }
        if let Some(saved) = &compared.overall {
            let head = ["all"].into_iter().chain(std::iter::repeat(""));
            let head = head.take(compared.axes.len()).map(str::to_owned);
            table.add_row(head.chain(texts(saved)));
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let own = printable(&compared.own);
        let spread = match self.seeds() {
            0 | 1 => String::new(),
            seeds => format!("; mean of the ratios of {seeds} seeds ± 95 % confidence"),
        };
        let all = if compared.overall.is_some() { "; all: geometric mean" } else { "" };
        format!("Saved by {own}, % of each rival's figure{spread}{all}\n{table}\n")
    }

    pub(super) fn spread(&self) -> String {
        match self.seeds() {
            0 | 1 => String::new(),
            seeds => format!("; mean of {seeds} seeds ± 95 % confidence"),
        }
    }
}
