//! Workers in other processes, reached through channels that carry messages of [`wire`](super::wire).
//!
//! [`Processes`] is the server's end and [`serve`] a worker's. A [`Channel`] may be a socket, a pipe or an MPI
//! rank: it delivers whole messages in order, and an error from it means that the other end is lost. The server
//! waits for every process. The launcher ends the job if one dies; `--resume` then goes on from the last checkpoint.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use hither_core::Seconds;

use super::pauses::Pauses;
use super::wire::{Reply, Request, read, write};
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
    exposed_s: Seconds,
}

/// One of them, seen from the server.
struct Process<C> {
    channel: C,
    report: ProcessReport,
    /// It was asked something and has not replied yet.
    is_busy: bool,
}

impl<C: Channel> Processes<C> {
    /// Has every process make the workers of a run ready. `orders` say which run, and `isa` must be the processes'
    /// instruction set. Each channel comes with the parts behind it.
    pub fn begin(
        channels: impl IntoIterator<Item = (C, Range<usize>)>,
        orders: String,
        isa: &str,
        clock: Box<dyn Fn() -> Seconds + Send>,
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
        let mut all = Self { processes, parts: vec![], clock, exposed_s: 0.0 };
        for Replied { process, reply } in all.ask(&Request::Begin { orders })? {
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

    /// Sends a message to all processes.
    fn post(&mut self, message: Vec<u8>) -> Result<(), Error> {
        let message: Arc<[u8]> = message.into();
        self.processes.iter_mut().try_for_each(|process| process.post(&message))
    }

    /// Looks at the processes, in their order, until `look` has found something at each.
    fn wait_for<T>(&mut self, mut look: impl FnMut(&mut Process<C>) -> Option<T>) -> Vec<T> {
        let mut found: Vec<Option<T>> = self.processes.iter().map(|_| None).collect();
        let mut pauses = Pauses::new();
        loop {
            let waiting = self.processes.iter_mut().zip(&mut found);
            for (process, found) in waiting.filter(|(_, found)| found.is_none()) {
                *found = look(process);
            }
            if found.iter().all(Option::is_some) {
                return found.into_iter().flatten().collect();
            }
            pauses.pause();
        }
    }

    /// What the processes reply. All are heard even if one failed: the others have replied, and wait until
    /// they are heard.
    fn replies(&mut self) -> Result<Vec<Replied>, Error> {
        let replies = self.wait_for(|process| process.poll().transpose());
        let replied = |(process, reply): (usize, Result<Reply, Error>)| {
            reply.map(|reply| Replied { process, reply })
        };
        replies.into_iter().enumerate().map(replied).collect()
    }

    /// Asks all processes, and returns what each replies.
    fn ask(&mut self, request: &Request) -> Result<Vec<Replied>, Error> {
        self.post(write(request))?;
        self.replies()
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
        let fits = |(answer, part): (&Answer, usize)| {
            let own = &answer.learnt.weights;
            let has_model = match &answer.change {
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

const ANOTHER_QUESTION: &str = "it sent an unexpected message; do all ranks run the same hither?";

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
        match read(&message) {
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
        self.post(write(&Request::from(order)))?;
        self.wait_for(|process| process.channel.is_posted().then_some(()));
        let sent_s = (self.clock)();
        meanwhile();
        let mut slowest_s = (self.clock)() - sent_s;
        let replies = self.replies();
        let mut all = vec![];
        for replied in replies? {
            let (answers, busy_s) = self.answers(replied, order)?;
            slowest_s = busy_s.max(slowest_s);
            all.extend(answers);
        }
        self.exposed_s = ((self.clock)() - start_s - slowest_s).max(0.0);
        Ok(all)
    }

    fn save(&mut self, folder: &Path, run: &str, round: u32) -> Result<(), Error> {
        let folder = folder.to_string_lossy().into_owned();
        let replies = self.ask(&Request::Save { folder, run: run.into(), round })?;
        self.are_done(&replies)
    }

    fn restore(&mut self, folder: &Path, run: &str, round: u32) -> Result<(), Error> {
        let folder = folder.to_string_lossy().into_owned();
        let replies = self.ask(&Request::Restore { folder, run: run.into(), round })?;
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
    /// Hears what processes still have to say after an error: the next run, or the end, needs their attention.
    fn drop(&mut self) {
        if !thread::panicking() {
            self.processes.retain(|process| process.is_busy);
            self.wait_for(|process| process.poll().transpose());
        }
    }
}

/// What the process of some workers knows and makes.
pub trait Home {
    /// The workers of a run, as the server's `orders` say.
    fn workers(&mut self, orders: &str) -> Result<Threads, Error>;

    fn facts(&self) -> ProcessFacts;

    /// Seconds since some moment.
    fn now_s(&self) -> Seconds;

    /// The most memory that this process has had so far.
    fn peak_bytes(&self) -> u64;

    /// What its workers exchanged with those of other processes.
    fn peers(&self) -> PeerTraffic {
        PeerTraffic::default()
    }
}

/// Does what the server asks for, until it says that all runs have ended.
pub fn serve(home: &mut dyn Home, channel: &mut impl Channel) -> Result<(), Error> {
    let gone = |error: io::Error| Error::Server(error.to_string());
    let mut workers: Option<Threads> = None;
    loop {
        let message = channel.receive().map_err(gone)?;
        let request = read(&message).map_err(|error| Error::Server(error.to_string()))?;
        let reply = match (request, &mut workers) {
            (Request::Stop, _) => return Ok(()),
            (Request::Report, _) => {
                Ok(Reply::Report { peak_bytes: home.peak_bytes(), peers: home.peers() })
            }
            (Request::Begin { orders }, workers) => {
                // The last run's make room first.
                *workers = None;
                home.workers(&orders).map(|made| {
                    let parts = workers.insert(made).parts().to_vec();
                    Reply::Ready { facts: home.facts(), parts }
                })
            }
            (_, None) => Err(Error::Server("it asked before it began a run".into())),
            (Request::Learn { round, steps, start }, Some(workers)) => {
                let (start_s, waited_s) = (home.now_s(), home.peers().waited_s);
                let order = Order { round, steps, start: &start };
                let answers =
                    workers.check(&start).and_then(|()| workers.round(&order, &mut || {}));
                let at_once = workers.parts().len().min(rayon::current_num_threads()).max(1);
                let waited_s = (home.peers().waited_s - waited_s) / at_once as f64;
                let busy_s = (home.now_s() - start_s - waited_s).max(0.0);
                answers.map(|answers| Reply::Learnt { answers, busy_s })
            }
            (Request::Save { folder, run, round }, Some(workers)) => {
                workers.save(Path::new(&folder), &run, round).map(|()| Reply::Done)
            }
            (Request::Restore { folder, run, round }, Some(workers)) => {
                workers.restore(Path::new(&folder), &run, round).map(|()| Reply::Done)
            }
        };
        let reply = reply.unwrap_or_else(|error| Reply::Failed(error.to_string()));
        channel.send(&write(&reply)).map_err(gone)?;
    }
}
