//! Sweeps: what they write, and that a killed one goes on.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::{Bench, PathStr, command, hither, json_of, stdout_of};

const GENERATOR: &str = "jobs = 300\nload = 1.0\ngpus = 64\nduration = { median_s = 3000, sigma = 1 }\n\
    demand = { gpus = [1, 4, 8, 16], weights = [1, 2, 2, 1] }\n";

fn args(bench: &Bench, out: &Path) -> Vec<String> {
    let generator = bench.write("workload.toml", GENERATOR);
    let cluster = bench.path("cluster.toml");
    let words = [
        "sweep",
        generator.str(),
        "--cluster",
        cluster.str(),
        "--policy",
        "dally,tiresias,fifo",
        "--vary",
        "congestion=1,8",
        "--vary",
        "seed=1..20",
        "--threads",
        "1",
        "-o",
        out.str(),
    ];
    words.map(str::to_owned).to_vec()
}

#[test]
fn a_killed_sweep_goes_on() {
    let bench = Bench::new();
    let (whole, killed) = (bench.path("whole"), bench.path("killed"));
    let table = stdout_of(&args(&bench, &whole));
    assert!(table.contains("Average JCT, h; mean of 20 seeds ± 95 % confidence"), "{table}");

    let mut child = command(&args(&bench, &killed))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    // As soon as something is there; however far it came, the result must be the same.
    while !killed.join("cells/00000.json").exists()
        && child.try_wait().expect("it can be asked").is_none()
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = child.kill();
    child.wait().expect("it ends");
    let kept = |name: &str| fs::metadata(killed.join(name)).and_then(|m| m.modified()).ok();
    let first = kept("cells/00000.json");
    // And one that a crash of the machine left behind.
    fs::write(killed.join("cells/00007.json"), "{\"cell\":").expect("it is written");

    assert_eq!(stdout_of(&args(&bench, &killed)), table);
    assert_eq!(kept("cells/00000.json"), first, "what was done is not done again");
    let csv = |out: &Path| fs::read_to_string(out.join("sweep.csv")).expect("sweep.csv");
    assert_eq!(csv(&whole), csv(&killed));
    assert_eq!(csv(&whole).lines().count(), 1 + 2 * 20 * 3);
}

#[test]
fn another_sweep_in_the_same_place_is_refused() {
    let bench = Bench::new();
    let out = bench.path("out");
    let (trace, cluster) = (bench.path("trace.csv"), bench.path("cluster.toml"));
    let run = |policy: &str, vary: &str| {
        hither(&[
            "sweep",
            trace.str(),
            "--cluster",
            cluster.str(),
            "--policy",
            policy,
            "--vary",
            vary,
            "-o",
            out.str(),
        ])
    };
    assert!(run("dally,fifo", "dally.score=left,2d-las").status.success());
    for (policy, vary, told) in [
        ("dally", "dally.score=left,2d-las", "policies differs"),
        ("dally,fifo", "dally.score=left", "vary differs"),
    ] {
        let output = run(policy, vary);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr.contains(told), "{stderr}");
    }
    fs::write(&trace, "job,gpus,submit_s,duration_s\na,1,0,10\n").expect("it is written");
    let output = run("dally,fifo", "dally.score=left,2d-las");
    assert!(String::from_utf8_lossy(&output.stderr).contains("trace differs"));
}

#[test]
fn a_cell_equals_its_simulation() {
    let bench = Bench::new();
    let out = bench.path("out");
    let trace = bench.path("trace.csv");
    let cluster = bench.path("cluster.toml");
    let sweep = json_of(&[
        "sweep",
        trace.str(),
        "--cluster",
        cluster.str(),
        "--policy",
        "srtf",
        "--vary",
        "congestion=1,4",
        "--vary",
        "load=0.5..1:0.5",
        "-o",
        out.str(),
        "--json",
    ]);
    let alone = json_of(&bench.simulate(&[
        "--policy",
        "srtf",
        "--congestion",
        "4",
        "--load",
        "0.5",
        "--json",
    ]));
    let cell = &sweep["cells"][2];
    assert_eq!(cell["cell"]["congestion"], "4");
    assert_eq!(cell["cell"]["load"], "0.5");
    assert_eq!(cell["runs"][0]["jct_s"], alone["runs"][0]["jct_s"]);
    let page = fs::read_to_string(out.join("sweep.html")).expect("sweep.html");
    for part in
        ["srtf over congestion and load on", "<h2>Makespan</h2>", "load 0.5, 1", "checkpoint_s"]
    {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn a_sweep_says_how_much_it_will_do() {
    let bench = Bench::new();
    let out = bench.path("out");
    let args = args(&bench, &out);
    let told = |args: &[String]| {
        let output = command(args).output().expect("the program starts");
        String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(told(&args), "40 cells × 3 policies = 120 simulations");
    fs::remove_file(out.join("cells/00003.json")).expect("it can go");
    assert_eq!(told(&args), "40 cells × 3 policies = 120 simulations; 117 done before");
}

#[test]
fn a_sweep_of_another_program_is_not_continued() {
    let bench = Bench::new();
    let out = bench.path("out");
    let (trace, cluster) = (bench.path("trace.csv"), bench.path("cluster.toml"));
    let words = ["sweep", trace.str(), "--cluster", cluster.str(), "--policy", "fifo"];
    let words = [&words[..], &["--vary", "congestion=1,2", "-o", out.str()]].concat();
    stdout_of(&words);
    stdout_of(&words);
    let path = out.join("manifest.json");
    let mut manifest: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&path).expect("a manifest")).expect("JSON");
    manifest["program"] = "another".into();
    fs::write(&path, manifest.to_string()).expect("it is written");
    let output = hither(&words);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && stderr.contains("program differs"), "{stderr}");
}

#[test]
fn savings_are_told_against_policies_that_were_run() {
    let bench = Bench::new();
    let out = bench.path("out");
    let (trace, cluster) = (bench.path("trace.csv"), bench.path("cluster.toml"));
    let sweep = ["sweep", trace.str(), "--cluster", cluster.str(), "--policy", "dally,fifo"];
    let with = |rival: &str| {
        let rest = ["--vary", "congestion=1,8", "--against", rival, "-o", out.str()];
        hither(&[&sweep[..], &rest].concat())
    };
    for rival in ["dally", "gandiva"] {
        let output = with(rival);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2));
        let told =
            format!("--against {rival}: expected one of the policies after the first, dally");
        assert!(stderr.contains(&told), "{stderr}");
    }
    let table = String::from_utf8_lossy(&with("fifo").stdout).into_owned();
    assert!(table.contains("Saved by dally, % of each rival's figure"), "{table}");
    let page = fs::read_to_string(out.join("sweep.html")).expect("the page");
    assert!(page.contains("<h3>dally against fifo</h3>"));
}

#[test]
fn a_comparison_of_nothing_says_so() {
    let bench = Bench::new();
    let (trace, cluster) = (bench.path("trace.csv"), bench.path("cluster.toml"));
    let told = |jobs: &str, out: &str| {
        fs::write(&trace, format!("job,gpus,submit_s,duration_s\n{jobs}")).expect("it is written");
        let out = bench.path(out);
        let seeds = ["--vary", "seed=1,2", "--policy", "dally,fifo", "-o", out.str()];
        let output =
            hither(&[&["sweep", trace.str(), "--cluster", cluster.str()], &seeds[..]].concat());
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let idle = told("a,1,0,10\nb,1,100,10\n", "idle");
    assert!(idle.contains("note: in 2 of 2 cells no job waits under any policy"), "{idle}");
    assert!(idle.contains("note: the seed changes nothing"), "{idle}");
    let full: String = (0..100).map(|n| format!("j{n},8,0,1000\n")).collect();
    assert!(!told(&full, "full").contains("no job waits"));
}
