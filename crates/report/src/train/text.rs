//! The comparison of modes for the terminal.

use comfy_table::{CellAlignment, Table, presets};
use hither_core::record::train::RunRecord;

use super::about::{facts, notes};
use super::figure::{columns, figures};
use super::group::groups;
use crate::format::printable;

/// One row per mode, the best value of each column marked with `*`. Plain UTF-8 without colour, so
/// that it can be piped and compared.
pub fn table(runs: &[RunRecord]) -> String {
    let groups = groups(runs);
    let figures = figures(&groups);
    let columns = columns(&figures);
    let winners: Vec<Vec<bool>> = columns.iter().map(|c| c.winners(&figures)).collect();
    let texts: Vec<Vec<String>> = columns.iter().map(|c| c.texts(&figures)).collect();

    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(std::iter::once("mode").chain(columns.iter().map(|c| c.name)));
    for (i, group) in groups.iter().enumerate() {
        let cells = texts.iter().zip(&winners).map(|(texts, wins)| {
            // The blank keeps the digits of marked and unmarked rows in one column.
            format!("{}{}", texts[i], if wins[i] { '*' } else { ' ' })
        });
        table.add_row(std::iter::once(printable(&group.label)).chain(cells));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }

    let facts: Vec<String> = facts(runs)
        .into_iter()
        .filter(|(_, values)| !values.is_empty())
        .map(|(name, values)| format!("{} {}", name.to_lowercase(), values.join(" | ")))
        .collect();
    let mut text = format!("{}\n{table}\n", printable(&facts.join(" · ")));
    for note in notes(&groups, &figures) {
        text.push_str(&format!("note: {}\n", printable(&note)));
    }
    text
}
