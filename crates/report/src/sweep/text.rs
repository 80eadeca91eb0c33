//! The sweep's tables for the terminal.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use super::savings::{saved_metrics, saved_text};
use super::{Grid, METRICS, Sweep, best, unit};
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
        text + &self.savings_table(&grid)
    }

    /// One row per setting, one column per rival and metric; empty without rivals.
    fn savings_table(&self, grid: &Grid) -> String {
        let rivals = self.rivals();
        if rivals.is_empty() {
            return String::new();
        }
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        let keys = grid.axes.iter().map(|axis| printable(axis.key));
        let columns = rivals.iter().flat_map(|&rival| {
            let rival = printable(self.policies[rival]);
            saved_metrics().map(move |metric| format!("{rival}\n{}", metric.name))
        });
        table.set_header(keys.chain(columns));
        for row in self.savings(grid) {
            let values =
                grid.axes.iter().zip(&row.at).map(|(axis, at)| printable(&axis.values[*at]));
            table.add_row(values.chain(row.saved.into_iter().flatten().map(saved_text)));
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let own = printable(self.policies[0]);
        let spread = match self.seeds() {
            0 | 1 => String::new(),
            seeds => format!("; mean of the ratios of {seeds} seeds ± 95 % confidence"),
        };
        format!("Saved by {own}, % of each rival's figure{spread}\n{table}\n")
    }

    pub(super) fn spread(&self) -> String {
        match self.seeds() {
            0 | 1 => String::new(),
            seeds => format!("; mean of {seeds} seeds ± 95 % confidence"),
        }
    }
}
