//! `hither bench`: what it prints and writes, that it leaves nothing behind, and what is refused.

use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;
use std::process::{Output, Stdio};

use hither_data::Checkpoint;
use serde_json::Value;
use tempfile::TempDir;

use crate::bad_inputs::refused_by;
use crate::{PathStr, command, stdout_of};

const SMALL: [&str; 11] = [
    "--preset",
    "mlperf",
    "--rows",
    "100",
    "--tables",
    "3",
    "--batch",
    "4",
    "--batches",
    "2",
    "--quiet",
];
const SAMPLES: usize = 4 * 2;
const DIM: usize = 128;

/// A place for what a bench writes, and one that it takes for temporary files.
struct Place {
    dir: TempDir,
    temporary: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = || TempDir::new().expect("a temporary directory");
        Self { dir: dir(), temporary: dir() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("written");
        path
    }

    fn command(&self, bench: &str, more: &[&str]) -> std::process::Command {
        let mut command = command(&[&["bench", bench], &SMALL[..], more].concat());
        command.env("TMPDIR", self.temporary.path());
        command
    }

    /// On a small model that is made for it and gone afterwards.
    fn bench(&self, bench: &str, more: &[&str]) -> String {
        let output = self.command(bench, more).output().expect("the program starts");
        self.is_clean();
        succeeded(output)
    }

    /// One round; JSON lines.
    fn lines(&self, bench: &str, more: &[&str]) -> Vec<Value> {
        lines(&self.bench(bench, &[&["--rounds", "1", "--json"], more].concat()))
    }

    fn refused(&self, bench: &str, more: &[&str], told: &str) {
        refused_by(&mut self.command(bench, more), told);
        self.is_clean();
    }

    #[track_caller]
    fn is_clean(&self) {
        let left: Vec<_> = std::fs::read_dir(self.temporary.path())
            .expect("it is there")
            .map(|entry| entry.expect("it reads").file_name())
            .collect();
        assert!(left.is_empty(), "{left:?} stay behind");
    }

    /// What `--write-output` writes.
    fn output(&self, bench: &str, more: &[&str]) -> Checkpoint {
        let path = self.path("output.safetensors");
        self.bench(
            bench,
            &[&["--rounds", "1", "--force", "--write-output", path.str()], more].concat(),
        );
        Checkpoint::open(path).expect("it opens")
    }
}

fn succeeded(output: Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{}\n{stderr}", output.status);
    String::from_utf8(output.stdout).expect("results are text")
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect()
}

fn names(results: &[Value]) -> Vec<&str> {
    results.iter().map(|result| result["variant"].as_str().expect("a name")).collect()
}

#[track_caller]
fn assert_positive(value: &Value, fields: &[&str]) {
    for field in fields {
        assert!(value[field].as_f64() > Some(0.0), "{field} in {value}");
    }
}

#[test]
fn json_lines_tell_of_the_machine_and_of_every_variant() {
    let place = Place::new();
    let cases: [(&str, &[&str], &[&str]); 3] = [
        ("bags", &["pages", "touch"], &["rows_per_s", "gb_per_s", "of_touch"]),
        ("mlp", &["bottom-fp32", "bottom-bf16", "top-fp32", "top-bf16"], &["gflop_per_s"]),
        ("model", &["fp32", "bf16"], &["rows_per_s"]),
    ];
    for (bench, variants, rates) in cases {
        let levers: &[&str] = if bench == "bags" { &["--levers", "pages"] } else { &[] };
        let lines = place.lines(bench, &[&["--threads", "2"], levers].concat());
        let (head, results) = lines.split_first().expect("lines");
        assert_eq!((&head["bench"], &head["model"]), (&bench.into(), &"mlperf".into()));
        assert_eq!((&head["batch"], &head["threads"]), (&4.into(), &2.into()));
        assert!(head["isa"].is_string() && head["bf16"].is_string() && head["hither"].is_string());
        assert_positive(&head["machine"], &["cores", "memory_bytes"]);
        if bench != "mlp" {
            assert_eq!((&head["tables"], &head["batches"]), (&3.into(), &2.into()));
            // The preset is one-hot.
            assert_eq!(head["ids_per_bag"], 1.0);
            assert_eq!(head["ids_per_bag_from"], "preset");
            assert_eq!((&head["dtypes"], &head["ids"]), (&"fp32".into(), &"medium".into()));
            assert_eq!(head["table_bytes"], 3 * 100 * DIM * 4);
        }
        assert_eq!(names(results), variants);
        for result in results {
            assert_eq!((&result["bench"], &result["rounds"]), (&bench.into(), &1.into()));
            assert_positive(result, &["ns_median", "ns_min", "samples_per_s"]);
        }
        assert_positive(&results[0], rates);
    }
}

#[test]
fn tables_are_shown_to_people() {
    let place = Place::new();
    for (bench, told) in [("bags", "of touch"), ("mlp", "GFLOP/s"), ("model", "M rows/s")] {
        let text = place.bench(bench, &["--rounds", "1"]);
        assert!(text.contains(told) && text.contains("samples/s"), "{text}");
        assert!(text.contains("model mlperf"), "{text}");
    }
    // Progress is told, but not among the results.
    let mut loud = place.command("bags", &["--rounds", "1"]);
    let args: Vec<_> =
        loud.get_args().filter(|word| *word != "--quiet").map(ToOwned::to_owned).collect();
    loud = command(&args);
    let output = loud.env("TMPDIR", place.temporary.path()).output().expect("the program starts");
    assert!(output.status.success());
    let told = String::from_utf8_lossy(&output.stderr);
    let needs = told.lines().next().expect("lines");
    assert!(
        needs.contains("needs 153.60 kB in ") && needs.contains(" of memory; measures"),
        "{told}"
    );
    assert!(told.contains("drawing "), "{told}");
}

#[test]
fn each_set_of_levers_is_measured() {
    let place = Place::new();
    let each = place.lines("bags", &["--levers", "each"]);
    let names = names(&each[1..]);
    // Each of four places has a reference of its own.
    assert_eq!(names.len(), 8 + 4);
    let places = ["touch", "touch (pages)", "touch (lookup)", "touch (pages+lookup)"];
    let sets = ["none", "pages", "prefetch+lookup", "pages+prefetch+lookup"];
    for name in sets.into_iter().chain(places) {
        assert_eq!(names.iter().filter(|other| **other == name).count(), 1, "{name} in {names:?}");
    }
    for result in &each[1..] {
        let is_touch = result["variant"].as_str().is_some_and(|name| name.starts_with("touch"));
        assert_eq!(result["of_touch"].as_f64().is_none(), is_touch, "{result}");
        assert!(is_touch || result["of_touch"].as_f64() <= Some(1.0), "{result}");
    }
    let some = ["--levers", "prefetch,none", "--prefetch", "l1:4K"];
    let some = place.lines("bags", &some);
    assert_eq!(some[1]["prefetch"], "l1:4K");
    assert_eq!((&some[2]["prefetch"], &some[2]["huge pages"]), (&"off".into(), &"mapped".into()));
}

/// Pooled rows must be the same bits however they are laid out, and scores whatever the threads.
#[test]
fn outputs_do_not_depend_on_the_levers() {
    let place = Place::new();
    let mut before: Option<Vec<u8>> = None;
    for levers in ["none", "pages+prefetch", "lookup", "pages+prefetch+lookup", "auto"] {
        let file = place.output("bags", &["--levers", levers, "--hotness", "high"]);
        let output = &file.tensors["output"];
        assert_eq!(output.shape, [SAMPLES, 3 * DIM]);
        let bytes = output.bytes.to_vec();
        assert!(output.as_f32().expect("floats").iter().any(|value| *value != 0.0));
        assert!(before.is_none_or(|before| before == bytes), "{levers}");
        before = Some(bytes);
    }
    let scores = |threads: &str| {
        let file = place.output("model", &["--threads", threads]);
        assert_eq!(file.tensors["output"].shape, [SAMPLES, 1]);
        file.tensors["output"].as_f32().expect("floats").into_owned()
    };
    let alone = scores("1");
    assert!(alone.iter().all(|score| (0.0..=1.0).contains(score)));
    assert_eq!(alone, scores("3"));
    let file = place.output("mlp", &[]);
    assert_eq!(file.tensors["bottom"].shape, [SAMPLES, DIM]);
    assert_eq!(file.tensors["top"].shape, [SAMPLES, 1]);
}

/// Features and ids of a file are what is computed on: PyTorch's own batch gives PyTorch's scores.
#[test]
fn a_model_and_a_batch_of_a_file_give_what_pytorch_computed() {
    let place = Place::new();
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../dlrm/tests/fixtures");
    let (model, ids) = (place.path("model"), fixtures.join("dlrm.expected.safetensors"));
    let out = place.path("out.safetensors");
    stdout_of(&["model", "import", fixtures.join("dlrm.pt").str(), "-o", model.str()]);
    let expected = Checkpoint::open(&ids).expect("the fixture");
    for (bench, tensor) in [("model", "probability"), ("bags", "embedding")] {
        let files = ["--ids", ids.str(), "--force", "--write-output", out.str()];
        let more = ["bench", bench, model.str(), "--batch", "6", "--rounds", "1", "--quiet"];
        stdout_of(&[&more[..], &files].concat());
        let found = Checkpoint::open(&out).expect("written");
        let found = found.tensors["output"].as_f32().expect("floats").into_owned();
        let expected = expected.tensors[tensor].as_f32().expect("floats");
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&*expected) {
            assert!((found - expected).abs() <= 1e-5, "{bench}: {found}, not {expected}");
        }
    }
}

/// Nothing is guessed: neither how bags are cut into batches, nor features that the file has.
#[test]
fn a_trace_of_unknown_batch_is_refused_and_its_features_are_used() {
    let place = Place::new();
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../dlrm/tests/fixtures");
    let model = place.path("model");
    stdout_of(&["model", "import", fixtures.join("dlrm.pt").str(), "-o", model.str()]);
    let ids = fixtures.join("dlrm.expected.safetensors");
    let bare = ["bench", "model", model.str(), "--ids", ids.str(), "--rounds", "1", "-q"];
    refused_by(&mut command(&bare), "give --batch N (6 if all are one batch)");
    let wrong = [&bare[..], &["--batch", "4"]].concat();
    refused_by(&mut command(&wrong), "which make no whole batches of 4; --batch sets");
    let plan = ["plan", model.str(), "--ids", ids.str()];
    refused_by(&mut command(&plan), "give --batch N");
    // Batches of 3 look up ids of the first table in the second, which has other rows.
    let cut = [&plan[..], &["--batch", "3"]].concat();
    refused_by(&mut command(&cut), "is --batch 3 that of the trace? If so, --wrap");

    let expected = Checkpoint::open(&ids).expect("the fixture");
    let expected = expected.tensors["probability"].as_f32().expect("floats").into_owned();
    for name in ["dlrm.inputs.pt", "dlrm.inputs_tuple.pt", "dlrm.inputs.npz"] {
        let (ids, out) = (fixtures.join(name), place.path("out.safetensors"));
        let files = ["--ids", ids.str(), "--force", "--write-output", out.str()];
        let more = ["bench", "model", model.str(), "--rounds", "1", "--json", "-q"];
        let lines = lines(&stdout_of(&[&more[..], &files].concat()));
        assert_eq!((&lines[0]["dense"], &lines[0]["batch"]), (&"file".into(), &6.into()), "{name}");
        let found = Checkpoint::open(&out).expect("written");
        let found = found.tensors["output"].as_f32().expect("floats").into_owned();
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() <= 1e-5, "{name}: {found}, not {expected}");
        }
        let other = [&more[..], &["--ids", ids.str(), "--batch", "3"]].concat();
        refused_by(&mut command(&other), "--batch 3 contradicts the trace");
    }
}

#[test]
fn driven_benches_answer_line_by_line_and_end_with_their_input() {
    let place = Place::new();
    for bench in ["bags", "mlp", "model"] {
        for passes in [0, 3] {
            let mut child = place
                .command(bench, &["--driven"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the program starts");
            let mut input = child.stdin.take().expect("a pipe");
            input.write_all("go\n".repeat(passes).as_bytes()).expect("it listens");
            drop(input);
            let answers =
                lines(&succeeded(child.wait_with_output().expect("it ends with its input")));
            place.is_clean();
            let (ready, answers) = answers.split_first().expect("lines");
            assert_eq!((&ready["ready"], &ready["bench"]), (&true.into(), &bench.into()));
            let variants = ready["variants"].as_array().expect("names");
            assert!(!variants.is_empty());
            assert_eq!(answers.len(), passes);
            for answer in answers {
                let times = answer["ns"].as_object().expect("times by name");
                assert_eq!(times.len(), variants.len());
                assert!(times.values().all(|ns| ns.as_u64() > Some(0)), "{answer}");
            }
        }
    }
}

#[test]
fn an_interrupted_bench_leaves_nothing_behind() {
    for (bench, signal) in [("bags", "INT"), ("model", "TERM")] {
        let place = Place::new();
        let mut child = place
            .command(bench, &["--driven"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        // Ready, with its model in place: it waits for its first line.
        let mut ready = String::new();
        let output = child.stdout.take().expect("a pipe");
        std::io::BufReader::new(output).read_line(&mut ready).expect("a line");
        assert!(ready.contains("\"ready\":true"), "{ready}");
        let files = std::fs::read_dir(place.temporary.path()).expect("it is there").count();
        assert_eq!(files, if bench == "model" { 2 } else { 1 });
        let id = child.id().to_string();
        // Open until it has ended: at the end of its input it would end by itself.
        let _input = child.stdin.take();
        let kill = std::process::Command::new("kill").args(["-s", signal, &id]).status();
        assert!(kill.expect("kill").success());
        assert_eq!(child.wait().expect("it ends").code(), None, "ended by the signal");
        place.is_clean();
    }
}

#[test]
fn wrong_flags_are_refused() {
    let place = Place::new();
    for (flags, told) in [
        (["--levers", "speed"], "unknown lever `speed`"),
        (["--levers", "pages,"], "unknown lever ``"),
        (["--levers", "packing"], "the levers are none, pages, prefetch and lookup"),
        (["--prefetch", "far"], "unknown prefetch `far`"),
        (["--prefetch", "l1:0"], "bytes from 64"),
        (["--hot-mib", "0"], "--hot-mib"),
    ] {
        place.refused("bags", &flags, told);
    }
    let existing = place.write("existing.safetensors", "mine");
    for bench in ["bags", "mlp", "model"] {
        for (flags, told) in [
            (["--hotness", "hot"], "one-item, high, medium, low or random"),
            (["--dtype", "int3"], "int8 or int4"),
            (["--pooling", "x"], "--pooling"),
            (["--seconds", "0"], "--seconds"),
            (["--rounds", "0"], "--rounds"),
            (["--write-output", "/absent/file"], "cannot write /absent/file: "),
            (["--write-output", "-"], "the times go to standard output; give a file"),
            (["--write-output", existing.str()], "give another --write-output, or --force"),
        ] {
            place.refused(bench, &flags, told);
        }
        place.refused(bench, &["--driven", "--json"], "cannot be used with");
        place.refused(bench, &["MODEL"], "cannot be used with");
        let absent = place.path("absent");
        let model = |path: &str, told| refused_by(&mut command(&["bench", bench, path]), told);
        model(absent.str(), "absent");
        model(place.dir.path().str(), "has no model.toml");
        refused_by(&mut command(&["bench", bench, "--preset", "rm9"]), "choose micro24");
    }
}

#[test]
fn wrong_files_of_ids_are_refused() {
    let place = Place::new();
    let large = place.write("large.txt", "3\n100\n");
    let cases = [
        (place.path("absent.txt"), "absent.txt"),
        (place.write("empty.txt", ""), "is empty"),
        (place.write("words.txt", "3\nfour\n"), "words.txt:2"),
        (
            large.clone(),
            "id 100 at position 1 of the trace is not below the 100 rows of table `t0`; --wrap",
        ),
        (place.write("negative.txt", "3\n-2\n"), "id -2 at position 1"),
    ];
    for (path, told) in &cases {
        place.refused("bags", &["--ids", path.str()], told);
        place.refused("model", &["--ids", path.str()], told);
    }
    for levers in ["none", "lookup"] {
        let flags = ["--levers", levers, "--ids", large.str()];
        place.refused("bags", &flags, "id 100 at position 1");
    }
    // A sample to plan by may be of another time: rows that are gone since are no hot rows.
    let flags = ["--levers", "none,lookup", "--plan-ids", large.str(), "--rounds", "1"];
    place.bench("bags", &flags);
    place.refused("bags", &["--plan-ids", place.path("absent").str()], "absent");
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../dlrm/tests/fixtures");
    let batch = fixtures.join("torchrec_dcn.expected.safetensors");
    place.refused(
        "bags",
        &["--ids", batch.str()],
        "6 samples for 3 tables, which make no whole batches of 4; --batch",
    );
    place.refused("mlp", &["--ids", large.str()], "a tensor `dense` with rows of 13 is expected");
    place.refused("mlp", &["--ids", batch.str()], "a tensor `features` with rows of");
}
