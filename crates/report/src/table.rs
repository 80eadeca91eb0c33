//! The comparison table for the terminal.

use comfy_table::{CellAlignment, Table, presets};
use hither_core::record::{Header, JobRow, RunRecord, Summary};

use crate::format::{cluster, duration, plural, printable};
use crate::label::{CLAIRVOYANT, marked};
use crate::metric::METRICS;

/// One row per policy, the best value of each column marked with `*`, and the winners below. Plain
/// UTF-8 without colour, so that it can be piped and compared.
pub fn table(header: &Header, runs: &[Summary]) -> String {
    let summaries: Vec<&Summary> = runs.iter().collect();
    let winners: Vec<Vec<bool>> = METRICS.iter().map(|m| m.winners(&summaries)).collect();
    let texts: Vec<Vec<String>> = METRICS.iter().map(|m| m.texts(&summaries)).collect();

    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(std::iter::once("policy").chain(METRICS.iter().map(|m| m.name)));
    for (i, run) in runs.iter().enumerate() {
        let figures = texts.iter().zip(&winners).map(|(texts, wins)| {
            // The blank keeps the digits of marked and unmarked rows in one column.
            format!("{}{}", texts[i], if wins[i] { '*' } else { ' ' })
        });
        table.add_row(std::iter::once(printable(&marked(run))).chain(figures));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }

    let facts = printable(&format!(
        "trace {} · cluster {} · seed {} · congestion {}×",
        header.trace,
        cluster(&header.cluster),
        header.seed,
        header.congestion,
    ));
    let mut text =
        format!("{facts}\n{table}\nwinner per metric: {}\n", winner_line(runs, &winners));
    if runs.iter().any(|run| run.clairvoyant) {
        text.push_str(&format!("{CLAIRVOYANT}\n"));
    }
    for line in crate::label::notes(runs.iter().map(|r| (r.policy.as_str(), r.notes.as_slice()))) {
        text.push_str(&format!("note: {}\n", printable(&line)));
    }
    text
}

/// The job that waited longest under each policy: a mean hides it, and its user does not forget it.
pub fn longest_waits(runs: &[RunRecord]) -> String {
    let worst = |run: &RunRecord| {
        let job = run.jobs.iter().max_by(|a, b| a.queue_s.total_cmp(&b.queue_s))?;
        let JobRow { queue_s, gpus, preemptions, .. } = job;
        let job = printable(&format!("{} {}", run.summary.policy, job.name));
        let (wait, gpus) = (duration(*queue_s), plural(*gpus as usize, "GPU"));
        Some(format!("{job} {wait} ({gpus}, preempted {preemptions} times)"))
    };
    let all: Vec<String> = runs.iter().filter_map(worst).collect();
    match all.is_empty() {
        true => String::new(),
        false => format!("longest wait, by policy and job: {}\n", all.join(" · ")),
    }
}

fn winner_line(runs: &[Summary], winners: &[Vec<bool>]) -> String {
    let mut parts = Vec::new();
    for (metric, wins) in METRICS.iter().zip(winners) {
        let names: Vec<String> = runs
            .iter()
            .zip(wins)
            .filter(|(_, won)| **won)
            .map(|(run, _)| printable(&run.policy))
            .collect();
        match names.len() {
            0 => {}
            1..=3 => parts.push(format!("{} {}", metric.name, names.join(" = "))),
            // The marks in the table show which ones.
            many => parts.push(format!("{} a tie of {many}", metric.name)),
        }
    }
    match (parts.is_empty(), runs.len()) {
        (false, _) => parts.join(" · "),
        (true, 0 | 1) => "nothing to compare".to_owned(),
        (true, _) => "all equal".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::record::{ClusterRow, LevelRow, MachineRow};
    use hither_core::summary::Quantiles;

    fn header() -> Header {
        let machine = |i: u32| MachineRow {
            name: format!("m{i}"),
            parent: i / 2,
            gpus: 8,
            gpu_type: "V100".into(),
        };
        Header {
            hither: "0.1.0".into(),
            trace: "demo.csv".into(),
            seed: 7,
            congestion: 1.5,
            cluster: ClusterRow {
                name: "lab".into(),
                levels: LevelRow::racks(["r0", "r1"]),
                machines: (0..4).map(machine).collect(),
            },
            settings: Default::default(),
        }
    }

    fn run(policy: &str, jct: f64, finished: u64) -> Summary {
        Summary {
            policy: policy.into(),
            seed: 7,
            jobs: 100,
            finished,
            cancelled: 100 - finished,
            jct_s: Quantiles {
                mean: jct,
                p50: jct,
                p95: 2.0 * jct,
                p99: 3.0 * jct,
                max: 4.0 * jct,
            },
            queue_s: Quantiles { mean: 90.0, ..Quantiles::default() },
            makespan_s: 400_000.0,
            gpu_utilisation: 0.5,
            clairvoyant: false,
            useful_utilisation: Some(0.469),
            fragmentation: Some(0.1),
            comm_s_total: Some(10.0),
            comm_share: Some(0.0625),
            tier_share: vec![0.5, 0.3, 0.2],
            preemptions: 3,
            failures: 0,
            events: 300,
            sim_cpu_s: 0.1,
            notes: Vec::new(),
        }
    }

    #[test]
    fn the_whole_table() {
        let text = table(&header(), &[run("fifo", 12_312.0, 100), run("delay", 9_000.0, 100)]);
        let expected = "\
trace demo.csv · cluster lab: 4 machines in 2 racks, 32 GPUs (V100) · seed 7 · congestion 1.5×
│ policy ┆ finished ┆ avg JCT ┆ p50 JCT ┆ p95 JCT ┆ p99 JCT ┆ avg queue ┆ makespan ┆ useful util ┆ comm share ┆ tiers ┆ preempt │
│ fifo   ┆ 100/100  ┆ 3.42 h  ┆ 3.42 h  ┆ 6.84 h  ┆ 10.26 h  ┆   90.0 s  ┆  4.63 d  ┆  46.9 %  ┆     6.2 %  ┆  50/30/20 %  ┆      3  │
";
        // Columns widen with their cells: blanks do not count.
        for line in expected.lines() {
            let words = |l: &str| l.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.lines().any(|l| words(l) == words(line)), "no line {line:?} in\n{text}");
        }
        assert!(text.contains("2.50 h*"), "{text}");
        assert!(!text.contains("3.42 h*"), "{text}");
        assert!(text.ends_with(
            "winner per metric: avg JCT delay · p50 JCT delay · p95 JCT delay · p99 JCT delay\n"
        ));
    }

    #[test]
    fn a_run_that_finished_nothing_does_not_win_by_zeros() {
        let mut none = run("stuck", 0.0, 0);
        none.queue_s = Quantiles::default();
        let text = table(&header(), &[none, run("fifo", 60.0, 100)]);
        assert!(text.contains("avg JCT fifo"), "{text}");
        assert!(text.contains('–'));
    }

    #[test]
    fn one_run_or_equal_runs_have_no_winner() {
        let one = table(&header(), &[run("fifo", 60.0, 100)]);
        assert!(one.ends_with("nothing to compare\n") && !one.contains('*'), "{one}");
        let two = table(&header(), &[run("a", 60.0, 100), run("b", 60.0, 100)]);
        assert!(two.ends_with("all equal\n") && !two.contains('*'), "{two}");
        assert!(table(&header(), &[]).ends_with("nothing to compare\n"));
    }

    #[test]
    fn clairvoyant_policies_are_marked() {
        let bound = Summary { clairvoyant: true, ..run("srtf", 50.0, 100) };
        let text = table(&header(), &[run("a", 60.0, 100), bound]);
        assert!(text.contains("srtf †") && text.contains(CLAIRVOYANT), "{text}");
        assert!(!table(&header(), &[run("a", 60.0, 100)]).contains('†'));
    }

    #[test]
    fn figures_that_nobody_modelled_are_not_invented() {
        let unknown = Summary {
            comm_share: None,
            comm_s_total: None,
            useful_utilisation: None,
            fragmentation: None,
            tier_share: Default::default(),
            ..run("muri", 50.0, 100)
        };
        let text = table(&header(), &[unknown]);
        assert_eq!(text.matches('–').count(), 2, "communication and tiers: {text}");
        assert!(!text.contains("0/0/0"), "{text}");
    }

    #[test]
    fn ties_share_the_mark() {
        let runs = [run("a", 60.0, 100), run("b", 60.0, 100), run("c", 70.0, 100)];
        assert!(table(&header(), &runs).contains("avg JCT a = b"));
    }
}
