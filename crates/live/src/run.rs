//! The loop around the driver: when to look, who may run, and what the outside is told.

use std::collections::VecDeque;
use std::fs::{self, File, TryLockError};
use std::io::Write as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use hither_core::Seconds;

use crate::drive::{Driver, Error};
use crate::engine::Engine;
use crate::journal::Said;
use crate::serve::{Answer, Question, Window};
use crate::slurm::unix_s;
use crate::status::{self, Source, Status};

/// Sentences that the page shows.
const LOG_MAX: usize = 200;
/// After an order, the next look comes this soon.
const SOON: Duration = Duration::from_millis(20);
/// While something is asked for and has not come about.
const IN_FLIGHT: Duration = Duration::from_millis(100);
/// For so long after a poke the next look comes as soon: a job that has ended may hold its GPUs for a
/// moment.
const ALERT: Duration = Duration::from_secs(1);
/// While the engine does not answer.
const UNANSWERED: Duration = Duration::from_secs(2);
/// The scheduler is unwell if it has not seen the cluster for so long.
const UNWELL_S: Seconds = 60.0;

/// The state directory's files.
#[derive(Debug, Clone)]
pub struct Home(pub PathBuf);

impl Home {
    pub fn journal(&self) -> PathBuf {
        self.0.join("journal.redb")
    }
    pub fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }
    /// Touched at every look; its content says who releases jobs when, see `release`.
    pub fn heartbeat(&self) -> PathBuf {
        self.0.join("heartbeat")
    }
    pub fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }
}

/// Takes a lock that is given back when the process ends, however it ends. `None`: another has it.
pub fn lock(path: &Path) -> std::io::Result<Option<File>> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The right to decide for a partition of a cluster. No other process of this host has it until this
/// is dropped, however the process ends and whatever its state directory is. `None`: another has it.
pub fn claim(cluster: &str, partition: &str) -> std::io::Result<Option<UnixListener>> {
    let name = format!("hither/{cluster}/{partition}");
    let address = SocketAddr::from_abstract_name(name)?;
    match UnixListener::bind_addr(&address) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error),
    }
}

#[derive(Debug, Clone)]
pub struct Pace {
    /// Between two looks while there are jobs.
    pub busy: Duration,
    /// Between two looks while there is none.
    pub idle: Duration,
}

pub struct Run<E> {
    pub driver: Driver<E>,
    pub home: Home,
    pub acts: bool,
    pub pace: Pace,
    /// What the heartbeat file says.
    pub heartbeat: String,
    pub log: VecDeque<Said>,
    pub looked_s: Option<Seconds>,
}

impl<E: Engine> Run<E> {
    /// Runs until something cannot be mended. `say` gets every sentence.
    pub fn run(&mut self, window: &Window, mut say: impl FnMut(&str)) -> Result<(), Error> {
        let mut trouble: Option<String> = None;
        let mut alert_until = Instant::now();
        loop {
            let next = match self.driver.step(unix_s()) {
                Ok(step) => {
                    if trouble.take().is_some() {
                        say("Slurm answers again");
                    }
                    self.looked_s = Some(unix_s());
                    for said in step.said {
                        let job = if said.job.is_empty() {
                            String::new()
                        } else {
                            format!("job {}: ", said.job)
                        };
                        let text = said
                            .text
                            .strip_prefix(&format!("job {} ", said.job))
                            .unwrap_or(&said.text);
                        say(&format!("{job}{text}"));
                        self.log.push_back(said);
                    }
                    self.log.drain(..self.log.len().saturating_sub(LOG_MAX));
                    let pause = self.pause(!step.orders.is_empty());
                    if Instant::now() < alert_until { pause.min(IN_FLIGHT) } else { pause }
                }
                Err(Error::Engine(error)) if is_bearable(&error) => {
                    self.driver.counters.failures += 1;
                    let message = error.to_string();
                    if trouble.as_ref() != Some(&message) {
                        say(&message);
                    }
                    trouble = Some(message);
                    UNANSWERED
                }
                Err(error) => return Err(error),
            };
            self.beat();
            if self.listen(window, next) {
                alert_until = Instant::now() + ALERT;
            }
        }
    }

    /// How long until the next look.
    fn pause(&self, has_ordered: bool) -> Duration {
        let state = &self.driver.scheduler.state;
        if has_ordered {
            return SOON;
        }
        let pause = match (state.in_flight.is_empty(), state.unfinished > 0) {
            (false, _) => IN_FLIGHT.min(self.pace.busy),
            (true, true) => self.pace.busy,
            (true, false) => self.pace.idle,
        };
        let now = self.driver.now(unix_s());
        let timer = self.driver.next_timer().map(|at_s| (at_s - now).max(0.0));
        timer.map_or(pause, |left_s| pause.min(Duration::from_secs_f64(left_s.min(1e6))))
    }

    /// Answers questions until it is time to look again. Returns whether somebody has poked: then that
    /// time comes sooner, but pokes in a row do not make a look each.
    fn listen(&mut self, window: &Window, pause: Duration) -> bool {
        let begin = Instant::now();
        let (mut until, mut is_poked) = (begin + pause, false);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return is_poked;
            }
            match window.questions.recv_timeout(left) {
                Ok(question) if question.path == "/poke" => {
                    question.answer(Answer::text(200, "looking\n"));
                    (until, is_poked) = (until.min(begin + IN_FLIGHT), true);
                }
                Ok(question) => self.answer(question),
                Err(RecvTimeoutError::Timeout) => return is_poked,
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(pause);
                    return is_poked;
                }
            }
        }
    }

    fn source(&self) -> Source<'_> {
        Source {
            state: &self.driver.scheduler.state,
            places: &self.driver.places,
            racks: &self.driver.racks,
            setup: &self.driver.setup,
            seen: Some(&self.driver.seen),
            acts: self.acts,
        }
    }

    pub fn status(&self) -> Status {
        status::status(self.source(), self.log.iter().cloned().collect(), unix_s())
    }

    fn answer(&self, question: Question) {
        let answer = match question.path.as_str() {
            "/status.json" => Answer::json(&self.status()),
            "/metrics" => {
                let counters = &self.driver.counters;
                Answer::text(200, &status::metrics(self.source(), counters, self.looked_s))
            }
            "/healthz" => match self.looked_s.is_some_and(|at_s| unix_s() < at_s + UNWELL_S) {
                true => Answer::text(200, "ok\n"),
                false => Answer::text(503, "the cluster does not answer\n"),
            },
            path => match path.strip_prefix("/explain/") {
                Some(job) => self.explain(job),
                None => Answer::text(404, "no such page\n"),
            },
        };
        question.answer(answer);
    }

    fn explain(&self, job: &str) -> Answer {
        match crate::explain::explain(
            &self.status(),
            &self.driver.journal,
            Some(&self.driver.seen),
            job,
        ) {
            Ok(Some(explanation)) => Answer::json(&explanation),
            Ok(None) => Answer::text(404, &format!("no job {job} is known\n")),
            Err(error) => Answer::text(500, &format!("{error}\n")),
        }
    }

    /// Shows that the scheduler lives.
    fn beat(&self) {
        if self.acts {
            let written = File::create(self.home.heartbeat())
                .and_then(|mut file| file.write_all(self.heartbeat.as_bytes()));
            // Without it jobs are released too early rather than never.
            let _ = written;
        }
    }
}

/// Whether to go on and look again later.
fn is_bearable(error: &crate::engine::Error) -> bool {
    use crate::engine::Error as E;
    error.passes() || matches!(error, E::NoPartition { .. } | E::NoGpus(_))
}

/// How long ago the scheduler last showed that it lives; `None`: never.
pub fn silence(home: &Home) -> Option<Duration> {
    fs::metadata(home.heartbeat()).and_then(|meta| meta.modified()).ok()?.elapsed().ok()
}
