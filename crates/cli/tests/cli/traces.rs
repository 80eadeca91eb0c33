//! Other people's traces and cluster files, through the command line.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bad_inputs::refused;
use crate::{Bench, PathStr, hither, json_of, stdout_of};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

/// Standard error of a command that must succeed.
fn stderr_of(args: &[&str]) -> String {
    let output = hither(args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}\n{stderr}");
    stderr
}

#[test]
fn every_sample_is_recognised() {
    for (file, format, jobs) in [
        ("sample.csv", "hither", 200),
        ("traces/sacct.txt", "sacct", 6),
        ("traces/philly.csv", "philly", 4),
        ("traces/philly-log.json", "philly-log", 2),
        ("traces/helios.csv", "helios", 3),
        ("traces/acme.csv", "acme", 2),
        ("traces/pai", "pai", 3),
        ("traces/pai/pai_task_table.csv", "pai", 3),
        ("traces/lingjun", "lingjun", 2),
        ("traces/muri.csv", "muri", 4),
        ("traces/gavel.trace", "gavel", 3),
        ("traces/pollux.csv", "pollux", 4),
        ("traces/tiresias.csv", "tiresias", 3),
        ("traces/sample.swf", "swf", 3),
    ] {
        let path = example(file);
        for more in [&[][..], &["--format", format]] {
            let info = json_of(&[&["trace", "info", path.str(), "--json"], more].concat());
            assert_eq!(
                (info["format"].as_str(), info["jobs"].as_u64()),
                (Some(format), Some(jobs))
            );
        }
        // The converted trace runs. The jobs of sacct want a type of GPU that no default cluster has.
        let bench = Bench::new();
        let csv = bench.path("converted.csv");
        stdout_of(&["trace", "convert", path.str(), "-o", csv.str()]);
        if format != "sacct" {
            let result = json_of(&["simulate", csv.str(), "--policy", "fifo", "--json"]);
            assert_eq!(result["runs"][0]["finished"].as_u64(), Some(jobs), "{file}");
        }
    }
    let job = example("traces/lingjun/job.csv");
    refused(&["trace", "info", job.str()], "give the folder that holds both");
    refused(&["trace", "info", example("").str()], "folder without the tables of a trace");
}

#[test]
fn what_is_left_out_is_told_once() {
    let path = example("traces/sacct.txt");
    let note = "note: left out 4 of 10 jobs: 1 without GPUs, 1 that never started, \
                2 still running or pending\n";
    let output = hither(&["simulate", path.str(), "--policy", "fifo"]);
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(stderr.matches(note).count(), 1, "{stderr}");
    assert!(stderr.contains("types of GPU are ignored: the cluster has none of a100"), "{stderr}");
    assert!(stderr.contains("replaying 6 jobs under 1 policy\n"), "{stderr}");
    assert!(!stdout.contains("left out"), "{stdout}");
    assert!(stderr_of(&["trace", "info", path.str()]).contains(note));
    let bench = Bench::new();
    let out = bench.path("out");
    let sweep = ["sweep", path.str(), "--vary", "seed=1,2", "--policy", "fifo", "-o", out.str()];
    assert!(stderr_of(&sweep).contains(note));
    // A reader of the results sees it too.
    let json = json_of(&["simulate", path.str(), "--policy", "fifo", "--json"]);
    assert!(json["runs"][0]["notes"].to_string().contains("left out 4 of 10 jobs"));
}

#[test]
fn slurms_files_together() {
    let path = example("traces/sacct.txt");
    let [tree, slurm, gres, yaml] = ["topology.conf", "slurm.conf", "gres.conf", "topology.yaml"]
        .map(|f| example("slurm").join(f));
    let simulate = ["simulate", path.str(), "--policy", "dally", "--json", "--cluster", tree.str()];
    let all = [&simulate[..], &["--cluster", slurm.str(), "--cluster", gres.str()]].concat();
    let cluster = &json_of(&all)["header"]["cluster"];
    assert_eq!(cluster["machines"].as_array().map(Vec::len), Some(12));
    assert_eq!(cluster["machines"][0]["gpu_type"], "a100");
    let stderr = stderr_of(&all);
    let levels = cluster["levels"].as_array().expect("levels");
    let names: Vec<&str> = levels.iter().filter_map(|level| level["name"].as_str()).collect();
    assert_eq!(names, ["machine", "rack", "pod", "network"]);
    assert_eq!(levels[2]["places"][1][0], "spine2");
    assert!(!stderr.contains("assuming"), "{stderr}");
    let stderr = stderr_of(&simulate);
    assert!(stderr.contains("note: assuming 8 GPUs on each of 13 machines"), "{stderr}");
    let info = ["trace", "info", path.str(), "--cluster", yaml.str(), "--gpus-per-machine", "4"];
    let stderr = stderr_of(&info);
    assert!(!stderr.contains("assuming") && stderr.contains("tree is used"), "{stderr}");

    let bench = Bench::new();
    bench.write("nodes.conf", "NodeName=a[1-4] Gres=gpu:4\n");
    bench.write("partitions.conf", "PartitionName=p Nodes=ALL\n");
    let including =
        "SwitchName=s Nodes=a[1-4]\nInclude nodes.conf\ninclude partitions.conf # too\n";
    let including = bench.write("slurm.conf", including);
    let info = ["trace", "info", path.str(), "--json", "--cluster", including.str()];
    assert!(json_of(&info)["offered_load"].as_f64() > Some(0.0));
    let stderr = stderr_of(&info);
    assert!(
        stderr.contains("partitions.conf is not used") && !stderr.contains("assuming"),
        "{stderr}"
    );
    let itself = bench.write("loop.conf", "Include loop.conf\n");
    refused(&["trace", "info", path.str(), "--cluster", itself.str()], "more than 100 files");
    let toml = bench.path("cluster.toml");
    let twice = ["trace", "info", path.str(), "--cluster", toml.str(), "--cluster", toml.str()];
    refused(&twice, "only files of Slurm can be given together");
    let mixed = ["trace", "info", path.str(), "--cluster", toml.str(), "--cluster", slurm.str()];
    refused(&mixed, "describes a whole cluster by itself");
    // The description of a trace shows all levels of the cluster that it is held against.
    let text = stdout_of(&[&info[..3], &all[5..]].concat());
    assert!(
        text.contains("cluster    topology: 12 machines in 3 racks in 2 pods, 80 GPUs"),
        "{text}"
    );
}

#[test]
fn a_bare_simulation_compares() {
    let bench = Bench::new();
    let result = json_of(&bench.simulate(&["--json", "-q"]));
    let names: Vec<&str> = result["runs"]
        .as_array()
        .expect("runs")
        .iter()
        .filter_map(|r| r["policy"].as_str())
        .collect();
    assert_eq!(names, ["dally", "tiresias", "fifo", "srtf"]);
}

#[test]
fn lists_as_json() {
    let policies = json_of(&["policies", "--json"]);
    assert_eq!(policies[0]["name"], "dally");
    assert!(policies[0]["about"].as_str().is_some_and(|about| about.contains("delay")));
    assert_eq!(json_of(&["policies", "--options", "--json"])["dally"]["round_s"], 300.0);
    let outcome = json_of(&["vopr", "--seeds", "50", "--json"]);
    assert_eq!((outcome["scenarios"].as_u64(), outcome["failed"].as_u64()), (Some(50), Some(0)));
}

#[test]
fn rate_and_load() {
    let bench = Bench::new();
    let makespan = |more: &[&str]| {
        let args = [&["--policy", "first-fit", "--json", "-q"], more].concat();
        json_of(&bench.simulate(&args))["runs"][0]["makespan_s"].as_f64().expect("a number")
    };
    // The trace offers 1.2 of 64 GPUs, and the cluster has 64.
    let (own, slow) = (makespan(&[]), makespan(&["--rate", "0.25"]));
    let loaded = makespan(&["--load", "0.3"]);
    assert!(slow > 2.0 * own, "{own} {slow}");
    assert!((loaded - slow).abs() < 0.1 * slow, "{loaded} {slow}");
    refused(&["simulate", "x", "--load", "1", "--rate", "1"], "--rate");
    let at_once = bench.write("batch.csv", "job,gpus,submit_s,duration_s\na,1,0,10\nb,1,0,10\n");
    refused(&["simulate", at_once.str(), "--load", "1"], "all jobs arrive at once");
}

#[test]
fn generator_errors_name_the_flag_or_the_key() {
    let bench = Bench::new();
    let config = bench.write("g.toml", "jobs = 10\nload = 0.5\ngpus = 64\nusers = 3\n");
    let wrong = bench.write("w.toml", "span_s = 10\njobs = 0\n");
    let cases: [(&[&str], &str); 7] = [
        (&["--jobs", "0"], "error: --jobs 0: must be between 1 and 10000000\n"),
        (&["--users", "0"], "error: --users 0: must be between 1 and 1000000\n"),
        (&["--load", "0"], "error: --load 0: must be between 0.000001 and 1000000\n"),
        (&["--gpus", "0"], "error: --gpus 0: must be at least 1\n"),
        (&["--duration", "600:99"], "error: --duration 99: must be between 0 and 10\n"),
        (&["--config", config.str(), "--jobs", "0"], "error: --jobs 0: must be between"),
        (&["--config", wrong.str()], "w.toml:2: jobs = 0: must be between 1 and 10000000\n"),
    ];
    for (more, told) in cases {
        refused(&[&["trace", "generate"], more].concat(), told);
    }
}

#[test]
fn headers_without_jobs_and_with_slips() {
    let bench = Bench::new();
    let empty = bench.write("hdr.csv", "job,gpus,submit_s,duration_s\n");
    refused(&["simulate", empty.str()], "hdr.csv has a header but no jobs");
    let slip = bench.write("slip.csv", "job,gpu,submit_s,duration_s\na,1,0,10\n");
    refused(
        &["simulate", slip.str()],
        "slip.csv:1: the column gpus is missing; the columns are job, gpu, submit_s, duration_s; \
         is gpu a misspelling of it?",
    );
}

/// Runs a line of documentation in a folder that has nothing but the examples.
fn run_line(line: &str) {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    std::os::unix::fs::symlink(example(""), dir.path().join("examples")).expect("a link");
    let binary = Path::new(env!("CARGO_BIN_EXE_hither"));
    let path = format!(
        "{}:{}",
        binary.parent().expect("a folder").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let output = Command::new("sh")
        .args(["-c", line])
        .current_dir(dir.path())
        .env("PATH", path)
        .env_remove("HITHER_SEED")
        .output()
        .expect("a shell");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !stderr.contains("error"), "{line}\n{stderr}");
}

/// Lines that begin with `hither` after this indentation, continued lines joined.
fn commands(text: &str, indent: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().filter_map(|line| line.strip_prefix(indent));
    lines.filter(|line| line.starts_with("hither ")).map(str::to_owned).collect()
}

#[test]
fn commands_of_the_docs_run() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let pages = ["README", "cluster", "generator", "profiles"]
        .map(str::to_owned)
        .into_iter()
        .chain(
            ["sacct", "philly", "helios", "pai", "lingjun", "hither", "muri", "gavel", "pollux"]
                .map(|format| format!("trace-{format}")),
        )
        .chain(["tiresias", "swf"].map(|format| format!("trace-{format}")))
        .map(|page| docs.join("formats").join(page + ".md"))
        .chain(["policies.md", "simulator.md"].map(|page| docs.join(page)));
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("the page");
        let lines = commands(&text, "    ");
        assert!(!lines.is_empty(), "{}", page.display());
        lines.iter().for_each(|line| run_line(line));
    }
}

#[test]
fn examples_of_the_help_run() {
    for command in [
        &["simulate"][..],
        &["trace"],
        &["trace", "info"],
        &["trace", "convert"],
        &["trace", "generate"],
        &["policies"],
    ] {
        let help = stdout_of(&[command, &["--help"]].concat());
        let lines = commands(&help, "  ");
        assert!(lines.len() > 2, "{help}");
        // The tests of the live scheduler run `--from`: it needs a cluster.
        for line in lines.iter().filter(|line| !line.contains("--from")) {
            // Words after a gap explain the line.
            run_line(line.split("   ").next().unwrap_or(line));
        }
    }
}
