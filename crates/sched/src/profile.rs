//! The library of profiles: what an iteration of each known model costs, and which models stand
//! in for jobs of traces that name none.
//!
//! The built-in library is data (`profiles/library.toml`, made by `profiles/make.py`); users give
//! files of the same form, and a training run writes one as JSON.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use serde::Deserialize;

use crate::job::Profile;
use crate::read::Error;
use crate::read::table::{GPUS_MAX, ITERATIONS_MAX, TINY};

const BUILTIN: &str = include_str!("../profiles/library.toml");
const STEP_MAX_S: f64 = 1e6;

/// Profiles by name. Names compare without case, blanks, `-`, `_` and `/`, so that `ResNet-50`
/// and `resnet50` are one.
#[derive(Debug, Clone, PartialEq)]
pub struct Library {
    file: String,
    profiles: BTreeMap<String, Arc<Profile>>,
    aliases: BTreeMap<String, String>,
    classes: Vec<Class>,
    work: BTreeMap<String, Work>,
}

/// A file of profiles.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    profile: Vec<Profile>,
    /// Other names of profiles.
    #[serde(default)]
    aliases: BTreeMap<String, String>,
    #[serde(default)]
    class: Vec<Class>,
    #[serde(default)]
    work: BTreeMap<String, Work>,
}

/// The models that stand in for unnamed jobs of up to so many GPU-hours.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Class {
    #[serde(default = "no_limit")]
    gpu_hours_max: f64,
    /// Weights by model.
    models: BTreeMap<String, f64>,
}

fn no_limit() -> f64 {
    f64::INFINITY
}

/// How much a job of an application trains in all, for traces that leave it out.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// Training samples processed from start to finish.
    pub samples: f64,
    /// Which profile the application is.
    pub model: String,
    /// Samples a GPU processes in one iteration of that profile.
    pub batch: f64,
    pub source: String,
}

impl Library {
    /// What the project ships.
    pub fn builtin() -> Self {
        static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
            Library::parse_toml(BUILTIN, "library.toml").expect("a test parses the shipped library")
        });
        LIBRARY.clone()
    }

    pub fn parse_toml(text: &str, file: &str) -> Result<Self, Error> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let document: Document = toml::from_str(text)
            .map_err(|error| Error::toml(file, text, "a file of [[profile]] entries", &error))?;
        Self::from_document(document, file)
    }

    /// One profile as an object, or `{"profile": […]}`.
    pub fn parse_json(text: &str, file: &str) -> Result<Self, Error> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let wrong = |error: serde_json::Error| {
            Error::json(file, "a profile, or {\"profile\": […]}", &error)
        };
        let value: serde_json::Value = serde_json::from_str(text).map_err(wrong)?;
        // Parsed from the text again, as only that keeps line numbers.
        let document = if value.get("name").is_some() {
            Document {
                profile: vec![serde_json::from_str(text).map_err(wrong)?],
                aliases: BTreeMap::new(),
                class: Vec::new(),
                work: BTreeMap::new(),
            }
        } else {
            serde_json::from_str(text).map_err(wrong)?
        };
        Self::from_document(document, file)
    }

    fn from_document(document: Document, file: &str) -> Result<Self, Error> {
        let mut library = Self {
            file: file.into(),
            profiles: BTreeMap::new(),
            aliases: BTreeMap::new(),
            classes: document.class,
            work: document.work.into_iter().map(|(name, work)| (key(&name), work)).collect(),
        };
        for mut profile in document.profile {
            for row in &mut profile.table {
                row.placement.sort_unstable_by(|a, b| b.cmp(a));
            }
            check(&profile, file)?;
            let name = profile.name.clone();
            if library.profiles.insert(key(&name), Arc::new(profile)).is_some() {
                return Err(Error::new(file, "each profile once").key("name").found(&name));
            }
        }
        if library.profiles.is_empty() {
            return Err(Error::new(file, "at least one [[profile]] entry"));
        }
        for (alias, name) in document.aliases {
            library.aliases.insert(key(&alias), key(&name));
        }
        library.check_classes()?;
        Ok(library)
    }

    /// The profile of that name or alias.
    pub fn get(&self, name: &str) -> Option<&Arc<Profile>> {
        let wanted = key(name);
        self.profiles
            .get(&wanted)
            .or_else(|| self.aliases.get(&wanted).and_then(|name| self.profiles.get(name)))
    }

    /// This library with the user's entries over it: theirs win where names meet.
    pub fn merge(mut self, user: Library) -> Result<Self, Error> {
        self.file = user.file;
        self.profiles.extend(user.profiles);
        self.aliases.extend(user.aliases);
        self.work.extend(user.work);
        if !user.classes.is_empty() {
            self.classes = user.classes;
        }
        if let Some((alias, name)) =
            self.aliases.iter().find(|(_, name)| !self.profiles.contains_key(*name))
        {
            return Err(Error::new(&self.file, "an alias of a known profile")
                .key(alias)
                .found(name));
        }
        for class in &self.classes {
            if let Some(model) = class.models.keys().find(|model| self.get(model).is_none()) {
                return Err(Error::new(&self.file, "known models in [[class]]").found(model));
            }
        }
        Ok(self)
    }

    /// Names in alphabetical order, without aliases.
    pub fn names(&self) -> Vec<&str> {
        self.profiles.values().map(|profile| profile.name.as_str()).collect()
    }

    pub fn profiles(&self) -> impl Iterator<Item = &Arc<Profile>> {
        self.profiles.values()
    }

    /// The names for an error message: plain models only, as the variants are many.
    pub(crate) fn known(&self) -> String {
        let plain: Vec<&str> = self.names().into_iter().filter(|n| !n.contains('@')).collect();
        match plain.get(40..) {
            Some(rest) if !rest.is_empty() => {
                format!("{} and {} more", plain[..40].join(", "), rest.len())
            }
            _ => plain.join(", "),
        }
    }

    /// What a job of an application trains in all.
    pub fn work(&self, application: &str) -> Option<&Work> {
        self.work.get(&key(application))
    }

    /// Draws a model for a job whose trace names none, by its GPU-time class.
    pub fn assign(&self, gpus: u32, seconds: f64, draws: &mut Pcg64Mcg) -> Arc<Profile> {
        let gpu_hours = f64::from(gpus) * seconds / 3600.0;
        let draw: f64 = draws.random();
        let class = self.classes.iter().find(|class| gpu_hours <= class.gpu_hours_max);
        if let Some(class) = class.or(self.classes.last()) {
            let mut left = draw * class.models.values().sum::<f64>();
            for (model, weight) in &class.models {
                left -= weight;
                if left < 0.0
                    && let Some(profile) = self.get(model)
                {
                    return profile.clone();
                }
            }
        }
        // A library without classes: any of its models. It has at least one, and a draw is below 1.
        let index = (draw * self.profiles.len() as f64) as usize;
        self.profiles.values().nth(index).expect("a library is never empty").clone()
    }

    fn check_classes(&self) -> Result<(), Error> {
        let wrong = |column: &str, value: f64, expected: &str| {
            Error::new(&self.file, expected).key(column).found(&value.to_string())
        };
        let mut hours_before = 0.0;
        for class in &self.classes {
            let hours = class.gpu_hours_max;
            if hours.is_nan() || hours <= hours_before {
                return Err(wrong("gpu_hours_max", hours, "classes in rising order of GPU-hours"));
            }
            hours_before = hours;
            for (model, &weight) in &class.models {
                if !(0.0..=1e6).contains(&weight) {
                    return Err(wrong(model, weight, "a weight from 0 to 1000000"));
                }
            }
            if class.models.values().sum::<f64>() <= 0.0 {
                return Err(wrong("models", 0.0, "at least one model with a weight above 0"));
            }
        }
        for (application, work) in &self.work {
            for (column, value) in [("samples", work.samples), ("batch", work.batch)] {
                if !(TINY..=ITERATIONS_MAX).contains(&value) {
                    let column = format!("{application}.{column}");
                    return Err(wrong(&column, value, "a number above 0, up to 1e15"));
                }
            }
        }
        Ok(())
    }
}

/// How names compare.
fn key(name: &str) -> String {
    name.chars()
        .filter(|c| !c.is_whitespace() && !matches!(c, '-' | '_' | '/'))
        .flat_map(char::to_lowercase)
        .collect()
}

/// Whether a profile's numbers make sense; the error names the entry and the key.
fn check(profile: &Profile, file: &str) -> Result<(), Error> {
    let name = &profile.name;
    if key(name).is_empty() || name.len() > 200 || name.contains(char::is_control) {
        return Err(Error::new(file, "a printable name of at most 200 bytes")
            .key("name")
            .found(name));
    }
    let within = |column: &str, value: f64, min: f64, max: f64| {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(Error::new(file, format!("a number from {min} to {max}"))
            .key(&format!("{name}.{column}"))
            .found(&value.to_string()))
    };
    within("compute_s", profile.compute_s, TINY, STEP_MAX_S)?;
    within("gradient_bytes", profile.gradient_bytes, 0.0, 1e15)?;
    within("backward_share", profile.backward_share, 0.0, 1.0)?;
    within("overlap", profile.overlap, 0.0, 1.0)?;
    within("restart_s", profile.restart_s, 0.0, STEP_MAX_S)?;
    within("restart_gpu_s", profile.restart_gpu_s, 0.0, STEP_MAX_S)?;
    within("checkpoint_bytes", profile.checkpoint_bytes, 0.0, 1e18)?;
    within("skew", profile.skew, 0.0, 1.0)?;
    let mut seen = std::collections::BTreeSet::new();
    for row in &profile.table {
        within("table.step_s", row.step_s, TINY, STEP_MAX_S)?;
        let gpus: u64 = row.placement.iter().map(|&gpus| u64::from(gpus)).sum();
        if row.placement.contains(&0) || !(1..=GPUS_MAX).contains(&gpus) {
            return Err(Error::new(file, "GPUs on each machine, such as [4, 4]")
                .key(&format!("{name}.table.placement"))
                .found(&format!("{:?}", row.placement)));
        }
        if !seen.insert(&row.placement) {
            return Err(Error::new(file, "each placement once")
                .key(&format!("{name}.table.placement"))
                .found(&format!("{:?}", row.placement)));
        }
    }
    Ok(())
}
