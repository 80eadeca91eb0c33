//! `hither plan`: what it writes, that every choice can be fixed, and everything that is refused.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::bad_inputs::{refused, refused_by};
use crate::{PathStr, command, json_of, stdout_of};

struct Place(TempDir);

impl Place {
    /// With a small model and a trace whose rows 0 to 9 are hot.
    fn new() -> Self {
        let place = Self(TempDir::new().expect("a temporary directory"));
        let small =
            ["--tables", "3", "--rows", "500", "--dim", "16", "--bottom", "5-16", "--top", "4-1"];
        stdout_of(&[&["model", "generate", "-o", place.path("model").str()], &small[..]].concat());
        let id = |i: u32| if i.is_multiple_of(3) { i * 7 % 500 } else { i % 10 };
        let ids: Vec<String> = (0..3000).map(|i| id(i).to_string()).collect();
        place.write("ids.txt", &ids.join("\n"));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("written");
        path
    }

    fn plan(&self, more: &[&str]) -> Vec<String> {
        let (model, ids) = (self.path("model"), self.path("ids.txt"));
        let own = [
            "plan",
            model.str(),
            "--ids",
            ids.str(),
            "--batch",
            "8",
            "--seconds",
            "0.02",
            "--force",
        ];
        own.iter().chain(more).map(|word| (*word).to_owned()).collect()
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("it is there")
}

#[test]
fn a_plan_and_its_pages_are_written() {
    let place = Place::new();
    let report = json_of(&place.plan(&["--json"]));
    let dir = place.path("model");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&read(&dir.join("plan.json"))).ok(),
        Some(report.clone())
    );
    let plan: toml::Table = read(&dir.join("plan.toml")).parse().expect("TOML");
    assert_eq!(plan["model"].as_str(), Some("model"));
    assert_eq!(plan["table"].as_array().map(Vec::len), Some(3));
    let is_hot = |file: std::fs::DirEntry| file.file_name().to_string_lossy().starts_with("hot.");
    assert!(std::fs::read_dir(&dir).expect("listed").flatten().any(is_hot));
    assert!(read(&dir.join("plan.html")).ends_with("</html>"));
    assert_eq!(report["tables"][0]["lookups"], 3000);
    assert!(report["tables"][0]["hot_share"].as_f64() > Some(0.6));
    let levers = report["levers"].as_array().expect("a list");
    assert!(levers.len().is_multiple_of(8) && !levers.is_empty());
    for lever in levers {
        for figure in ["ns", "speedup", "gb_s", "of_touch"] {
            assert!(lever[figure].as_f64() > Some(0.0), "{lever}");
        }
    }
    // The plan and the figures say the same.
    let chosen: Vec<_> = levers.iter().filter(|lever| lever["chosen"] == true).collect();
    assert_eq!(chosen.len(), 1, "{levers:?}");
    let name = chosen[0]["name"].as_str().expect("a name");
    let table = &plan["table"][0];
    assert_eq!(name.contains("pages"), table["pages"].as_str() == Some("huge"), "{name}");
    assert_eq!(name.contains("prefetch"), table["prefetch"].as_str() != Some("off"), "{name}");
    assert_eq!(name.contains("lookup"), table["packing"].as_str() == Some("lookup"), "{name}");
    let out = place.path("elsewhere");
    let text = stdout_of(&place.plan(&["-o", out.str()]));
    assert!(text.contains("t0 … t2") && text.contains("pages+lookup"), "{text}");
    assert!(out.join("plan.toml").exists());
    assert!(stdout_of(&place.plan(&["--all", "-q"])).contains("t1"));
}

#[test]
fn a_plan_that_was_edited_by_hand_stays() {
    let place = Place::new();
    let mut first = place.plan(&["-q"]);
    first.retain(|word| word != "--force");
    stdout_of(&first);
    let path = place.path("model/plan.toml");
    let edited = format!("# mine\n{}", read(&path));
    std::fs::write(&path, &edited).expect("written");
    refused_by(&mut command(&first), "plan.toml exists; give another -o, or --force to replace it");
    assert_eq!(read(&path), edited);
    stdout_of(&place.plan(&["-q"]));
    assert!(!read(&path).contains("# mine"));
}

#[test]
fn every_choice_can_be_fixed() {
    let place = Place::new();
    let fixed = [
        "--pages",
        "small",
        "--prefetch",
        "l1:8K",
        "--packing",
        "lookup",
        "--hot-rows",
        "5",
        "--threads",
        "1",
        "--mlp",
        "bf16",
    ];
    stdout_of(&place.plan(&fixed));
    let plan: toml::Table = read(&place.path("model/plan.toml")).parse().expect("TOML");
    assert_eq!((plan["threads"].as_integer(), plan["mlp"].as_str()), (Some(1), Some("bf16")));
    for table in plan["table"].as_array().expect("tables") {
        assert_eq!(table["pages"].as_str(), Some("small"));
        assert_eq!(table["prefetch"].as_str(), Some("l1:8K"));
        assert_eq!(table["packing"].as_str(), Some("lookup"));
        assert_eq!(table["hot_rows"].as_integer(), Some(5));
    }
    // Without room for copies, the file is read where it is.
    let report = json_of(&place.plan(&["--memory", "0", "--json"]));
    assert_eq!(report["tables"][1]["pages"], "mapped");
    let notes = report["notes"].as_array().expect("a list");
    assert!(notes.iter().any(|note| note.as_str().is_some_and(|note| note.contains("--memory"))));
}

#[test]
fn wrong_inputs_are_refused() {
    let place = Place::new();
    let model = place.path("model");
    let model = model.str();
    let cases = [
        (
            "large.txt",
            "3\n500\n",
            "id 500 at position 1 of the trace is not below the 500 rows of table `t0`; --wrap",
        ),
        ("negative.txt", "3\n-2\n", "id -2 at position 1"),
        ("words.txt", "3\nfour\n", "words.txt:2"),
        ("empty.txt", "", "is empty"),
        ("blank.txt", "\n\n", "holds no ids"),
    ];
    for (name, text, told) in cases {
        refused(&["plan", model, "--ids", place.write(name, text).str()], told);
    }
    let ids = place.path("ids.txt");
    let ids = ids.str();
    refused(&["plan", model, "--ids", place.path("absent").str()], "absent");
    refused(&["plan", place.path("absent").str(), "--ids", ids], "absent");
    refused(&["plan", place.0.path().str(), "--ids", ids], "has no model.toml");
    refused(&["plan", model], "--ids");
    for (flag, value, told) in [
        ("--batch", "0", "--batch"),
        ("--pooling", "65537", "--pooling"),
        ("--seconds", "0", "--seconds"),
        ("--seconds", "nan", "--seconds"),
        ("--memory", "-1", "--memory"),
        ("--pages", "giant", "mapped, small or huge"),
        ("--prefetch", "l2:0:all", "bytes from 64"),
        ("--packing", "all", "off or lookup"),
        ("--hot-rows", "-1", "--hot-rows"),
        ("--mlp", "fp8", "fp32 or bf16"),
    ] {
        refused(&["plan", model, "--ids", ids, flag, value], told);
    }
    let much = ["--batch", "65536", "--pooling", "65536"];
    refused(&[&["plan", model, "--ids", ids], &much[..]].concat(), "lower --batch or --pooling");
    let file = place.write("file", "");
    refused(&["plan", model, "--ids", ids, "-o", file.str()], "file");
    assert!(!Path::new(model).join("plan.toml").exists());
    stdout_of(&[
        "plan",
        model,
        "--ids",
        place.path("large.txt").str(),
        "--wrap",
        "--seconds",
        "0.02",
    ]);
}

#[test]
fn a_gpu_is_forecast_without_having_one() {
    let place = Place::new();
    let out = place.path("gpu");
    for gpu in ["a100", "h100"] {
        let device = format!("cuda:{gpu}");
        let text = stdout_of(&place.plan(&["--device", &device, "-o", out.str()]));
        for word in
            [gpu, "nothing was measured", "warps/SM", "pinned", "chosen", "pin-prefetch", "DRAM"]
        {
            assert!(text.contains(word), "{word}\n{text}");
        }
        let report = json_of(&place.plan(&["--device", &device, "-o", out.str(), "--json"]));
        let variants = report["variants"].as_array().expect("a list");
        let chosen = &variants[report["chosen"].as_u64().expect("a number") as usize];
        let plan = read(&out.join("plan.toml"));
        assert!(plan.contains("device = \"cuda:0\"") && plan.contains("[cuda]"), "{plan}");
        assert!(plan.contains(&format!("variant = {}", chosen["variant"])), "{plan}");
        assert!(variants.iter().all(|v| v["warps"].as_u64().is_some_and(|warps| warps > 0)));
        // Hot rows are asked for twice or more: all of them fit.
        assert!(report["pinned_share"].as_f64().is_some_and(|share| share > 0.9), "{report}");
    }
    for device in ["cuda:k80", "gpu", "cuda:-1"] {
        refused_by(&mut command(&place.plan(&["--device", device, "-o", out.str()])), device);
    }
    let fixed = place.plan(&["--device", "cuda:a100", "--pages", "huge", "-o", out.str()]);
    refused_by(&mut command(&fixed), "--pages");
}

/// Machines that run tests have no GPU. Where one is, there is nothing to be told.
#[test]
fn without_a_gpu_one_line_says_so() {
    let doctor = json_of(&["doctor", "--json"]);
    if doctor["cuda"]["problem"].is_null() {
        return;
    }
    let place = Place::new();
    refused_by(&mut command(&place.plan(&["--device", "cuda"])), "no CUDA driver found");
    refused(&["bench", "bags", "--device", "cuda"], "no CUDA driver found");
    refused(&["bench", "bags", "--device", "cuda:a100"], "hither plan");
    // A plan for a GPU serves on the CPU, with the same scores.
    let (model, out) = (place.path("model"), place.path("gpu"));
    stdout_of(&place.plan(&["--device", "cuda:a100", "-o", out.str()]));
    let inputs =
        place.write("in.csv", "d0,d1,d2,d3,d4,t0,t1,t2\n1,2,3,4,5,1 2,3,4\n5,4,3,2,1,499,,0\n");
    let run = ["model", "run", model.str(), "--inputs", inputs.str()];
    let planned = command(&[&run[..], &["--plan", out.str()]].concat()).output().expect("it runs");
    let said = String::from_utf8_lossy(&planned.stderr);
    assert_eq!(said.matches("running on the CPU").count(), 1, "{said}");
    assert_eq!(String::from_utf8_lossy(&planned.stdout), stdout_of(&run));
}
