use std::io;
use std::path::{Path, PathBuf};

use crate::pickle;

/// Why bytes could not be read or written. Each message names the file and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot write {}: it needs {needed}, {free} are free", path.display())]
    Space { path: PathBuf, needed: String, free: String },
    #[error("no memory for a buffer of {bytes} bytes: {source}")]
    OutOfMemory { bytes: usize, source: io::Error },
    #[error("{} is a directory; expected a file", path.display())]
    Directory { path: PathBuf },
    #[error(
        "{} is a directory without a checkpoint; expected a file (safetensors, or .pt as torch.save writes it), or a directory with .metadata (torch.distributed.checkpoint) or one *.safetensors.index.json",
        path.display()
    )]
    NoCheckpoint { path: PathBuf },
    #[error("{} is empty", path.display())]
    Empty { path: PathBuf },
    /// The file is of a known kind that holds no tensors by name.
    #[error("{} is {kind}: {remedy}", path.display())]
    WrongKind { path: PathBuf, kind: &'static str, remedy: &'static str },
    #[error("{} is not a readable safetensors file: {problem}", path.display())]
    Safetensors { path: PathBuf, problem: String },
    #[error("{} is not a readable file of torch.save: {problem}", path.display())]
    Archive { path: PathBuf, problem: String },
    #[error("{}: {source}", path.display())]
    Pickle { path: PathBuf, source: pickle::Error },
    #[error("{} is not a readable index of safetensors files: {problem}", path.display())]
    Index { path: PathBuf, problem: String },
    #[error("{} is not readable metadata of torch.distributed.checkpoint: {problem}", path.display())]
    Distributed { path: PathBuf, problem: &'static str },
    #[error("{}: tensor `{name}` {problem}", path.display())]
    Tensor { path: PathBuf, name: String, problem: String },
    #[error("{} is not a readable npz archive: {problem}", path.display())]
    Npz { path: PathBuf, problem: String },
    #[error("{}: array `{name}` {problem}", path.display())]
    Array { path: PathBuf, name: String, problem: String },
    #[error("{}: more than one value is named `{name}`", path.display())]
    DuplicateName { path: PathBuf, name: String },
    #[error("{}: values are nested deeper than {limit} levels, or refer to themselves", path.display())]
    TooDeep { path: PathBuf, limit: usize },
    #[error("{}: more than {limit} values; save only the state_dict", path.display())]
    TooManyValues { path: PathBuf, limit: usize },
    #[error("tensor `{name}` is {dtype}, expected {expected}")]
    Dtype { name: String, dtype: &'static str, expected: &'static str },
    /// What is to be written makes no file: a mistake of the caller.
    #[error("cannot write {}: {problem}", path.display())]
    Write { path: PathBuf, problem: String },
    #[error("{}:{line}: {problem}", path.display())]
    TraceLine { path: PathBuf, line: usize, problem: String },
    #[error("{}: {problem}", path.display())]
    Trace { path: PathBuf, problem: String },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.into(), source }
    }
}
