//! Temporary files and directories. The owner removes them by dropping the guard; a signal that ends
//! the process removes whatever is still there, because destructors do not run then.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io, thread};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// Every temporary path of this process that must not outlive it.
static PATHS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A temporary file or directory. Dropping the guard removes the path.
#[derive(Debug)]
#[must_use]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Registers a path before it is created, so that no moment is left in which a signal could
    /// leave it behind.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        paths().insert(path.clone());
        Self { path }
    }

    /// A directory of this process in the system's place for temporary files. It is not created.
    pub fn in_temp_dir(name: &str) -> Self {
        Self::new(std::env::temp_dir().join(format!("{name}-{}", std::process::id())))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A path that was renamed, or never created, is as good as removed.
        let _ = remove(&self.path);
        paths().remove(&self.path);
    }
}

fn paths() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    PATHS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    }
}

/// Makes SIGINT, SIGTERM and SIGHUP remove all scratch paths before they end the process, but for the
/// signals that the caller handles otherwise. Signals that the parent chose to ignore stay
/// ignored (`nohup`).
pub fn remove_on_signal(handled: &[i32]) -> io::Result<()> {
    let signals = [SIGINT, SIGTERM, SIGHUP].into_iter();
    let signals = signals.filter(|signal| !handled.contains(signal) && !is_ignored(*signal));
    let mut signals = Signals::new(signals)?;
    let wait = move || {
        for signal in signals.forever() {
            // Never released: other threads must not create further paths while the process ends.
            let paths = paths();
            for path in paths.iter() {
                // A directory that another thread is still writing into can fail once.
                let _ = remove(path).or_else(|_| remove(path));
            }
            let _ = emulate_default_handler(signal);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}

fn is_ignored(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with a null new action, sigaction only writes the current one into `action`, which
    // is valid for writes; all-zero bytes are a valid value of this plain C structure.
    let action = unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}
