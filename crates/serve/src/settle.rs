//! What happens to a model's tables after it began to serve: they are copied into memory.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tracing::{info, warn};

use crate::memory::Memory;
use crate::served::Served;

/// How long to wait for memory before looking anew.
const PATIENCE: Duration = Duration::from_secs(5);

/// Begins to settle a version; stops by itself when the version is no longer served.
pub(crate) fn start(served: &Arc<Served>, memory: &Arc<Memory>) {
    let (served, memory) = (Arc::downgrade(served), Arc::clone(memory));
    tokio::spawn(async move { copy(&served, &memory).await });
}

/// Runs work on a version on a thread of its own; `None` if the version has gone.
async fn on<T: Send + 'static>(
    served: &Weak<Served>,
    work: impl FnOnce(&Served) -> T + Send + 'static,
) -> Option<T> {
    let served = served.upgrade()?;
    let work = move || hither_kernels::threads::in_background(|| work(&served));
    tokio::task::spawn_blocking(work).await.ok()
}

/// Copies the tables of a version before it serves, if there is memory for them at once. From its mapped file it
/// would be slower than the version whose place it takes.
pub(crate) async fn copy_ahead(served: &Arc<Served>, memory: &Arc<Memory>) {
    let _turn = memory.copying.lock().await;
    let wanted = served.backend.copy_bytes();
    let share = (wanted > 0).then(|| memory.take(wanted).ok()).flatten();
    if let Some(share) = share {
        // One that fails is told when it is tried again.
        let _ = on(&Arc::downgrade(served), move |one| one.backend.copy(share)).await;
    }
}

/// Copies the tables that are to be copied, as soon as there is memory for them: the version that this
/// one replaces may still hold its own.
async fn copy(served: &Weak<Served>, memory: &Arc<Memory>) {
    let mut told = String::new();
    loop {
        let turn = memory.copying.lock().await;
        let Some(version) = served.upgrade() else { return };
        let (model, number) = (version.name.clone(), version.version);
        let wanted = version.backend.copy_bytes();
        drop(version);
        let share = if wanted == 0 { None } else { Some(memory.take(wanted)) };
        let lack = match share {
            None => None,
            Some(Ok(share)) => {
                if let Some(Err(error)) = on(served, move |one| one.backend.copy(share)).await {
                    warn!(model, version = number, error, "tables stay mapped");
                }
                None
            }
            Some(Err(lack)) => Some(lack),
        };
        if let Some(lack) = lack {
            if lack.reason != told {
                let waits = lack.may_pass;
                warn!(model, version = number, reason = lack.reason, waits, "tables stay mapped");
                told = lack.reason;
            }
            if lack.may_pass {
                drop(turn);
                memory.freed(PATIENCE).await;
                continue;
            }
        }
        if let Some(Err(error)) = on(served, |one| one.backend.tune()).await {
            warn!(model, version = number, error, "no prefetch scheme was chosen");
        }
        if let Some(version) = served.upgrade() {
            version.settled();
            info!(model, version = number, copied_bytes = memory.used(), "tables are in place");
        }
        return;
    }
}
