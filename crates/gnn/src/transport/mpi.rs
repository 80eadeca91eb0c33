//! Ranks of an MPI job as processes of a run: rank 0 is the server, the others hold parts.
//!
//! Messages go point to point, in the order of the ranks, so that the model has the same bytes as in one process.
//! [`Sum`] is the exception, for those who ask for it: the library adds models up on the way, in an order of its own.
//! Without the feature `mpi` everything here is still there, and [`World::join`] says what is missing. No call waits
//! inside MPI, so that a rank that is slow or gone holds nobody up.

use std::env;
use std::ops::Range;

/// What the launcher (mpirun or srun) says of this process before MPI has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of ranks on this host.
    pub ranks_here: usize,
}

impl Launch {
    /// `None` if this process was started alone.
    pub fn from_env() -> Option<Self> {
        Self::from_vars(|name| env::var(name).ok())
    }

    fn from_vars(var: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| var(name)?.parse::<usize>().ok();
        let open_mpi = || {
            Some(Self {
                rank: number("OMPI_COMM_WORLD_RANK")?,
                ranks: number("OMPI_COMM_WORLD_SIZE")?,
                ranks_here: number("OMPI_COMM_WORLD_LOCAL_SIZE").unwrap_or(1),
            })
        };
        // A batch script has SLURM_NTASKS too; only srun's tasks have a rank, and only with PMIx are
        // they ranks of one job instead of copies.
        let slurm = || {
            var("PMIX_RANK")?;
            Some(Self {
                rank: number("SLURM_PROCID")?,
                ranks: number("SLURM_STEP_NUM_TASKS").or_else(|| number("SLURM_NTASKS"))?,
                ranks_here: first_count(&var("SLURM_STEP_TASKS_PER_NODE").unwrap_or_default()),
            })
        };
        open_mpi().or_else(slurm).filter(|launch| launch.ranks > 1)
    }

    /// The parts that a rank holds: in order, as evenly as possible. The server holds none.
    pub fn parts_of(rank: usize, ranks: usize, parts: usize) -> Range<usize> {
        let workers = ranks.saturating_sub(1).max(1);
        let start = |worker: usize| worker * parts / workers;
        match rank.checked_sub(1) {
            Some(worker) => start(worker)..start(worker + 1),
            None => 0..0,
        }
    }
}

/// The first number of Slurm's `4(x2),3`; 1 if there is none.
fn first_count(tasks_per_node: &str) -> usize {
    let digits = tasks_per_node.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or(1)
}

#[cfg(not(feature = "mpi"))]
pub use absent::{LifeSigns, Rank, RowExchange, Sum, World};
#[cfg(feature = "mpi")]
pub use exchange::RowExchange;
#[cfg(feature = "mpi")]
pub use present::{LifeSigns, Rank, Sum, World};

#[cfg(feature = "mpi")]
mod exchange;

/// What stands here without the feature: callers need no conditions.
#[cfg(not(feature = "mpi"))]
mod absent {
    use std::collections::BTreeSet;
    use std::convert::Infallible;
    use std::io;
    use std::ops::Range;
    use std::sync::Arc;
    use std::time::Duration;

    use crate::Error;
    use crate::fetch::{Carrier, HeldRows};
    use crate::transport::{Channel, PeerTraffic, Reduction};

    /// No MPI job: [`World::join`] never returns one.
    pub struct World(Infallible);

    /// No rank.
    pub struct Rank(Infallible);

    /// No sums.
    pub struct Sum(Infallible);

    /// No rows from other ranks.
    pub struct RowExchange(Infallible);

    impl World {
        pub fn join() -> Result<Self, Error> {
            Err(Error::Settings(
                "this hither was built without MPI, but mpirun or srun started several copies of it; \
                 build it with `cargo build --release --features mpi`, or start one copy"
                    .into(),
            ))
        }

        pub fn ranks(&self) -> usize {
            match self.0 {}
        }

        pub fn host(&self) -> String {
            match self.0 {}
        }

        pub fn channel(&self, _rank: usize) -> Rank {
            match self.0 {}
        }

        pub fn sum(&self, _rank: usize) -> Sum {
            match self.0 {}
        }

        pub fn life_signs(&self, _to: Range<usize>) -> LifeSigns {
            match self.0 {}
        }

        pub fn lost(&self) -> BTreeSet<usize> {
            match self.0 {}
        }

        pub fn leave(self) {
            match self.0 {}
        }

        pub fn exchange(&self, _held: Arc<HeldRows>) -> Result<RowExchange, Error> {
            match self.0 {}
        }
    }

    /// Nobody to tell.
    pub struct LifeSigns(Infallible);

    impl LifeSigns {
        pub fn send(self, _pause: impl FnMut() -> bool) {
            match self.0 {}
        }
    }

    impl Rank {
        pub fn watched(self, _silence_max: Option<Duration>) -> Self {
            match self.0 {}
        }
    }

    impl RowExchange {
        pub fn carrier(&self) -> Box<dyn Carrier> {
            match self.0 {}
        }

        pub fn traffic(&self) -> PeerTraffic {
            match self.0 {}
        }
    }

    impl Reduction for Sum {
        fn sum(&mut self, _own: Vec<f32>) -> io::Result<Vec<f32>> {
            match self.0 {}
        }
    }

    impl Channel for Rank {
        fn send(&mut self, _message: &[u8]) -> io::Result<()> {
            match self.0 {}
        }

        fn receive(&mut self) -> io::Result<Vec<u8>> {
            match self.0 {}
        }
    }
}

#[cfg(feature = "mpi")]
mod present {
    use std::collections::{BTreeSet, VecDeque};
    use std::ops::Range;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};
    use std::{io, mem, thread};

    use mpi::Threading;
    use mpi::environment::{self, Universe};
    use mpi::request::{Request, StaticScope};
    use mpi::topology::SimpleCommunicator;
    use mpi::traits::*;

    use super::RowExchange;
    use crate::Error;
    use crate::fetch::HeldRows;
    use crate::transport::patience::Pauses;
    use crate::transport::pending::Pending;
    use crate::transport::{Channel, Reduction};

    /// Bytes per call: MPI counts in 32 bits, with a sign.
    const PIECE_BYTES: usize = 1 << 30;
    /// Messages, each after its length.
    const MESSAGE: i32 = 0;
    /// Signs of life, which may come between a message's length and its bytes.
    const BEAT: i32 = 70;

    /// MPI takes calls of several threads, but only one at a time.
    fn library() -> MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        unpoisoned(&ONE)
    }

    fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The MPI job. It ends for this rank when this is dropped, which waits for all others.
    pub struct World {
        universe: Option<Universe>,
        ranks: usize,
        /// Ranks that were given up.
        lost: Arc<Mutex<BTreeSet<usize>>>,
        threading: Threading,
    }

    impl World {
        /// Starts MPI; call it once, on the thread that drops the result.
        pub fn join() -> Result<Self, Error> {
            let bad = |problem: &str| Err(Error::Settings(problem.into()));
            let Some((universe, threading)) =
                environment::initialize_with_threading(Threading::Multiple)
            else {
                return bad("MPI has already been started in this process");
            };
            if threading < Threading::Serialized {
                return bad(
                    "this MPI library allows only one thread to send; use one that was built \
                            with MPI_THREAD_SERIALIZED",
                );
            }
            let ranks = universe.world().size() as usize;
            Ok(Self { universe: Some(universe), ranks, lost: Arc::default(), threading })
        }

        /// Number of ranks.
        pub fn ranks(&self) -> usize {
            self.ranks
        }

        pub fn host(&self) -> String {
            environment::processor_name().unwrap_or_default()
        }

        /// Messages to and from another rank.
        pub fn channel(&self, rank: usize) -> Rank {
            let (outbox, inbox) = (VecDeque::new(), None);
            Rank { rank: rank as i32, outbox, inbox, silence_max: None, lost: self.lost.clone() }
        }

        /// Sums over the vectors of all ranks, for the server; this is rank `rank`.
        pub fn sum(&self, rank: usize) -> Sum {
            Sum { is_server: rank == 0 }
        }

        /// Signs of life of this rank for some others.
        pub fn life_signs(&self, to: Range<usize>) -> LifeSigns {
            LifeSigns { to: to.map(|rank| rank as i32).collect() }
        }

        /// Ranks that were given up.
        pub fn lost(&self) -> BTreeSet<usize> {
            unpoisoned(&self.lost).clone()
        }

        /// Ends MPI for this rank without waiting for the others: one of them is lost.
        pub fn leave(mut self) {
            mem::forget(self.universe.take());
        }

        /// Exchanges rows of features with other ranks, on a thread of its own.
        pub fn exchange(&self, held: Arc<HeldRows>) -> Result<RowExchange, Error> {
            if self.threading < Threading::Multiple {
                return Err(Error::Settings(
                    "this MPI library does not allow two threads to send, which --mode ggs needs; use \
                     one that was built with MPI_THREAD_MULTIPLE"
                        .into(),
                ));
            }
            Ok(RowExchange::start(held, self.ranks))
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            if thread::panicking() {
                // The others wait for messages that will not come: ending in order would wait for them.
                SimpleCommunicator::world().abort(2);
            }
            if !self.lost().is_empty() {
                // MPI would wait for the lost rank.
                mem::forget(self.universe.take());
            }
        }
    }

    /// Tells other ranks that this one lives.
    pub struct LifeSigns {
        to: Vec<i32>,
    }

    impl LifeSigns {
        /// Sends a sign after every `pause`, until that says that it was the last. Waits for no other rank: while
        /// the last sign to it is on its way, it is sent no other.
        pub fn send(self, mut pause: impl FnMut() -> bool) {
            static SIGN: [u8; 1] = [0];
            let mut beats: Vec<(i32, Option<Request<'static, [u8]>>)> =
                self.to.into_iter().map(|rank| (rank, None)).collect();
            while pause() {
                let _one = library();
                let world = SimpleCommunicator::world();
                for (rank, beat) in &mut beats {
                    *beat = beat.take().and_then(|beat| beat.test().err());
                    if beat.is_none() {
                        let to = world.process_at_rank(*rank);
                        *beat = Some(to.immediate_send_with_tag(StaticScope, &SIGN[..], BEAT));
                    }
                }
            }
            // The sign lives for ever, so that nobody has to wait for the last ones.
            beats.into_iter().for_each(mem::forget);
        }
    }

    /// Another rank of the job. Use it as long as the [`World`] lives.
    pub struct Rank {
        rank: i32,
        /// Pieces that are on their way.
        outbox: VecDeque<Pending<Arc<[u8]>>>,
        inbox: Option<Inbox>,
        /// Silence after which it is no longer waited for.
        silence_max: Option<Duration>,
        lost: Arc<Mutex<BTreeSet<usize>>>,
    }

    /// Adds vectors up by a reduction of MPI. Use it as long as the [`World`] lives.
    pub struct Sum {
        is_server: bool,
    }

    impl Reduction for Sum {
        fn sum(&mut self, own: Vec<f32>) -> io::Result<Vec<f32>> {
            let mut pending = {
                let _one = library();
                let world = SimpleCommunicator::world();
                Pending::sum(&world.process_at_rank(0), self.is_server, own)
            };
            let mut pauses = Pauses::new();
            loop {
                let one = library();
                if pending.is_done() {
                    return Ok(pending.take());
                }
                drop(one);
                pauses.pause();
            }
        }
    }

    /// A message that arrives.
    struct Inbox {
        message: Vec<u8>,
        len: usize,
        piece: Option<Pending<Vec<u8>>>,
    }

    impl Rank {
        /// Lets sending and receiving fail after so long without a sign of life.
        pub fn watched(self, silence_max: Option<Duration>) -> Self {
            Self { silence_max, ..self }
        }

        /// Looks until something is found, or the other rank is silent for too long.
        fn wait_for<T>(
            &mut self,
            mut look: impl FnMut(&mut Self) -> io::Result<Option<T>>,
        ) -> io::Result<T> {
            let (mut pauses, mut heard) = (Pauses::new(), Instant::now());
            loop {
                if let Some(found) = look(self)? {
                    return Ok(found);
                }
                if let Some(most) = self.silence_max {
                    if self.is_heard() {
                        heard = Instant::now();
                    }
                    if heard.elapsed() > most {
                        let silent_s = most.as_secs_f64();
                        return Err(io::Error::other(format!("it is silent for {silent_s} s")));
                    }
                }
                pauses.pause();
            }
        }
    }

    impl Channel for Rank {
        fn send(&mut self, message: &[u8]) -> io::Result<()> {
            self.post(&message.into())?;
            self.wait_for(|rank| Ok(rank.is_posted().then_some(())))
        }

        fn receive(&mut self) -> io::Result<Vec<u8>> {
            self.wait_for(Self::poll)
        }

        fn post(&mut self, message: &Arc<[u8]>) -> io::Result<()> {
            let _one = library();
            let world = SimpleCommunicator::world();
            let other = world.process_at_rank(self.rank);
            let len = (message.len() as u64).to_le_bytes();
            self.outbox.push_back(Pending::send(&other, &Arc::from(len), 0..len.len(), MESSAGE));
            for start in (0..message.len()).step_by(PIECE_BYTES) {
                let piece = start..(start + PIECE_BYTES).min(message.len());
                self.outbox.push_back(Pending::send(&other, message, piece, MESSAGE));
            }
            Ok(())
        }

        fn is_posted(&mut self) -> bool {
            let _one = library();
            self.outbox.retain_mut(|piece| !piece.is_done());
            self.outbox.is_empty()
        }

        fn poll(&mut self) -> io::Result<Option<Vec<u8>>> {
            let _one = library();
            let world = SimpleCommunicator::world();
            let other = world.process_at_rank(self.rank);
            let mut inbox = match self.inbox.take() {
                Some(inbox) => inbox,
                None if other.immediate_probe_with_tag(MESSAGE).is_none() => return Ok(None),
                None => {
                    let mut len = [0; 8];
                    other.receive_into_with_tag(&mut len[..], MESSAGE);
                    let len = u64::from_le_bytes(len) as usize;
                    Inbox { message: vec![], len, piece: None }
                }
            };
            loop {
                if let Some(piece) = &mut inbox.piece {
                    if !piece.is_done() {
                        self.inbox = Some(inbox);
                        return Ok(None);
                    }
                    let bytes = piece.take();
                    match inbox.message.is_empty() {
                        true => inbox.message = bytes,
                        false => inbox.message.extend(bytes),
                    }
                }
                let left = inbox.len - inbox.message.len();
                if left == 0 {
                    return Ok(Some(inbox.message));
                }
                inbox.piece = Some(Pending::receive(&other, left.min(PIECE_BYTES), MESSAGE));
            }
        }

        fn is_heard(&mut self) -> bool {
            let _one = library();
            let world = SimpleCommunicator::world();
            let other = world.process_at_rank(self.rank);
            let mut is_heard = false;
            while other.immediate_probe_with_tag(BEAT).is_some() {
                other.receive_into_with_tag(&mut [0_u8; 1][..], BEAT);
                is_heard = true;
            }
            is_heard
        }

        fn give_up(&mut self) {
            unpoisoned(&self.lost).insert(self.rank as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(vars: &[(&str, &str)]) -> Option<Launch> {
        let find = |name: &str| vars.iter().find(|(key, _)| *key == name);
        Launch::from_vars(|name| find(name).map(|(_, value)| value.to_string()))
    }

    #[test]
    fn launchers_are_recognised_and_lone_processes_are_not() {
        let open_mpi = [
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "5"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        assert_eq!(launch(&open_mpi), Some(Launch { rank: 3, ranks: 5, ranks_here: 2 }));
        let slurm = [
            ("SLURM_PROCID", "4"),
            ("SLURM_STEP_NUM_TASKS", "9"),
            ("SLURM_STEP_TASKS_PER_NODE", "3(x3)"),
            ("PMIX_RANK", "4"),
        ];
        assert_eq!(launch(&slurm), Some(Launch { rank: 4, ranks: 9, ranks_here: 3 }));
        // Without PMIx, srun starts copies that do not know each other: each is alone.
        assert_eq!(launch(&slurm[..3]), None);
        assert_eq!(launch(&[]), None);
        assert_eq!(launch(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")]), None);
    }

    #[test]
    fn every_part_has_one_rank_and_the_server_none() {
        for (ranks, parts) in [(2, 1), (5, 4), (3, 8), (4, 8), (9, 8)] {
            let held: Vec<usize> =
                (0..ranks).flat_map(|rank| Launch::parts_of(rank, ranks, parts)).collect();
            assert_eq!(held, (0..parts).collect::<Vec<_>>(), "{ranks} ranks");
            assert!(Launch::parts_of(0, ranks, parts).is_empty());
        }
        assert_eq!(Launch::parts_of(1, 3, 8), 0..4);
    }
}
