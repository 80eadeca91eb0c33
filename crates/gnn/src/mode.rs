//! The ways to train that users compare, and what each does. What workers see of the graph is made in
//! `transport/threads.rs` and, over MPI, by the front end.

use crate::named::named;

named! {
    /// A way to train.
    pub enum Mode("mode") {
        /// One machine with the whole graph.
        Single = "single",
        /// Workers learn on their parts; models are averaged.
        PsgdPa = "psgd-pa",
        /// As psgd-pa, and the server corrects the average.
        Llcg = "llcg",
        /// As llcg, but the server corrects the last global model while workers learn, and adds its change to their
        /// average, so that nobody waits for it.
        LlcgStale = "llcg-stale",
        /// Workers sample neighbours from the whole graph and fetch the features of remote ones.
        Ggs = "ggs",
        /// As psgd-pa, and each part stores copies of some nodes around it.
        PsgdSa = "psgd-sa",
        /// The server's steps alone.
        ServerOnly = "server-only",
    }
}

/// What happens in a round of a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Does {
    /// What workers see of the graph; `None` without workers.
    pub workers: Option<Sees>,
    pub corrects: Corrects,
}

/// What a worker sees of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// All of it: there is one worker.
    Whole,
    /// Its part, without the edges that the partition cut.
    Part,
    /// Its part and copies of some remote neighbours.
    PartAndCopies,
    /// All of it, but features of remote nodes must be fetched in every step.
    WholeByFetching,
}

/// When the server takes its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corrects {
    Never,
    /// After averaging, while the workers wait.
    Average,
    /// While the workers learn, from the same model as they.
    Meanwhile,
}

impl Mode {
    pub fn does(self) -> Does {
        let (workers, corrects) = match self {
            Self::Single => (Some(Sees::Whole), Corrects::Never),
            Self::PsgdPa => (Some(Sees::Part), Corrects::Never),
            Self::Llcg => (Some(Sees::Part), Corrects::Average),
            Self::LlcgStale => (Some(Sees::Part), Corrects::Meanwhile),
            Self::Ggs => (Some(Sees::WholeByFetching), Corrects::Never),
            Self::PsgdSa => (Some(Sees::PartAndCopies), Corrects::Never),
            Self::ServerOnly => (None, Corrects::Average),
        };
        Does { workers, corrects }
    }

    /// Whether the graph is cut, and models travel between workers and server.
    pub fn is_distributed(self) -> bool {
        !matches!(self.does().workers, None | Some(Sees::Whole))
    }

    /// Whether the server takes steps of its own.
    pub fn corrects(self) -> bool {
        self.does().corrects != Corrects::Never
    }

    /// Whether the server corrects what workers learnt.
    pub fn corrects_workers(self) -> bool {
        self.corrects() && self.does().workers.is_some()
    }
}
