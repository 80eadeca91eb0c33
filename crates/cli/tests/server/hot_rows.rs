//! Hot rows that follow the requests.

use serde_json::json;
use tempfile::TempDir;

use crate::bed::{Server, hither};

const LABELS: &str = r#"{model="m",version="1""#;

#[test]
fn hot_rows_follow_the_requests() {
    let dir = TempDir::new().unwrap();
    let model = dir.path().join("m/1");
    std::fs::create_dir(dir.path().join("m")).unwrap();
    let made = hither()
        .args(["--quiet", "model", "generate", "--tables", "2", "--rows", "10000", "--dim", "16"])
        .args(["--bottom", "4-16", "--top", "8-1", "-o"])
        .arg(&model)
        .status();
    assert!(made.unwrap().success());
    // Room for 128 rows of 64 bytes in both tables together.
    let config =
        "ids_per_bag = 8\n[hotness]\nsample_every = 1\nrefresh_s = 0.1\nhot_bytes = 8192\n";
    std::fs::write(dir.path().join("m/config.toml"), config).unwrap();
    let server = Server::start(&[dir.path().to_str().unwrap()]);
    // 64 samples with 8 ids in each of two tables, all in the 64 rows from `first` on.
    let ask = |first: usize, count: usize| -> Vec<f64> {
        let ids: Vec<usize> = (0..64 * 16).map(|at| first + at * 7 % 64).collect();
        let asked = json!({ "inputs": [
            { "name": "dense", "datatype": "FP32", "shape": [64, 4], "data": vec![0.5; 256] },
            { "name": "sparse", "datatype": "INT64", "shape": [64, 16], "data": ids },
        ] });
        let mut scores = Vec::new();
        for _ in 0..count {
            let (status, answer) = server.post("/v2/models/m/infer", &asked);
            assert_eq!(status, 200, "{answer}");
            scores = serde_json::from_value(answer["outputs"][0]["data"].clone()).unwrap();
        }
        scores
    };
    let refreshes = |server: &Server| server.metric(&format!("hither_hot_refreshes{LABELS}}}"));
    let share = |when: &str| server.metric(&format!("hither_hot_share{LABELS},when=\"{when}\"}}"));
    let cold = ask(0, 4);
    server.wait_for("the first hot rows", |server| refreshes(server) == 1.0);
    assert_eq!((share("before"), share("after")), (0.0, 1.0));
    assert_eq!(ask(0, 1), cold, "packed rows give the same scores");
    ask(5000, 40);
    server.wait_for("other hot rows", |server| refreshes(server) >= 2.0);
    server.wait_for("most lookups are hot again", |_| share("now") > 0.8);
    assert!(share("before") < share("after"), "{} {}", share("before"), share("after"));
}
