//! Ranks of an MPI job as processes of a run: rank 0 is the server, the others hold parts.
//!
//! Messages go point to point, in the order of the ranks, so that the model has the same bytes as in one process.
//! Without the feature `mpi` only [`Launch`] is here. No call waits inside MPI, so that other threads can use it
//! meanwhile.

use std::env;
use std::ops::Range;

use crate::Error;

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
    /// `None` if this process was started alone. An error if a launcher started several that this program cannot join:
    /// each would train by itself, and write to the same files.
    pub fn from_env() -> Result<Option<Self>, Error> {
        let var = |name: &str| env::var(name).ok();
        let launch = Self::from_vars(var);
        if launch.is_none() && Self::is_foreign(var) {
            return Err(Error::Settings(
                "the launcher of another MPI library started several copies (PMI_SIZE is set); hither joins jobs of \
                 Open MPI's mpirun and of srun --mpi=pmix"
                    .into(),
            ));
        }
        Ok(launch)
    }

    /// Whether the launcher of MPICH or Intel MPI started several processes.
    fn is_foreign(var: impl Fn(&str) -> Option<String>) -> bool {
        var("PMI_SIZE").and_then(|size| size.parse::<usize>().ok()).is_some_and(|size| size > 1)
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

#[cfg(feature = "mpi")]
pub use exchange::RowExchange;
#[cfg(feature = "mpi")]
pub use present::{Rank, World};

#[cfg(feature = "mpi")]
mod exchange;

#[cfg(feature = "mpi")]
mod present {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::{io, mem, thread};

    use mpi::Threading;
    use mpi::environment::{self, Universe};
    use mpi::topology::SimpleCommunicator;
    use mpi::traits::*;

    use super::RowExchange;
    use crate::Error;
    use crate::fetch::HeldRows;
    use crate::transport::Channel;
    use crate::transport::pauses::Pauses;
    use crate::transport::pending::Pending;

    /// Bytes per call: MPI counts in 32 bits, with a sign.
    const PIECE_BYTES: usize = 1 << 30;
    /// Messages, each after its length.
    const MESSAGE: i32 = 0;

    /// MPI takes calls of several threads, but only one at a time.
    fn library() -> MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        ONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The MPI job. It ends for this rank when this is dropped, which waits for all others.
    pub struct World {
        universe: Option<Universe>,
        ranks: usize,
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
            Ok(Self { universe: Some(universe), ranks, threading })
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
            Rank { rank: rank as i32, outbox: VecDeque::new(), inbox: None }
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
        }
    }

    /// Another rank of the job. Use it as long as the [`World`] lives.
    pub struct Rank {
        rank: i32,
        /// Pieces that are on their way.
        outbox: VecDeque<Pending<Arc<[u8]>>>,
        inbox: Option<Inbox>,
    }

    /// A message that arrives.
    struct Inbox {
        message: Vec<u8>,
        len: usize,
        piece: Option<Pending<Vec<u8>>>,
    }

    impl Rank {
        /// Looks until something is found.
        fn wait_for<T>(
            &mut self,
            mut look: impl FnMut(&mut Self) -> io::Result<Option<T>>,
        ) -> io::Result<T> {
            let mut pauses = Pauses::new();
            loop {
                if let Some(found) = look(self)? {
                    return Ok(found);
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
    fn ranks_of_another_library_are_not_taken_for_lone_processes() {
        let is_foreign =
            |size: &str| Launch::is_foreign(|name| (name == "PMI_SIZE").then(|| size.to_owned()));
        assert_eq!(["1", "4", "?"].map(is_foreign), [false, true, false]);
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
