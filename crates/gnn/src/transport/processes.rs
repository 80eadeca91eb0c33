//! Workers in other processes, reached through channels that carry messages of [`wire`](super::wire).
//!
//! [`Processes`] is the server's end and [`serve`] a worker's. A [`Channel`] may be a socket, a pipe or an MPI
//! rank: it delivers whole messages in order, and an error from it means that the other end is lost.

use std::io::{self, Read, Write};
use std::path::Path;

use super::wire::{Reply, Request, write_order};
use super::{Answer, Order, PartFacts, Worker, Workers};
use crate::Error;

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

/// All workers, each behind a channel; the channels are in the order of the parts.
pub struct Processes<C: Channel> {
    channels: Vec<C>,
    parts: Vec<PartFacts>,
}

impl<C: Channel> Processes<C> {
    pub fn new(workers: impl IntoIterator<Item = (C, PartFacts)>) -> Self {
        let (channels, parts) = workers.into_iter().unzip();
        Self { channels, parts }
    }

    fn send(&mut self, part: usize, message: &[u8]) -> Result<(), Error> {
        self.channels[part].send(message).map_err(|error| lost(part, &error))
    }

    fn receive(&mut self, part: usize) -> Result<Reply, Error> {
        let message = self.channels[part].receive().map_err(|error| lost(part, &error))?;
        match Reply::read(&message) {
            Ok(Reply::Failed(why)) => Err(Error::Worker { part, why }),
            Ok(reply) => Ok(reply),
            Err(error) => Err(lost(part, &error)),
        }
    }

    /// Sends the same request to all, and waits until each has done it.
    fn ask_all(&mut self, request: &Request) -> Result<(), Error> {
        let message = request.write();
        (0..self.channels.len()).try_for_each(|part| self.send(part, &message))?;
        (0..self.channels.len()).try_for_each(|part| match self.receive(part)? {
            Reply::Done => Ok(()),
            _ => Err(lost(part, &"it answered another question")),
        })
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
        for part in 0..self.channels.len() {
            self.send(part, &write_order(order, part))?;
        }
        meanwhile();
        let size = |answer: &Answer| {
            let weights = &answer.learnt.weights;
            (weights.params.len(), weights.stats.len())
        };
        let expected = (order.start.params.len(), order.start.stats.len());
        let parts = 0..self.channels.len();
        let answer = |part| match self.receive(part)? {
            Reply::Learnt(answer) if answer.part == part && size(&answer) == expected => Ok(answer),
            _ => Err(lost(part, &"its answer is of another part or model")),
        };
        parts.map(answer).collect()
    }

    fn save(&mut self, folder: &Path, run: &str, round: u32) -> Result<(), Error> {
        let folder = folder.to_string_lossy().into_owned();
        self.ask_all(&Request::Save { folder, run: run.into(), round })
    }

    fn restore(&mut self, folder: &Path, run: &str, round: u32) -> Result<(), Error> {
        let folder = folder.to_string_lossy().into_owned();
        self.ask_all(&Request::Restore { folder, run: run.into(), round })
    }
}

impl<C: Channel> Drop for Processes<C> {
    fn drop(&mut self) {
        for channel in &mut self.channels {
            // A worker that is lost needs no telling.
            let _ = channel.send(&Request::Stop.write());
        }
    }
}

/// Does what the server asks for, until it says that the run has ended.
pub fn serve(worker: &mut Worker, channel: &mut impl Channel) -> Result<(), Error> {
    let gone = |error: io::Error| Error::Server(error.to_string());
    loop {
        let message = channel.receive().map_err(gone)?;
        let request = Request::read(&message).map_err(|error| Error::Server(error.to_string()))?;
        let done = |result: Result<(), Error>| match result {
            Ok(()) => Reply::Done,
            Err(error) => Reply::Failed(error.to_string()),
        };
        let reply = match request {
            Request::Learn { round, steps, probe, start, sums } => {
                if let Err(why) = worker.check(&start) {
                    channel.send(&Reply::Failed(why).write()).map_err(gone)?;
                    continue;
                }
                if let Some(sums) = sums {
                    worker.refresh(sums);
                }
                let order = Order { round, steps, probe, start: &start, sums: None };
                Reply::Learnt(worker.answer(&order))
            }
            Request::Save { folder, run, round } => {
                done(worker.save(Path::new(&folder), &run, round))
            }
            Request::Restore { folder, run, round } => {
                done(worker.restore(Path::new(&folder), &run, round))
            }
            Request::Stop => return Ok(()),
        };
        channel.send(&reply.write()).map_err(gone)?;
    }
}

fn lost(part: usize, why: &impl ToString) -> Error {
    Error::Worker { part, why: format!("it is lost ({})", why.to_string()) }
}
