//! Workers in other processes, reached through channels that carry messages of [`wire`](super::wire).
//!
//! [`Processes`] is the server's end and [`serve`] a worker's. A [`Channel`] may be a socket, a pipe or an MPI
//! rank: it delivers whole messages in order, and an error from it means that the other end is lost. A process
//! that its [`Patience`] leaves out is asked nothing until it has answered what it was asked; that answer comes
//! too late and is discarded, because it was learnt from a model of an earlier round.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use hither_core::Seconds;

use super::gather::{self, Reduction};
use super::patience::{Patience, Pauses, Straggler};
use super::wire::{Reply, Request, write_order};
use super::{Answer, Order, PartFacts, PeerTraffic, ProcessFacts, ProcessReport, Threads, Workers};
use crate::Error;
use crate::model::Weights;

/// Upper bound on a message; a longer one is a mistake of the other end.
const MESSAGE_BYTES_MAX: u64 = 1 << 40;

/// Carries messages to and from one other process.
pub trait Channel: Send {
    fn send(&mut self, message: &[u8]) -> io::Result<()>;
    fn receive(&mut self) -> io::Result<Vec<u8>>;

    /// Begins to send, if the channel can do so without waiting for the other end.
    fn post(&mut self, message: &Arc<[u8]>) -> io::Result<()> {
        self.send(message)
    }

    /// Whether all messages have left.
    fn is_posted(&mut self) -> bool {
        true
    }

    /// A message if there is one; only a channel that cannot tell waits for it.
    fn poll(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.receive().map(Some)
    }

    /// Whether the other end has given a sign of life since the last call.
    fn is_heard(&mut self) -> bool {
        false
    }

    /// Notes that the other end is lost.
    fn give_up(&mut self) {}
}

/// A stream of bytes as a channel: each message follows its length.
pub struct Framed<S>(pub S);

impl<S: Read + Write + Send> Channel for Framed<S> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.0.write_all(&(message.len() as u64).to_le_bytes())?;
        self.0.write_all(message)?;
        self.0.flush()
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut len = [0; 8];
        self.0.read_exact(&mut len)?;
        let len = u64::from_le_bytes(len);
        if len > MESSAGE_BYTES_MAX {
            return Err(io::Error::other(format!("a message of {len} bytes")));
        }
        // Grows with what arrives, whatever length was stated.
        let mut message = vec![];
        let read = (&mut self.0).take(len).read_to_end(&mut message)?;
        if (read as u64) < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(message)
    }
}

/// All workers, in other processes; these are in the order of the parts.
pub struct Processes<C: Channel> {
    processes: Vec<Process<C>>,
    parts: Vec<PartFacts>,
    clock: Box<dyn Fn() -> Seconds + Send>,
    patience: Patience,
    exposed_s: Seconds,
    reduction: Option<Box<dyn Reduction>>,
    /// The average of the last round's models, if there is a reduction.
    reduced: Option<Weights>,
}

/// One of them, seen from the server.
struct Process<C> {
    channel: C,
    report: ProcessReport,
    /// It was asked something and has not replied yet.
    is_busy: bool,
}

impl<C: Channel> Processes<C> {
    /// Has every process make the workers of a run ready. `options` must be the text that the processes
    /// find for the seed, and `isa` their instruction set. Each channel comes with the parts behind it.
    pub fn begin(
        channels: impl IntoIterator<Item = (C, Range<usize>)>,
        run: (u64, String),
        isa: &str,
        clock: Box<dyn Fn() -> Seconds + Send>,
        patience: Patience,
    ) -> Result<Self, Error> {
        let process = |(channel, parts)| {
            let facts = ProcessFacts::default();
            let (busy_s, down_bytes, up_bytes, peak_bytes) = (0.0, 0, 0, None);
            let peers = PeerTraffic::default();
            let report =
                ProcessReport { facts, parts, busy_s, down_bytes, up_bytes, peers, peak_bytes };
            Process { channel, report, is_busy: false }
        };
        let processes = channels.into_iter().map(process).collect();
        let mut all = Self {
            processes,
            parts: vec![],
            clock,
            patience,
            exposed_s: 0.0,
            reduction: None,
            reduced: None,
        };
        let (seed, options) = run;
        for Replied { process, reply } in all.ask_all(&Request::Begin { seed, options })? {
            let process = &mut all.processes[process];
            let expected = process.report.parts.len();
            let Reply::Ready { facts, parts } = reply else {
                return Err(process.lost(&ANOTHER_QUESTION));
            };
            if parts.len() != expected {
                let found = parts.len();
                return Err(process.failed(format!("it has {found} parts, not {expected}")));
            }
            if facts.isa != isa {
                return Err(process.failed(format!(
                    "it computes with {}, the server with {isa}, so that sums would differ; set \
                     HITHER_ISA to the same for all",
                    facts.isa
                )));
            }
            process.report.facts = facts;
            all.parts.extend(parts);
        }
        Ok(all)
    }

    /// Has models added up on the way. No process may be left out then: each must take part in every sum.
    pub fn reduced_by(mut self, reduction: Box<dyn Reduction>) -> Self {
        assert_eq!(self.patience, Patience::default(), "all processes take part");
        self.reduction = Some(reduction);
        self
    }

    /// Takes part in the sum over all models of a round, if there is one.
    fn reduce(&mut self, start: &Weights) -> Result<(), Error> {
        let Some(reduction) = &mut self.reduction else { return Ok(()) };
        // The server has no model of its own to add.
        let none = gather::take_sum(&mut [], &[], start);
        let bytes = size_of_val(&none[..]) as u64;
        let sum = reduction.sum(none).map_err(|error| self.processes[0].lost(&error))?;
        self.processes.iter_mut().for_each(|process| process.report.up_bytes += bytes);
        let train_nodes = self.parts.iter().map(|part| part.train_nodes).sum();
        self.reduced = Some(gather::average(sum, train_nodes, start));
        Ok(())
    }

    /// The processes that have replied to all they were asked. Late replies that have come are discarded.
    fn idle(&mut self) -> Result<Vec<usize>, Error> {
        for process in self.processes.iter_mut().filter(|process| process.is_busy) {
            process.poll()?;
        }
        let numbers = 0..self.processes.len();
        Ok(numbers.filter(|process| !self.processes[*process].is_busy).collect())
    }

    /// Sends a message to some processes.
    fn post(&mut self, asked: &[usize], message: Vec<u8>) -> Result<(), Error> {
        let message: Arc<[u8]> = message.into();
        asked.iter().try_for_each(|process| self.processes[*process].post(&message))
    }

    /// Looks at some processes until `look` has found something at each. Goes on without those that are too
    /// late or lost. The result is in the order of the processes.
    fn wait_for<T>(
        &mut self,
        asked: &[usize],
        straggler: Straggler,
        mut look: impl FnMut(&mut Process<C>) -> Option<T>,
    ) -> Vec<(usize, T)> {
        let start_s = (self.clock)();
        let mut waiting: Vec<(usize, Seconds)> = asked.iter().map(|at| (*at, start_s)).collect();
        let (mut found, mut taken_s, mut pauses) = (vec![], vec![], Pauses::new());
        loop {
            waiting.retain(|(at, _)| match look(&mut self.processes[*at]) {
                None => true,
                Some(result) => {
                    found.push((*at, result));
                    taken_s.push((self.clock)() - start_s);
                    false
                }
            });
            let now_s = (self.clock)();
            if let Some(silent_s) = self.patience.lost.silent_s() {
                for (at, heard_s) in &mut waiting {
                    if self.processes[*at].channel.is_heard() {
                        *heard_s = now_s;
                    }
                }
                waiting.retain(|(_, heard_s)| now_s - heard_s < silent_s);
            }
            let limit_s = straggler.limit_s(asked.len(), &taken_s);
            if waiting.is_empty() || limit_s.is_some_and(|limit_s| now_s - start_s > limit_s) {
                found.sort_by_key(|(at, _)| *at);
                return found;
            }
            pauses.pause();
        }
    }

    /// What some processes reply, if they do. All are heard even if one failed: the others have replied, and
    /// wait until they are heard.
    fn replies(&mut self, asked: &[usize], straggler: Straggler) -> Result<Vec<Replied>, Error> {
        let replies = self.wait_for(asked, straggler, |process| process.poll().transpose());
        let replied = |(process, reply): (usize, Result<Reply, Error>)| {
            reply.map(|reply| Replied { process, reply })
        };
        replies.into_iter().map(replied).collect()
    }

    /// Asks the processes that are not busy, and returns what those reply that are not lost.
    fn ask(&mut self, request: &Request) -> Result<Vec<Replied>, Error> {
        let asked = self.idle()?;
        self.post(&asked, request.write())?;
        self.replies(&asked, Straggler::Wait)
    }

    /// Asks all processes, and returns what each replies.
    fn ask_all(&mut self, request: &Request) -> Result<Vec<Replied>, Error> {
        let replies = self.ask(request)?;
        match self.processes.iter().find(|process| process.is_busy) {
            Some(silent) => Err(silent.lost(&"nothing is heard of it")),
            None => Ok(replies),
        }
    }

    /// Checks that all have done what they were asked.
    fn are_done(&self, replies: &[Replied]) -> Result<(), Error> {
        match replies.iter().find(|replied| !matches!(replied.reply, Reply::Done)) {
            Some(other) => Err(self.processes[other.process].lost(&ANOTHER_QUESTION)),
            None => Ok(()),
        }
    }

    /// The answers of one process, if they are of its parts and this model.
    fn answers(
        &mut self,
        replied: Replied,
        order: &Order,
    ) -> Result<(Vec<Answer>, Seconds), Error> {
        let process = &mut self.processes[replied.process];
        let Reply::Learnt { answers, busy_s } = replied.reply else {
            return Err(process.lost(&ANOTHER_QUESTION));
        };
        let Weights { params, stats } = order.start;
        let is_reduced = self.reduction.is_some();
        let fits = |(answer, part): (&Answer, usize)| {
            let own = &answer.learnt.weights;
            let has_model = match &answer.change {
                _ if is_reduced => own.params.is_empty() && own.stats.is_empty(),
                Some(change) => change.fits(params.len()) && own.stats.len() == stats.len(),
                None => own.params.len() == params.len() && own.stats.len() == stats.len(),
            };
            answer.part == part && has_model
        };
        let parts = process.report.parts.clone();
        if answers.len() != parts.len() || !answers.iter().zip(parts).all(fits) {
            return Err(process.lost(&"its answers are of other parts or another model"));
        }
        process.report.busy_s += busy_s;
        Ok((answers, busy_s))
    }
}

/// What a process replied, by its number.
struct Replied {
    process: usize,
    reply: Reply,
}

const ANOTHER_QUESTION: &str = "it answered another question";

impl<C: Channel> Process<C> {
    fn post(&mut self, message: &Arc<[u8]>) -> Result<(), Error> {
        self.report.down_bytes += message.len() as u64;
        self.channel.post(message).map_err(|error| self.lost(&error))?;
        self.is_busy = true;
        Ok(())
    }

    /// Its reply, if it has come.
    fn poll(&mut self) -> Result<Option<Reply>, Error> {
        let message = self.channel.poll().map_err(|error| self.lost(&error))?;
        let Some(message) = message else { return Ok(None) };
        self.is_busy = false;
        self.report.up_bytes += message.len() as u64;
        match Reply::read(&message) {
            Ok(Reply::Failed(why)) => Err(self.failed(why)),
            Ok(reply) => Ok(Some(reply)),
            Err(error) => Err(self.lost(&error)),
        }
    }

    fn failed(&self, why: String) -> Error {
        Error::Worker { part: self.report.parts.start, why }
    }

    fn lost(&self, why: &impl ToString) -> Error {
        self.failed(format!(
            "it is lost ({}); start the same command with --resume to go on from the last checkpoint",
            why.to_string()
        ))
    }
}

impl<C: Channel> Workers for Processes<C> {
    fn parts(&self) -> &[PartFacts] {
        &self.parts
    }

    fn round(
        &mut self,
        order: &Order,
        meanwhile: &mut (dyn FnMut() + Send),
    ) -> Result<Vec<Answer>, Error> {
        let start_s = (self.clock)();
        let straggler = self.patience.straggler;
        let mut asked = self.idle()?;
        if asked.is_empty() {
            // All were late in earlier rounds: half of them are worth waiting for.
            let all: Vec<usize> = (0..self.processes.len()).collect();
            self.replies(&all, straggler)?;
            asked = self.idle()?;
        }
        self.post(&asked, write_order(order))?;
        self.wait_for(&asked, straggler, |process| process.channel.is_posted().then_some(()));
        let sent_s = (self.clock)();
        meanwhile();
        let mut slowest_s = (self.clock)() - sent_s;
        let replies = self.replies(&asked, straggler);
        // Also after an error: the others wait for all to take part.
        self.reduce(order.start)?;
        let mut all = vec![];
        for replied in replies? {
            let (answers, busy_s) = self.answers(replied, order)?;
            slowest_s = busy_s.max(slowest_s);
            all.extend(answers);
        }
        if let (true, Some(process)) = (all.is_empty(), self.processes.first()) {
            return Err(process.lost(&"no worker answers any more"));
        }
        self.exposed_s = ((self.clock)() - start_s - slowest_s).max(0.0);
        Ok(all)
    }

    fn reduced(&mut self) -> Option<Weights> {
        self.reduced.take()
    }

    fn save(&mut self, folder: &Path, run: &str, round: u32) -> Result<Vec<usize>, Error> {
        let folder = folder.to_string_lossy().into_owned();
        let replies = self.ask(&Request::Save { folder, run: run.into(), round })?;
        self.are_done(&replies)?;
        let absent = self.processes.iter().filter(|process| process.is_busy);
        Ok(absent.flat_map(|process| process.report.parts.clone()).collect())
    }

    fn restore(
        &mut self,
        folder: &Path,
        run: &str,
        round: u32,
        absent: &[usize],
    ) -> Result<(), Error> {
        let folder = folder.to_string_lossy().into_owned();
        let absent = absent.iter().map(|part| *part as u32).collect();
        let replies = self.ask_all(&Request::Restore { folder, run: run.into(), round, absent })?;
        self.are_done(&replies)
    }

    fn exposed_s(&self) -> Seconds {
        self.exposed_s
    }

    fn report(&mut self) -> Result<Vec<ProcessReport>, Error> {
        for Replied { process, reply } in self.ask(&Request::Report)? {
            let process = &mut self.processes[process];
            let Reply::Report { peak_bytes, peers } = reply else {
                return Err(process.lost(&ANOTHER_QUESTION));
            };
            (process.report.peak_bytes, process.report.peers) = (Some(peak_bytes), peers);
        }
        Ok(self.processes.iter().map(|process| process.report.clone()).collect())
    }
}

impl<C: Channel> Drop for Processes<C> {
    /// Waits for what late processes still have to say: the next run, or the end, needs their attention.
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let numbers = 0..self.processes.len();
        let late: Vec<usize> = numbers.filter(|at| self.processes[*at].is_busy).collect();
        let _discarded =
            self.wait_for(&late, Straggler::Wait, |process| process.poll().transpose());
        let lost = self.processes.iter_mut().filter(|process| process.is_busy);
        lost.for_each(|process| process.channel.give_up());
    }
}

/// What the process of some workers knows and makes.
pub trait Home {
    /// The workers of a run, if the server's `options` are the ones of this process.
    fn workers(&mut self, seed: u64, options: &str) -> Result<Threads, Error>;

    fn facts(&self) -> ProcessFacts;

    /// Seconds since some moment.
    fn now_s(&self) -> Seconds;

    /// The most memory that this process has had so far.
    fn peak_bytes(&self) -> u64;

    /// By what models are added up on the way; `None`: each is sent to the server.
    fn reduction(&mut self) -> Option<Box<dyn Reduction>> {
        None
    }

    /// What its workers exchanged with those of other processes.
    fn peers(&self) -> PeerTraffic {
        PeerTraffic::default()
    }
}

/// Does what the server asks for, until it says that all runs have ended. Returns whether all processes are there
/// to end together.
pub fn serve(home: &mut dyn Home, channel: &mut impl Channel) -> Result<bool, Error> {
    let gone = |error: io::Error| Error::Server(error.to_string());
    let mut workers: Option<Threads> = None;
    let mut reduction = home.reduction();
    loop {
        let message = channel.receive().map_err(gone)?;
        let request = Request::read(&message).map_err(|error| Error::Server(error.to_string()))?;
        let mut sum = None;
        let reply = match (request, &mut workers) {
            (Request::Stop { is_whole }, _) => return Ok(is_whole),
            (Request::Report, _) => {
                Ok(Reply::Report { peak_bytes: home.peak_bytes(), peers: home.peers() })
            }
            (Request::Begin { seed, options }, workers) => {
                // The last run's make room first.
                *workers = None;
                home.workers(seed, &options).map(|made| {
                    let parts = workers.insert(made).parts().to_vec();
                    Reply::Ready { facts: home.facts(), parts }
                })
            }
            (_, None) => Err(Error::Server("it asked before it began a run".into())),
            (Request::Learn { round, steps, probe, start }, Some(workers)) => {
                let (start_s, waited_s) = (home.now_s(), home.peers().waited_s);
                let order = Order { round, steps, probe, start: &start, sums: None };
                let mut answers =
                    workers.check(&start).and_then(|()| workers.round(&order, &mut || {}));
                if reduction.is_some() {
                    // Also without an answer: the others wait for all to take part.
                    let own = answers.as_deref_mut().unwrap_or_default();
                    sum = Some(gather::take_sum(own, workers.parts(), &start));
                }
                let at_once = workers.parts().len().min(rayon::current_num_threads()).max(1);
                let waited_s = (home.peers().waited_s - waited_s) / at_once as f64;
                let busy_s = (home.now_s() - start_s - waited_s).max(0.0);
                answers.map(|answers| Reply::Learnt { answers, busy_s })
            }
            (Request::Save { folder, run, round }, Some(workers)) => {
                workers.save(Path::new(&folder), &run, round).map(|_| Reply::Done)
            }
            (Request::Restore { folder, run, round, absent }, Some(workers)) => {
                let absent: Vec<usize> = absent.into_iter().map(|part| part as usize).collect();
                workers.restore(Path::new(&folder), &run, round, &absent).map(|()| Reply::Done)
            }
        };
        let reply = reply.unwrap_or_else(|error| Reply::Failed(error.to_string()));
        channel.send(&reply.write()).map_err(gone)?;
        if let (Some(reduction), Some(sum)) = (&mut reduction, sum) {
            reduction.sum(sum).map_err(gone)?;
        }
    }
}
