//! Kills at random moments: a worker, the server or the whole job. Every run goes on, and ends with the bytes of
//! one that nobody disturbed.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, fs};

use super::{Bed, PATIENCE, ended, started};

/// Number of seeds; `HITHER_KILL_SEEDS=30` for more.
const SEEDS: u64 = 3;
const RANKS: u32 = 5;
/// Marks all processes of a job in their environment.
const MARK: &str = "HITHER_TEST_JOB";

/// Splitmix64: the moments differ by machine anyway, the choices do not.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Whom to kill.
#[derive(Debug)]
enum Victim {
    Rank(u64),
    Job,
}

/// The processes whose environment has all of these words.
fn processes_with(words: &[String]) -> Vec<u32> {
    let pid = |entry: fs::DirEntry| {
        let environ = fs::read(entry.path().join("environ")).ok()?;
        let has =
            |word: &String| environ.split(|byte| *byte == 0).any(|var| var == word.as_bytes());
        let is_one = words.iter().all(has);
        is_one.then(|| entry.file_name().to_string_lossy().parse().ok())?
    };
    fs::read_dir("/proc").expect("processes").flatten().filter_map(pid).collect()
}

fn kill(pid: u32) {
    // It may have ended by itself.
    let _ = Command::new("kill")
        .args(["-KILL", &pid.to_string()])
        .stderr(std::process::Stdio::null())
        .status();
}

/// When to strike: so long after a round has ended.
#[derive(Debug)]
struct Moment {
    round: usize,
    after: Duration,
}

/// Starts the job and kills some of it at a moment, unless it has ended by then.
fn disturbed(bed: &Bed, out: &str, words: &[String], victim: &Victim, moment: &Moment) {
    let mark = format!("{MARK}={out}-{:?}", bed.parts());
    let mut job = started(bed.mpirun(RANKS, words).env(MARK, &mark[MARK.len() + 1..]));
    let victims = || match victim {
        Victim::Rank(rank) => {
            processes_with(&[mark.clone(), format!("OMPI_COMM_WORLD_RANK={rank}")])
        }
        Victim::Job => processes_with(std::slice::from_ref(&mark)),
    };
    let start = Instant::now();
    while bed.rounds(out) < moment.round || victims().is_empty() {
        assert!(start.elapsed() < PATIENCE, "{moment:?} does not come");
        if job.try_wait().expect("a state").is_some() {
            break;
        }
        sleep(Duration::from_millis(2));
    }
    sleep(moment.after);
    if let Victim::Job = victim {
        // First, as it would end the others in its own way.
        kill(job.id());
    }
    victims().into_iter().for_each(kill);
    ended(job);
    // The output directory is locked until the last of them is gone.
    let start = Instant::now();
    while !processes_with(std::slice::from_ref(&mark)).is_empty() {
        assert!(start.elapsed() < PATIENCE, "ranks outlive their job");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn killed_at_any_moment_a_run_ends_as_if_nothing_had_happened() {
    let seeds = env::var("HITHER_KILL_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let bed = Bed::new(4);
    let more = ["--rounds", "20", "--hidden", "32", "--updates", "top-k:0.1"];
    bed.alone(&bed.train("alone", &more));
    let expected = bed.model("alone");
    for seed in 0..seeds.unwrap_or(SEEDS) {
        let mut random = Random(seed);
        let out = format!("seed-{seed}");
        let every = (1 + random.below(4)).to_string();
        let options = [&more[..], &["--checkpoint-every", &every, "--resume"]].concat();
        let words = bed.train(&out, &options);
        // Only the whole job dies while it starts: with a rank that dies then, mpirun 4.1 itself can hang.
        let (victim, first) = match seed % 3 {
            0 => (Victim::Rank(1 + random.below(u64::from(RANKS) - 1)), 1),
            1 => (Victim::Rank(0), 1),
            _ => (Victim::Job, 0),
        };
        let after = Duration::from_millis(random.below(60));
        let moment = Moment { round: first + random.below(18) as usize, after };
        disturbed(&bed, &out, &words, &victim, &moment);
        println!("seed {seed}: {victim:?}, {moment:?}, {} rounds were done", bed.rounds(&out));
        bed.finished(RANKS, &words);
        assert!(bed.model(&out) == expected, "seed {seed}");
        assert_eq!(bed.rounds(&out), 20, "seed {seed}");
    }
}
