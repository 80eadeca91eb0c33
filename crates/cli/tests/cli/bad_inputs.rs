//! Whatever is wrong: exit status 2, one line that says so, and nothing on standard output.

use std::process::Command;

use crate::{Bench, PathStr, command};

#[track_caller]
pub fn refused(args: &[&str], told: &str) {
    refused_by(&mut command(args), told);
}

#[track_caller]
pub fn refused_by(command: &mut Command, told: &str) {
    let output = command.output().expect("the program starts");
    let args = command.get_args().collect::<Vec<_>>();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}\n{stderr}");
    assert!(output.stdout.is_empty(), "{args:?}");
    let errors = stderr.lines().filter(|line| line.starts_with("error:")).count();
    assert_eq!(errors, 1, "{args:?}\n{stderr}");
    assert!(stderr.contains(told), "{args:?}: no {told:?} in\n{stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("internal"), "{args:?}\n{stderr}");
}

#[test]
fn traces() {
    let bench = Bench::new();
    let head = "job,gpus,submit_s,duration_s\n";
    let row = |row: &str| format!("{head}a,1,0,10\n{row}\n").into_bytes();
    let cases: [(&str, Vec<u8>, &str); 14] = [
        ("empty.csv", vec![], "empty.csv"),
        ("blank.csv", b"\n\n \n".to_vec(), "blank.csv"),
        ("binary.csv", vec![0x1f, 0x8b, 0xff, 0xfe, 0, 1, 2, 255], "binary.csv:1"),
        ("zeros.csv", vec![0; 4096], "zeros.csv"),
        ("unknown.csv", b"a,b,c\n1,2,3\n".to_vec(), "formats"),
        ("head.csv", head.into(), "head.csv"),
        ("truncated.csv", row("b,2"), "truncated.csv:3"),
        ("negative.csv", row("b,1,0,-5"), "negative.csv:3"),
        ("early.csv", row("b,1,-1,5"), "early.csv:3"),
        ("nan.csv", row("b,1,0,NaN"), "nan.csv:3"),
        ("inf.csv", row("b,1,inf,10"), "inf.csv:3"),
        ("none.csv", row("b,0,0,10"), "none.csv:3"),
        ("huge.csv", row("b,1000000000000000000,0,10"), "huge.csv:3"),
        ("twice.csv", row("a,1,0,10"), "twice.csv:3"),
    ];
    for (name, content, told) in cases {
        let path = bench.write(name, content);
        refused(&["simulate", path.str()], told);
        refused(&["trace", "info", path.str()], told);
    }
    refused(&["simulate", bench.path("absent.csv").str()], "absent.csv");
    refused(&["simulate", bench.dir.path().str()], "without the tables of a trace");
    refused(&["simulate", "-"], "standard input");
    refused(&["simulate", bench.path("trace.csv").str(), "--format", "excel"], "hither, sacct");
    let generator = bench.write("g.toml", "jobs = 10\nspeed = 3\n");
    refused(&["simulate", generator.str()], "g.toml:2");
}

#[test]
fn clusters_and_profiles() {
    let bench = Bench::new();
    let trace = bench.path("trace.csv");
    let clusters = [
        ("c1.toml", ""),
        ("c2.toml", "[[rack]]\nmachines = 0\ngpus = 8\n"),
        ("c3.toml", "[[rack]]\nmachines = 4\ngpus = 1000000000000000000\n"),
        ("c4.toml", "[[rack]]\nmachines = -1\ngpus = 8\n"),
        ("c5.toml", "[[rack]]\nmachines = 4\ngpus = 8\nspeed = 3\n"),
        ("c6.toml", "[network]\nnic_gbit = nan\n[[rack]]\nmachines = 4\ngpus = 8\n"),
        ("c7.toml", "[[rack]\nmachines = 4"),
    ];
    for (name, content) in clusters {
        let path = bench.write(name, content);
        refused(&["simulate", trace.str(), "--cluster", path.str()], name);
    }
    refused(&["simulate", trace.str(), "--cluster", bench.dir.path().str()], "cannot read");
    for (name, content) in [("p1.toml", ""), ("p2.json", "{\"name\": 3}"), ("p3.toml", "\0\u{1}")] {
        let path = bench.write(name, content);
        refused(&["simulate", trace.str(), "--profiles", path.str()], name);
    }
}

#[test]
fn flags_of_simulate() {
    let bench = Bench::new();
    let trace = bench.path("trace.csv");
    let cases: [(&[&str], &str); 23] = [
        (&["--policy", "best"], "dally, dally-no-wait"),
        (&["--policy", "dally,"], "unknown policy"),
        (&["--set", "dally.speed=3"], "speed"),
        (&["--set", "nobody.speed=3"], "nobody"),
        (&["--set", "dally"], "POLICY.OPTION"),
        (&["--set", "dally.round_s"], "POLICY.OPTION"),
        (&["--set", "dally.round_s=0"], "dally.round_s"),
        (&["--set", "dally.round_s=-5"], "dally.round_s"),
        (&["--set", "dally.round_s=nan"], "dally.round_s"),
        (&["--set", "dally.round_s=soon"], "options of policies"),
        (&["--set", "dally.round_s.x=1"], ""),
        (&["--set", "gandiva.slice_s=0"], "gandiva.slice_s"),
        (&["--set", "tiresias.thresholds=[5,1]"], "thresholds"),
        (&["--set", "dally.damping=0.5"], "dally.damping"),
        (&["--congestion", "0"], "--congestion"),
        (&["--congestion", "NaN"], "--congestion"),
        (&["--load", "inf"], "--load"),
        (&["--seed", "-1"], "--seed"),
        (&["--threads", "0"], "--threads"),
        (&["--checkpoint-s", "0"], "--checkpoint-s"),
        (&["--repair-h", "2"], "--mtbf-h"),
        (&["--mtbf-h", "-3"], "--mtbf-h"),
        (&["--compat", "gavel"], "muri"),
    ];
    for (more, told) in cases {
        refused(&[&["simulate", trace.str()], more].concat(), told);
    }
    let file = bench.write("file", "");
    refused(&["simulate", trace.str(), "-o", file.str()], "is not a directory");
    let settings = bench.write("s.toml", "[dally]\n\nspeed = 3\n");
    refused(&["simulate", trace.str(), "--settings", settings.str()], "s.toml:3");
}

#[test]
fn flags_of_the_others() {
    let bench = Bench::new();
    let trace = bench.path("trace.csv");
    let out = bench.path("out");
    for (vary, told) in [
        ("speed=1", "vary congestion"),
        ("congestion", "KEY=VALUE"),
        ("congestion=0", "congestion=0"),
        ("load=2..1", "below its end"),
        ("load=-1..1", "load=-1"),
        ("seed=1.5", "seed=1.5"),
        ("seed=1,1", "twice"),
        ("seed=1..99999999999", "100000"),
        ("dally.speed=1", "speed"),
        ("dally.round_s=0,300", "dally.round_s"),
    ] {
        refused(&["sweep", trace.str(), "--vary", vary, "-o", out.str()], told);
        assert!(!out.exists(), "{vary}: nothing is written before all is known to be right");
    }
    refused(&["sweep", trace.str(), "-o", out.str()], "--vary");
    refused(&["report", bench.dir.path().str()], "summary.json");
    refused(&["report", "a", "b"], "-o FILE");
    refused(&["trace", "generate", "--jobs", "0", "--span-h", "1"], "jobs");
    refused(&["trace", "generate", "--demand", "few"], "philly");
    refused(&["trace", "generate", "--demand", "1:-5"], "demand");
    refused(&["trace", "generate", "--arrivals", "often"], "poisson");
    refused(&["trace", "generate", "--load", "0.5", "--span-h", "3"], "--span-h");
    refused(&["trace", "generate", "-o", bench.path("no/where.csv").str()], "cannot write");
    refused(&["vopr", "--seeds", "0"], "--seeds");
    refused(&["completions", "csh"], "bash");
    refused(&["simulate"], "TRACE");
    refused(&["fly"], "fly");
}
