//! What `simulate` and `report` write.

use std::fs;

use serde_json::Value;

use crate::{Bench, PathStr, command, hither, json_of, stdout_of};

#[test]
fn every_figure_is_in_the_json() {
    let bench = Bench::new();
    let result = json_of(&bench.simulate(&["--policy", "dally,tiresias,fifo", "--json", "-q"]));
    assert_eq!(result["header"]["trace"], "trace.csv");
    let runs = result["runs"].as_array().expect("runs");
    let policies: Vec<&Value> = runs.iter().map(|run| &run["policy"]).collect();
    assert_eq!(policies, ["dally", "tiresias", "fifo"]);
    for run in runs {
        assert_eq!((&run["jobs"], &run["finished"]), (&120.into(), &120.into()));
        for key in ["jct_s", "queue_s"] {
            for part in ["mean", "p50", "p95", "p99"] {
                assert!(run[key][part].is_number(), "{key}.{part}");
            }
        }
        for key in ["makespan_s", "gpu_utilisation", "comm_s_total", "comm_share", "sim_cpu_s"] {
            assert!(run[key].is_f64(), "{key}");
        }
        for key in ["preemptions", "events"] {
            assert!(run[key].is_u64(), "{key}");
        }
        assert_eq!(run["tier_share"].as_array().map(Vec::len), Some(3));
    }
}

#[test]
fn the_same_bytes_on_any_number_of_threads() {
    let bench = Bench::new();
    let mut outputs = Vec::new();
    for threads in ["1", "2"] {
        let out = bench.path(threads);
        stdout_of(&bench.simulate(&[
            "--policy",
            "dally,gandiva,srtf",
            "--seed",
            "3",
            "--congestion",
            "4",
            "--mtbf-h",
            "50",
            "--check",
            "--threads",
            threads,
            "-o",
            out.str(),
        ]));
        let read = |name| fs::read(out.join(name)).expect("the file is there");
        outputs.push([read("jobs.csv"), read("events.jsonl")]);
        let text = String::from_utf8(read("summary.json")).expect("text");
        assert!(text.contains("each machine fails every 50 h"), "faults are in the notes");
    }
    assert!(outputs[0] == outputs[1], "the threads show in the results");
    assert!(outputs[0].iter().all(|content| content.len() > 10_000));
}

/// The column of this name, of all rows.
fn column(text: &str, name: &str) -> Vec<String> {
    let mut csv = csv::Reader::from_reader(text.as_bytes());
    let at = csv.headers().expect("a header").iter().position(|n| n == name).expect(name);
    csv.records().map(|row| row.expect("a row")[at].to_owned()).collect()
}

#[test]
fn stretch_is_completion_over_the_ideal() {
    let bench = Bench::new();
    let out = bench.path("out");
    stdout_of(&bench.simulate(&["--policy", "dally", "--congestion", "8", "-o", out.str()]));
    let text = fs::read_to_string(out.join("jobs.csv")).expect("jobs.csv");
    let numbers = |name| -> Vec<f64> {
        column(&text, name).iter().map(|cell| cell.parse().expect("a number")).collect()
    };
    let (stretch, whole, ideal) =
        (numbers("stretch"), numbers("turnaround_time"), numbers("requested_time"));
    for ((stretch, whole), ideal) in stretch.iter().zip(whole).zip(ideal) {
        assert_eq!(*stretch, whole / ideal);
        assert!(*stretch >= 1.0 - 1e-9, "no job is faster than its ideal: {stretch}");
    }
}

#[test]
fn settings_and_reasons_of_a_run_are_on_record() {
    let bench = Bench::new();
    let out = bench.path("out");
    let set = ["--policy", "dally,fifo", "--set", "dally.round_s=450", "-o", out.str()];
    stdout_of(&bench.simulate(&set));
    let read = |name| fs::read_to_string(out.join(name)).expect("the file");
    let summary: serde_json::Value = serde_json::from_str(&read("summary.json")).expect("JSON");
    let settings = &summary["header"]["settings"];
    assert_eq!(settings["dally.round_s"], "450");
    assert_eq!(settings["lengths"], "unknown");
    assert_eq!(settings["rack.gbit"], "100");
    assert_eq!(settings["gandiva.slice_s"], serde_json::Value::Null, "gandiva did not run");
    assert!(read("events.jsonl").contains("\"why\":\"it is its turn, and one machine has room\""));
    assert!(read("report.html").contains("<dt>dally.round_s</dt><dd>450</dd>"));
}

#[test]
fn jobs_csv_is_read_by_the_names_of_its_columns() {
    let bench = Bench::new();
    let out = bench.path("out");
    stdout_of(&bench.simulate(&["--policy", "fifo", "-o", out.str()]));
    let path = out.join("jobs.csv");
    let whole = fs::read_to_string(&path).expect("jobs.csv");
    let report = || hither(&["report", out.str()]);
    // An earlier file without a later column, and a later file with a further one in front.
    let fewer: Vec<String> = whole
        .lines()
        .map(|line| line.rsplitn(2, ',').collect::<Vec<_>>())
        .map(|parts| format!("later,{},{}", parts[1], parts[0]))
        .collect();
    let head = fewer[0].replacen("later,", "further,", 1).replace(",preemptions,", ",renamed,");
    let text = std::iter::once(head).chain(fewer[1..].iter().cloned()).collect::<Vec<_>>();
    fs::write(&path, text.join("\n") + "\n").expect("it is written");
    let output = report();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // A column that cannot be missed.
    fs::write(&path, whole.replacen(",queue_time", ",queue_tim", 1)).expect("it is written");
    let output = report();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && stderr.contains("no column queue_time"), "{stderr}");
}

#[test]
fn jobs_csv_speaks_batsim_and_host_lists() {
    let bench = Bench::new();
    let out = bench.path("out");
    stdout_of(&bench.simulate(&["--policy", "fifo", "-o", out.str()]));
    let text = fs::read_to_string(out.join("jobs.csv")).expect("jobs.csv");
    let head = text.lines().next().expect("a header");
    assert!(head.starts_with(
        "policy,job_id,workload_name,submission_time,requested_number_of_resources,\
         requested_time,success,final_state,starting_time,execution_time,finish_time,\
         waiting_time,turnaround_time,stretch,allocated_resources,"
    ));
    assert_eq!(text.lines().count(), 121);
    assert!(text.contains("gpu[00") || text.contains("gpu0"), "machines by name");
    let names: Vec<String> = fs::read_dir(&out)
        .expect("the directory")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(names.len(), 4, "four files and no temporary ones: {names:?}");
}

#[test]
fn a_report_is_made_again_from_its_files() {
    let bench = Bench::new();
    let out = bench.path("out");
    stdout_of(&bench.simulate(&["--policy", "dally,fifo", "-o", out.str()]));
    let first = fs::read(out.join("report.html")).expect("the report");
    fs::remove_file(out.join("report.html")).expect("it can go");
    stdout_of(&["report", out.str()]);
    assert!(fs::read(out.join("report.html")).expect("the report") == first);
    let both = bench.path("both.html");
    stdout_of(&["report", out.str(), out.str(), "-o", both.str()]);
    assert!(fs::metadata(both).is_ok_and(|file| file.len() > 1000));
}

/// Files as version 0.1.0 wrote them: racks instead of levels, no settings, no reasons.
#[test]
fn results_of_the_first_version_stay_readable() {
    let bench = Bench::new();
    let old = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/run-0.1.0");
    let page = bench.path("page.html");
    stdout_of(&["report", old, "-o", page.str()]);
    let page = fs::read_to_string(page).expect("the page");
    for told in ["two.csv", "2 machines in 2 racks", "90.0 min", "120 min", "58.3 %"] {
        assert!(page.contains(told), "{told} is missing");
    }
}

#[test]
fn a_training_report_is_made_again_from_its_files() {
    let bench = Bench::new();
    let (graph, out) = (bench.path("g.graph.safetensors"), bench.path("out"));
    let family = [
        "dataset",
        "generate",
        "--family",
        "noisy-features",
        "--nodes",
        "600",
        "--communities",
        "8",
    ];
    stdout_of(&[&family[..], &["-o", graph.str()]].concat());
    let compare = ["train", "compare", graph.str(), "--modes", "psgd-pa,llcg", "--rounds", "2"];
    stdout_of(&[&compare[..], &["--dropout", "0.375", "-o", out.str()]].concat());
    let first = fs::read_to_string(out.join("report.html")).expect("the report");
    assert!(first.contains("<dt>dropout</dt><dd>0.375</dd>"), "the settings are told");
    fs::remove_file(out.join("report.html")).expect("it can go");
    stdout_of(&["report", out.str()]);
    assert!(fs::read_to_string(out.join("report.html")).expect("the report") == first);
    let one = bench.path("one.html");
    stdout_of(&["report", out.join("llcg").str(), "-o", one.str()]);
    assert!(fs::read_to_string(&one).expect("the page").contains("by llcg"));

    let (simulated, page) = (bench.path("simulated"), bench.path("page.html"));
    stdout_of(&bench.simulate(&["--policy", "fifo", "-o", simulated.str()]));
    let refused = |dirs: &[&str], told: &str| {
        let output = hither(&[&["report"], dirs, &["-o", page.str()]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(told) && stderr.lines().count() == 1, "{stderr}");
    };
    refused(&[out.str(), simulated.str()], "give directories of one kind");
    let metrics = out.join("llcg/metrics.jsonl");
    let text = fs::read_to_string(&metrics).expect("the rounds");
    fs::write(&metrics, text.lines().next().unwrap_or_default()).expect("it is written");
    refused(&[out.str()], "metrics.jsonl: 1 rounds of run 1, and summary.json has 2");
    fs::remove_file(out.join("llcg/summary.json")).expect("it can go");
    refused(&[out.str()], "has no finished run");
}

/// Each way of breaking one of the files gives one error that names it.
#[test]
fn broken_results_are_told_by_file_and_line() {
    let bench = Bench::new();
    let out = bench.path("out");
    stdout_of(&bench.simulate(&["--policy", "dally,fifo", "-o", out.str()]));
    type Break = fn(&str) -> String;
    let half: Break = |text| text[..text.len() / 2].into();
    let cases: [(&str, &str, Break); 9] = [
        ("summary.json", "summary.json:", half),
        ("summary.json", "summary.json:1:", |_| "[]".into()),
        ("jobs.csv", "jobs.csv:", half),
        ("jobs.csv", "jobs.csv: ", |text| text.lines().take(9).map(|l| format!("{l}\n")).collect()),
        ("jobs.csv", "jobs.csv:2:", |text| {
            text.replacen("\nfifo", "\nx", 1).replacen("\ndally,1,", "\nnobody,1,", 1)
        }),
        ("jobs.csv", "jobs.csv:1:", |_| String::new()),
        ("events.jsonl", "events.jsonl:", half),
        ("events.jsonl", "events.jsonl:1:", |text| text.replacen("\"job\":0", "\"job\":999", 1)),
        ("events.jsonl", "events.jsonl:1:", |text| text.replacen("\"t\":0.0", "\"t\":-1", 1)),
    ];
    for (file, place, broken) in cases {
        let path = out.join(file);
        let whole = fs::read_to_string(&path).expect("the file");
        fs::write(&path, broken(&whole)).expect("it is written");
        let output = hither(&["report", out.str(), "-o", bench.path("r.html").str()]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{file} {place}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(place), "{place}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(!bench.path("r.html").exists());
        fs::write(&path, whole).expect("it is written");
    }
}

#[test]
fn options_change_what_they_name() {
    let bench = Bench::new();
    let mean = |more: &[&str]| {
        let args = [&["--policy", "dally", "--json", "-q"], more].concat();
        json_of(&bench.simulate(&args))["runs"][0]["jct_s"]["mean"].as_f64().expect("a number")
    };
    let plain = mean(&[]);
    let settings = bench.write("settings.toml", "[dally]\npreempt = false\nupgrade = false\n");
    let by_file = mean(&["--settings", settings.str()]);
    let by_flag = mean(&["--set", "dally.preempt=false", "--set", "dally.upgrade=false"]);
    assert_eq!(by_file, by_flag);
    assert_ne!(plain, by_flag);
    assert_eq!(
        plain,
        mean(&[
            "--settings",
            settings.str(),
            "--set",
            "dally.preempt=true",
            "--set",
            "dally.upgrade=true"
        ])
    );
    assert_ne!(plain, mean(&["--congestion", "8"]));
    assert_ne!(plain, mean(&["--load", "0.5"]));
}

#[test]
fn jobs_that_never_fit_are_an_error_or_left_out() {
    let bench = Bench::new();
    let trace = bench.write("large.csv", "job,gpus,submit_s,duration_s\na,4,0,100\nb,65,1,100\n");
    let cluster = bench.path("cluster.toml");
    let args = ["simulate", trace.str(), "--cluster", cluster.str(), "--json"];
    let output = hither(&args);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--drop-impossible"));
    let result = json_of(&[&args[..], &["--drop-impossible"]].concat());
    assert_eq!(result["runs"][0]["finished"], 1);
    assert!(result["runs"][0]["notes"].to_string().contains("1 of 2 jobs left out"));
}

#[test]
fn environment_stands_behind_flags() {
    let bench = Bench::new();
    let seed = |args: &[String]| {
        let output = command(args).env("HITHER_SEED", "7").env("HITHER_QUIET", "1").output();
        let output = output.expect("the program starts");
        assert!(output.stderr.is_empty());
        let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        result["header"]["seed"].as_u64()
    };
    assert_eq!(seed(&bench.simulate(&["--json"])), Some(7));
    assert_eq!(seed(&bench.simulate(&["--json", "--seed", "8"])), Some(8));
}

#[test]
fn the_demo_ends_with_its_report() {
    let bench = Bench::new();
    let out = bench.path("demo");
    let text = stdout_of(&["demo", "-q", "-o", out.str()]);
    assert!(text.contains("winner per metric") && text.ends_with("report.html\n"), "{text}");
    for name in
        ["trace.csv", "cluster.toml", "jobs.csv", "events.jsonl", "summary.json", "report.html"]
    {
        assert!(out.join(name).is_file(), "{name}");
    }
}
