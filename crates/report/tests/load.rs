//! The page of a load measurement, opened in a real browser.

use std::path::Path;
use std::process::Command;

use hither_report::load::{LoadLevel, LoadReport};

fn report() -> LoadReport {
    let level = |rate: f64| {
        let answered = rate.min(900.0);
        LoadLevel {
            offered: rate,
            requests_per_s: rate,
            answered_per_s: answered,
            samples_per_s: 16.0 * answered,
            good_per_s: answered * 0.9,
            refused: ((rate - answered) * 3.0) as u64,
            failed: 0,
            timed_out: 0,
            requests: (rate * 3.0) as u64,
            latency_us: [1.0, 1.5, 2.0, 4.0, 9.0].map(|ms| ms * 1e3 * (1.0 + rate / 400.0)),
            is_stable: rate < 900.0,
        }
    };
    LoadReport {
        hither: "0.1.0".into(),
        target: "http://127.0.0.1:8000".into(),
        model: "<b>rm1</b>".into(),
        samples: 16,
        ids: "medium".into(),
        is_open: true,
        slo_us: Some(10_000.0),
        found: Some("At most 800 requests/s keep p99 within 10.0 ms.".into()),
        settings: vec![("seed".into(), "0".into())],
        levels: [200.0, 400.0, 800.0, 1200.0].map(level).to_vec(),
    }
}

#[test]
fn text_tells_every_level() {
    let text = report().text();
    assert!(text.contains("requests/s offered") && text.contains("p99.9 ms"), "{text}");
    assert!(text.contains("25.0 % refused"), "{text}");
    assert!(text.contains("At most 800 requests/s"), "{text}");
}

#[test]
fn names_are_text_and_never_markup() {
    let page = report().html();
    assert!(!page.contains("<b>rm1</b>") && page.contains("&lt;b&gt;rm1"), "it is escaped");
}

#[test]
fn browser_draws_latency_against_load() {
    if std::env::var_os("HITHER_SKIP_BROWSER").is_some_and(|v| v == "1") {
        eprintln!("HITHER_SKIP_BROWSER=1: the page was not opened in a browser");
        return;
    }
    let dir = std::env::temp_dir().join(format!("hither-load-page-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a temporary directory");
    let page = dir.join("load.html");
    std::fs::write(&page, report().html()).expect("the page is written");
    let checker = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/report/check-load.mjs");
    let output = Command::new("node").arg(checker).arg(&page).output();
    let output = output.expect("node is missing: run ./test.sh, which installs it");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    let _ = std::fs::remove_dir_all(dir);
}
