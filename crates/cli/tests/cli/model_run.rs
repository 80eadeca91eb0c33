//! `hither model run`: PyTorch's scores from every format of inputs, and what is refused.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use hither_data::{Bytes, Checkpoint, npy};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bad_inputs::refused;
use crate::{PathStr, command, hither, stdout_of};

const SAMPLES: usize = 6;
const DENSE: usize = 13;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dlrm/tests/fixtures").join(name)
}

/// A model of PyTorch, its inputs and its outputs.
struct Case {
    dir: TempDir,
    tables: Vec<String>,
    expected: Checkpoint,
    sigmoid: bool,
}

impl Case {
    fn new(name: &str) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let model = dir.path().join("model");
        stdout_of(&["model", "import", fixture(name).str(), "-o", model.str(), "-q"]);
        let info: Value =
            serde_json::from_str(&stdout_of(&["model", "info", model.str(), "--json"]))
                .expect("JSON");
        let tables = info["tables"].as_array().expect("tables").iter();
        let tables = tables.map(|t| t["name"].as_str().expect("a name").into()).collect();
        let stem = name.split('.').next().unwrap_or(name);
        let path = fixture(&format!("{stem}.expected.safetensors"));
        let expected = Checkpoint::open(path).expect("the fixture");
        Self { dir, tables, expected, sigmoid: info["sigmoid"] == true }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("written");
        path
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.expected.tensors[name].as_f32().expect("floats").into_owned()
    }

    fn dense(&self, sample: usize) -> Vec<f32> {
        self.floats("dense")[sample * DENSE..][..DENSE].to_vec()
    }

    fn bag(&self, table: usize, sample: usize) -> Vec<i64> {
        let integers =
            |name: &str| self.expected.tensors[name].as_i64().expect("integers").into_owned();
        let (ids, offsets) = (integers("indices"), integers("offsets"));
        let bag = table * SAMPLES + sample;
        ids[offsets[bag] as usize..offsets[bag + 1] as usize].to_vec()
    }

    fn csv(&self) -> String {
        let mut header: Vec<String> = (0..DENSE).map(|d| format!("d{d}")).collect();
        header.extend(self.tables.clone());
        let mut text = header.join(",") + "\n";
        for sample in 0..SAMPLES {
            let mut row: Vec<String> = self.dense(sample).iter().map(f32::to_string).collect();
            for table in 0..self.tables.len() {
                let ids: Vec<String> = self.bag(table, sample).iter().map(i64::to_string).collect();
                row.push(ids.join(if sample % 2 == 0 { " " } else { "|" }));
            }
            text += &(row.join(",") + "\n");
        }
        text
    }

    fn json_lines(&self) -> String {
        let sample = |sample: usize| {
            let bags = (0..self.tables.len()).map(|table| json!(self.bag(table, sample)));
            let ids: Value = match sample % 2 {
                0 => bags.collect(),
                _ => Value::Object(self.tables.iter().cloned().zip(bags).collect()),
            };
            let dense: Vec<f64> = self.dense(sample).into_iter().map(f64::from).collect();
            json!({ "dense": dense, "ids": ids }).to_string() + "\n"
        };
        (0..SAMPLES).map(sample).collect()
    }

    fn run(&self, inputs: &Path, more: &[&str]) -> Vec<f32> {
        let model = self.path("model");
        let own = ["model", "run", model.str(), "--inputs", inputs.str(), "-q"];
        scores(&stdout_of(&[&own[..], more].concat()))
    }

    #[track_caller]
    fn assert_pytorch(&self, found: &[f32]) {
        let expected = self.floats(if self.sigmoid { "probability" } else { "logit" });
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() <= 1e-5, "{found}, not {expected}");
        }
    }
}

fn scores(csv: &str) -> Vec<f32> {
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("score"));
    lines.map(|line| line.parse().expect("a number")).collect()
}

#[test]
fn every_model_scores_as_in_pytorch() {
    for name in ["dlrm.pt", "dlrm_cat.pt", "torchrec.pt", "torchrec_dcn.safetensors"] {
        let case = Case::new(name);
        let (csv, lines) =
            (case.write("in.csv", case.csv()), case.write("in.jsonl", case.json_lines()));
        let by_csv = case.run(&csv, &[]);
        case.assert_pytorch(&by_csv);
        assert_eq!(case.run(&lines, &[]), by_csv, "{name}");
        // Nor does it matter how many are computed at once, or on how many threads.
        for batch in ["1", "4", "100"] {
            assert_eq!(case.run(&csv, &["--batch", batch, "--threads", "2"]), by_csv, "{name}");
        }
        let tensors = case.expected.path.clone();
        assert_eq!(case.run(&tensors, &["--batch", "6"]), by_csv, "{name}");
    }
}

#[test]
fn every_format_of_tensors_gives_the_same_scores() {
    let case = Case::new("dlrm.pt");
    for name in ["dlrm.inputs.pt", "dlrm.inputs_tuple.pt", "dlrm.inputs.npz"] {
        case.assert_pytorch(&case.run(&fixture(name), &[]));
    }
    // A matrix holds one id per table.
    let rows: Vec<(Vec<f32>, [i64; 4])> =
        (0..3).map(|s| (case.dense(s), [s as i64 * 3, 36 - s as i64, 99, 0])).collect();
    let line = |(dense, ids): &(Vec<f32>, [i64; 4])| {
        let dense: Vec<f64> = dense.iter().map(|x| f64::from(*x)).collect();
        json!({ "dense": dense, "ids": ids }).to_string()
    };
    let lines: Vec<String> = rows.iter().map(line).collect();
    let by_json = case.run(&case.write("one.jsonl", lines.join("\n")), &[]);
    let header = "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 17), }\n";
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    for (dense, ids) in &rows {
        let ids = ids.iter().map(|id| *id as f64);
        dense.iter().map(|x| f64::from(*x)).chain(ids).for_each(|x| file.extend(x.to_le_bytes()));
    }
    assert_eq!(case.run(&case.write("one.npy", file), &[]), by_json);
    assert_eq!(by_json.len(), 3);
}

#[test]
fn scores_are_written_in_every_format() {
    let case = Case::new("torchrec.pt");
    let inputs = case.write("in.csv", case.csv());
    let expected = case.run(&inputs, &[]);
    let model = case.path("model");
    let write = |name: &str| {
        let out = case.path(name);
        let own = ["model", "run", model.str(), "--inputs", inputs.str(), "-q"];
        assert_eq!(stdout_of(&[&own[..], &["-o", out.str()]].concat()), "");
        out
    };
    let text = |name: &str| std::fs::read_to_string(write(name)).expect("written");
    assert_eq!(scores(&text("out.csv")), expected);
    let lines: Vec<f32> = (text("out.jsonl").lines())
        .map(|line| {
            serde_json::from_str::<Value>(line).expect("JSON")["score"].as_f64().expect("one")
        })
        .map(|score| score as f32)
        .collect();
    assert_eq!(lines, expected);
    let file = Checkpoint::open(write("out.safetensors")).expect("written");
    assert_eq!(file.tensors["score"].shape, [SAMPLES]);
    assert_eq!(*file.tensors["score"].as_f32().expect("floats"), expected);
    let path = write("out.npy");
    let array = npy::read(&path, &Bytes::map(&path).expect("written")).expect("an array");
    assert_eq!(
        (array.shape.as_slice(), &*array.as_f32().expect("floats")),
        (&[SAMPLES][..], &*expected)
    );
    // An earlier result stays unless it is to be replaced.
    let own = ["model", "run", model.str(), "--inputs", inputs.str(), "-o", path.str()];
    refused(&own, "out.npy exists; give another -o, or --force to replace it");
    stdout_of(&[&own[..], &["--force"]].concat());
    refused(
        &[&own[..5], &["-o", "scores.txt"]].concat(),
        "expected .csv, .jsonl, .npy or .safetensors",
    );
}

#[test]
fn plans_and_pipes_change_no_score() {
    let case = Case::new("dlrm.pt");
    let inputs = case.write("in.csv", case.csv());
    let expected = case.run(&inputs, &[]);
    let model = case.path("model");
    for packing in ["off", "lookup"] {
        let plan =
            ["plan", model.str(), "--ids", inputs.str(), "--seconds", "0.02", "--force", "-q"];
        stdout_of(&[&plan[..], &["--packing", packing]].concat());
        assert_eq!(case.run(&inputs, &["--plan", model.str()]), expected, "{packing}");
    }
    let run = ["model", "run", model.str(), "--inputs", "-", "-q"];
    for text in [case.csv(), case.json_lines()] {
        let mut child = command(&run)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut input = child.stdin.take().expect("a pipe");
        std::io::Write::write_all(&mut input, text.as_bytes()).expect("it reads");
        drop(input);
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success());
        assert_eq!(scores(&String::from_utf8(output.stdout).expect("text")), expected);
    }
}

#[test]
fn weights_are_used_and_extra_columns_are_told() {
    let case = Case::new("dlrm.pt");
    let dense = [0.5; DENSE];
    let run = |ids: Value, weights: Option<Value>| {
        let mut sample = json!({ "dense": dense, "ids": ids });
        weights.map(|weights| {
            sample.as_object_mut().expect("an object").insert("weights".into(), weights)
        });
        case.run(&case.write("in.jsonl", sample.to_string()), &[])[0]
    };
    // Twice the same row, or once with weight 2.
    let twice = run(json!([[1, 1], [2], [], [0]]), None);
    assert_eq!(run(json!([[1], [2], [], [0]]), Some(json!([[2], [1], [], [1]]))), twice);
    assert_ne!(run(json!([[1], [2], [], [0]]), None), twice);
    let labelled = format!("label,{}", case.csv().replace('\n', "\n1,"));
    let inputs = case.write("in.csv", labelled.trim_end_matches("1,"));
    let output = hither(&["model", "run", case.path("model").str(), "--inputs", inputs.str()]);
    assert!(output.status.success());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("in.csv: label: neither features nor tables"), "{told}");
}

#[test]
fn a_bad_sample_is_told_by_its_line_and_table() {
    let case = Case::new("dlrm.pt");
    let model = case.path("model");
    let refuse = |name: &str, content: &[u8], told: &str| {
        let path = case.write(name, content);
        let out = case.path("scores.csv");
        refused(&["model", "run", model.str(), "-i", path.str(), "-o", out.str()], told);
        assert!(!out.exists(), "{told}");
    };
    let dense = vec!["0"; DENSE].join(",");
    let header: Vec<String> = (0..DENSE).map(|d| format!("d{d}")).collect();
    let header = format!("{},{}", header.join(","), case.tables.join(","));
    let second = &case.tables[1];
    let csv = |row: &str| format!("{header}\n{dense},1,2,3,0\n\n{dense},{row}\n");
    refuse(
        "in.csv",
        csv("1,37,3,0").as_bytes(),
        &format!("in.csv:4: table `{second}`: id 37 is not below its 37 rows"),
    );
    refuse("in.csv", csv("1,-2,3,0").as_bytes(), "id -2 is not below");
    refuse(
        "in.csv",
        csv("1,x,3,0").as_bytes(),
        &format!("in.csv:4: table `{second}`: `x` is not an integer id"),
    );
    refuse("in.csv", csv("1,2,3").as_bytes(), "in.csv:4: 16 fields; the header has 17");
    refuse("in.csv", format!("{header}\n").as_bytes(), "holds no samples");
    refuse("in.csv", (case.tables.join(",") + "\n1,2,3,0\n").as_bytes(), "has no dense features");
    refuse("ids.txt", b"1\n2\n", "is a plain list of ids");
    refuse(
        "in.jsonl",
        b"{\"dense\":[1],\"ids\":[]}",
        "in.jsonl:1: `dense`: expected a list of 13 numbers",
    );
    refuse("empty", b"", "is empty");
    let unknown = case.expected.path.clone();
    refused(
        &["model", "run", model.str(), "-i", unknown.str()],
        "give --batch N (6 if all are one batch)",
    );
    let cut = ["model", "run", model.str(), "-i", unknown.str(), "--batch", "3"];
    refused(&cut, "is 3 the batch size of the file (--batch)?");
    refused(
        &["model", "run", model.str(), "-i", fixture("dlrm.inputs.pt").str(), "--batch", "3"],
        "--batch 3 contradicts",
    );
    refused(&["model", "run", case.dir.path().str(), "-i", "x.csv"], "has no model.toml");
    refused(&["model", "run", model.str(), "-i", case.path("absent").str()], "absent");
}

#[test]
fn scores_are_compared_with_expected_ones() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let (model, inputs) = (path("model"), path("inputs.csv"));
    let generate = ["model", "generate", "--preset", "mlperf", "-o", &model, "-q"];
    let shape = ["--tables", "2", "--rows", "9", "--dim", "4", "--bottom", "1-4", "--top", "3-1"];
    stdout_of(&[&generate[..], &shape].concat());
    std::fs::write(&inputs, "d0,t0,t1\n0.5,1,2\n0.25,3,4\n").expect("written");
    for name in ["scores.csv", "scores.npy", "scores.safetensors"] {
        let scores = path(name);
        stdout_of(&["model", "run", &model, "--inputs", &inputs, "-o", &scores]);
        stdout_of(&["model", "check", &model, "--inputs", &inputs, "--expect", &scores]);
    }
    let text = std::fs::read_to_string(path("scores.csv")).expect("scores");
    let mut lines: Vec<&str> = text.lines().collect();
    lines[2] = "0.999";
    std::fs::write(path("wrong.csv"), lines.join("\n")).expect("written");
    let check = |expect: &str| {
        hither(&[
            "model",
            "check",
            &model,
            "--inputs",
            &inputs,
            "--expect",
            &path(expect),
            "--json",
        ])
    };
    let output = check("wrong.csv");
    assert_eq!(output.status.code(), Some(1));
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&outcome["different"], &outcome["first"]), (&1.into(), &1.into()), "{outcome}");
    std::fs::write(path("short.csv"), "score\n0.5\n").expect("written");
    let output = check("short.csv");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("it has 1 scores"));
}
