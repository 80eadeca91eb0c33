//! Ranks of an MPI job as processes of a run: rank 0 is the server, the others hold parts.
//!
//! Only point-to-point messages are used, in the order of the ranks: a reduction of the library adds in
//! an order of its own, and the model would not have the same bytes as in one process. Without the
//! feature `mpi` everything here is still there, and [`World::join`] says what is missing.

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
pub use absent::{Rank, RowExchange, World};
#[cfg(feature = "mpi")]
pub use exchange::RowExchange;
#[cfg(feature = "mpi")]
pub use present::{Rank, World};

#[cfg(feature = "mpi")]
mod exchange;

/// What stands here without the feature: callers need no conditions.
#[cfg(not(feature = "mpi"))]
mod absent {
    use std::convert::Infallible;
    use std::io;
    use std::sync::Arc;

    use crate::Error;
    use crate::fetch::{Carrier, HeldRows};
    use crate::transport::{Channel, PeerTraffic};

    /// No MPI job: [`World::join`] never returns one.
    pub struct World(Infallible);

    /// No rank.
    pub struct Rank(Infallible);

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

        pub fn exchange(&self, _held: Arc<HeldRows>) -> Result<RowExchange, Error> {
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
    use std::sync::Arc;
    use std::time::Duration;
    use std::{io, thread};

    use mpi::Threading;
    use mpi::environment::{self, Universe};
    use mpi::topology::SimpleCommunicator;
    use mpi::traits::*;

    use super::RowExchange;
    use crate::Error;
    use crate::fetch::HeldRows;
    use crate::transport::Channel;

    /// Bytes per call: MPI counts in 32 bits, with a sign.
    const PIECE_BYTES: usize = 1 << 30;
    /// Longest pause between two looks for a message. MPI itself would spin, and take a core from the
    /// ranks that compute.
    const PAUSE_MAX: Duration = Duration::from_millis(1);
    const PAUSE_MIN: Duration = Duration::from_micros(10);

    /// The MPI job. It ends for this rank when this is dropped, which waits for all others.
    pub struct World {
        _universe: Universe,
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
            Ok(Self { _universe: universe, ranks, threading })
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
            Rank { rank: rank as i32 }
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
            // The others wait for messages that will not come: ending in order would wait for them.
            if thread::panicking() {
                SimpleCommunicator::world().abort(2);
            }
        }
    }

    /// Another rank of the job. Use it from one thread at a time, as long as the [`World`] lives.
    pub struct Rank {
        rank: i32,
    }

    impl Channel for Rank {
        fn send(&mut self, message: &[u8]) -> io::Result<()> {
            let world = SimpleCommunicator::world();
            let other = world.process_at_rank(self.rank);
            other.send(&(message.len() as u64));
            message.chunks(PIECE_BYTES).for_each(|piece| other.send(piece));
            Ok(())
        }

        fn receive(&mut self) -> io::Result<Vec<u8>> {
            let world = SimpleCommunicator::world();
            let other = world.process_at_rank(self.rank);
            let mut pause = PAUSE_MIN;
            while other.immediate_probe().is_none() {
                thread::sleep(pause);
                pause = (2 * pause).min(PAUSE_MAX);
            }
            let (len, _) = other.receive::<u64>();
            let mut message = vec![0; len as usize];
            for piece in message.chunks_mut(PIECE_BYTES) {
                other.receive_into(piece);
            }
            Ok(message)
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
