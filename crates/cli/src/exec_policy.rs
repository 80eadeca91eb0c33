//! Policies from outside: a program answers the questions of [`Policy`], one JSON object per line each way
//! (docs/formats/policy-program.md). The books, the offers and the checkers are those of all policies.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use hither_core::Seconds;
use hither_core::record::Reason;
use hither_sched::event::{Timer, Why};
use hither_sched::job::JobId;
use hither_sched::order::SortKey;
use hither_sched::pass::{Answer, Offer};
use hither_sched::policy::{Entry, Policy, best_place};
use hither_sched::state::{Claim, State, Turn};
use serde::Deserialize;
use serde_json::{Value, json};

/// How such a policy is named: the program and its arguments follow.
pub const PREFIX: &str = "exec:";

const ABOUT: &str = "a policy from outside";

/// A program that takes longer over one question hangs.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn entry(name: &str) -> &'static Entry {
    // Lives as long as the process, like the policies of the table.
    let name = Box::leak(name.to_owned().into_boxed_str());
    let make = |name: &str| -> Box<dyn Policy> { Box::new(Program::start(&name[PREFIX.len()..])) };
    Box::leak(Box::new(Entry::outside(name, ABOUT, make)))
}

struct Program {
    words: String,
    pipe: Mutex<Pipe>,
    hello: Hello,
}

struct Pipe {
    child: Child,
    questions: ChildStdin,
    answers: Receiver<std::io::Result<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Hello {
    /// Whether it is asked for victims.
    may_stop: bool,
    /// How often it is asked for a round; without, never.
    round_s: Option<Seconds>,
    /// Whether it is told what is left of jobs, as they really are.
    clairvoyant: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Claimed {
    claim: f64,
    #[serde(default)]
    class: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answered {
    take: bool,
    again_s: Option<Seconds>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Stops {
    stop: Vec<JobId>,
    /// Whether all waiting jobs get their claims anew.
    rank_anew: bool,
}

impl Program {
    fn start(words: &str) -> Self {
        let mut parts = words.split_whitespace();
        let program = parts.next().unwrap_or_else(|| {
            fail(words, "no program is named; expected exec:PROGRAM, such as exec:./policy.py")
        });
        let mut command = Command::new(program);
        command.args(parts).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| fail(words, error));
        let (questions, output) = (child.stdin.take(), child.stdout.take());
        let (send, answers) = mpsc::channel();
        let output = BufReader::new(output.expect("it is piped"));
        std::thread::spawn(move || output.lines().all(|line| send.send(line).is_ok()));
        let pipe = Pipe { child, questions: questions.expect("it is piped"), answers };
        let (words, pipe) = (words.to_owned(), Mutex::new(pipe));
        let mut program = Self { words, pipe, hello: Hello::default() };
        program.hello = program.ask("hello", json!({}));
        if program.hello.round_s.is_some_and(|s| !(1.0..=1e9).contains(&s)) {
            fail(&program.words, "round_s: expected a number of seconds from 1 to 1e9");
        }
        program
    }

    /// The answer to one question. A program that gives none ends the simulation: there is no policy without it.
    fn ask<T: for<'de> Deserialize<'de>>(&self, what: &str, mut question: Value) -> T {
        question["ask"] = what.into();
        let mut pipe = self.pipe.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut line = question.to_string();
        line.push('\n');
        let sent = pipe.questions.write_all(line.as_bytes());
        let answer = match pipe.answers.recv_timeout(PATIENCE) {
            Ok(answer) => answer.unwrap_or_else(|error| fail(&self.words, error)),
            Err(RecvTimeoutError::Timeout) => {
                let seconds = PATIENCE.as_secs();
                fail(&self.words, format!("did not answer {what:?} within {seconds} s"))
            }
            Err(RecvTimeoutError::Disconnected) => {
                let how =
                    pipe.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
                let sent = sent.err().map_or_else(String::new, |error| format!(": {error}"));
                fail(&self.words, format!("ended ({how}) without an answer to {what:?}{sent}"))
            }
        };
        serde_json::from_str(&answer).unwrap_or_else(|error| {
            fail(&self.words, format!("answered {what:?} with {answer}: {error}"))
        })
    }

    /// Jobs that may be stopped now.
    fn checked(&self, turn: &Turn, stops: Vec<JobId>) -> Vec<JobId> {
        let may_stop = |id: &JobId| {
            turn.state.running.contains(id) && turn.state.job(*id).job.terms.preemptible
        };
        if let Some(id) = stops.iter().find(|id| !may_stop(id)) {
            fail(&self.words, format!("stops job {id}, which does not run or may not be stopped"));
        }
        stops.into_iter().collect::<BTreeSet<JobId>>().into_iter().collect()
    }
}

/// What a program is told of a job.
fn job(state: &State, id: JobId) -> Value {
    let (job, now) = (state.job(id), state.now);
    let place = job.run().map(|run| run.placement.tier.level());
    json!({
        "id": id, "name": job.job.name, "user": job.job.user, "model": job.job.profile.name,
        "gpus": job.gpus(), "gpu_type": job.job.gpu_type, "submit_s": job.job.submit_s,
        "waited_s": if state.line.contains(id) { now - job.since_s } else { 0.0 },
        "held_s": job.held_at(now), "starts": job.starts, "left_s": state.forecast.left_s(job, now),
        "best": job.best.level(), "level": place,
    })
}

impl Policy for Program {
    fn claim(&self, state: &State, id: JobId) -> Claim {
        let question = json!({ "now": state.now, "job": job(state, id) });
        let Claimed { claim, class } = self.ask("claim", question);
        Claim { class, value: SortKey(claim) }
    }

    fn answer(&mut self, turn: &mut Turn, id: JobId, offer: Offer) -> Answer {
        let (state, tier, now) = (&turn.state, offer.tier, turn.now());
        let place = best_place(turn, id, offer);
        let machines = place.slots.len();
        let told = json!({ "level": tier.level(), "name": state.cluster.levels[tier.level()], "machines": machines });
        let question = json!({ "now": now, "job": job(state, id), "offer": told });
        match self.ask("answer", question) {
            Answered { take: true, .. } => Answer::Take(place, Why::Turn { tier }),
            Answered { again_s: Some(again_s), .. } => {
                let again_s = now + again_s.max(1.0);
                Answer::HoldOut { until_s: again_s, gives_in_s: again_s }
            }
            Answered { .. } => Answer::Wait,
        }
    }

    fn victims(&mut self, turn: &mut Turn, id: JobId) -> Vec<JobId> {
        let question = json!({ "now": turn.now(), "job": job(&turn.state, id) });
        let Stops { stop, .. } = self.ask("victims", question);
        self.checked(turn, stop)
    }

    fn round(&mut self, turn: &mut Turn) -> bool {
        let Some(round_s) = self.hello.round_s else { return false };
        let is_due = turn.take_due(Timer::Round);
        if is_due {
            let state = &turn.state;
            let all = |ids: &mut dyn Iterator<Item = JobId>| {
                ids.map(|id| job(state, id)).collect::<Vec<_>>()
            };
            let running = all(&mut state.running.iter().copied());
            let waiting = all(&mut state.line.ids());
            let question = json!({ "now": state.now, "running": running, "waiting": waiting });
            let Stops { stop, rank_anew } = self.ask("round", question);
            for id in self.checked(turn, stop) {
                turn.preempt(id, Reason::Priority, Why::Outranked);
            }
            if rank_anew {
                let waiting: Vec<JobId> = turn.state.line.ids().collect();
                turn.rank_anew(self, &waiting);
            }
        }
        if turn.state.unfinished > 0 {
            turn.await_round(round_s);
        }
        is_due
    }

    fn may_stop(&self) -> bool {
        self.hello.may_stop
    }

    fn is_clairvoyant(&self) -> bool {
        self.hello.clairvoyant
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// There is no way back into the simulation, which has no policy any more.
fn fail(words: &str, what: impl Display) -> ! {
    eprintln!("error: {PREFIX}{words}: {what}; see docs/formats/policy-program.md");
    std::process::exit(2)
}
