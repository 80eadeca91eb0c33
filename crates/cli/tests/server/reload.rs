//! Models that are exchanged while requests run.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use serde_json::json;

use crate::bed::{Server, import, repository, request, sample};

/// As many as can be expected of a service in a year, in half a minute.
const RELOADS: usize = 1000;

#[test]
fn a_thousand_reloads_fail_no_request_and_leave_nothing_behind() {
    let models = repository();
    let server = Server::start(&[models.path().to_str().unwrap(), "--allow-control"]);
    let maps = || {
        let path = format!("/proc/{}/maps", server.pid());
        std::fs::read_to_string(path)
            .unwrap()
            .lines()
            .filter(|line| line.contains("model.safetensors"))
            .count()
    };
    // Versions that are being copied or tried take memory for a moment: what counts is what stays.
    let resident = || {
        server.wait_for("old versions go", |_| maps() <= 4);
        let settled = r#"hither_tables_settled{model="dlrm",version="1"}"#;
        server.wait_for("settled", |server| server.metric(settled) == 1.0);
        let path = format!("/proc/{}/statm", server.pid());
        let text = std::fs::read_to_string(path).unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let reload = || {
        let (status, answer) = server.post("/v2/repository/models/dlrm/load", &json!({}));
        assert_eq!(status, 200, "{answer}");
    };
    let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let (status, answer) = server.post("/v2/models/dlrm/infer", &sample());
                    assert_eq!(status, 200, "{answer}");
                    answered.fetch_add(1, Relaxed);
                }
            });
        }
        (0..RELOADS / 2).for_each(|_| reload());
        let before = resident();
        (RELOADS / 2..RELOADS).for_each(|_| reload());
        let growth = resident().saturating_sub(before);
        is_over.store(true, Relaxed);
        assert!(growth < 16 << 20, "{growth} bytes more after {} further reloads", RELOADS / 2);
    });
    assert!(answered.load(Relaxed) > RELOADS / 4, "{answered:?}");
}

#[test]
fn a_hang_up_loads_what_is_new_and_a_broken_file_takes_nothing_away() {
    let models = repository();
    let server = Server::start(&[models.path().to_str().unwrap()]);
    import(&models.path().join("dlrm/2"));
    import(&models.path().join("other/1"));
    server.signal("HUP");
    server.wait_for("version 2", |server| {
        server.get("/v2/models/dlrm").1["versions"] == json!(["2"])
    });
    server.wait_for("another model", |server| server.get("/v2/models/other/ready").0 == 200);
    std::fs::write(models.path().join("dlrm/config.toml"), "nonsense").unwrap();
    std::fs::remove_dir_all(models.path().join("other")).unwrap();
    server.signal("HUP");
    server.wait_for("the model goes", |server| server.get("/v2/models/other/ready").0 == 404);
    assert_eq!(server.post("/v2/models/dlrm/infer", &sample()).0, 200, "it serves on");
    std::fs::write(models.path().join("dlrm/config.toml"), "version_policy = \"all\"\n").unwrap();
    server.signal("HUP");
    server.wait_for("both versions", |server| {
        server.get("/v2/models/dlrm").1["versions"] == json!(["1", "2"])
    });
    assert_eq!(server.post("/v2/models/dlrm/versions/1/infer", &sample()).0, 200);
}

#[test]
fn a_changed_directory_is_noticed_if_asked_for() {
    let models = repository();
    let server = Server::start(&[models.path().to_str().unwrap(), "--poll-s", "0.1"]);
    import(&models.path().join("late/1"));
    server.wait_for("the new model", |server| server.get("/v2/models/late/ready").0 == 200);
}

#[test]
fn tables_beyond_the_limit_stay_mapped() {
    let models = repository();
    let path = models.path().to_str().unwrap();
    let settled = r#"hither_tables_settled{model="dlrm",version="1"}"#;
    let server = Server::start(&[path]);
    server.wait_for("copied", |server| server.metric(settled) == 1.0);
    assert!(server.metric("hither_copied_bytes") > 0.0);
    let server = Server::start(&[path, "--memory-max", "100"]);
    server.wait_for("left alone", |server| server.metric(settled) == 1.0);
    assert_eq!(server.metric("hither_copied_bytes"), 0.0);
    assert_eq!(server.post("/v2/models/dlrm/infer", &sample()).0, 200);
}

const FAILURES: &str = r#"hither_model_load_failures{model="dlrm"}"#;

/// Requests and readiness, as a balancer sees them.
fn assert_serves(server: &Server, when: &str) {
    let (status, answer) = server.post("/v2/models/dlrm/infer", &sample());
    assert_eq!((status, server.get("/v2/health/ready").0), (200, 200), "{when}: {answer}");
}

/// Under `latest(1)` the newest version alone is asked for, whatever is in it.
#[test]
fn no_broken_version_takes_a_good_one_away() {
    let models = repository();
    let server = Server::start(&[models.path().to_str().unwrap()]);
    let dir = models.path().join("dlrm");
    let mut failures = 0.0;
    let mut hang_up = |what: &str| {
        server.signal("HUP");
        server.wait_for(what, |server| server.metric(FAILURES) > failures);
        failures = server.metric(FAILURES);
        assert_serves(&server, what);
    };
    std::fs::create_dir(dir.join("2")).unwrap();
    hang_up("an empty version");
    std::fs::copy(dir.join("1/model.toml"), dir.join("2/model.toml")).unwrap();
    hang_up("a version without tensors");
    let tensors = std::fs::read(dir.join("1/model.safetensors")).unwrap();
    std::fs::write(dir.join("2/model.safetensors"), &tensors[..tensors.len() / 2]).unwrap();
    hang_up("half a copy");
    std::fs::write(dir.join("1/model.toml"), "name = 3").unwrap();
    hang_up("a version that was overwritten");
    let (_, index) = request(&server.http, "POST", "/v2/repository/index", &[], b"");
    assert!(index.to_string().contains("UNAVAILABLE"), "{index}");
    // A model that came later and is broken does not count for readiness.
    std::fs::create_dir_all(models.path().join("late/1")).unwrap();
    hang_up("another model");
    std::fs::write(dir.join("2/model.safetensors"), &tensors).unwrap();
    server.signal("HUP");
    server.wait_for("the whole copy", |server| {
        server.get("/v2/models/dlrm").1["versions"] == json!(["2"])
    });
    assert_serves(&server, "the new version");
}

#[test]
fn a_reload_waits_for_the_memory_of_the_version_before() {
    let models = repository();
    std::fs::remove_dir_all(models.path().join("lists")).unwrap();
    let path = models.path().to_str().unwrap();
    let settled = r#"hither_tables_settled{model="dlrm",version="1"}"#;
    let copied = |server: &Server| server.metric("hither_copied_bytes");
    let server = Server::start(&[path]);
    server.wait_for("copied", |server| server.metric(settled) == 1.0);
    let bytes = copied(&server);
    let max = (bytes * 1.5).to_string();
    let server = Server::start(&[path, "--memory-max", &max, "--allow-control"]);
    for load in 0..3 {
        server.wait_for("copied", |server| server.metric(settled) == 1.0);
        assert_eq!(copied(&server), bytes, "load {load}");
        assert_eq!(server.post("/v2/repository/models/dlrm/load", &json!({})).0, 200);
    }
}

#[test]
fn a_version_that_fails_its_golden_request_does_not_serve() {
    let models = repository();
    let server = Server::start(&[models.path().to_str().unwrap()]);
    let (_, answer) = server.post("/v2/models/dlrm/infer", &sample());
    let score = answer["outputs"][0]["data"][0].as_f64().unwrap();
    let second = models.path().join("dlrm/2");
    import(&second);
    let golden = |expected: f64| {
        let mut golden = sample();
        golden["expected_scores"] = json!([expected]);
        std::fs::write(second.join("golden.json"), golden.to_string()).unwrap();
    };
    golden(score + 0.1);
    server.signal("HUP");
    server.wait_for("the refusal", |server| server.metric(FAILURES) == 1.0);
    assert_eq!(server.get("/v2/models/dlrm").1["versions"], json!(["1"]));
    let (_, index) = request(&server.http, "POST", "/v2/repository/index", &[], b"");
    let index = index.to_string();
    assert!(index.contains("golden.json: score 0 is "), "{index}");
    golden(score);
    server.signal("HUP");
    server.wait_for("version 2", |server| {
        server.get("/v2/models/dlrm").1["versions"] == json!(["2"])
    });
}
