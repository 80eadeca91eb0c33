//! What must hold of every page, whatever the rows say.

use crate::common;

use common::{HABITS, header, record};
use hither_report::{Group, html};

#[test]
fn the_same_rows_give_the_same_bytes() {
    let header = header(3, 2, 4);
    let runs: Vec<_> = HABITS.iter().map(|habit| record(&header, habit, 80)).collect();
    let page = || html(&[Group { header: &header, runs: &runs }]);
    assert_eq!(page(), page());
}

#[test]
fn strings_of_a_trace_stay_text() {
    let evil = "</script><script>alert(1)</script><!--\u{2028}'\"&";
    let mut header = header(4, 1, 2);
    header.trace = evil.into();
    header.cluster.name = evil.into();
    header.cluster.levels[1].places[0].0 = evil.into();
    header.cluster.machines[0].name = evil.into();
    let mut run = record(&header, &HABITS[0], 20);
    run.summary.policy = evil.into();
    run.summary.notes = vec![evil.into()];
    run.jobs[0].name = evil.into();
    run.jobs[0].model = evil.into();
    let page = html(&[Group { header: &header, runs: &[run] }]);
    assert!(!page.contains("alert(1)</script>"), "a string ended its element");
    assert!(!page.contains("<script>alert"), "a string began an element");
    // Its own scripts: blocks, data, library, program.
    let own = page.matches("<script").count();
    assert_eq!(own, page.matches("</script>").count());
}

#[test]
fn nothing_is_fetched() {
    let header = header(5, 1, 2);
    let runs = [record(&header, &HABITS[0], 20)];
    let page = html(&[Group { header: &header, runs: &runs }]);
    for reference in ["src=\"", "href=", "@import", "url(", "fetch(", "XMLHttpRequest"] {
        assert!(!page.contains(reference), "{reference}");
    }
}

#[test]
fn pages_without_runs_or_events_are_whole() {
    assert!(html(&[]).ends_with("</html>"));
    let header = header(6, 1, 2);
    assert!(html(&[Group { header: &header, runs: &[] }]).ends_with("</html>"));
    let mut run = record(&header, &HABITS[0], 20);
    run.events.clear();
    let page = html(&[Group { header: &header, runs: &[run] }]);
    assert!(page.contains("\"has_events\":false"));
}
