//! `hither model`: round trips, and everything that is refused.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::bad_inputs::refused;
use crate::{PathStr, hither, json_of, stdout_of};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dlrm/tests/fixtures").join(name)
}

fn pickle(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/fixtures").join(name)
}

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(TempDir::new().expect("a temporary directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A small model, drawn.
    fn model(&self, name: &str, more: &[&str]) -> PathBuf {
        let path = self.path(name);
        let small =
            ["--tables", "3", "--rows", "500", "--dim", "16", "--bottom", "5-16", "--top", "4-1"];
        stdout_of(&[&["model", "generate", "-o", path.str()], &small[..], more].concat());
        path
    }
}

#[test]
fn imported_models_are_described() {
    let place = Place::new();
    for (file, tables, interaction, sigmoid) in [
        ("dlrm.pt", 4, "dot", true),
        ("dlrm_cat.pt", 4, "cat", true),
        ("torchrec.pt", 11, "dot", false),
        ("torchrec.safetensors", 11, "dot", false),
        ("torchrec_dcn.safetensors", 3, "dcn", false),
        ("dlrm_itself.pt", 4, "dot-itself", true),
        ("torchrec_quantised.pt", 4, "dot", false),
    ] {
        let (file, dir) = (fixture(file), place.path(file));
        let output = hither(&["model", "import", file.str(), "-o", dir.str()]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && output.stdout.is_empty(), "{told}");
        let (announced, wrote) = (told.find("importing "), told.find("wrote "));
        assert!(announced.is_some() && announced < wrote, "{told}");
        let mut of_file = json_of(&["model", "info", file.str(), "--json"]);
        let mut of_model = json_of(&["model", "info", dir.str(), "--json"]);
        of_file["notes"].take();
        of_model["notes"].take();
        assert_eq!(of_file, of_model);
        assert_eq!(of_model["tables"].as_array().map(Vec::len), Some(tables));
        assert_eq!(of_model["interaction"], interaction);
        assert_eq!(of_model["sigmoid"], sigmoid);
    }
    let text = stdout_of(&["model", "info", place.path("dlrm.pt").str()]);
    assert!(text.contains("interaction  dot") && text.contains("emb_l.1"), "{text}");
}

#[test]
fn features_that_share_a_table_are_described() {
    let place = Place::new();
    let (file, dir) = (fixture("torchrec_shared.pt"), place.path("model"));
    refused(&["model", "info", file.str()], "--tables user,user,item,zip");
    let tables = "viewer=user,author=user";
    stdout_of(&["model", "import", file.str(), "--tables", tables, "-o", dir.str()]);
    let text = stdout_of(&["model", "info", dir.str()]);
    assert!(text.contains("rows of viewer"), "{text}");
    assert_eq!(text, stdout_of(&["model", "info", file.str(), "--tables", tables]));
    let int8 = place.path("int8");
    stdout_of(&[
        "model",
        "quantise",
        dir.str(),
        "--tables",
        "author",
        "--dtype",
        "int8",
        "-o",
        int8.str(),
    ]);
    let info = json_of(&["model", "info", int8.str(), "--json"]);
    assert_eq!(
        (&info["tables"][0]["dtype"], &info["tables"][1]["dtype"]),
        (&"int8".into(), &"int8".into())
    );
    assert_eq!(
        (&info["tables"][1]["shares"], &info["tables"][1]["bytes"]),
        (&"viewer".into(), &0.into())
    );
    refused(&["model", "info", dir.str(), "--rows", "fbgemm-int8"], "--rows is for checkpoints");
}

#[test]
fn what_a_checkpoint_does_not_say_is_asked_for() {
    let place = Place::new();
    let out = place.path("out");
    let file = fixture("torchrec_poolings.pt");
    let import = ["model", "import", file.str(), "-o", out.str()];
    refused(&import, "such as --tables b,c,a --pooling sum,a=mean");
    let told = ["--tables", "b,a,c", "--pooling", "sum,a=mean"];
    refused(&[&import[..], &["--pooling", "a=median"]].concat(), "sum, mean or max");
    stdout_of(&[&import[..], &told].concat());
    let info = json_of(&["model", "info", out.str(), "--json"]);
    let poolings: Vec<_> = (0..3).map(|t| info["tables"][t]["pooling"].as_str()).collect();
    assert_eq!(poolings, [Some("sum"), Some("mean"), Some("sum")]);
    let file = fixture("torchrec_projection.pt");
    let text = stdout_of(&["model", "info", file.str(), "--tables", "user,user"]);
    assert!(text.contains("interaction  projection, left 40-18-24, right 40-16"), "{text}");
}

#[test]
fn checkpoints_in_several_files() {
    let place = Place::new();
    let out = place.path("out");
    // Their tensors are no model, which is said only after they were read.
    for folder in ["sharded", "distributed"] {
        let told = "not a known model: expected tensors such as `emb_l.0.weight`";
        refused(&["model", "import", pickle(folder).str(), "-o", out.str()], told);
        refused(&["model", "info", pickle(folder).str()], told);
    }
}

#[test]
fn generated_models_are_quantised_exported_and_imported_again() {
    let place = Place::new();
    let model = place.model("model", &["--seed", "4"]);
    let again = place.model("again", &["--seed", "4", "--threads", "1"]);
    let tensors = |dir: &Path| std::fs::read(dir.join("model.safetensors")).expect("the tensors");
    assert!(tensors(&model) == tensors(&again));
    for dtype in ["int8", "int4"] {
        let small = place.path(dtype);
        stdout_of(&["model", "quantise", model.str(), "--dtype", dtype, "-o", small.str()]);
        assert_eq!(json_of(&["model", "info", small.str(), "--json"])["tables"][2]["dtype"], dtype);
        for layout in ["fbgemm", "torch"] {
            let file = place.path(&format!("{layout}-{dtype}.safetensors"));
            let back = place.path(&format!("{layout}-{dtype}"));
            let rows = format!("{layout}-{dtype}");
            stdout_of(&["model", "export", small.str(), "--layout", layout, "-o", file.str()]);
            stdout_of(&["model", "import", file.str(), "--rows", &rows, "-o", back.str()]);
            assert!(tensors(&small) == tensors(&back), "{rows}");
        }
    }
    let mixed = place.path("mixed");
    let dir = mixed.str();
    stdout_of(&["model", "quantise", model.str(), "--dtype", "bf16", "--tables", "t1", "-o", dir]);
    let info = json_of(&["model", "info", dir, "--json"]);
    let dtypes: Vec<_> = (0..3).map(|t| info["tables"][t]["dtype"].as_str()).collect();
    assert_eq!(dtypes, [Some("fp32"), Some("bf16"), Some("fp32")]);
}

#[test]
fn a_model_that_is_there_stays() {
    let place = Place::new();
    let model = place.model("model", &[]);
    let dir = model.str();
    refused(&["model", "generate", "--rows", "9", "-o", dir], "--force to replace it");
    refused(&["model", "import", fixture("dlrm.pt").str(), "-o", dir], "--force to replace it");
    refused(&["model", "quantise", dir, "--dtype", "int8", "-o", dir], "--force to replace it");
    assert_eq!(json_of(&["model", "info", dir, "--json"])["tables"][0]["dtype"], "fp32");
    // A model can even be replaced by what is read from it.
    stdout_of(&["model", "quantise", dir, "--dtype", "int8", "-o", dir, "--force"]);
    assert_eq!(json_of(&["model", "info", dir, "--json"])["tables"][0]["dtype"], "int8");
}

#[test]
fn files_that_are_no_models() {
    let place = Place::new();
    let empty = place.path("empty.pt");
    std::fs::write(&empty, "").expect("written");
    let cut = place.path("cut.pt");
    let whole = std::fs::read(fixture("dlrm.pt")).expect("the fixture");
    std::fs::write(&cut, &whole[..whole.len() / 2]).expect("written");
    for (file, told) in [
        (place.path("absent.pt"), "absent.pt"),
        (empty, "is empty"),
        (cut, "was it cut off?"),
        (pickle("command.pt"), "`posix.system` is refused"),
        (pickle("legacy.pt"), "not a known model"),
        (pickle("quantised.pt"), "dequantize"),
        (pickle("module.pt"), "state_dict"),
        (pickle("nested.pt"), "the top MLP has no layers"),
        (pickle("make.py"), "is a text file: expected safetensors"),
        (fixture("mlp.safetensors"), "not a known model"),
    ] {
        refused(&["model", "import", file.str(), "-o", place.path("out").str()], told);
        refused(&["model", "info", file.str()], told);
    }
    assert!(!place.path("out").exists());
    let dir = place.0.path().str();
    refused(&["model", "import", dir, "-o", place.path("out").str()], "is a directory");
    refused(&["model", "info", dir], "has no model.toml");
    refused(
        &["model", "quantise", dir, "--dtype", "int8", "-o", place.path("out").str()],
        "model.toml",
    );
    refused(
        &["model", "export", dir, "--layout", "torch", "-o", place.path("out").str()],
        "model.toml",
    );
    assert!(!Path::new("ran-from-a-pickle").exists());
}

#[test]
fn flags_that_make_no_sense() {
    let place = Place::new();
    let model = place.model("model", &[]);
    let (dir, out) = (model.str(), place.path("out"));
    let out = out.str();
    let file = fixture("dlrm.pt");
    let cases: [(&[&str], &str); 26] = [
        (&["generate", "--preset", "rm9"], "choose micro24"),
        (&["generate", "--tables", "0"], "--tables"),
        (&["generate", "--tables", "99999"], "top has a layer of"),
        (&["generate", "--rows", "0"], "--rows"),
        (&["generate", "--rows", "4294967296"], "--rows"),
        (&["generate", "--dim", "0"], "--dim"),
        (&["generate", "--dim", "1.5"], "--dim"),
        (&["generate", "--bottom", "13"], "bottom = [13] needs"),
        (&["generate", "--bottom", "13-64"], "dot products need the bottom's width, 64"),
        (&["generate", "--bottom", "13-x"], "`x` is not the size"),
        (&["generate", "--bottom", "13--128"], "`` is not the size"),
        (&["generate", "--top", "0"], "`0` is not the size"),
        (&["generate", "--top", "1048576-1048576"], "weights between"),
        (&["generate", "--interaction", "fm"], "dot, dot-itself, cat, dcn, projection"),
        (&["generate", "--interaction", "dcn", "--cross-rank", "0"], "[cross]"),
        (&["generate", "--cross-layers", "2"], "are for --interaction dcn"),
        (&["generate", "--interaction", "dcn", "--cross-rank", "99999999999"], "[cross]"),
        (&["generate", "--dtype", "int2"], "int8 or int4"),
        (&["generate", "--pooling", "median"], "sum, mean or max"),
        (&["generate", "--seed", "x"], "--seed"),
        (&["import", file.str(), "--interaction", "cat"], "takes 26 inputs, which fits dot"),
        (&["import", file.str(), "--tables", "x"], "there is no table `x`"),
        (&["import", file.str(), "--rows", "int8"], "fbgemm-int8"),
        (&["quantise", dir, "--dtype", "int8", "--tables", "t3"], "there are t0, t1, t2"),
        (&["quantise", dir, "--dtype", "int9"], "int8 or int4"),
        (&["export", dir, "--layout", "onnx"], "fbgemm or torch"),
    ];
    for (args, told) in cases {
        refused(&[&["model"], args, &["-o", out]].concat(), told);
    }
    let int8 = place.path("int8");
    stdout_of(&["model", "quantise", dir, "--dtype", "int8", "-o", int8.str()]);
    let again = ["model", "quantise", int8.str(), "--dtype", "int4", "-o", out];
    refused(&again, "start from a model that is not quantised");
    refused(&["model", "generate", "-o", place.path("model/model.toml").str()], "model.toml");
    assert!(!place.path("out").exists());
}

/// Whatever single byte of the description is lost, the answer is one line.
#[test]
fn damaged_descriptions() {
    let place = Place::new();
    let model = place.model("model", &[]);
    let path = model.join("model.toml");
    let text = std::fs::read_to_string(&path).expect("the description");
    for cut in (0..text.len()).step_by(7) {
        let damaged = text[..cut].to_string() + &text[cut + 1..];
        std::fs::write(&path, damaged).expect("written");
        let output = hither(&["model", "info", model.str()]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code();
        assert!(
            code == Some(0) || (code == Some(2) && stderr.lines().count() == 1),
            "{cut}: {stderr}"
        );
        assert!(!stderr.contains("internal"), "{stderr}");
    }
}
