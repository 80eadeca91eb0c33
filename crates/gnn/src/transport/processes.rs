//! Workers in other processes, reached through channels that carry messages of [`wire`](super::wire).
//!
//! [`Processes`] is the server's end and [`serve`] a worker's. A [`Channel`] may be a socket, a pipe or an MPI
//! rank: it delivers whole messages in order, and an error from it means that the other end is lost.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;

use hither_core::Seconds;

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
}

impl<C: Channel> Processes<C> {
    /// Has every process make the workers of a run ready. `options` must be the text that the processes
    /// find for the seed, and `isa` their instruction set. Each channel comes with the parts behind it.
    pub fn begin(
        channels: impl IntoIterator<Item = (C, Range<usize>)>,
        run: (u64, String),
        isa: &str,
        clock: Box<dyn Fn() -> Seconds + Send>,
    ) -> Result<Self, Error> {
        let process = |(channel, parts)| {
            let facts = ProcessFacts::default();
            let (busy_s, down_bytes, up_bytes, peak_bytes) = (0.0, 0, 0, 0);
            let peers = PeerTraffic::default();
            let report =
                ProcessReport { facts, parts, busy_s, down_bytes, up_bytes, peers, peak_bytes };
            Process { channel, report }
        };
        let processes = channels.into_iter().map(process).collect();
        let mut all = Self { processes, parts: vec![], clock, exposed_s: 0.0 };
        let (seed, options) = run;
        for reply in all.ask_all(&Request::Begin { seed, options }.write())? {
            let process = &mut all.processes[reply.process];
            let expected = process.report.parts.len();
            let Reply::Ready { facts, parts } = reply.reply else {
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

    /// Sends a message to all, and returns what each replies.
    fn ask_all(&mut self, message: &[u8]) -> Result<Vec<Replied>, Error> {
        self.processes.iter_mut().try_for_each(|process| process.send(message))?;
        self.receive_all()
    }

    /// Receives from all, even if one failed: the others have replied, and wait until they are heard.
    fn receive_all(&mut self) -> Result<Vec<Replied>, Error> {
        let receive = |(process, from): (usize, &mut Process<C>)| {
            from.receive().map(|reply| Replied { process, reply })
        };
        let replies: Vec<_> = self.processes.iter_mut().enumerate().map(receive).collect();
        replies.into_iter().collect()
    }

    /// Sends the same request to all, and waits until each has done it.
    fn have_done(&mut self, request: &Request) -> Result<(), Error> {
        for Replied { process, reply } in self.ask_all(&request.write())? {
            if !matches!(reply, Reply::Done) {
                return Err(self.processes[process].lost(&ANOTHER_QUESTION));
            }
        }
        Ok(())
    }
}

/// What a process replied, by its number.
struct Replied {
    process: usize,
    reply: Reply,
}

const ANOTHER_QUESTION: &str = "it answered another question";

impl<C: Channel> Process<C> {
    fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        self.report.down_bytes += message.len() as u64;
        self.channel.send(message).map_err(|error| self.lost(&error))
    }

    fn receive(&mut self) -> Result<Reply, Error> {
        let message = self.channel.receive().map_err(|error| self.lost(&error))?;
        self.report.up_bytes += message.len() as u64;
        match Reply::read(&message) {
            Ok(Reply::Failed(why)) => Err(self.failed(why)),
            Ok(reply) => Ok(reply),
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
        let message = write_order(order);
        self.processes.iter_mut().try_for_each(|process| process.send(&message))?;
        let sent_s = (self.clock)();
        meanwhile();
        let mut slowest_s = (self.clock)() - sent_s;
        let size = |weights: &Weights| (weights.params.len(), weights.stats.len());
        let mut all = vec![];
        for Replied { process, reply } in self.receive_all()? {
            let process = &mut self.processes[process];
            let Reply::Learnt { answers, busy_s } = reply else {
                return Err(process.lost(&ANOTHER_QUESTION));
            };
            let fits = |(answer, part): (&Answer, usize)| {
                answer.part == part && size(&answer.learnt.weights) == size(order.start)
            };
            let parts = process.report.parts.clone();
            if answers.len() != parts.len() || !answers.iter().zip(parts).all(fits) {
                return Err(process.lost(&"its answers are of other parts or another model"));
            }
            process.report.busy_s += busy_s;
            slowest_s = busy_s.max(slowest_s);
            all.extend(answers);
        }
        self.exposed_s = ((self.clock)() - start_s - slowest_s).max(0.0);
        Ok(all)
    }

    fn save(&mut self, folder: &Path, run: &str, round: u32) -> Result<(), Error> {
        let folder = folder.to_string_lossy().into_owned();
        self.have_done(&Request::Save { folder, run: run.into(), round })
    }

    fn restore(&mut self, folder: &Path, run: &str, round: u32) -> Result<(), Error> {
        let folder = folder.to_string_lossy().into_owned();
        self.have_done(&Request::Restore { folder, run: run.into(), round })
    }

    fn exposed_s(&self) -> Seconds {
        self.exposed_s
    }

    fn report(&mut self) -> Result<Vec<ProcessReport>, Error> {
        for Replied { process, reply } in self.ask_all(&Request::Report.write())? {
            let process = &mut self.processes[process];
            let Reply::Report { peak_bytes, peers } = reply else {
                return Err(process.lost(&ANOTHER_QUESTION));
            };
            (process.report.peak_bytes, process.report.peers) = (peak_bytes, peers);
        }
        Ok(self.processes.iter().map(|process| process.report.clone()).collect())
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
        let request = Request::read(&message).map_err(|error| Error::Server(error.to_string()))?;
        let reply = match (request, &mut workers) {
            (Request::Stop, _) => return Ok(()),
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
        channel.send(&reply.write()).map_err(gone)?;
    }
}
