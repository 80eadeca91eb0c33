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
        "id {id} at position {position} of the trace is not below the {rows} rows of table `{table}`{}",
        id_hint(*batch)
    )]
    TraceId { id: i64, position: usize, table: String, rows: usize, batch: Option<usize> },
    #[error("the trace has {found} tables; the model has {tables}")]
    TraceTables { found: usize, tables: usize },
    #[error("the trace has {found} bags; a model of {tables} tables needs a multiple of {tables}")]
    TraceBags { found: usize, tables: usize },
    #[error(
        "the trace has {samples} samples for {tables} tables, which make no whole batches of {batch}; --batch sets the samples per batch"
    )]
    TraceCut { samples: usize, tables: usize, batch: usize },
    #[error(
        "{bags} bags are {samples} samples for {tables} tables, but the trace does not say how many samples each batch has; give --batch N ({samples} if all are one batch), or store `batch` in the file"
    )]
    BatchUnknown { bags: usize, tables: usize, samples: usize },
    #[error("--batch {asked} contradicts the trace, which has batches of {file} samples")]
    TraceBatch { file: usize, asked: usize },
    #[error("`dense` has {rows} rows, but the ids form no bags; add `offsets` or `lengths`")]
    DenseWithoutBags { rows: usize },
    #[error("`dense` has {rows} rows; the bags are of {samples} samples")]
    DenseRows { rows: usize, samples: usize },
    #[error("`dense` has {width} features per sample; the model takes {inputs}")]
    DenseWidth { width: usize, inputs: usize },
    #[error("a new plan cannot change {what}; load the model anew")]
    Replan { what: &'static str },
    #[error("{problem}")]
    Gpu {
        problem: String,
        /// Whether no further call to the device can succeed.
        is_lost: bool,
    },
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

/// A wrong batch is the likelier reason, and taking ids modulo the rows would only hide it.
fn id_hint(batch: Option<usize>) -> String {
    let batch = batch
        .map_or(String::new(), |batch| format!("; is --batch {batch} that of the trace? If so,"));
    let wrap = "--wrap takes ids modulo the rows";
    if batch.is_empty() { format!("; {wrap}") } else { format!("{batch} {wrap}") }
}

impl Error {
    pub(crate) fn io(
        action: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { action, path: path.into(), source }
    }
}
