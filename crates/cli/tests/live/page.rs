//! The live page in a real browser.

use std::path::Path;
use std::process::Command;

use crate::bed::{Bed, until};
use crate::story::{FAST, TIMERS};

#[test]
fn the_page_shows_racks_jobs_timers_and_decisions() {
    let bed = Bed::new(2, 2, 2);
    for node in ["n0", "n1", "n2", "n3"] {
        let job = bed.submit_foreign(&["--gpus=1", "-w", node], 600);
        bed.await_state(&job, "RUNNING", 10);
    }
    let more = ["--set", "dally.preempt=false", "--listen", "127.0.0.1:0"];
    let flags = [FAST, TIMERS, &more].concat();
    let _scheduler = bed.schedule(&flags);
    let running = bed.submit(1, 600, &[]);
    bed.first_start(&running);
    let waiting = bed.submit(2, 10, &["--comment=hither: model=vgg16"]);
    let url = until("the page's address", 10, || {
        let log = bed.log();
        let line = log.lines().find(|line| line.starts_with("page and metrics on "))?;
        Some(line.rsplit(' ').next()?.to_owned())
    });
    until("the job to wait", 10, || {
        let told = bed.told(&["queue"]);
        told.lines()
            .any(|l| l.starts_with(&waiting) && l.contains("declines one rack"))
            .then_some(())
    });
    // From another host: by the address of the page.
    let told = bed.told(&["queue", "--url", &url]);
    assert!(told.lines().any(|line| line.starts_with(&waiting)), "{told}");
    if std::env::var_os("HITHER_SKIP_BROWSER").is_some_and(|v| v == "1") {
        eprintln!("HITHER_SKIP_BROWSER=1: the live page was not opened in a browser");
        return;
    }
    let checker = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/report/check-live.mjs");
    let output = Command::new("node").arg(checker).args([&url, &running, &waiting]).output();
    let output = output.expect("node is missing: run ./test.sh, which installs it");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
}
