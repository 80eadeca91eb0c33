//! Which versions of which models serve, and what becomes of them when models are loaded, fail, are
//! unloaded or vanish. A state machine: no files, no threads, no clock.
//!
//! A version that cannot be loaded takes nothing away: the one that it should replace goes on. A model
//! that never served does not count for readiness, unless the server began with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Error;

pub struct Catalogue<V> {
    models: BTreeMap<String, Entry<V>>,
}

/// What is known of a model.
pub struct Entry<V> {
    pub versions: BTreeMap<u64, Arc<V>>,
    /// Why a version could not be loaded; version 0 stands for the whole model.
    pub problems: BTreeMap<u64, String>,
    /// Attempts to load it that failed.
    pub failures: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It should serve: it was there when the server began, or has served.
    Wanted,
    /// It came later and has not served yet.
    New,
    /// Somebody asked for it not to be served.
    Unloaded,
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

/// What an attempt to load a model came to.
pub struct Loaded<V> {
    /// Each version that the model's configuration asks for, or why it cannot be served.
    pub versions: BTreeMap<u64, Result<Arc<V>, String>>,
}

/// What has changed.
pub struct Change<V> {
    /// Versions that serve from now on.
    pub begun: Vec<Arc<V>>,
    /// Versions that serve no new request. Those under way go on.
    pub retired: Vec<Arc<V>>,
    /// Why some version could not be loaded, if that is new.
    pub problem: Option<String>,
}

impl<V> Default for Entry<V> {
    fn default() -> Self {
        let (versions, problems) = Default::default();
        Self { versions, problems, failures: 0, state: State::New }
    }
}

impl<V> Default for Catalogue<V> {
    fn default() -> Self {
        Self { models: BTreeMap::new() }
    }
}

impl<V> Catalogue<V> {
    /// The version that a request names, or the newest.
    pub fn find(&self, model: &str, version: &str) -> Result<Arc<V>, Error> {
        let Some(entry) = self.models.get(model) else {
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

    pub fn models(&self) -> impl Iterator<Item = (&String, &Entry<V>)> {
        self.models.iter()
    }

    pub fn get(&self, model: &str) -> Option<&Entry<V>> {
        self.models.get(model)
    }

    /// Whether a change of its files concerns a model.
    pub fn is_unloaded(&self, model: &str) -> bool {
        self.models.get(model).is_some_and(|entry| entry.state == State::Unloaded)
    }

    /// Whether everything that should serve does, as `is_healthy` sees it.
    pub fn is_ready(&self, is_healthy: impl Fn(&V) -> bool) -> bool {
        let serves = |entry: &Entry<V>| {
            !entry.versions.is_empty() && entry.versions.values().all(|one| is_healthy(one))
        };
        self.models.values().filter(|entry| entry.state == State::Wanted).all(serves)
    }

    /// All models that are known, with the state of their versions.
    pub fn index(&self, only_ready: bool) -> Vec<IndexEntry> {
        let mut index = Vec::new();
        for (name, entry) in &self.models {
            let line = |version: u64, state, reason: &str| IndexEntry {
                name: name.clone(),
                version: if version == 0 { String::new() } else { version.to_string() },
                state,
                reason: reason.into(),
            };
            for version in entry.versions.keys() {
                // It may be that a newer state of the same version could not be loaded.
                let problem = entry.problems.get(version).map_or("", String::as_str);
                index.push(line(*version, "READY", problem));
            }
            let failed = entry.problems.iter().filter(|(one, _)| !entry.versions.contains_key(one));
            if !only_ready {
                index.extend(failed.map(|(one, reason)| line(*one, "UNAVAILABLE", reason)));
            }
        }
        index
    }

    /// All that is there at the beginning should serve.
    pub fn expect(&mut self, models: impl IntoIterator<Item = String>) {
        for model in models {
            self.models.entry(model).or_default().state = State::Wanted;
        }
    }

    /// A model's files were read. For each version that failed, one that serves goes on: the same
    /// version if it serves, otherwise the newest that would have been replaced.
    pub fn loaded(&mut self, model: &str, loaded: Loaded<V>) -> Change<V> {
        let entry = self.models.entry(model.into()).or_default();
        let mut old = std::mem::take(&mut entry.versions);
        let before = std::mem::take(&mut entry.problems);
        let mut begun = Vec::new();
        for (version, result) in loaded.versions {
            match result {
                Ok(served) => {
                    if !old.get(&version).is_some_and(|same| Arc::ptr_eq(same, &served)) {
                        begun.push(Arc::clone(&served));
                    }
                    entry.versions.insert(version, served);
                }
                Err(reason) => drop(entry.problems.insert(version, reason)),
            }
        }
        old.retain(|_, one| !entry.versions.values().any(|new| Arc::ptr_eq(one, new)));
        let mut missing = 0;
        for version in entry.problems.keys() {
            match old.remove(version) {
                Some(same) => drop(entry.versions.insert(*version, same)),
                None => missing += 1,
            }
        }
        for _ in 0..missing {
            let newest = old.keys().rev().find(|one| !entry.versions.contains_key(one)).copied();
            let Some(newest) = newest else { break };
            entry.versions.extend(old.remove_entry(&newest));
        }
        let problem = entry.problems.values().next().cloned();
        entry.failures += u64::from(problem.is_some());
        if !entry.versions.is_empty() {
            entry.state = State::Wanted;
        } else if entry.state == State::Unloaded {
            entry.state = State::New;
        }
        let is_new = before != entry.problems;
        let retired = old.into_values().collect();
        Change { begun, retired, problem: problem.filter(|_| is_new) }
    }

    /// A model's files could not be read at all. What serves goes on. Returns whether that is new.
    pub fn failed(&mut self, model: &str, reason: &str) -> bool {
        let entry = self.models.entry(model.into()).or_default();
        entry.failures += 1;
        if entry.state == State::Unloaded {
            entry.state = State::New;
        }
        let problems = BTreeMap::from([(0, reason.to_owned())]);
        std::mem::replace(&mut entry.problems, problems.clone()) != problems
    }

    /// Somebody asked for a model not to be served any more; `None` if it is not known.
    pub fn unload(&mut self, model: &str) -> Option<Vec<Arc<V>>> {
        let entry = self.models.get_mut(model)?;
        entry.state = State::Unloaded;
        let versions = std::mem::take(&mut entry.versions);
        entry.problems = versions.keys().map(|version| (*version, "unloaded".into())).collect();
        Some(versions.into_values().collect())
    }

    /// A model's directory has gone.
    pub fn forget(&mut self, model: &str) -> Vec<Arc<V>> {
        let entry = self.models.remove(model).unwrap_or_default();
        entry.versions.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Outcome = Result<&'static str, &'static str>;

    fn load(catalogue: &mut Catalogue<String>, versions: &[(u64, Outcome)]) -> Change<String> {
        let made = |result: Outcome| result.map(|v| Arc::new(v.into())).map_err(Into::into);
        let versions = versions.iter().map(|(number, one)| (*number, made(*one))).collect();
        catalogue.loaded("ads", Loaded { versions })
    }

    /// What serves, as `VERSION:NAME`.
    fn serving(catalogue: &Catalogue<String>) -> Vec<String> {
        let entry = catalogue.get("ads").expect("the model is known");
        entry.versions.iter().map(|(version, name)| format!("{version}:{name}")).collect()
    }

    fn is_ready(catalogue: &Catalogue<String>) -> bool {
        catalogue.is_ready(|_| true)
    }

    #[test]
    fn a_version_that_fails_takes_nothing_away() {
        let mut all = Catalogue::default();
        load(&mut all, &[(1, Ok("old"))]);
        // Under `latest(1)` the broken version is the only one that is asked for.
        let change = load(&mut all, &[(2, Err("half a copy"))]);
        assert_eq!(change.problem.as_deref(), Some("half a copy"));
        assert!(change.retired.is_empty() && is_ready(&all));
        assert_eq!(serving(&all), ["1:old"]);
        assert_eq!(all.get("ads").expect("known").failures, 1);
        let reasons: Vec<_> =
            all.index(false).into_iter().map(|one| (one.state, one.reason)).collect();
        assert_eq!(reasons, [("READY", String::new()), ("UNAVAILABLE", "half a copy".into())]);
        // The same problem is not told again, and the mended version replaces the old one.
        assert_eq!(load(&mut all, &[(2, Err("half a copy"))]).problem, None);
        let change = load(&mut all, &[(2, Ok("new"))]);
        assert_eq!((serving(&all), change.retired.len()), (vec!["2:new".into()], 1));
    }

    #[test]
    fn a_version_that_is_overwritten_by_a_broken_one_goes_on() {
        let mut all = Catalogue::default();
        load(&mut all, &[(1, Ok("old")), (2, Ok("good"))]);
        let change = load(&mut all, &[(1, Err("broken")), (3, Ok("new"))]);
        assert_eq!(serving(&all), ["1:old", "3:new"]);
        assert_eq!(change.retired.len(), 1, "version 2 is replaced by 3");
        assert!(all.failed("ads", "config.toml:1: no"));
        assert!(!all.failed("ads", "config.toml:1: no"), "told once");
        assert_eq!(serving(&all), ["1:old", "3:new"]);
        assert!(is_ready(&all));
    }

    #[test]
    fn versions_that_did_not_change_go_on_and_are_not_begun_again() {
        let mut all = Catalogue::default();
        load(&mut all, &[(1, Ok("old"))]);
        let same = all.find("ads", "1").expect("it serves");
        let versions = BTreeMap::from([(1, Ok(same)), (2, Ok(Arc::new("new".into())))]);
        let change = all.loaded("ads", Loaded { versions });
        assert_eq!((change.begun.len(), change.retired.len()), (1, 0));
        assert_eq!(serving(&all), ["1:old", "2:new"]);
    }

    #[test]
    fn only_what_should_serve_counts_for_readiness() {
        let mut all = Catalogue::<String>::default();
        assert!(is_ready(&all));
        all.failed("ads", "a directory that came later");
        assert!(is_ready(&all), "it never served");
        all.expect(["ads".into()]);
        assert!(!is_ready(&all), "the server began with it");
        load(&mut all, &[(1, Ok("one"))]);
        assert!(is_ready(&all));
        assert!(!all.is_ready(|_| false), "its device is lost");
        assert_eq!(all.unload("ads").expect("known").len(), 1);
        assert!(is_ready(&all) && all.is_unloaded("ads"));
        assert!(all.find("ads", "").is_err());
        assert!(all.unload("other").is_none());
        load(&mut all, &[(1, Ok("again"))]);
        assert!(!all.is_unloaded("ads"));
        assert_eq!(all.forget("ads").len(), 1);
        assert!(all.get("ads").is_none());
    }
}
