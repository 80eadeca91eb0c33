//! What lies in a repository's directory.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use crate::config::{CONFIG_FILE, ModelConfig, VersionPolicy};
use crate::dlrm::{self, is_model};
use crate::golden::GOLDEN_FILE;

/// Where models lie.
#[derive(Clone, Debug)]
pub enum Layout {
    /// A directory of models, each with versions.
    Repository(PathBuf),
    /// One model's own directory, which becomes version 1.
    Single { name: String, dir: PathBuf },
}

/// The files of one model.
pub(super) struct ModelFiles {
    /// The versions to serve.
    pub versions: BTreeMap<u64, VersionFiles>,
}

/// The files of one version.
pub(super) struct VersionFiles {
    pub dir: PathBuf,
    pub config: ModelConfig,
    /// Changes when a file does.
    pub stamp: u64,
}

impl Layout {
    /// A model's own directory is served as it is; anything else must be a repository.
    pub fn open(path: &Path) -> Result<Self, String> {
        if !path.is_dir() {
            return Err(format!("{} is not a directory", path.display()));
        }
        if is_model(path) {
            let full = path.canonicalize().unwrap_or_else(|_| path.into());
            let name =
                full.file_name().map_or("model".into(), |name| name.to_string_lossy().into());
            return Ok(Self::Single { name, dir: path.into() });
        }
        Ok(Self::Repository(path.into()))
    }

    pub fn root(&self) -> &PathBuf {
        match self {
            Self::Repository(root) | Self::Single { dir: root, .. } => root,
        }
    }

    /// The names of all models, in order.
    pub fn models(&self) -> Result<Vec<String>, String> {
        let root = match self {
            Self::Single { name, .. } => return Ok(vec![name.clone()]),
            Self::Repository(root) => root,
        };
        let entries = std::fs::read_dir(root);
        let entries =
            entries.map_err(|error| format!("cannot read {}: {error}", root.display()))?;
        let name = |entry: std::fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            (entry.path().is_dir() && !name.starts_with('.')).then_some(name)
        };
        let mut names: Vec<String> = entries.flatten().filter_map(name).collect();
        names.sort();
        Ok(names)
    }

    pub fn has(&self, model: &str) -> bool {
        self.models().is_ok_and(|names| names.iter().any(|name| name == model))
    }

    pub(super) fn find(&self, model: &str) -> Result<ModelFiles, String> {
        if !self.has(model) {
            return Err(format!("there is no such model in {}", self.root().display()));
        }
        let (dir, all) = match self {
            Self::Single { dir, .. } => (dir.clone(), BTreeMap::from([(1, dir.clone())])),
            Self::Repository(root) => {
                let dir = root.join(model);
                let all = versions(&dir)?;
                (dir, all)
            }
        };
        let config = ModelConfig::read(&dir)?;
        let versions = chosen(&config.version_policy, all);
        if versions.is_empty() {
            return Err(none_problem(&dir, &config.version_policy));
        }
        let of_version = |(version, files): (u64, PathBuf)| {
            let mut hasher = DefaultHasher::new();
            stamp(&dir.join(CONFIG_FILE)).hash(&mut hasher);
            for file in dlrm::FILES.into_iter().chain([GOLDEN_FILE]) {
                stamp(&files.join(file)).hash(&mut hasher);
            }
            let (config, stamp) = (config.clone(), hasher.finish());
            (version, VersionFiles { dir: files, config, stamp })
        };
        Ok(ModelFiles { versions: versions.into_iter().map(of_version).collect() })
    }
}

fn versions(dir: &Path) -> Result<BTreeMap<u64, PathBuf>, String> {
    let entries = std::fs::read_dir(dir);
    let entries = entries.map_err(|error| format!("cannot read {}: {error}", dir.display()))?;
    let version = |entry: std::fs::DirEntry| {
        let number: u64 = entry.file_name().to_str()?.parse().ok()?;
        (number > 0 && entry.path().is_dir()).then(|| (number, entry.path()))
    };
    Ok(entries.flatten().filter_map(version).collect())
}

fn chosen(policy: &VersionPolicy, mut all: BTreeMap<u64, PathBuf>) -> BTreeMap<u64, PathBuf> {
    match policy {
        VersionPolicy::All => {}
        VersionPolicy::Specific(numbers) => all.retain(|number, _| numbers.contains(number)),
        VersionPolicy::Latest(count) => {
            while all.len() > *count {
                all.pop_first();
            }
        }
    }
    all
}

/// Why a directory has nothing to serve, and what to do.
fn none_problem(dir: &Path, policy: &VersionPolicy) -> String {
    let shown = dir.display();
    if is_model(dir) {
        return format!("{shown} holds a model without a version; move it to {shown}/1");
    }
    if dir.join("config.pbtxt").exists() && !dir.join(CONFIG_FILE).exists() {
        return format!(
            "{shown} has a config.pbtxt, which Triton reads; Hither reads {CONFIG_FILE}. Import the \
             checkpoint with `hither model import FILE -o {shown}/1`, and see docs/formats/repository.md"
        );
    }
    match policy {
        VersionPolicy::Specific(numbers) => format!("{shown} has none of the versions {numbers:?}"),
        _ => format!("{shown} has no version; put the model into {shown}/1"),
    }
}

/// Size and time of a file; zeros where there is none.
fn stamp(path: &Path) -> (u64, Option<std::time::SystemTime>) {
    let data = std::fs::metadata(path).ok();
    data.map_or((0, None), |data| (data.len(), data.modified().ok()))
}
