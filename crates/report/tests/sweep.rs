//! What must hold of every page and table of a sweep, and some opened in a real browser.

use crate::common;
use crate::opened;

use common::{HABITS, header, record};
use hither_core::record::{Header, Summary};
use hither_report::sweep::{Axis, Sweep};

struct Grid {
    header: Header,
    axes: Vec<(&'static str, Vec<String>)>,
    cells: Vec<Vec<Summary>>,
}

const POLICIES: [&str; 3] = ["fifo", "backfill", "las"];

impl Grid {
    /// Completion times grow with the place in the grid, and by policy from 3 hours to 30 days.
    fn new(axes: &[(&'static str, &str)]) -> Self {
        let split = |values: &str| values.split(',').map(str::to_owned).collect::<Vec<_>>();
        let axes: Vec<_> = axes.iter().map(|(key, values)| (*key, split(values))).collect();
        let header = header(1, 2, 4);
        let base = record(&header, &HABITS[0], 30).summary;
        let cell = |at: usize| {
            let run = |(i, policy): (usize, &&str)| {
                let mut run = Summary { policy: (*policy).into(), ..base.clone() };
                run.jct_s.mean = 10_800.0 * 15f64.powi(i as i32) * (1.0 + at as f64 / 10.0);
                run
            };
            POLICIES.iter().enumerate().map(run).collect()
        };
        let cells = (0..axes.iter().map(|(_, values)| values.len()).product()).map(cell).collect();
        Self { header, axes, cells }
    }

    fn sweep(&self) -> Sweep<'_> {
        Sweep {
            header: &self.header,
            settings: vec![("checkpoint_s".into(), "1800".into())],
            axes: self.axes.iter().map(|(key, values)| Axis { key, values }).collect(),
            policies: POLICIES.to_vec(),
            against: Vec::new(),
            cells: self.cells.iter().map(Vec::as_slice).collect(),
        }
    }
}

#[test]
fn a_table_has_one_unit_and_marks_the_best() {
    let grid = Grid::new(&[("congestion", "1,2"), ("seed", "1,2,3")]);
    let text = grid.sweep().tables();
    assert!(text.starts_with("Average JCT, h; mean of 3 seeds ± 95 % confidence\n"), "{text}");
    // Means of 3, 3.3 and 3.6 hours, and of 3.9, 4.2 and 4.5.
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[4].contains("3.30 ± 0.75*") && lines[5].contains("4.20 ± 0.75*"), "{text}");
    assert!(lines[4].contains("742.50 ± 167.69 "), "{text}");
    assert!(!text.contains(" d "), "{text}");
}

#[test]
fn savings_are_paired_by_seed() {
    let mut grid = Grid::new(&[("congestion", "1,2"), ("seed", "1,2,3")]);
    for (cell, factor) in grid.cells.iter_mut().zip([2.0, 4.0, 8.0, 1.0, 1.0, 1.0]) {
        cell[1].jct_s.mean = cell[0].jct_s.mean * factor;
    }
    let sweep = Sweep { against: vec!["backfill", "fifo", "nobody"], ..grid.sweep() };
    let text = sweep.tables();
    let told =
        "Saved by fifo, % of each rival's figure; mean of the ratios of 3 seeds ± 95 % confidence";
    assert!(text.contains(told), "{text}");
    // 50, 75 and 87.5 %: mean 70.8, standard deviation 19.1, t(2) = 4.303.
    assert!(text.contains("70.8 ± 47.4"), "{text}");
    assert!(text.contains("0.0 ± 0.0"), "{text}");
    let page = sweep.html();
    assert!(page.contains("<h3>fifo against backfill</h3>") && page.contains("<b>70.8 ± 47.4</b>"));
    assert!(!page.contains("fifo against fifo"));
    assert!(!grid.sweep().tables().contains("Saved by"));
}

#[test]
fn the_last_row_is_the_geometric_mean_of_all_settings() {
    let mut grid = Grid::new(&[("congestion", "1,2"), ("seed", "1,2")]);
    for (cell, factor) in grid.cells.iter_mut().zip([2.0, 2.0, 8.0, 8.0]) {
        cell[1].jct_s.mean = cell[0].jct_s.mean * factor;
    }
    // 1 − √(1/2 · 1/8) for each seed.
    let text = Sweep { against: vec!["backfill"], ..grid.sweep() }.tables();
    let last = text.lines().rfind(|line| line.contains("all")).unwrap();
    assert!(last.contains("75.0 ± 0.0"), "{text}");
    assert!(text.contains("all: geometric mean"), "{text}");
}

#[test]
fn values_of_a_varied_key_are_compared() {
    let mut grid = Grid::new(&[("load", "1,2"), ("dally.x", "on,off,half"), ("seed", "1,2")]);
    let mut cells = grid.cells.iter_mut();
    for _load in 0..2 {
        for factor in [1.0, 4.0, 2.0] {
            for seed in 1..3 {
                cells.next().unwrap()[0].jct_s.mean = 100.0 * factor * f64::from(seed);
            }
        }
    }
    let sweep = Sweep { against: vec!["dally.x"], ..grid.sweep() };
    let text = sweep.tables();
    assert!(text.contains("Saved by fifo, dally.x=on, % of each rival's figure"), "{text}");
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.contains("Saved")).collect();
    let loads = rows.iter().filter(|row| row.contains("75.0 ± 0.0") && row.contains("50.0 ± 0.0"));
    assert_eq!(loads.count(), 3, "two loads and all: {text}");
    let page = sweep.html();
    assert!(page.contains("<h3>fifo, dally.x=on against dally.x=off</h3>"), "a table for each");
    assert!(page.contains("<h3>fifo, dally.x=on against dally.x=half</h3>"));
}

#[test]
fn figures_that_read_the_same_share_the_mark() {
    let mut grid = Grid::new(&[("load", "1,2")]);
    for cell in &mut grid.cells {
        cell[1].jct_s.mean = cell[0].jct_s.mean + 0.01;
    }
    let text = grid.sweep().tables();
    assert_eq!(text.lines().nth(4).unwrap().matches('*').count(), 2, "{text}");
    assert!(grid.sweep().html().contains("fifo in 2 of 2, backfill in 2 of 2 settings"));
}

#[test]
fn colours_tell_a_few_times_the_best_from_hundreds() {
    let page = Grid::new(&[("load", "1")]).sweep().html();
    // 1, 15 and 225 times the best: none, half and all of the colour.
    assert!(page.contains("--share: 30.0%") && page.contains("--share: 60.0%"));
}

#[test]
fn the_page_is_whole_and_always_the_same() {
    let grid = Grid::new(&[("congestion", "1,2,4"), ("load", "0.5,1")]);
    let page = grid.sweep().html();
    assert_eq!(page, grid.sweep().html());
    for part in [
        "3 policies over congestion and load on 64 GPUs",
        "Lowest average completion time: fifo in 6 of 6 settings.",
        "congestion 1, 2, 4",
        "checkpoint_s",
        "prefers-color-scheme: dark",
    ] {
        assert!(page.contains(part), "{part}");
    }
    for reference in ["src=\"", "href=", "@import", "url(", "fetch(", "XMLHttpRequest"] {
        assert!(!page.contains(reference), "{reference}");
    }
    assert!(Sweep { cells: vec![], ..grid.sweep() }.html().ends_with("</html>"));
}

#[test]
fn strings_stay_text() {
    let evil = "</script><script>alert(1)</script><!--'\"&\u{1b}[2J";
    let mut grid = Grid::new(&[("load", "1,2")]);
    grid.header.trace = evil.into();
    grid.axes[0].1[0] = evil.into();
    grid.cells[0][0].notes = vec![evil.into()];
    let mut sweep = grid.sweep();
    sweep.settings.push((evil.into(), evil.into()));
    sweep.policies[0] = evil;
    let page = sweep.html();
    assert!(!page.contains("<script>alert") && !page.contains("alert(1)</script>"));
    assert_eq!(page.matches("<script").count(), page.matches("</script>").count());
    assert!(!sweep.tables().contains('\u{1b}'));
}

#[test]
fn runs_that_finish_nothing_have_no_figure() {
    let mut grid = Grid::new(&[("load", "1,2")]);
    grid.cells[0][0].finished = 0;
    let text = grid.sweep().tables();
    let line = text.lines().nth(4).unwrap();
    assert!(line.contains('–') && line.contains("45.00*"), "{text}");
}

fn check(name: &str, grid: &Grid, flags: &[&str]) {
    opened::check("check-sweep.mjs", name, &grid.sweep().html(), flags);
}

#[test]
fn a_browser_shows_one_axis_with_seeds() {
    check("sweep-one.html", &Grid::new(&[("congestion", "1,2,4,8"), ("seed", "1,2,3")]), &[]);
}

#[test]
fn a_browser_shows_a_grid() {
    let grid = Grid::new(&[("congestion", "1,2,4,8"), ("load", "0.5,0.75,1,1.25,1.5")]);
    check("sweep-grid.html", &grid, &[]);
    check("sweep-narrow.html", &grid, &["--narrow", "--dark"]);
}

#[test]
fn a_browser_shows_names_and_three_axes() {
    let axes = [("dally.score", "slowdown,2d-las"), ("load", "1,0.5"), ("congestion", "1,9")];
    check("sweep-names.html", &Grid::new(&axes), &[]);
    check("sweep-seeds.html", &Grid::new(&[("seed", "1,2,3,4")]), &[]);
}
