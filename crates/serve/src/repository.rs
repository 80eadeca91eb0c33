//! The models of a directory: reads their files, and exchanges what serves.
//!
//! `ROOT/MODEL/VERSION/` holds a model as `hither model import` writes it, and perhaps a plan.
//! `ROOT/MODEL/config.toml` says how it is served. A request holds on to the version that it found,
//! so exchanging or unloading one never disturbs requests that have begun. What serves is decided by
//! the [`catalogue`](crate::catalogue).

mod scan;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use hither_kernels::threads::in_background;
use tokio::sync::watch;
use tracing::{info, warn};

pub use self::scan::Layout;
use crate::backend::{Backend, Threads};
pub use crate::catalogue::IndexEntry;
use crate::catalogue::{Catalogue, Loaded};
use crate::config::ModelConfig;
use crate::error::Error;
use crate::memory::Memory;
use crate::served::Served;
use crate::{golden, settle};

/// Makes the backend of a version: its model's name, its directory, its configuration.
pub type LoadBackend =
    Box<dyn Fn(&str, &Path, &ModelConfig) -> Result<Box<dyn Backend>, String> + Send + Sync>;

pub struct Repository {
    layout: Layout,
    load_backend: LoadBackend,
    catalogue: RwLock<Catalogue<Served>>,
    /// Held while models are loaded or unloaded: changes come one after the other.
    changing: tokio::sync::Mutex<()>,
    /// Changes whenever another version serves or stops serving.
    changes: watch::Sender<u64>,
    threads: Arc<Threads>,
    memory: Arc<Memory>,
}

/// How often a replaced version is looked at until nobody uses it.
const RETIRE_POLL: Duration = Duration::from_millis(2);

impl Repository {
    pub fn new(
        layout: Layout,
        load_backend: LoadBackend,
        threads: Arc<Threads>,
        memory_bytes_max: Option<u64>,
    ) -> Self {
        Self {
            layout,
            load_backend,
            catalogue: RwLock::default(),
            changing: tokio::sync::Mutex::default(),
            changes: watch::Sender::new(0),
            threads,
            memory: Arc::new(Memory::new(memory_bytes_max)),
        }
    }

    pub fn root(&self) -> &PathBuf {
        self.layout.root()
    }

    /// Tells of every change of what serves.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Bytes of tables that are copied into memory, over all models.
    pub fn copied_bytes(&self) -> u64 {
        self.memory.used()
    }

    fn read(&self) -> RwLockReadGuard<'_, Catalogue<Served>> {
        self.catalogue.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Catalogue<Served>> {
        self.catalogue.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The version that a request names, or the newest.
    pub fn find(&self, model: &str, version: &str) -> Result<Arc<Served>, Error> {
        self.read().find(model, version)
    }

    /// All versions that serve, by name and number.
    pub fn served(&self) -> Vec<Arc<Served>> {
        let all = self.read();
        all.models().flat_map(|(_, entry)| entry.versions.values().cloned()).collect()
    }

    /// The numbers of a model's versions that serve.
    pub fn versions(&self, model: &str) -> Vec<u64> {
        self.read().get(model).map_or(Vec::new(), |entry| entry.versions.keys().copied().collect())
    }

    /// How often each model could not be loaded.
    pub fn load_failures(&self) -> Vec<(String, u64)> {
        self.read().models().map(|(name, entry)| (name.clone(), entry.failures)).collect()
    }

    /// Whether everything that should serve does.
    pub fn is_ready(&self) -> bool {
        self.read().is_ready(Served::is_healthy)
    }

    /// All models of the directory and their states.
    pub fn index(&self, only_ready: bool) -> Vec<IndexEntry> {
        let mut index = self.read().index(only_ready);
        if !only_ready {
            for name in self.layout.models().unwrap_or_default() {
                if self.read().get(&name).is_none() {
                    let (version, reason) = (String::new(), String::new());
                    index.push(IndexEntry { name, version, state: "", reason });
                }
            }
        }
        index
    }

    /// Loads or reloads a model. Requests keep the old versions until the new ones serve.
    pub async fn load(self: &Arc<Self>, model: &str) -> Result<(), Error> {
        let _changing = self.changing.lock().await;
        self.load_now(model, false).await
    }

    /// Where `only_changed`, versions whose files are the same go on as they are.
    async fn load_now(self: &Arc<Self>, model: &str, only_changed: bool) -> Result<(), Error> {
        let (this, name) = (Arc::clone(self), model.to_owned());
        let loaded = tokio::task::spawn_blocking(move || this.read_model(&name, only_changed));
        let loaded = loaded.await.map_err(|_| Error::Internal("loading failed".into()))?;
        let failed = |reason| Err(Error::Load { model: model.into(), reason });
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(reason) => {
                let is_known = self.layout.has(model) || self.read().get(model).is_some();
                if is_known && self.write().failed(model, &reason) {
                    warn!(model, reason, "model not loaded");
                }
                return failed(reason);
            }
        };
        let problem = loaded.versions.values().find_map(|one| one.as_ref().err().cloned());
        if self.find(model, "").is_ok() {
            for served in loaded.versions.values().flatten() {
                settle::copy_ahead(served, &self.memory).await;
            }
        }
        let change = self.write().loaded(model, loaded);
        self.changes.send_modify(|count| *count += 1);
        self.retire(change.retired);
        for served in change.begun {
            info!(model, version = served.version, "model loaded");
            settle::start(&served, &self.memory);
        }
        if let Some(reason) = change.problem {
            warn!(model, reason, "a version could not be loaded; what served goes on");
        }
        problem.map_or(Ok(()), failed)
    }

    /// Reads a model's configuration and loads the versions that it asks for.
    fn read_model(&self, model: &str, only_changed: bool) -> Result<Loaded<Served>, String> {
        let files = self.layout.find(model)?;
        let same = |version: u64, stamp: u64| {
            let found = self.read().get(model)?.versions.get(&version).cloned();
            found.filter(|served| only_changed && served.stamp == stamp)
        };
        let runtime = tokio::runtime::Handle::current();
        let mut versions = BTreeMap::new();
        for (version, files) in &files.versions {
            let load = || {
                let _timers = runtime.enter();
                let backend = (self.load_backend)(model, &files.dir, &files.config)?;
                let (config, threads) = (files.config.clone(), Arc::clone(&self.threads));
                let changes = self.changes.clone();
                let mut served = Served::new(*version, config, backend, threads, changes);
                served.stamp = files.stamp;
                golden::check(&served, &files.dir)?;
                Ok(Arc::new(served))
            };
            // Packing weights must not keep those waiting who are served meanwhile.
            let loaded = same(*version, files.stamp).map_or_else(|| in_background(load), Ok);
            versions.insert(*version, loaded);
        }
        Ok(Loaded { versions })
    }

    /// Stops serving a model; requests that have begun are answered.
    pub async fn unload(&self, model: &str) -> Result<(), Error> {
        let _changing = self.changing.lock().await;
        let Some(retired) = self.write().unload(model) else {
            let reason = format!("failed to unload '{model}': model is not loaded");
            return Err(Error::Malformed(reason.into()));
        };
        self.changes.send_modify(|count| *count += 1);
        self.retire(retired);
        info!(model, "model unloaded");
        Ok(())
    }

    /// Reads the directory for the first time: all that it has should serve.
    pub async fn begin(self: &Arc<Self>) -> Result<Vec<(String, Error)>, String> {
        self.write().expect(self.layout.models()?);
        self.refresh().await
    }

    /// Loads what is new or changed in the directory, and unloads what has gone from it. Returns the
    /// models that could not be loaded, with the reasons.
    pub async fn refresh(self: &Arc<Self>) -> Result<Vec<(String, Error)>, String> {
        let _changing = self.changing.lock().await;
        let names = self.layout.models()?;
        let known: Vec<String> = self.read().models().map(|(name, _)| name.clone()).collect();
        for gone in known.iter().filter(|name| !names.contains(name)) {
            let retired = self.write().forget(gone);
            self.changes.send_modify(|count| *count += 1);
            self.retire(retired);
            info!(model = gone, "model unloaded: its directory has gone");
        }
        let mut failed = Vec::new();
        for name in names {
            if self.read().is_unloaded(&name) {
                continue;
            }
            if let Err(error) = self.load_now(&name, true).await {
                failed.push((name, error));
            }
        }
        Ok(failed)
    }

    /// Frees the memory of versions when their last request is done.
    fn retire(&self, versions: Vec<Arc<Served>>) {
        for served in versions {
            tokio::spawn(async move {
                while Arc::strong_count(&served) > 1 {
                    tokio::time::sleep(RETIRE_POLL).await;
                }
                // Giving back gigabytes takes a while: not on a thread that serves.
                tokio::task::spawn_blocking(move || in_background(|| drop(served)));
            });
        }
    }
}
