//! Opens pages in a real browser by the scripts of e2e/report.

use std::path::Path;
use std::process::Command;

/// Whether a page is not to be opened, because the machine has no browser; says so.
pub fn is_skipped(name: &str) -> bool {
    let skipped = std::env::var_os("HITHER_SKIP_BROWSER").is_some_and(|v| v == "1");
    if skipped {
        eprintln!("HITHER_SKIP_BROWSER=1: {name} was not opened in a browser");
    }
    skipped
}

/// Writes the page to a file and runs the checker on it, or says how to get a browser.
pub fn check(script: &str, name: &str, page: &str, flags: &[&str]) {
    if is_skipped(name) {
        return;
    }
    let checker = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/report");
    let missing = "a browser or its driver is missing: run ./test.sh, which installs it";
    assert!(checker.join("node_modules/playwright-core").is_dir(), "{missing}");
    assert!(Path::new("/usr/bin/chromium").exists(), "{missing}");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&file, page).expect("the page is written");
    let script = checker.join(script);
    let output = Command::new("node").arg(script).arg(&file).args(flags).output().expect(missing);
    let out = String::from_utf8_lossy(&output.stdout);
    println!("{out}");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} failed:\n{out}{err}", file.display());
}
