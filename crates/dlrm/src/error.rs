use std::path::PathBuf;

/// Why a model could not be read, made or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Data(#[from] hither_data::Error),
    #[error(transparent)]
    Bags(#[from] hither_kernels::bag::Error),
    #[error("{found} {what}, expected {expected}")]
    Batch { what: &'static str, found: usize, expected: usize },
    #[error(
        "id {id} at position {position} of the trace is not below the {rows} rows of table `{table}`; --wrap takes ids modulo the rows"
    )]
    TraceId { id: i64, position: usize, table: String, rows: usize },
    #[error(
        "the trace has {found} bags; {tables} tables at a batch of {batch} need a multiple of {} (--batch sets the batch)",
        tables * batch
    )]
    TraceBags { found: usize, tables: usize, batch: usize },
    #[error("cannot start threads: {problem}")]
    Threads { problem: String },
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error(
        "{} is not a model: it has no model.toml; make one with `hither model import` or `generate`",
        dir.display()
    )]
    NoModel { dir: PathBuf },
    #[error("{} has a model already; --force replaces it", dir.display())]
    Exists { dir: PathBuf },
    #[error("{}:{line}: {problem}", path.display())]
    Toml { path: PathBuf, line: usize, problem: String },
    #[error("{}: {problem}", path.display())]
    Spec { path: PathBuf, problem: String },
    #[error("{}: tensor `{name}` is missing", path.display())]
    Missing { path: PathBuf, name: String },
    #[error("{}: tensor `{name}` belongs to no known part of the model", path.display())]
    Unexpected { path: PathBuf, name: String },
    #[error("{}: tensor `{name}` is {found}, expected {expected}", path.display())]
    Mismatch { path: PathBuf, name: String, found: String, expected: String },
    #[error("{}: {problem}", path.display())]
    Import { path: PathBuf, problem: String },
    #[error(
        "table `{table}` is {from} and cannot become {to}; start from a model that is not quantised"
    )]
    Requantise { table: String, from: &'static str, to: &'static str },
    #[error("there is no table `{name}`; there are {known}")]
    UnknownTable { name: String, known: String },
    #[error("there is no preset `{name}`: choose micro24, rm2_1, rm1 or mlperf")]
    UnknownPreset { name: String },
}

impl Error {
    pub(crate) fn io(
        action: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { action, path: path.into(), source }
    }
}
