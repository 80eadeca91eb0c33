//! SIGTERM ends a run after the round that it is in, with a checkpoint: what a cluster manager sends some
//! time before it takes the machine away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use anyhow::Context as _;
use signal_hook::consts::{SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::Common;

/// Whether the run is to stop. Clones share the answer.
#[derive(Clone, Default)]
pub struct StopRequest(Arc<Shared>);

#[derive(Default)]
struct Shared {
    is_asked: AtomicBool,
    /// The last round that a checkpoint holds; 0 if there is none.
    saved_round: AtomicU32,
}

/// The run stopped because it was asked to.
#[derive(Debug, thiserror::Error)]
#[error(
    "stopped as asked after round {0}, of which a checkpoint was written; start the same command with --resume \
     to go on"
)]
pub struct Stopped(pub u32);

impl Stopped {
    /// What shells say of a program that SIGTERM ended.
    pub const STATUS: u8 = 128 + SIGTERM as u8;
}

impl StopRequest {
    /// From now on SIGTERM and SIGUSR1 do not end this process, but ask for a stop.
    pub fn on_signal(common: &Common) -> anyhow::Result<Self> {
        let request = Self::default();
        let mut signals = Signals::new([SIGTERM, SIGUSR1]).context("cannot handle signals")?;
        let (shared, quiet) = (request.0.clone(), common.quiet);
        let wait = move || {
            for _ in signals.forever() {
                if shared.is_asked.swap(true, Ordering::SeqCst) {
                    continue;
                }
                // A launcher also sends SIGTERM when another rank was lost; no round ends then.
                let saved = shared.saved_round.load(Ordering::SeqCst);
                let after = match saved {
                    0 => "begins anew".to_owned(),
                    round => format!("goes on after round {round}"),
                };
                Common { quiet, threads: None }.say(&format!(
                    "asked to stop: a checkpoint follows at the end of this round; if the job is ended before \
                     that, --resume {after}"
                ));
            }
        };
        thread::Builder::new().name("stop".into()).spawn(wait).context("cannot start a thread")?;
        Ok(request)
    }

    pub fn is_asked(&self) -> bool {
        self.0.is_asked.load(Ordering::SeqCst)
    }

    pub fn note_saved(&self, round: u32) {
        self.0.saved_round.store(round, Ordering::SeqCst);
    }
}
