//! What must hold of every page and table of training runs, and some opened in a real browser.

use crate::opened;
use crate::train_record as record;

use hither_core::record::train::{Bytes, ClassScore, CriticalPath, RunRecord, Work, Works};
use hither_report::train::table;
use record::{MODES, run, runs};

const SIZE_MAX: usize = 2_000_000;

fn page(runs: &[RunRecord]) -> String {
    hither_report::train::page(runs, &[])
}

/// The cells of a mode's row, without the rules between them.
fn row<'a>(text: &'a str, mode: &str) -> Vec<&'a str> {
    let starts =
        |line: &&str| line.trim_start_matches(['│', ' ']).split_whitespace().next() == Some(mode);
    let line = text.lines().find(starts).unwrap_or_else(|| panic!("no {mode} in\n{text}"));
    line.split(['│', '┆']).map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

#[test]
fn the_table_compares_modes() {
    let mut all = runs(&["single", "psgd-pa", "llcg", "ggs"], 3, 20);
    for run in &mut all {
        let seed = run.header.seed as f64;
        let (test, down): (f64, u64) = match run.header.mode.as_str() {
            "single" => (0.60, 0),
            "psgd-pa" => (0.52, 10_000_000),
            "llcg" => (0.61, 10_000_000),
            _ => (0.59, 1_470_000_000),
        };
        // 1, 2 and 3 hundredths of a point apart.
        run.summary.test = test + (seed - 2.0) * 1e-2;
        let bytes = Bytes { model_down_bytes: down, model_up_bytes: down, ..Bytes::default() };
        run.rounds.iter_mut().for_each(|row| row.bytes = bytes);
        run.summary.bytes =
            Bytes { model_down_bytes: down * 20, model_up_bytes: down * 20, ..Bytes::default() };
    }
    let text = table(&all);
    let cells = row(&text, "psgd-pa");
    assert_eq!(cells[1..4], ["3", "52.00 ± 1.00", "−8.00"], "{text}");
    assert_eq!(cells[6..10], ["10.00*", "10.00*", "400.00*", "1.00×"], "{text}");
    assert_eq!(row(&text, "llcg")[2..4], ["61.00 ± 1.00*", "+1.00"], "{text}");
    assert_eq!(row(&text, "ggs")[6..10], ["1,470", "1,470", "58,800", "147×"], "{text}");
    assert_eq!(row(&text, "single")[3], "–", "{text}");
    assert_eq!(
        row(&text, "single")[6..9],
        ["0", "0", "0"],
        "who sends nothing wins nothing\n{text}"
    );
    assert!(text.starts_with("dataset made-up · graph 63,436 nodes"), "{text}");
}

#[test]
fn one_run_has_no_spread_and_no_winner() {
    let text = table(&[run("llcg", 1, 20)]);
    assert!(!text.contains('±') && !text.contains('*') && !text.contains("Δ"), "{text}");
    assert!(table(&[]).contains("mode"));
    let sender = table(&[run("single", 1, 20), run("ggs", 1, 20)]);
    let cells = row(&sender, "ggs");
    assert!(!cells[6..9].concat().contains('*'), "the only one that sends wins nothing\n{sender}");
}

#[test]
fn the_server_s_share_of_the_work_is_told() {
    let mut all = runs(&["psgd-pa", "llcg"], 1, 10);
    for run in &mut all {
        run.summary.work = Works {
            workers: Work { sums: 1_000_000_000, products: 4_000_000_000 },
            ..Works::default()
        };
        run.summary.path = CriticalPath { workers_s: 5000.0, ..CriticalPath::default() };
    }
    // Judging is the server's work too.
    all[1].summary.work.server = Work { sums: 10_000_000_000, products: 0 };
    all[1].summary.work.judge = Work { sums: 5_000_000_000, products: 0 };
    all[1].summary.path.server_s = 15_000.0;
    let text = table(&all);
    // Computed time, then what was measured.
    let last = |mode| row(&text, mode).into_iter().rev().take(4).collect::<Vec<_>>();
    assert_eq!(last("llcg"), ["5.56 h", "3.86 s", "75.0 %", "20.0"], "{text}");
    assert_eq!(last("psgd-pa"), ["1.39 h*", "3.04 s", "0.0 %", "5.0*"], "{text}");
}

#[test]
fn one_machine_has_no_columns_of_workers() {
    let text = table(&[run("single", 1, 20)]);
    for column in ["MB/round down", "total MB", "server steps", "server share"] {
        assert!(!text.contains(column), "{column}: {text}");
    }
    assert!(text.contains("wall time") && text.contains("computed time"), "{text}");
    assert!(table(&[run("single", 1, 20), run("llcg", 1, 20)]).contains("server steps"));
}

#[test]
fn the_page_tells_the_settings_and_the_best_round() {
    let settings = |lr: f64| {
        let json = serde_json::json!({
            "lr": lr, "hidden": 64, "patience": null, "server-steps": { "like": "llcg" },
            "dropout": 0.2, "dataset": "g", "batch-norm": false,
        });
        json.as_object().unwrap().clone()
    };
    let one = run("llcg", 1, 30);
    let text = hither_report::train::page(std::slice::from_ref(&one), &[settings(0.01)]);
    let pair = |name: &str, value: &str| format!("<dt>{name}</dt><dd>{value}</dd>");
    let pairs =
        [("lr", "0.01"), ("hidden", "64"), ("server-steps", "like llcg"), ("batch-norm", "no")];
    for (name, value) in pairs {
        assert!(text.contains(&pair(name, value)), "{name}");
    }
    assert!(text.find("<dt>lr<") < text.find("<dt>hidden<"), "in the order of use");
    assert!(!text.contains("<dt>patience<") && !text.contains("<dt>dataset<"));
    assert!(text.contains(&format!("\"best\":[{{\"round\":{}", one.summary.best_round)));
    let two = hither_report::train::page(&[one], &[settings(0.01), settings(0.1)]);
    assert!(two.contains(&pair("lr", "0.01 | 0.1")) && two.contains(&pair("dropout", "0.2")));
}

#[test]
fn classes_are_scored_one_by_one() {
    let class = |name: &str, nodes, correct, predicted| {
        let name = name.into();
        ClassScore { name, nodes, correct, predicted }
    };
    let mut all = runs(&["llcg", "single"], 2, 20);
    assert!(!page(&all).contains("id=\"classes\""), "records of older versions have none");
    for run in &mut all {
        let right = if run.header.mode == "llcg" { 30 } else { 40 };
        let absent = class("a<b", 0, 0, 0);
        run.summary.classes = vec![absent, class("rare", 10, 1, 4), class("common", 60, right, 66)];
    }
    let compared = page(&all);
    let cells = |text: &str, name: &str| -> Vec<String> {
        let row =
            text.split("<tr>").find(|row| row.contains(&format!(">{name}</th>"))).expect(name);
        let spans = row.split("<span>").skip(1).filter_map(|rest| rest.split("</span>").next());
        spans.map(str::to_owned).collect()
    };
    assert_eq!(cells(&compared, "common"), ["50.0 %", "66.7 %"]);
    assert_eq!(cells(&compared, "rare"), ["10.0 %", "10.0 %"]);
    assert_eq!(cells(&compared, "a&lt;b"), ["–", "–"], "no test node, no score");
    assert!(compared.find(">common</th>") < compared.find(">rare</th>"), "largest first");
    // One mode has room for its precision.
    let alone = page(&all[..2]);
    assert_eq!(cells(&alone, "rare"), ["10.0 %", "25.0 %"]);
    all[3].summary.classes.pop();
    assert!(!page(&all).contains("id=\"classes\""), "other classes are not compared");
}

#[test]
fn one_mode_is_not_compared_and_no_cell_of_the_grid_is_empty() {
    let alone = page(&runs(&["llcg"], 2, 20));
    assert!(!alone.contains("Comparison") && !alone.contains("is highlighted"));
    let compared = page(&runs(&["llcg", "single"], 1, 20));
    assert!(compared.contains("Comparison") && compared.contains("is highlighted"));
    for text in [alone, compared, page(&runs(&["single"], 1, 20)), page(&runs(&["ggs"], 1, 20))] {
        let (all, wide) = (
            text.matches("<section class=\"card plot").count(),
            text.matches("<section class=\"card plot wide").count(),
        );
        assert_eq!((all - wide) % 2, 0, "{all} charts, {wide} of them wide");
    }
}

#[test]
fn modes_of_different_settings_are_told_apart() {
    let mut all = runs(&["single", "llcg"], 2, 10);
    let mut other = runs(&["llcg"], 2, 10);
    other.iter_mut().for_each(|run| run.header.partition = "random".into());
    all.append(&mut other);
    let text = table(&all);
    assert!(
        text.contains("│ single ")
            && text.contains("llcg @ metis")
            && text.contains("llcg @ random"),
        "{text}"
    );
}

#[test]
fn what_is_sent_before_the_first_round_is_said() {
    let mut all = runs(&["psgd-sa"], 2, 10);
    all.iter_mut().for_each(|run| run.summary.bytes.features_down_bytes += 5_000_000);
    assert!(table(&all).contains("note: psgd-sa sends 5.00 MB once"), "{}", table(&all));
    all[0].rounds.truncate(6);
    all[0].summary.rounds = 6;
    assert!(page(&all).contains("Runs of psgd-sa ended after 6 to 10 rounds"));
}

#[test]
fn the_page_is_whole_and_always_the_same() {
    let all = runs(&MODES, 3, 50);
    let text = page(&all);
    assert_eq!(text, page(&all));
    assert!(text.ends_with("</html>"));
    for part in [
        "gcn 2×64 trained on made-up in 7 modes",
        "How bytes are counted",
        "20.4 %",
        "1 · 2 · 3",
        "no bytes are sent: single, server-only",
    ] {
        assert!(text.contains(part), "{part}");
    }
    for reference in ["src=\"", "href=", "@import", "url(", "fetch(", "XMLHttpRequest"] {
        assert!(!text.contains(reference), "{reference}");
    }
    assert!(page(&[]).ends_with("</html>"));
    assert!(page(&[run("llcg", 1, 30)]).contains("gcn 2×64 trained on made-up by llcg"));
}

#[test]
fn strings_stay_text() {
    let evil = "</script><script>alert(1)</script><!--\u{2028}'\"&\u{1b}[2J";
    let mut one = run("llcg", 1, 20);
    let header = &mut one.header;
    for text in [
        &mut header.hither,
        &mut header.dataset,
        &mut header.metric,
        &mut header.mode,
        &mut header.model,
        &mut header.partition,
    ] {
        *text = evil.into();
    }
    let all = [one, run("ggs", 1, 20)];
    let text = page(&all);
    assert!(!text.contains("<script>alert") && !text.contains("alert(1)</script>"));
    assert_eq!(text.matches("<script").count(), text.matches("</script>").count());
    assert!(!table(&all).contains('\u{1b}'));
}

#[test]
fn long_runs_give_a_small_page() {
    let all = runs(&MODES, 5, 10_000);
    let text = page(&all);
    assert!(text.len() < SIZE_MAX, "{} bytes", text.len());
    assert!(text.contains("A point is the mean of 25 rounds."));
    // Many settings share the room.
    let mut many = Vec::new();
    for parts in 1..=60 {
        let mut one = run("llcg", 1, 500);
        one.header.parts = parts;
        many.push(one);
    }
    assert!(page(&many).len() < SIZE_MAX);
}

/// Everything that can be absent is, and what must be a number is none.
fn bare() -> Vec<RunRecord> {
    let mut all = runs(&["psgd-pa", "single"], 2, 12);
    for row in all.iter_mut().flat_map(|run| &mut run.rounds) {
        (row.valid, row.test) = (None, None);
        (row.time, row.bytes) = Default::default();
    }
    for run in &mut all {
        run.summary.bytes = Bytes::default();
        (run.summary.test, run.summary.valid) = (f64::NAN, None);
    }
    all[0].rounds[4].loss = f64::NAN;
    all[1].rounds.clear();
    all[1].summary.rounds = 0;
    let mut enormous = run("ggs", 1, 2);
    enormous.rounds[1].round = u32::MAX;
    enormous.rounds[1].bytes.features_down_bytes = u64::MAX;
    enormous.rounds[1].bytes.model_down_bytes = u64::MAX;
    all.push(enormous);
    all
}

#[test]
fn absent_figures_leave_no_trace() {
    let all = bare();
    let (text, page) = (table(&all), page(&all));
    let shown = &page[page.find("<body").unwrap()..page.find("<script>").unwrap()];
    for word in ["NaN", "undefined", "inf"] {
        assert!(!text.contains(word), "{text}");
        assert!(!shown.contains(word), "{word}");
    }
}

fn check(name: &str, page: &str, flags: &[&str]) {
    opened::check("check-train.mjs", name, page, flags);
}

#[test]
fn a_browser_shows_all_modes() {
    check("train-modes.html", &page(&runs(&MODES, 5, 50)), &[]);
}

#[test]
fn a_browser_shows_one_run() {
    check("train-one.html", &page(&[run("llcg", 1, 50)]), &[]);
    check("train-short.html", &page(&[run("llcg", 1, 1)]), &[]);
}

#[test]
fn a_browser_shows_long_runs() {
    check("train-long.html", &page(&runs(&MODES, 5, 10_000)), &[]);
}

#[test]
fn a_browser_shows_what_is_absent() {
    check("train-bare.html", &page(&bare()), &["--bare"]);
    check("train-none.html", &page(&[]), &["--none"]);
}
