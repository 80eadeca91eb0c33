//! The memory that copies of tables may take, over all models.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hither_data::memory::available_bytes;
use hither_data::output::show_bytes;
use tokio::sync::Notify;

#[derive(Debug)]
pub struct Memory {
    bytes_max: Option<u64>,
    used: AtomicU64,
    given_back: Notify,
    /// Held while tables are copied: one model at a time.
    pub copying: tokio::sync::Mutex<()>,
}

/// Bytes that were taken, given back when dropped.
#[derive(Debug)]
pub struct Share {
    memory: Arc<Memory>,
    bytes: u64,
}

/// Why bytes cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    pub reason: String,
    /// Whether there may be enough once others give theirs back.
    pub may_pass: bool,
}

impl Memory {
    pub fn new(bytes_max: Option<u64>) -> Self {
        let (used, given_back, copying) = Default::default();
        Self { bytes_max, used, given_back, copying }
    }

    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Takes bytes for copies.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Result<Share, Lack> {
        let used = self.used.fetch_add(bytes, Relaxed);
        let share = Share { memory: Arc::clone(self), bytes };
        if let Some(max) = self.bytes_max.filter(|max| used + bytes > *max) {
            let reason = format!(
                "{} of tables do not fit beside {} into --memory-max, {}",
                show_bytes(bytes),
                show_bytes(used),
                show_bytes(max)
            );
            return Err(Lack { reason, may_pass: bytes <= max });
        }
        if let Some(free) = available_bytes().filter(|free| bytes > *free) {
            let reason = format!(
                "{} of tables do not fit into memory, of which {} are free",
                show_bytes(bytes),
                show_bytes(free)
            );
            return Err(Lack { reason, may_pass: bytes <= free + used });
        }
        Ok(share)
    }

    /// Waits until bytes were given back, or for a while: memory may have become free elsewhere.
    pub async fn freed(&self, patience: Duration) {
        let _ = tokio::time::timeout(patience, self.given_back.notified()).await;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Relaxed);
        self.memory.given_back.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_says_whether_waiting_helps() {
        let memory = Arc::new(Memory::new(Some(100)));
        let old = memory.take(70).expect("it fits");
        let lack = memory.take(60).expect_err("not beside the old one");
        assert!(lack.may_pass, "{}", lack.reason);
        let lack = memory.take(101).expect_err("never");
        assert!(!lack.may_pass, "{}", lack.reason);
        drop(old);
        assert!(memory.take(60).is_ok());
        assert_eq!(memory.used(), 0);
    }
}
