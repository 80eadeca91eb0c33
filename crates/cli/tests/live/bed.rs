//! A Slurm cluster, the scheduler on it, and jobs that keep checkpoints.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hither_live::slurm::testbed::{Shape, Testbed};
use tempfile::TempDir;

pub const HITHER: &str = env!("CARGO_BIN_EXE_hither");

/// A job: so many steps of a tenth of a second. It writes a checkpoint on USR1 and on TERM, goes on
/// from it, and notes every start, stop and end.
const WORK: &str = r#"#!/bin/bash
mark() { echo "$1 $SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0} $SLURM_JOB_NODELIST $(date +%s.%N) $done" >> runs; }
save() { echo "$done" > "saved.$SLURM_JOB_ID.tmp"; mv "saved.$SLURM_JOB_ID.tmp" "saved.$SLURM_JOB_ID"; }
done=$(cat "saved.$SLURM_JOB_ID" 2>/dev/null || echo 0)
trap 'save; mark stop; exit 143' TERM
trap 'save; mark saved' USR1
mark start
while [ "$done" -lt "$1" ]; do sleep 0.1 & wait $!; done=$((done + 1)); done
mark end
"#;

/// Powers nodes up, as far as Slurm can tell: their daemons start again and report a boot. The word `FOLDER`
/// stands for the cluster's folder.
const RESUME: &str = r#"#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/bin SLURM_CONF=FOLDER/etc/slurm.conf
for node in $(scontrol show hostnames "$1"); do
  kill -9 "$(cat "FOLDER/run/slurmd-$node.pid")"
  slurmd -f "$SLURM_CONF" -N "$node" -b
done
"#;

/// A line that a job wrote.
#[derive(Debug, Clone)]
pub struct Mark {
    pub what: String,
    pub job: String,
    pub nodes: String,
    pub at_s: f64,
    pub done: u64,
}

pub struct Bed {
    pub slurm: Testbed,
    pub state: PathBuf,
    work: PathBuf,
    // Dropped last: the daemons write there.
    _dir: TempDir,
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/slurm").join(name)
}

pub fn until<T>(what: &str, seconds: u64, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited {seconds} s for {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

impl Bed {
    pub fn new(racks: u32, machines: u32, gpus: u32) -> Self {
        Self::with(Shape { racks, machines, gpus }, "")
    }

    pub fn with(shape: Shape, extra: &str) -> Self {
        Self::made(shape, extra, Testbed::start)
    }

    /// With accounts, QOS and their limits.
    pub fn with_accounts(shape: Shape) -> Self {
        Self::made(shape, "", Testbed::start_with_accounts)
    }

    fn made(
        shape: Shape,
        extra: &str,
        start: impl FnOnce(&Path, Shape, &str) -> Result<Testbed, String>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let etc = dir.path().join("slurm/etc");
        fs::create_dir_all(&etc).unwrap();
        if extra.contains("JobSubmitPlugins=lua") {
            fs::copy(example("job_submit.lua"), etc.join("job_submit.lua")).unwrap();
        }
        // The word `EPILOG` stands for the shipped script, which finds the scheduler by its socket, `RESUME` for
        // the one above.
        let socket = dir.path().join("state/socket");
        let here = format!("--unix-socket {} http://hither", socket.display());
        let script = fs::read_to_string(example("epilog.sh")).unwrap();
        let script = script.replace("http://127.0.0.1:9433", &here);
        let epilog = etc.join("epilog.sh");
        fs::write(&epilog, script).unwrap();
        fs::set_permissions(&epilog, fs::Permissions::from_mode(0o755)).unwrap();
        let resume = etc.join("resume.sh");
        fs::write(&resume, RESUME.replace("FOLDER", &dir.path().join("slurm").to_string_lossy()))
            .unwrap();
        fs::set_permissions(&resume, fs::Permissions::from_mode(0o755)).unwrap();
        let extra = &extra.replace("EPILOG", &epilog.to_string_lossy());
        let extra = &extra.replace("RESUME", &resume.to_string_lossy());
        let slurm = start(&dir.path().join("slurm"), shape, extra);
        let slurm = slurm.unwrap_or_else(|error| panic!("{error}"));
        let work = dir.path().join("work.sh");
        fs::write(&work, WORK).unwrap();
        Self { slurm, state: dir.path().join("state"), work, _dir: dir }
    }

    pub fn folder(&self) -> &Path {
        self.work.parent().unwrap()
    }

    /// Submits a held job of so many GPUs and steps.
    pub fn submit(&self, gpus: u32, steps: u32, more: &[&str]) -> String {
        let gpus = format!("--gpus={gpus}");
        let args = [&["-H", gpus.as_str(), "--requeue"], more].concat();
        self.try_submit(&args, steps).unwrap()
    }

    /// Submits a job; `None`: Slurm does not answer.
    pub fn try_submit(&self, args: &[&str], steps: u32) -> Option<String> {
        let folder = self.folder().to_string_lossy();
        let args = [&["-D", &*folder], args].concat();
        self.slurm.submit(&args, &self.work, &[&steps.to_string()]).ok()
    }

    /// Submits a job that Hither has nothing to do with.
    pub fn submit_foreign(&self, args: &[&str], steps: u32) -> String {
        self.try_submit(args, steps).unwrap()
    }

    /// Hither with this cluster as its Slurm.
    pub fn hither(&self, args: &[&str]) -> Command {
        let mut command = self.slurm.command(HITHER);
        command.args(args).env("HITHER_STATE", &self.state).env("HITHER_PARTITION", "gpu");
        command
    }

    /// The outcome of a command of Hither that ends by itself.
    fn output(&self, args: &[&str]) -> Output {
        let mut command = self.hither(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = Scheduler { child: command.spawn().unwrap() };
        let status =
            until(&format!("hither {args:?} to end"), 60, || running.child.try_wait().unwrap());
        let mut output = Output { status, stdout: Vec::new(), stderr: Vec::new() };
        running.child.stdout.take().unwrap().read_to_end(&mut output.stdout).unwrap();
        running.child.stderr.take().unwrap().read_to_end(&mut output.stderr).unwrap();
        output
    }

    /// What a command of Hither prints; it must succeed.
    pub fn told(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "hither {args:?}: {err}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The error of a command that must end with status 2.
    pub fn refused(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "hither {args:?}: {err}");
        err
    }

    /// The scheduler, acting.
    pub fn schedule(&self, more: &[&str]) -> Scheduler {
        self.schedule_with(more, |_| {})
    }

    pub fn schedule_with(&self, more: &[&str], change: impl FnOnce(&mut Command)) -> Scheduler {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder().join("hither.log"))
            .unwrap();
        let mut command = self.hither(&["schedule", "--act"]);
        if !more.contains(&"--poll-s") {
            command.args(["--poll-s", "0.2"]);
        }
        command.args(more).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        change(&mut command);
        Scheduler { child: command.spawn().unwrap() }
    }

    /// A folder of Slurm's commands, each with these lines of bash before it.
    pub fn wrapped(&self, lines: &str) -> String {
        let folder = tempfile::tempdir_in(self.folder()).unwrap().keep();
        for name in ["squeue", "sinfo", "scontrol", "scancel", "sbatch"] {
            let path = folder.join(name);
            let script =
                format!("#!/bin/bash\nname={name}\n{lines}\nexec /usr/bin/{name} \"$@\"\n");
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        folder.display().to_string()
    }

    pub fn await_log(&self, text: &str, seconds: u64) {
        until(&format!("the log to say {text:?}"), seconds, || {
            self.log().contains(text).then_some(())
        });
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder().join("hither.log")).unwrap_or_default()
    }

    pub fn marks(&self) -> Vec<Mark> {
        let text = fs::read_to_string(self.folder().join("runs")).unwrap_or_default();
        let mark = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let [what, job, _, nodes, at_s, done] = words[..] else { return None };
            Some(Mark {
                what: what.into(),
                job: job.into(),
                nodes: nodes.into(),
                at_s: at_s.parse().ok()?,
                done: done.parse().ok()?,
            })
        };
        text.lines().filter_map(mark).collect()
    }

    /// Waits for the job's first start.
    pub fn first_start(&self, job: &str) -> Mark {
        until(&format!("job {job} to start; log:\n{}", self.log()), 20, || {
            self.starts(job).into_iter().next()
        })
    }

    /// The job's starts.
    pub fn starts(&self, job: &str) -> Vec<Mark> {
        self.marks().into_iter().filter(|m| m.what == "start" && m.job == job).collect()
    }

    /// State by job, as Slurm has it.
    pub fn states(&self) -> BTreeMap<String, String> {
        let text =
            self.slurm.ask("squeue", &["-h", "-t", "all", "-o", "%i %T"]).unwrap_or_default();
        let pair = |line: &str| {
            let (job, state) = line.split_once(' ')?;
            Some((job.to_owned(), state.trim().to_owned()))
        };
        text.lines().filter_map(pair).collect()
    }

    pub fn await_state(&self, job: &str, state: &str, seconds: u64) {
        until(&format!("job {job} to be {state}; log:\n{}", self.log()), seconds, || {
            (self.states().get(job).map(String::as_str) == Some(state)).then_some(())
        });
    }

    pub fn await_all_completed(&self, jobs: &[String], seconds: u64) {
        let end = Instant::now() + Duration::from_secs(seconds);
        loop {
            let states = self.states();
            let left: Vec<_> = jobs
                .iter()
                .filter(|job| states.get(*job).is_none_or(|state| state != "COMPLETED"))
                .map(|job| (job, states.get(job)))
                .collect();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < end, "not completed: {left:?}; log:\n{}", self.log());
            thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn journal(&self) -> String {
        self.state.join("journal.redb").display().to_string()
    }
}

/// A running scheduler, killed when dropped.
pub struct Scheduler {
    pub child: Child,
}

impl Scheduler {
    /// SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.kill();
    }
}
