use std::path::PathBuf;

/// Why a graph could not be read, cut or trained on. Each message says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Data(#[from] hither_data::Error),
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    /// A line of a text file.
    #[error("{}:{line}: {problem}", path.display())]
    Line { path: PathBuf, line: u64, problem: String },
    /// A file as a whole, or an array in it.
    #[error("{}: {problem}", path.display())]
    File { path: PathBuf, problem: String },
    /// Parts of a dataset that do not fit each other.
    #[error("dataset `{name}`: {problem}")]
    Dataset { name: String, problem: String },
    #[error("{0}")]
    Settings(String),
    /// A checkpoint that does not belong to the run that would go on from it.
    #[error("cannot resume from {}: {problem}", path.display())]
    Resume { path: PathBuf, problem: String },
    /// A worker in another process.
    #[error("the worker of part {part}: {why}")]
    Worker { part: usize, why: String },
    #[error("lost the connection to rank 0: {0}; see the error that rank 0 printed")]
    Server(String),
    #[error(
        "training diverged in round {round}: {what} is not finite; try a smaller learning rate"
    )]
    Diverged { round: u32, what: &'static str },
}
