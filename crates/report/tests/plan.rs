//! What must hold of every page of a plan, and one opened in a real browser.

use crate::opened;

use hither_report::plan::*;

fn report() -> PlanReport {
    let curve = |label: &str, exponent: f64| HotnessCurve {
        label: label.into(),
        row_bytes: 512,
        points: (0..=60)
            .map(|i| {
                (10f64.powf(f64::from(i) / 10.0) as usize, (f64::from(i) / 60.0).powf(exponent))
            })
            .collect(),
    };
    let table = |name: &str, curve: usize| PlannedTable {
        name: name.into(),
        rows: 1_000_000,
        dim: 128,
        dtype: "fp32".into(),
        row_bytes: 512,
        lookups: 300_000,
        unique: 1_000_000,
        hot_fitting: 8192,
        hot_share: 0.334,
        pages: "huge".into(),
        prefetch: "far:64".into(),
        packing: "lookup".into(),
        hot_rows: 8192,
        smaller: vec![SmallerType {
            dtype: "int8".into(),
            row_bytes: 128,
            error: 0.004,
            speedup: 2.5,
            advised: true,
        }],
        curve,
        group: 0,
    };
    let lever = |name: &str, threads: usize, speedup: f64| Lever {
        name: name.into(),
        threads,
        ns: 60.0 / speedup,
        speedup,
        gb_s: 8.5 * speedup,
        of_touch: 0.5 * speedup,
        chosen: threads == 2 && speedup > 1.5,
    };
    PlanReport {
        hither: "0.1.0".into(),
        model: "example".into(),
        trace: "ids.txt".into(),
        machine: PlanMachine {
            cpu: "processor".into(),
            cores: 2,
            l2_bytes: 1 << 20,
            l3_bytes: 32 << 20,
            transparent_huge_pages: None,
        },
        batch: 64,
        pooling: 80.0,
        threads: 0,
        mlp: "fp32".into(),
        tables: vec![table("t0", 0), table("t1", 0), table("other", 1)],
        curves: vec![curve("t0 and 1 more", 1.0), curve("other", 4.0)],
        levers: [1, 2]
            .iter()
            .flat_map(|t| [lever("none", *t, 1.0), lever("pages + prefetch", *t, 1.9)])
            .collect(),
        groups: vec![PlanGroup {
            tables: vec!["t0".into(), "t1".into(), "other".into()],
            sampled: vec!["t0".into()],
            copied: true,
            huge_share: Some(1.0),
            timings: vec![PlanTiming { threads: 1, prefetch: Vec::new() }],
        }],
        notes: vec!["1 of 3 tables was measured".into()],
        commands: vec![PlanCommand {
            purpose: "measure it".into(),
            command: "hither bench model 'my model' --plan plan".into(),
        }],
    }
}

#[test]
fn the_page_is_whole_and_always_the_same() {
    let report = report();
    let page = report.html();
    assert_eq!(page, report.html());
    assert!(page.ends_with("</html>"));
    for text in ["Plan for example", "pages + prefetch", "1.90×", "8,192", "int8 2.50×"] {
        assert!(page.contains(text), "{text}");
    }
    for reference in ["src=\"", "href=", "@import", "url(", "fetch(", "XMLHttpRequest"] {
        assert!(!page.contains(reference), "{reference}");
    }
}

#[test]
fn the_headline_is_of_the_plan_and_not_of_the_fastest_lever() {
    let mut report = report();
    for lever in &mut report.levers {
        lever.chosen = lever.name == "none" && lever.threads == 1;
    }
    let page = report.html();
    assert!(page.contains("The plan uses no lever: with 1 thread, a row takes 60.0 ns."));
    assert_eq!(page.matches("<b class=\"tag\">plan</b>").count(), 1);
    assert_eq!(report.text(false).matches("← plan").count(), 1);
    report.levers.iter_mut().for_each(|lever| lever.chosen = false);
    let mixed = report.html();
    assert!(!mixed.contains("class=\"headline\"") && !mixed.contains("class=\"tag\""));
}

#[test]
fn the_next_commands_are_told() {
    let command = "hither bench model 'my model' --plan plan";
    assert!(report().text(false).ends_with(&format!("to measure it:\n  {command}\n")));
    let shown = command.replace('\'', "&#x27;");
    assert!(report().html().contains(&format!("<dt>To measure it</dt><dd><code>{shown}</code>")));
}

#[test]
fn strings_stay_text() {
    let evil = "</script><script>alert(1)</script><!--'\"&";
    let mut report = report();
    report.model = evil.into();
    report.trace = evil.into();
    report.machine.cpu = evil.into();
    report.tables[0].name = evil.into();
    report.curves[0].label = evil.into();
    report.notes.push(evil.into());
    let page = report.html();
    assert!(!page.contains("<script>alert") && !page.contains("alert(1)</script>"));
    assert_eq!(page.matches("<script").count(), page.matches("</script>").count());
    assert!(!report.text(false).contains('\u{1b}'));
}

#[test]
fn alike_tables_share_a_line() {
    let report = report();
    let text = report.text(false);
    assert!(text.contains("t0 … other") && !text.contains("│ t1"), "{text}");
    let all = report.text(true);
    assert!(all.contains("│ t1") && all.contains("lookup 8,192"), "{all}");
    assert!(all.contains("note: 1 of 3 tables"), "{all}");
}

#[test]
fn nothing_measured_is_still_a_page() {
    let mut report = report();
    report.levers.clear();
    report.curves.clear();
    report.tables.clear();
    report.groups.clear();
    assert!(report.html().ends_with("</html>"));
    assert!(report.text(true).contains("levers"));
}

#[test]
fn a_browser_shows_it() {
    opened::check("check-plan.mjs", "plan.html", &report().html(), &[]);
}
