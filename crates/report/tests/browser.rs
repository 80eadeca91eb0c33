//! Pages opened in a real browser by e2e/report/check-report.mjs.

use crate::common;
use crate::opened;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{HABITS, header, record};
use hither_core::record::{Header, RunRecord};
use hither_report::{Group, html};
use opened::is_skipped;

const SIZE_MAX: usize = 40_000_000;

fn runs(header: &Header, jobs: u32) -> Vec<RunRecord> {
    HABITS.iter().map(|habit| record(header, habit, jobs)).collect()
}

fn check(name: &str, page: &str, flags: &[&str]) {
    opened::check("check-report.mjs", name, page, flags);
}

#[test]
fn a_hundred_jobs() {
    let header = header(1, 2, 4);
    let runs = runs(&header, 100);
    check("report-100.html", &html(&[Group { header: &header, runs: &runs }]), &[]);
}

#[test]
fn a_hundred_thousand_jobs() {
    let header = header(2, 16, 8);
    let runs = runs(&header, 100_000);
    let page = html(&[Group { header: &header, runs: &runs }]);
    assert!(page.len() < SIZE_MAX, "{} bytes", page.len());
    check("report-100k.html", &page, &[]);
}

#[test]
fn several_groups_and_more_policies_than_colours() {
    let quiet = header(1, 2, 4);
    let busy = Header { congestion: 4.0, ..quiet.clone() };
    let other = Header { congestion: 9.0, ..quiet.clone() };
    let runs = runs(&quiet, 60);
    let groups = [&quiet, &busy, &other].map(|header| Group { header, runs: &runs });
    check("report-groups.html", &html(&groups), &[]);
}

#[test]
fn a_run_without_events_says_so() {
    let header = header(1, 2, 4);
    let mut runs = runs(&header, 50);
    runs[0].events.clear();
    let page = |runs| html(&[Group { header: &header, runs }]);
    check("report-no-events.html", &page(&runs[..1]), &["--no-events"]);
    check("report-some-events.html", &page(&runs[..]), &["--no-events"]);
}

/// A program that loads the page and takes its picture never asks for an animation frame.
#[test]
fn the_schedule_is_painted_without_an_animation_frame() {
    let name = "report-frameless.html";
    if is_skipped(name) {
        return;
    }
    let header = header(1, 2, 4);
    let runs = [record(&header, &HABITS[2], 100)];
    let page = html(&[Group { header: &header, runs: &runs }])
        .replace("<head>", "<head><script>requestAnimationFrame = () => 1;</script>");
    let file: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&file, page).unwrap();
    let profile = Path::new(env!("CARGO_TARGET_TMPDIR")).join("frameless-profile");
    let flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--dump-dom"];
    let output = Command::new("/usr/bin/chromium")
        .args(flags)
        .arg("--virtual-time-budget=5000")
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(&file)
        .output()
        .expect("chromium is missing: run ./test.sh, which installs it");
    let page = String::from_utf8_lossy(&output.stdout);
    let canvas = page.find("<canvas class=\"base\"").expect("the schedule has a canvas");
    let canvas = &page[canvas..][..page[canvas..].find('>').unwrap()];
    assert!(canvas.contains("data-draw-ms"), "the schedule was not painted: {canvas}");
}
