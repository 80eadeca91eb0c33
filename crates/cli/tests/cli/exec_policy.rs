//! Policies that are programs.

use serde_json::Value;

use crate::{Bench, hither, json_of};

/// Least GPU time first, takes what there is: dally without waiting, preemption and upgrades.
const LEAST: &str = r#"
import json, sys
for line in sys.stdin:
    q = json.loads(line)
    reply = {"claim": q["job"]["gpus"] * q["job"]["held_s"]} if q["ask"] == "claim" else {"take": True}
    print(json.dumps({} if q["ask"] == "hello" else reply), flush=True)
"#;

fn figures(run: &Value) -> Value {
    let mut run = run.clone();
    for own in ["policy", "sim_cpu_s", "events"] {
        run.as_object_mut().expect("a summary").remove(own);
    }
    run
}

#[test]
fn a_program_decides_as_the_policy_that_it_copies() {
    let bench = Bench::new();
    let program = bench.write("least.py", LEAST);
    let name = format!("exec:python3 {}", program.display());
    let plain = ["--set", "dally.preempt=false", "--set", "dally.upgrade=false"];
    let policies = format!("{name},dally-no-wait");
    let more = [&["--policy", &policies, "--json", "--congestion", "4"], &plain[..]].concat();
    let runs = json_of(&bench.simulate(&more));
    let runs = runs["runs"].as_array().or(runs["policies"].as_array()).expect("runs").clone();
    assert_eq!(runs.len(), 2);
    assert_eq!(runs[0]["policy"], Value::from(name));
    assert_eq!(figures(&runs[0]), figures(&runs[1]));
}

#[test]
fn the_example_waits_and_stops_jobs_and_keeps_all_invariants() {
    let bench = Bench::new();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/policies/patient.py");
    let name = format!("exec:python3 {example}");
    let runs = json_of(&bench.simulate(&["--policy", &name, "--json", "--check"]));
    let text = runs.to_string();
    assert!(text.contains("\"finished\":120"), "{text}");
    assert!(!text.contains("\"preemptions\":0"), "{text}");
}

#[test]
fn a_program_that_fails_ends_the_simulation_with_one_error() {
    let bench = Bench::new();
    let hello = "import json, sys\ninput()\nprint('{\"round_s\": 60}', flush=True)\n";
    let cases = [
        ("import sys; sys.exit(3)", "without an answer to \"hello\""),
        ("print('[1]', flush=True); input(); input()", "answered \"hello\" with [1]"),
        (&format!("{hello}input()"), "ended (exit status: 0) without an answer"),
        (
            &format!("{hello}for l in sys.stdin:\n  print('{{\"claim\": \"x\"}}', flush=True)"),
            "answered \"claim\" with",
        ),
        (
            &format!(
                "{hello}for l in sys.stdin:\n  a = json.loads(l)['ask']\n  \
                 print(json.dumps({{'claim': {{'claim': 0}}, 'answer': {{'take': False}}, \
                 'round': {{'stop': [7]}}}}.get(a, {{}})), flush=True)"
            ),
            "stops job 7, which does not run",
        ),
    ];
    for (program, told) in cases {
        let path = bench.write("policy.py", program);
        let name = format!("exec:python3 {}", path.display());
        let output = hither(&bench.simulate(&["--policy", &name]));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{program}: {stderr}");
        assert!(stderr.contains(told) && stderr.contains("error: exec:"), "{program}: {stderr}");
    }
    let output = hither(&bench.simulate(&["--policy", "exec:/nowhere/policy"]));
    assert_eq!(output.status.code(), Some(2));
}
