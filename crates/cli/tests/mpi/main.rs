//! Training over the ranks of an MPI job, with a real mpirun: the same bytes as in one process, also after
//! ranks were killed. Built with the feature `mpi` only.

mod kills;
mod network;

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hither_gnn::generate::{self, Family};
use hither_gnn::{Features, load};
use hither_live::slurm::testbed::{Shape, Testbed};
use serde_json::Value;
use tempfile::TempDir;

const HITHER: &str = env!("CARGO_BIN_EXE_hither");
/// More rounds than any test waits for.
const ENDLESS: &str = "100000";
/// Longest time that anything here may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A small graph in some parts, and room for runs.
struct Bed {
    dir: TempDir,
}

impl Bed {
    fn new(parts: u32) -> Self {
        let bed = Self { dir: TempDir::new().expect("a temporary directory") };
        let graph = bed.path("whole.graph.safetensors");
        let generate = ["dataset", "generate", "--family", "cut-homophily", "--nodes", "4000"];
        bed.alone(&[&generate[..], &["-o", str(&graph)]].concat());
        bed.cut(&graph, parts);
        bed
    }

    /// Features of which only those above zero remain, as they are or as ones.
    fn with_sparse_features(parts: u32, keeps_values: bool) -> Self {
        let bed = Self { dir: TempDir::new().expect("a temporary directory") };
        let settings = generate::Settings::for_family(Family::CutHomophily, 2000, 1);
        let mut data = generate::generate(&settings).expect("a graph");
        let Features::Dense { values, dim } = &data.features else { panic!("dense features") };
        let (mut offsets, mut indices, mut kept) = (vec![0_u64], vec![], vec![]);
        for row in values.chunks(*dim) {
            for (index, value) in (0_u32..).zip(row).filter(|(_, value)| **value > 0.0) {
                indices.push(index);
                kept.push(*value);
            }
            offsets.push(indices.len() as u64);
        }
        data.features = Features::Sparse {
            offsets: offsets.into(),
            indices: indices.into(),
            values: keeps_values.then(|| kept.into()),
            dim: *dim,
        };
        let graph = bed.path("whole.graph.safetensors");
        load::write(&data, &graph).expect("written");
        bed.cut(&graph, parts);
        bed
    }

    fn cut(&self, graph: &Path, parts: u32) {
        let parts = parts.to_string();
        self.alone(&["partition", str(graph), "--parts", &parts, "--write", str(&self.parts())]);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn parts(&self) -> PathBuf {
        self.path("parts")
    }

    fn train<'a>(&self, out: &'a str, more: &[&'a str]) -> Vec<String> {
        let (parts, out) = (self.parts(), self.path(out));
        let words = ["train", str(&parts), "--seed", "3", "--eval-every", "2", "-o", str(&out)];
        words.iter().chain(more).map(ToString::to_string).collect()
    }

    fn alone<S: AsRef<str>>(&self, words: &[S]) -> Output {
        let output = Command::new(HITHER)
            .args(words.iter().map(AsRef::as_ref))
            .stdin(Stdio::null())
            .output()
            .expect("the program starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
        output
    }

    /// mpirun on this machine, whoever runs the tests and however few cores it has.
    fn mpirun<S: AsRef<str>>(&self, ranks: u32, words: &[S]) -> Command {
        let mut command = Command::new("mpirun");
        command
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .args(["--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader"])
            // Killed ranks leave the memory that they shared behind.
            .args(["--mca", "btl_vader_backing_directory", str(self.dir.path())])
            .args(["-n", &ranks.to_string(), HITHER])
            .args(words.iter().map(AsRef::as_ref))
            .stdin(Stdio::null());
        command
    }

    fn finished<S: AsRef<str>>(&self, ranks: u32, words: &[S]) -> Output {
        let output = self.mpirun(ranks, words).output().expect("mpirun starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
        output
    }

    fn model(&self, out: &str) -> Vec<u8> {
        fs::read(self.path(out).join("model.safetensors")).expect("a model")
    }

    /// Rounds that a run has written so far.
    fn rounds(&self, out: &str) -> usize {
        let metrics = fs::read_to_string(self.path(out).join("metrics.jsonl"));
        metrics.unwrap_or_default().lines().count()
    }

    /// A run that was stopped goes on over fewer ranks for some rounds, and ends with the bytes of one
    /// process that nobody stopped.
    fn ends_as_undisturbed(&self, out: &str, more: &[&str]) {
        let rounds = (self.rounds(out) + 3).to_string();
        let more = [more, &["--rounds", &rounds]].concat();
        self.finished(3, &self.train(out, &[&more[..], &["--resume"]].concat()));
        self.alone(&self.train("alone", &more));
        assert!(self.model(out) == self.model("alone"), "after {rounds} rounds");
        assert_eq!(self.rounds(out).to_string(), rounds);
    }

    fn wait_for_round(&self, out: &str, round: usize) {
        let start = Instant::now();
        while self.rounds(out) < round {
            assert!(start.elapsed() < PATIENCE, "round {round} does not come");
            sleep(Duration::from_millis(5));
        }
    }
}

fn str(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn started(command: &mut Command) -> Child {
    command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("mpirun starts")
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("a file")).expect("JSON")
}

#[test]
fn ranks_end_with_the_bytes_of_one_process() {
    for (parts, ranks) in [(4, vec![5, 3]), (8, vec![9])] {
        let bed = Bed::new(parts);
        for mode in ["llcg", "llcg-stale", "psgd-pa", "ggs"] {
            let more = ["--mode", mode, "--rounds", "6", "--batch-norm"];
            bed.alone(&bed.train(&format!("{mode}-alone"), &more));
            let expected = bed.model(&format!("{mode}-alone"));
            for count in &ranks {
                let out = format!("{mode}-{count}");
                bed.finished(*count, &bed.train(&out, &more));
                assert!(bed.model(&out) == expected, "{mode} over {count} ranks");
                let report = json(&bed.path(&out).join("ranks.json"));
                assert_eq!(report.as_array().map(Vec::len), Some(*count as usize));
                let parts_held: usize = report
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|rank| rank["parts"].as_array().map_or(0, Vec::len))
                    .sum();
                assert_eq!(parts_held, parts as usize);
            }
        }
    }
}

#[test]
fn several_runs_follow_each_other_on_the_same_ranks() {
    let bed = Bed::new(4);
    for mode in ["llcg", "ggs"] {
        let (alone, ranks) = (format!("{mode}-alone"), format!("{mode}-ranks"));
        let more = ["--mode", mode, "--rounds", "3", "--runs", "2"];
        bed.alone(&bed.train(&alone, &more));
        bed.finished(5, &bed.train(&ranks, &more));
        assert!(bed.model(&alone) == bed.model(&ranks));
        assert!(bed.model(&format!("{alone}/run-2")) == bed.model(&format!("{ranks}/run-2")));
    }
}

/// A figure of every round, summed.
fn summed(rounds: &Path, key: &str) -> u64 {
    let text = fs::read_to_string(rounds).expect("a file");
    let row = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")[key].as_u64();
    text.lines().map(|line| row(line).expect("a number")).sum()
}

/// Dense features and sparse ones, with and without values: what ranks fetch from each other is, to the byte,
/// what one process counts that fetches nothing.
#[test]
fn features_that_ranks_fetch_are_those_that_one_process_counts() {
    let beds = [
        ("dense", Bed::new(3)),
        ("ones", Bed::with_sparse_features(3, false)),
        ("values", Bed::with_sparse_features(3, true)),
    ];
    for (features, bed) in beds {
        let more = ["--mode", "ggs", "--rounds", "4", "--model", "gcn", "--fanout", "4,3"];
        bed.alone(&bed.train("alone", &more));
        bed.finished(4, &bed.train("ranks", &more));
        assert!(bed.model("ranks") == bed.model("alone"), "{features}");
        let [alone, ranks] = ["alone", "ranks"].map(|out| bed.path(out).join("metrics.jsonl"));
        let mut counted = 0;
        for key in ["features_down_bytes", "requests_up_bytes"] {
            assert_eq!(summed(&ranks, key), summed(&alone, key), "{features}");
            assert!(summed(&ranks, key) > 0, "{features}");
            counted += summed(&ranks, key);
        }
        let ranks = json(&bed.path("ranks").join("ranks.json"));
        let sum = |key: &str| -> u64 {
            let workers = ranks.as_array().expect("ranks")[1..].iter();
            workers.map(|rank| rank[key].as_u64().expect("a number")).sum()
        };
        // Beside features and requests for them, workers exchange messages with the server alone.
        assert_eq!(Some(sum("received_bytes") - counted), ranks[0]["sent_bytes"].as_u64());
        assert_eq!(Some(sum("sent_bytes") - counted), ranks[0]["received_bytes"].as_u64());
    }
}

/// The process of a rank of this mpirun.
fn rank_pid(job: &Child, rank: u32) -> u32 {
    let start = Instant::now();
    let mark = format!("OMPI_COMM_WORLD_RANK={rank}");
    loop {
        for entry in fs::read_dir("/proc").expect("processes").flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
            let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
            let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            let is_child = status.lines().any(|line| {
                line.strip_prefix("PPid:").is_some_and(|of| of.trim() == job.id().to_string())
            });
            let is_rank = environ.split(|byte| *byte == 0).any(|var| var == mark.as_bytes());
            if is_child && is_rank {
                return pid;
            }
        }
        assert!(start.elapsed() < PATIENCE, "rank {rank} does not start");
        sleep(Duration::from_millis(5));
    }
}

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(sent.expect("kill starts").success());
}

/// What the job said, once it has ended.
fn ended(mut job: Child) -> (bool, String) {
    let start = Instant::now();
    while job.try_wait().expect("a state").is_none() {
        assert!(start.elapsed() < PATIENCE, "the job hangs");
        sleep(Duration::from_millis(10));
    }
    let mut said = String::new();
    job.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    (job.wait().expect("a status").success(), said)
}

/// Any rank may die at any moment; the job then ends, says how to go on, and goes on.
#[test]
fn a_killed_rank_ends_the_job_and_a_restart_resumes_at_the_last_round() {
    let bed = Bed::new(4);
    let more = ["--checkpoint-every", "1", "--hidden", "32"];
    for (rank, rounds) in [(3, 4), (0, 5), (1, 3)] {
        let endless = [&more[..], &["--rounds", ENDLESS, "--resume"]].concat();
        let job = started(&mut bed.mpirun(5, &bed.train("killed", &endless)));
        let pid = rank_pid(&job, rank);
        bed.wait_for_round("killed", bed.rounds("killed") + rounds);
        signal(pid, "KILL");
        let (succeeded, said) = ended(job);
        assert!(!succeeded, "{said}");
        if rank > 0 {
            assert!(said.contains("--resume goes on after round"), "{said}");
        }
    }
    bed.ends_as_undisturbed("killed", &more);
}

#[test]
fn asked_to_stop_a_job_writes_a_checkpoint_and_says_so() {
    let bed = Bed::new(4);
    let more = ["--mode", "ggs", "--checkpoint-every", ENDLESS];
    let endless = [&more[..], &["--rounds", ENDLESS]].concat();
    let job = started(&mut bed.mpirun(5, &bed.train("stopped", &endless)));
    let pid = rank_pid(&job, 0);
    bed.wait_for_round("stopped", 3);
    signal(pid, "TERM");
    let (succeeded, said) = ended(job);
    assert!(!succeeded && said.contains("stopped as asked after round"), "{said}");
    bed.ends_as_undisturbed("stopped", &more);
}

#[test]
fn what_ranks_cannot_do_is_one_line_and_status_2() {
    let bed = Bed::new(2);
    let whole = bed.path("whole.graph.safetensors");
    let out = bed.path("out");
    let refused = |ranks: u32, words: &[&str], expected: &str| {
        let output = bed.mpirun(ranks, words).output().expect("mpirun starts");
        let said = text(&output.stderr);
        let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("error:")).collect();
        assert_eq!(lines.len(), 1, "{said}");
        assert!(lines[0].contains(expected), "{said}");
        assert_eq!(output.status.code(), Some(2), "{said}");
    };
    let parts = bed.parts();
    refused(3, &["train", str(&whole), "-o", str(&out)], "is not partitioned");
    refused(3, &["train", str(&parts), "--mode", "psgd-sa"], "psgd-sa does not run over MPI");
    refused(4, &["train", str(&parts)], "at most 3");
    refused(3, &["train", str(&parts), "--fanout", "5,5,5"], "--fanout has 3 numbers");
    refused(2, &["train", "compare", str(&parts), "-o", str(&out)], "takes one process");
    assert!(!out.exists());
}

/// A host without the folder, or with another one of the same name, says so through rank 0, and the job ends.
#[test]
fn a_folder_that_one_host_lacks_is_one_message_and_a_failed_job() {
    let bed = Bed::new(2);
    let [empty, other] = ["empty", "other"].map(|name| bed.path(name));
    fs::create_dir(&empty).expect("made");
    fs::create_dir(&other).expect("made");
    let graph = bed.path("whole.graph.safetensors");
    let random = ["--method", "random", "--write"];
    let words = ["partition", str(&graph), "--parts", "2"];
    bed.alone(&[&words[..], &random, &[str(&other.join("parts"))]].concat());
    for (dir, expected) in [(&empty, "parts"), (&other, "is not the folder that rank 0 reads")] {
        let mut command = bed.mpirun(1, &["train", "parts", "--rounds", "2"]);
        command.current_dir(bed.dir.path());
        command.args([":", "-wdir", str(dir), "-n", "2", HITHER, "train", "parts"]);
        let (succeeded, said) = ended(started(&mut command));
        assert!(!succeeded, "{said}");
        let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("error:")).collect();
        assert_eq!(lines.len(), 1, "{said}");
        assert!(
            lines[0].contains("the worker of part 0: ") && lines[0].contains(expected),
            "{said}"
        );
    }
}

/// Only rank 0 has the whole graph to count classes in.
#[test]
fn class_weights_and_scores_work_over_ranks() {
    let bed = Bed::new(3);
    for mode in ["llcg", "ggs"] {
        let more = ["--mode", mode, "--rounds", "3", "--class-weights", "balanced"];
        let more = [&more[..], &["--metric", "f1-macro"]].concat();
        bed.alone(&bed.train("alone", &[&more[..], &["--force"]].concat()));
        bed.finished(4, &bed.train("ranks", &[&more[..], &["--force"]].concat()));
        assert!(bed.model("alone") == bed.model("ranks"), "{mode}");
    }
}

/// The script of `hither submit` on a real Slurm of four emulated machines in two racks: it is requeued
/// in the middle, and ends with the bytes of one process.
#[test]
fn a_submitted_run_is_requeued_and_goes_on() {
    let bed = Bed::new(4);
    let rounds = ["--rounds", "200", "--checkpoint-every", "1000", "--hidden", "32"];
    bed.alone(&bed.train("alone", &rounds));
    let shape = Shape { racks: 2, machines: 2, gpus: 2 };
    let slurm = Testbed::start(&bed.path("slurm"), shape, "").unwrap_or_else(|e| panic!("{e}"));
    let submit = ["submit", "--gpus-per-rank", "1"].map(ToOwned::to_owned);
    let words = [&submit[..], &bed.train("submitted", &rounds)].concat();
    let script = text(&bed.alone(&words).stdout);
    let path = bed.path("run.sh");
    // Ranks of one host that Slurm calls several machines cannot share memory.
    let program = Path::new(HITHER).parent().map(str).unwrap_or_default().to_owned();
    let local = format!(
        "\nexport PATH={program}:$PATH OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo\nsrun "
    );
    fs::write(&path, script.replacen("\nsrun ", &local, 1)).expect("written");
    let log = bed.path("job.log");
    let job = slurm.submit(&["-o", str(&log)], &path, &[]).expect("a job");
    bed.wait_for_round("submitted", 3);
    slurm.ask("scontrol", &["requeue", &job]).expect("requeued");
    let start = Instant::now();
    let said = || fs::read_to_string(&log).unwrap_or_default();
    while !bed.path("submitted").join("ranks.json").exists() {
        assert!(start.elapsed() < PATIENCE, "{}", said());
        // Slurm makes a requeued job wait for two minutes.
        let _ = slurm.ask("scontrol", &["update", &format!("jobid={job}"), "starttime=now"]);
        sleep(Duration::from_millis(300));
    }
    assert!(bed.model("submitted") == bed.model("alone"));
    assert!(said().contains("stopped as asked after round"), "{}", said());
    assert!(said().contains("resuming after round"), "{}", said());
    let ranks = json(&bed.path("submitted").join("ranks.json"));
    assert_eq!(ranks[0]["place"], "spine.rack0.n0");
    let profile = json(&bed.path("submitted").join("profile.json"));
    assert_eq!(profile["table"][0]["placement"], serde_json::json!([2, 2, 1]));
}
