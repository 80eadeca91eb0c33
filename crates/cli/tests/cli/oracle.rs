//! `--compat muri` against Muri's published results, through the command line.

use std::path::Path;

use crate::{Bench, PathStr, hither, json_of, stdout_of};

/// Trace, then by policy: mean completion, makespan, p99, in seconds as published.
type Published = (&'static str, [(&'static str, [f64; 3]); 3]);

#[rustfmt::skip]
const PUBLISHED: [Published; 3] = [
    ("trace1", [
        ("srtf", [1370603.198, 26045465.53, 16647148.09]),
        ("srsf", [980140.570, 26065759.04, 15529913.23]),
        ("tiresias", [3330371.307, 23556410.22, 14739851.51]),
    ]),
    ("trace3", [
        ("srtf", [193081.796, 8174135.28, 4538890.61]),
        ("srsf", [185021.880, 8174135.28, 4189699.18]),
        ("tiresias", [347213.248, 8174226.28, 4983397.25]),
    ]),
    ("trace3_pr", [
        ("srtf", [844394.780, 7261795.83, 6363099.55]),
        ("srsf", [798057.683, 6907790.40, 6228160.59]),
        ("tiresias", [2213110.128, 6761641.42, 6739569.00]),
    ]),
];

#[test]
fn muris_published_rows() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/traces/muri");
    if !dir.is_dir() {
        println!("skipped: ../shared/data/traces/muri is absent");
        return;
    }
    for (name, policies) in PUBLISHED {
        let trace = dir.join(format!("{name}.csv"));
        let result = json_of(&["simulate", trace.str(), "--compat", "muri", "--json"]);
        for (run, (policy, [mean, makespan, p99])) in
            result["runs"].as_array().expect("runs").iter().zip(policies)
        {
            assert_eq!(run["policy"], policy);
            let figure = |value: &serde_json::Value| value.as_f64().expect("a number");
            let near = |got: f64, published: f64, digits: f64| {
                assert!((got - published).abs() <= digits, "{name} {policy}: {got} {published}");
            };
            near(figure(&run["jct_s"]["mean"]), mean, 0.00051);
            near(figure(&run["makespan_s"]), makespan, 0.0051);
            near(figure(&run["jct_s"]["p99"]), p99, 0.0051);
        }
    }
}

const SMALL: &str = "\
job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,\
resource_time_0,resource_time_1,resource_time_2
1,4,0,1000,vgg16,32,100000,1,100,10,80,10
2,8,5000,500,resnet18,32,50000,1,100,10,80,10
";

#[test]
fn muris_rules_on_a_trace_of_ours() {
    let bench = Bench::new();
    let trace = bench.write("muri.csv", SMALL);
    let out = bench.path("out");
    let text = stdout_of(&["simulate", trace.str(), "--compat", "muri", "-o", out.str()]);
    assert!(text.contains("no network model"), "{text}");
    stdout_of(&["report", out.str()]);
    let uneven = "[[rack]]\nmachines = 2\ngpus = 4\n[[rack]]\nmachines = 2\ngpus = 8\n";
    let uneven = bench.write("uneven.toml", uneven);
    for more in [&["--cluster", uneven.str()][..], &["--policy", "dally"], &["--congestion", "2"]] {
        let output = hither(&[&["simulate", trace.str(), "--compat", "muri"], more].concat());
        assert_eq!(output.status.code(), Some(2), "{more:?}");
    }
}
