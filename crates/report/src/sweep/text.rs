//! The sweep's tables for the terminal.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

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
        text
    }

    pub(super) fn spread(&self) -> String {
        match self.seeds() {
            0 | 1 => String::new(),
            seeds => format!("; mean of {seeds} seeds ± 95 % confidence"),
        }
    }
}
