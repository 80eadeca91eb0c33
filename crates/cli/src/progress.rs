//! Progress for people: shown only on a terminal, and never with --quiet.

use std::io::Write as _;

use anyhow::Context as _;
#[cfg(feature = "serve")]
use hither_kernels::threads::{Pinning, Threads};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::Common;

const TEMPLATE: &str = "{msg} [{bar:30}] {pos}/{len}  {elapsed} elapsed, {eta} left";

impl Common {
    /// Prints one line about what the command does.
    pub fn say(&self, line: &str) {
        if !self.quiet {
            // A closed standard error has no reader; there is nothing to do about it.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    pub fn bar(&self, steps: u64, message: &'static str) -> ProgressBar {
        if self.quiet {
            return ProgressBar::hidden();
        }
        // indicatif draws on standard error, and on terminals only.
        let style =
            ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(steps).with_style(style).with_message(message);
        bar.enable_steady_tick(std::time::Duration::from_millis(200));
        bar
    }

    /// A sign of life during work that cannot tell how far it is.
    pub fn spinner(&self, message: String) -> ProgressBar {
        if self.quiet {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed} elapsed")
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::new_spinner().with_style(style).with_message(message);
        bar.enable_steady_tick(std::time::Duration::from_millis(200));
        bar
    }

    /// Threads to use: those asked for, or as many as there are cores.
    pub fn thread_count(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or_else(cores, usize::from)
    }

    /// Threads that help the calling one: `count` of them with it, or as many as were asked for.
    #[cfg(feature = "serve")]
    pub fn helpers<S: Default + 'static>(&self, count: usize) -> anyhow::Result<Threads<S>> {
        let count = if count == 0 { self.thread_count() } else { count };
        Threads::new(count.saturating_sub(1), Pinning::Free).context("cannot start threads")
    }

    pub fn pool(&self) -> anyhow::Result<ThreadPool> {
        let threads = self.threads.map_or(0, usize::from);
        ThreadPoolBuilder::new().num_threads(threads).build().context("cannot start threads")
    }
}
