//! Why a server cannot be measured.

/// What went wrong, with the address or the model that it concerns.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{url}: {problem}; expected http://HOST:PORT, grpc://HOST:PORT, or https and grpcs over TLS"
    )]
    Url { url: String, problem: &'static str },
    #[error("{}: {problem}", path.display())]
    Authorities { path: std::path::PathBuf, problem: String },
    #[error("cannot reach {target}: {cause}; is the server running?")]
    Connect { target: String, cause: String },
    #[error("{target} broke off: {cause}")]
    Broken { target: String, cause: String },
    #[error("{target} answers {status}: {message}")]
    Refused { target: String, status: String, message: String },
    #[error("{target}: the answer to {asked} cannot be understood: {problem}")]
    Answer { target: String, asked: String, problem: String },
    #[error("{target} serves no model; load one, or name one with --model")]
    NoModel { target: String },
    #[error("{target} serves {}; choose one with --model", .models.join(", "))]
    SeveralModels { target: String, models: Vec<String> },
    #[error("cannot start the client's threads: {0}")]
    Threads(std::io::Error),
}
