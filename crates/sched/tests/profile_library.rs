//! The library of profiles: what ships, what users bring, and what is refused.

use hither_core::seed;
use hither_sched::profile::Library;

#[test]
fn the_shipped_library_is_whole() {
    let library = Library::builtin();
    for model in [
        "resnet18",
        "resnet50",
        "resnet101",
        "resnet152",
        "vgg11",
        "vgg16",
        "vgg19",
        "alexnet",
        "inception3",
        "inception4",
        "googlenet",
        "bert",
        "gpt2",
        "a2c",
        "a3c",
        "dqn",
        "shufflenet_v2_x1_0",
        "mobilenet",
        "lm",
        "transformer",
        "recommendation",
        "deepspeech2",
        "yolov3",
        "ncf",
        "cyclegan",
    ] {
        let profile = library.get(model).unwrap_or_else(|| panic!("{model}"));
        assert!(profile.table.is_empty() && profile.gradient_bytes > 0.0, "{model}");
        assert!(!profile.source.is_empty(), "{model}");
    }
    // The library passes its own merge: aliases and classes name what exists.
    assert_eq!(library.clone().merge(library.clone()).unwrap(), library);
    assert!(library.profiles().all(|profile| !profile.source.is_empty()));
}

#[test]
fn names_compare_loosely() {
    let library = Library::builtin();
    for (name, found) in [
        ("ResNet-50", "resnet50"),
        ("BERT", "bert"),
        ("ResNet-50 (batch size 64)", "resnet50-b64@gavel"),
        ("cifar10", "resnet18"),
        ("imagenet@aws", "resnet50@aws"),
        ("GPT-2", "gpt2"),
    ] {
        assert_eq!(library.get(name).map(|profile| profile.name.as_str()), Some(found), "{name}");
    }
    assert!(library.get("my-net").is_none());
}

/// Measured on four-GPU T4 machines: spreading over four machines beats two by two.
#[test]
fn tables_hold_what_was_measured() {
    let library = Library::builtin();
    let bert = library.get("bert@aws").unwrap();
    let step = |placement: &[u32]| {
        bert.table.iter().find(|row| row.placement == placement).unwrap().step_s
    };
    assert!((step(&[4]) - 0.74).abs() < 0.01);
    assert!((step(&[1, 1, 1, 1]) - 1.31).abs() < 0.01);
    assert!((step(&[2, 2]) - 2.10).abs() < 0.01);
}

#[test]
fn users_bring_their_own() {
    let toml = Library::parse_toml(include_str!("data/profiles.toml"), "p.toml").unwrap();
    let json = Library::parse_json(include_str!("data/profile.json"), "p.json").unwrap();
    let library = Library::builtin().merge(toml).unwrap().merge(json).unwrap();
    assert_eq!(library.get("My Model").unwrap().table.len(), 2);
    assert_eq!(library.get("gcn").unwrap().restart_s, 62.0, "the default");
    let list = r#"{"profile": [{"name": "bert", "compute_s": 9}]}"#;
    let library = library.merge(Library::parse_json(list, "l.json").unwrap()).unwrap();
    assert_eq!(library.get("bert").unwrap().compute_s, 9.0, "theirs wins");
}

#[test]
fn wrong_profiles_are_refused() {
    let profile = |more: &str| format!("[[profile]]\nname = \"x\"\n{more}\n");
    for (text, word) in [
        (String::new(), "at least one"),
        (profile(""), "compute_s"),
        (profile("compute_s = 0"), "x.compute_s"),
        (profile("compute_s = nan"), "x.compute_s"),
        (profile("compute_s = 1\ngradient_bytes = -1"), "x.gradient_bytes"),
        (profile("compute_s = 1\noverlap = 1.5"), "x.overlap"),
        (profile("compute_s = 1\ncolour = 1"), "p.toml:4"),
        (profile("compute_s = 1\ntable = [{ placement = [], step_s = 1 }]"), "placement"),
        (profile("compute_s = 1\ntable = [{ placement = [0], step_s = 1 }]"), "placement"),
        (profile("compute_s = 1\ntable = [{ placement = [1], step_s = inf }]"), "step_s"),
        (
            profile(
                "compute_s = 1\ntable = [{ placement = [1, 2], step_s = 1 }, { placement = [2, 1], step_s = 1 }]",
            ),
            "each placement once",
        ),
        (profile("compute_s = 1").repeat(2), "each profile once"),
        (profile("compute_s = 1") + "[[class]]\nmodels = { x = -1 }\n", "weight"),
    ] {
        let error = Library::parse_toml(&text, "p.toml").unwrap_err().to_string();
        assert!(error.starts_with("p.toml") && error.contains(word), "{text:?}: {error}");
    }
    let alias = profile("compute_s = 1") + "[aliases]\ny = \"z\"\n";
    let user = Library::parse_toml(&alias, "p.toml").unwrap();
    assert!(Library::builtin().merge(user).is_err(), "an alias of nothing");
    for text in ["", "[]", "{}", "{\"name\": 3}", "{\"profile\": 1}", "nul"] {
        let error = Library::parse_json(text, "p.json").unwrap_err().to_string();
        assert!(error.starts_with("p.json"), "{error}");
    }
}

/// Short work is light on the network, long work is heavy.
#[test]
fn models_follow_the_gpu_time_class() {
    let library = Library::builtin();
    let mut draws = seed::stream(1, "test");
    let mut mean_bytes = |gpus, seconds| {
        let total: f64 =
            (0..2000).map(|_| library.assign(gpus, seconds, &mut draws).gradient_bytes).sum();
        total / 2000.0
    };
    let (small, large) = (mean_bytes(1, 60.0), mean_bytes(16, 1e6));
    assert!(large > 5.0 * small, "{small} {large}");
    // A library without classes still finds a model.
    let own = Library::parse_toml(include_str!("data/profiles.toml"), "p").unwrap();
    assert_eq!(own.assign(1, 1.0, &mut draws).name, "mine");
}
