//! The models of a directory: which are served, in which versions, and how they are exchanged.
//!
//! `ROOT/MODEL/VERSION/` holds a model as `hither model import` writes it, and perhaps a plan.
//! `ROOT/MODEL/config.toml` says how it is served. A request holds on to the version that it found,
//! so exchanging or unloading one never disturbs requests that have begun.

mod load;
mod scan;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use hither_dlrm::run::Threads;
use tracing::{info, warn};

pub(crate) use self::load::bytes_where;
pub use self::load::{Budget, Share};
pub use self::scan::Layout;
use crate::backend::Served;
use crate::error::Error;

pub struct Repository {
    layout: Layout,
    entries: RwLock<BTreeMap<String, Entry>>,
    /// Held while models are loaded or unloaded: changes come one after the other.
    changing: tokio::sync::Mutex<()>,
    threads: Arc<Threads>,
    budget: Arc<Budget>,
}

/// What is known of a model.
#[derive(Clone, Default)]
struct Entry {
    versions: BTreeMap<u64, Arc<Served>>,
    /// Why a version is not served; version 0 stands for the whole model.
    reasons: BTreeMap<u64, String>,
    /// Somebody asked for it not to be served.
    is_unloaded: bool,
    /// Sizes and times of the files that were loaded.
    fingerprint: u64,
}

/// A line of the repository's index.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct IndexEntry {
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub state: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// How often a replaced version is looked at until nobody uses it.
const RETIRE_POLL: Duration = Duration::from_millis(2);

impl Repository {
    pub fn new(layout: Layout, threads: Arc<Threads>, memory_bytes_max: Option<u64>) -> Self {
        Self {
            layout,
            entries: RwLock::default(),
            changing: tokio::sync::Mutex::default(),
            threads,
            budget: Arc::new(Budget::new(memory_bytes_max)),
        }
    }

    pub fn root(&self) -> &PathBuf {
        self.layout.root()
    }

    /// Bytes of tables that are copied into memory, over all models.
    pub fn copied_bytes(&self) -> u64 {
        self.budget.used()
    }

    /// The version that a request names, or the newest.
    pub fn find(&self, model: &str, version: &str) -> Result<Arc<Served>, Error> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = entries.get(model) else {
            return Err(Error::UnknownModel { model: model.into() });
        };
        let found = match version {
            "" => entry.versions.last_key_value().map(|(_, served)| served),
            _ => {
                let number = version.parse::<u64>().ok();
                let found = number.and_then(|number| entry.versions.get(&number));
                if found.is_none() && !entry.versions.is_empty() {
                    let (model, version) = (model.into(), version.into());
                    return Err(Error::UnknownVersion { model, version });
                }
                found
            }
        };
        found.cloned().ok_or_else(|| Error::NoVersions { model: model.into() })
    }

    /// All versions that are served, by name and number.
    pub fn served(&self) -> Vec<Arc<Served>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.values().flat_map(|entry| entry.versions.values().cloned()).collect()
    }

    /// The numbers of a model's versions that are served.
    pub fn versions(&self, model: &str) -> Vec<u64> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.get(model).map_or(Vec::new(), |entry| entry.versions.keys().copied().collect())
    }

    /// Whether everything that should be served is.
    pub fn is_ready(&self) -> bool {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.values().all(|entry| entry.is_unloaded || !entry.versions.is_empty())
    }

    /// All models of the directory and their states.
    pub fn index(&self, only_ready: bool) -> Vec<IndexEntry> {
        let mut index = Vec::new();
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner).clone();
        for (name, entry) in &entries {
            let line = |version: u64, state, reason: &str| IndexEntry {
                name: name.clone(),
                version: if version == 0 { String::new() } else { version.to_string() },
                state,
                reason: reason.into(),
            };
            index.extend(entry.versions.keys().map(|version| line(*version, "READY", "")));
            let reasons = entry.reasons.iter().filter(|_| !only_ready);
            index.extend(reasons.map(|(version, reason)| line(*version, "UNAVAILABLE", reason)));
        }
        for name in self.layout.models().unwrap_or_default() {
            if !entries.contains_key(&name) && !only_ready {
                let (version, reason) = (String::new(), String::new());
                index.push(IndexEntry { name, version, state: "", reason });
            }
        }
        index
    }

    /// Loads or reloads a model. Requests keep the old versions until the new ones serve.
    pub async fn load(self: &Arc<Self>, model: &str) -> Result<(), Error> {
        let _changing = self.changing.lock().await;
        self.load_now(model).await
    }

    async fn load_now(self: &Arc<Self>, model: &str) -> Result<(), Error> {
        let (this, name) = (Arc::clone(self), model.to_owned());
        let loaded = tokio::task::spawn_blocking(move || this.read_model(&name));
        let loaded = loaded.await.map_err(|_| Error::Internal("loading failed".into()))?;
        match loaded {
            Ok(entry) => {
                let failed = entry.reasons.iter().next().filter(|_| entry.versions.is_empty());
                let failed = failed.map(|(_, reason)| reason.clone());
                let served: Vec<_> = entry.versions.values().cloned().collect();
                self.exchange(model, entry);
                if let Some(reason) = failed {
                    warn!(model, reason, "model not loaded");
                    return Err(Error::Load { model: model.into(), reason });
                }
                for served in served {
                    info!(model, version = served.version, "model loaded");
                    crate::settle::start(&served, &self.budget);
                }
                Ok(())
            }
            Err(reason) => {
                // What serves goes on: a broken file must not take a good model away.
                warn!(model, reason, "model not loaded");
                let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
                if self.layout.has(model) || entries.contains_key(model) {
                    entries.entry(model.into()).or_default().reasons.insert(0, reason.clone());
                }
                Err(Error::Load { model: model.into(), reason })
            }
        }
    }

    /// Reads a model's configuration and loads the versions that it asks for.
    fn read_model(&self, model: &str) -> Result<Entry, String> {
        let files = self.layout.find(model)?;
        let mut entry = Entry { fingerprint: files.fingerprint, ..Entry::default() };
        for (version, dir) in &files.versions {
            let loaded =
                load::load(model, *version, dir, &files.config, &self.threads, &self.budget);
            match loaded {
                Ok(served) => drop(entry.versions.insert(*version, Arc::new(served))),
                Err(reason) => drop(entry.reasons.insert(*version, reason)),
            }
        }
        Ok(entry)
    }

    /// Stops serving a model; requests that have begun are answered.
    pub async fn unload(&self, model: &str) -> Result<(), Error> {
        let _changing = self.changing.lock().await;
        if !self.entries.read().unwrap_or_else(PoisonError::into_inner).contains_key(model) {
            let reason = format!("failed to unload '{model}': model is not loaded");
            return Err(Error::Malformed(reason.into()));
        }
        let versions = self.versions(model);
        let reasons =
            versions.into_iter().map(|version| (version, "unloaded".to_owned())).collect();
        self.exchange(model, Entry { reasons, is_unloaded: true, ..Entry::default() });
        info!(model, "model unloaded");
        Ok(())
    }

    /// Loads what is new or changed in the directory, and unloads what has gone from it. Returns the
    /// models that could not be loaded, with the reasons.
    pub async fn refresh(self: &Arc<Self>) -> Result<Vec<(String, Error)>, String> {
        let _changing = self.changing.lock().await;
        let names = self.layout.models()?;
        let known = self.entries.read().unwrap_or_else(PoisonError::into_inner).clone();
        for gone in known.keys().filter(|name| !names.contains(name)) {
            self.exchange(gone, Entry::default());
            self.entries.write().unwrap_or_else(PoisonError::into_inner).remove(gone);
            info!(model = gone, "model unloaded: its directory has gone");
        }
        let mut failed = Vec::new();
        for name in names {
            let files = self.layout.find(&name);
            let before = known.get(&name);
            if before.is_some_and(|entry| entry.is_unloaded) {
                continue;
            }
            let before = before.filter(|entry| !entry.versions.is_empty());
            let is_same = files.is_ok_and(|files| {
                before.is_some_and(|entry| entry.fingerprint == files.fingerprint)
            });
            if is_same {
                continue;
            }
            if let Err(error) = self.load_now(&name).await {
                failed.push((name, error));
            }
        }
        Ok(failed)
    }

    /// Puts an entry in the place of the old one, whose memory is freed when its last request is done.
    fn exchange(&self, model: &str, entry: Entry) {
        let old = {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            entries.insert(model.into(), entry)
        };
        let old: Vec<_> = old.into_iter().flat_map(|entry| entry.versions.into_values()).collect();
        if old.is_empty() {
            return;
        }
        tokio::spawn(async move {
            for served in old {
                while Arc::strong_count(&served) > 1 {
                    tokio::time::sleep(RETIRE_POLL).await;
                }
                // Giving back gigabytes takes a while: not on a thread that serves.
                tokio::task::spawn_blocking(move || drop(served));
            }
        });
    }
}
