//! Rows of features between ranks: a thread of each rank answers requests from the rows that its rank holds,
//! and brings the answers to its own.
//!
//! Messages are lists of 32-bit words and nothing else. An answer needs no name: MPI keeps the order of messages
//! between two ranks, and every rank answers in the order in which it was asked. The server takes no part, so
//! these messages never meet those of a [`Channel`](crate::transport::Channel).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mpi::point_to_point::{Message, Status};
use mpi::request;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;

use crate::fetch::{Carrier, HeldRows};
use crate::transport::PeerTraffic;

const REQUEST: i32 = 1;
const ANSWER: i32 = 2;
/// Longest pause between two looks for messages: others wait for the answers, so it is shorter than that of
/// a channel.
const PAUSE_MAX: Duration = Duration::from_micros(200);
const PAUSE_MIN: Duration = Duration::from_micros(10);

/// The thread that exchanges rows with other ranks. It ends when this and all carriers are dropped; the
/// [`World`](super::World) must live longer.
pub struct RowExchange {
    // Dropped before the thread is waited for, which ends without it.
    asks: Sender<Ask>,
    _thread: Joined,
    counts: Arc<Counts>,
}

/// A thread that is waited for when this is dropped.
struct Joined(Option<JoinHandle<()>>);

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // If it has panicked, a worker that waits for rows has ended the job.
            let _ = thread.join();
        }
    }
}

/// A request of one of this rank's workers.
struct Ask {
    rank: usize,
    nodes: Vec<u32>,
    /// Where its answer goes.
    answer: Sender<Vec<u32>>,
}

/// What a thread and its carriers have counted.
#[derive(Default)]
struct Counts {
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    waited_ns: AtomicU64,
}

impl RowExchange {
    pub(super) fn start(held: Arc<HeldRows>, ranks: usize) -> Self {
        let counts = Arc::new(Counts::default());
        let (asks, asked) = channel();
        let post = PostOffice {
            held,
            asked,
            outbox: VecDeque::new(),
            unanswered: (0..ranks).map(|_| VecDeque::new()).collect(),
            counts: counts.clone(),
        };
        let thread = thread::spawn(move || post.run());
        Self { asks, _thread: Joined(Some(thread)), counts }
    }

    /// For one worker of this rank. Its holders are ranks.
    pub fn carrier(&self) -> Box<dyn Carrier> {
        let (asks, counts) = (self.asks.clone(), self.counts.clone());
        Box::new(RankCarrier { asks, answers: vec![], counts })
    }

    pub fn traffic(&self) -> PeerTraffic {
        PeerTraffic {
            received_bytes: self.counts.received_bytes.load(Relaxed),
            sent_bytes: self.counts.sent_bytes.load(Relaxed),
            waited_s: Duration::from_nanos(self.counts.waited_ns.load(Relaxed)).as_secs_f64(),
        }
    }
}

struct RankCarrier {
    asks: Sender<Ask>,
    /// By rank, oldest first.
    answers: Vec<VecDeque<Receiver<Vec<u32>>>>,
    counts: Arc<Counts>,
}

impl Carrier for RankCarrier {
    fn ask(&mut self, rank: usize, nodes: Vec<u32>) {
        let (answer, receiver) = channel();
        if self.answers.len() <= rank {
            self.answers.resize_with(rank + 1, VecDeque::new);
        }
        self.answers[rank].push_back(receiver);
        // If the thread is gone, waiting for the answer finds it out.
        let _ = self.asks.send(Ask { rank, nodes, answer });
    }

    fn answer(&mut self, rank: usize) -> Vec<u32> {
        let start = Instant::now();
        let receiver = self.answers.get_mut(rank).and_then(VecDeque::pop_front);
        let answer = receiver.and_then(|receiver| receiver.recv().ok());
        self.counts.waited_ns.fetch_add(start.elapsed().as_nanos() as u64, Relaxed);
        answer.unwrap_or_else(|| SimpleCommunicator::world().abort(2))
    }
}

/// All that the thread of an exchange has.
struct PostOffice {
    held: Arc<HeldRows>,
    asked: Receiver<Ask>,
    outbox: VecDeque<Letter>,
    /// By rank: where the answers to its requests go, oldest first.
    unanswered: Vec<VecDeque<Sender<Vec<u32>>>>,
    counts: Arc<Counts>,
}

struct Letter {
    rank: usize,
    tag: i32,
    words: Vec<u32>,
}

impl PostOffice {
    fn run(mut self) {
        let mut pause = PAUSE_MIN;
        loop {
            if self.receive() | self.send() {
                pause = PAUSE_MIN;
            }
            match self.asked.recv_timeout(pause) {
                Ok(ask) => self.take(ask),
                Err(RecvTimeoutError::Timeout) => pause = (2 * pause).min(PAUSE_MAX),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, Ask { rank, nodes, answer }: Ask) {
        self.unanswered[rank].push_back(answer);
        self.outbox.push_back(Letter { rank, tag: REQUEST, words: nodes });
    }

    /// Sends all letters, one after another. Others may be sending to this rank at the same time, so it
    /// keeps receiving until each letter has left: two ranks that only sent would wait for each other.
    fn send(&mut self) -> bool {
        let mut has_sent = false;
        while let Some(letter) = self.outbox.pop_front() {
            has_sent = true;
            self.counts.sent_bytes.fetch_add(4 * letter.words.len() as u64, Relaxed);
            let world = SimpleCommunicator::world();
            let receiver = world.process_at_rank(letter.rank as i32);
            request::scope(|scope| {
                let mut sending =
                    receiver.immediate_send_with_tag(scope, &letter.words[..], letter.tag);
                while let Err(unfinished) = sending.test() {
                    sending = unfinished;
                    if !self.receive() {
                        thread::sleep(PAUSE_MIN);
                    }
                }
            });
        }
        has_sent
    }

    /// Receives all messages that are there. Returns whether there were any.
    fn receive(&mut self) -> bool {
        let world = SimpleCommunicator::world();
        let anyone = world.any_process();
        let mut has_received = false;
        while let Some((message, status)) = anyone.immediate_matched_probe_with_tag(REQUEST) {
            let nodes = self.receive_words(message, &status);
            // All ranks have the same folder, so nobody asks for what another rank holds.
            let answer = self.held.answer(&nodes).unwrap_or_else(|| world.abort(2));
            let rank = status.source_rank() as usize;
            self.outbox.push_back(Letter { rank, tag: ANSWER, words: answer });
            has_received = true;
        }
        while let Some((message, status)) = anyone.immediate_matched_probe_with_tag(ANSWER) {
            let words = self.receive_words(message, &status);
            if let Some(worker) = self.unanswered[status.source_rank() as usize].pop_front() {
                // A worker that failed meanwhile does not wait for it.
                let _ = worker.send(words);
            }
            has_received = true;
        }
        has_received
    }

    /// Waits for the rest of a message without spinning, as MPI would: its sender may need the core.
    fn receive_words(&self, message: Message, status: &Status) -> Vec<u32> {
        let mut words = vec![0; status.count(u32::equivalent_datatype()) as usize];
        request::scope(|scope| {
            let mut receiving = message.immediate_matched_receive_into(scope, &mut words[..]);
            while let Err(unfinished) = receiving.test() {
                receiving = unfinished;
                thread::sleep(PAUSE_MIN);
            }
        });
        self.counts.received_bytes.fetch_add(4 * words.len() as u64, Relaxed);
        words
    }
}
