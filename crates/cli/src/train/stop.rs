//! SIGTERM and Ctrl-C end a run after the round that it is in, with a checkpoint. The first is what a cluster manager
//! sends some time before it takes the machine away.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::thread;

use anyhow::Context as _;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::drive::Place;
use crate::Common;

/// Whether the run is to stop. Clones share the answer.
#[derive(Clone, Default)]
pub struct StopRequest(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// The signal that asked for it; 0 if none did.
    signal: AtomicI32,
    /// The last round that a checkpoint holds; 0 if there is none.
    saved_round: AtomicU32,
}

/// The run stopped because it was asked to.
#[derive(Debug, thiserror::Error)]
#[error(
    "stopped as asked after round {round}, of which a checkpoint was written; start the same command with --resume \
     to go on"
)]
pub struct Stopped {
    pub round: u32,
    pub signal: i32,
}

impl Stopped {
    /// What shells say of a program that the signal ended.
    pub fn status(&self) -> u8 {
        128 + if self.signal == SIGINT { SIGINT as u8 } else { SIGTERM as u8 }
    }
}

impl StopRequest {
    /// Signals ask for a stop where results are kept, and end the process elsewhere.
    pub fn if_kept(place: &Option<Place>, common: &Common) -> anyhow::Result<Self> {
        place.as_ref().map_or_else(|| Ok(Self::default()), |_| Self::on_signal(common))
    }

    /// From now on SIGTERM, SIGUSR1 and Ctrl-C do not end this process, but ask for a stop. A second Ctrl-C ends it.
    pub fn on_signal(common: &Common) -> anyhow::Result<Self> {
        let request = Self::default();
        let mut signals =
            Signals::new([SIGTERM, SIGUSR1, SIGINT]).context("cannot handle signals")?;
        let (shared, quiet) = (request.0.clone(), common.quiet);
        let wait = move || {
            for signal in signals.forever() {
                if shared.signal.swap(signal, Ordering::SeqCst) != 0 {
                    if signal == SIGINT {
                        let _ = emulate_default_handler(SIGINT);
                    }
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

    /// The signal that asked for a stop, if one did.
    pub fn asked(&self) -> Option<i32> {
        Some(self.0.signal.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }

    pub fn note_saved(&self, round: u32) {
        self.0.saved_round.store(round, Ordering::SeqCst);
    }
}
