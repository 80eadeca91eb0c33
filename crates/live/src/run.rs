//! The loop around the driver: when to look, who may run, and what the outside is told.

use std::collections::VecDeque;
use std::fs::{self, File, TryLockError};
use std::io::Write as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hither_core::Seconds;

use crate::drive::{Driver, Error};
use crate::engine::Engine;
use crate::explain::{self, Look};
use crate::journal::Said;
use crate::serve::{Answer, Question, Window};
use crate::status::{self, Source, Status};

/// Sentences that the page shows.
const LOG_MAX: usize = 200;
/// After an order, the next look comes this soon.
const SOON: Duration = Duration::from_millis(20);
/// In the first second after an order or a poke, when it is likely to come about.
const IN_FLIGHT: Duration = Duration::from_millis(100);
/// For so long after an order or a poke looks are frequent. Then the engine has what it can do, and asking it more
/// often would only cost it.
const ALERT: Duration = Duration::from_secs(1);
/// A clock that was set by more than this does not move the scheduler's time.
const CLOCK_JUMP_S: Seconds = 3600.0;
/// While the engine does not answer.
const UNANSWERED: Duration = Duration::from_secs(2);

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
        let mut clock = (unix_s(), Instant::now());
        loop {
            let (before_s, then) = std::mem::replace(&mut clock, (unix_s(), Instant::now()));
            let jump_s = clock.0 - before_s - then.elapsed().as_secs_f64();
            if jump_s.abs() > CLOCK_JUMP_S {
                say(&format!(
                    "the clock was set by {jump_s:.0} s: the scheduler's time goes on as it was"
                ));
                self.driver.shift_clock(clock.0, jump_s)?;
            }
            let next = match self.driver.step(unix_s()) {
                Ok(step) => {
                    if trouble.take().is_some() {
                        say(&format!("{} answers again", self.driver.engine.name()));
                    }
                    self.looked_s = Some(unix_s());
                    window.has_looked();
                    for said in step.said {
                        match said.job.is_empty() {
                            true => say(&said.text),
                            false => say(&format!("job {}: {}", said.job, said.text)),
                        }
                        self.log.push_back(said);
                    }
                    self.log.drain(..self.log.len().saturating_sub(LOG_MAX));
                    if !step.orders.is_empty() {
                        alert_until = Instant::now() + ALERT;
                    }
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
        let pause = if state.unfinished > 0 { self.pace.busy } else { self.pace.idle };
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
            bars: Some(&self.driver.memory.bars),
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
            path => match path.strip_prefix("/explain/") {
                Some(job) => self.explain(job),
                None => Answer::text(404, "no such page\n"),
            },
        };
        question.answer(answer);
    }

    fn explain(&self, job: &str) -> Answer {
        let look = Look {
            engine: self.driver.engine.name(),
            seen: &self.driver.seen,
            bars: &self.driver.memory.bars,
        };
        match explain::explain(&self.status(), &self.driver.journal, Some(look), job) {
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
    matches!(error, E::Passing(_) | E::Missing(_) | E::Topology(_))
}

/// How long ago the scheduler last showed that it lives; `None`: never. A sign from the future is a sign.
pub fn silence(home: &Home) -> Option<Duration> {
    let modified = fs::metadata(home.heartbeat()).and_then(|meta| meta.modified()).ok()?;
    Some(modified.elapsed().unwrap_or_default())
}

/// Unix time.
pub fn unix_s() -> Seconds {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_from_the_future_is_a_sign() {
        let dir = tempfile::tempdir().expect("a folder");
        let home = Home(dir.path().into());
        assert_eq!(silence(&home), None);
        let file = File::create(home.heartbeat()).expect("a file");
        file.set_modified(SystemTime::now() + Duration::from_secs(3600)).expect("a time");
        assert_eq!(silence(&home), Some(Duration::ZERO));
    }
}
