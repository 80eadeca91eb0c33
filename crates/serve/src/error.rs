//! Why a request was refused, in Triton's words where clients may parse them.

use std::borrow::Cow;

/// The class of an error: HTTP and gRPC each map it to a status of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The request itself is wrong.
    Invalid,
    Unauthenticated,
    /// The server does not offer it to this client.
    Forbidden,
    NotFound,
    TooLarge,
    /// The client took too long to send its request.
    Late,
    /// The server cannot answer now: its queue is full, it is draining, or time has run out.
    Unavailable,
    Unimplemented,
    Internal,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("Request for unknown model: '{model}' is not found")]
    UnknownModel { model: String },
    #[error("Request for unknown model: '{model}' version {version} is not found")]
    UnknownVersion { model: String, version: String },
    #[error("Request for unknown model: '{model}' has no available versions")]
    NoVersions { model: String },
    #[error("Unable to find shared memory region: '{name}'")]
    UnknownRegion { name: String },
    #[error("failed to load '{model}': {reason}")]
    Load { model: String, reason: String },
    #[error(
        "[request id: {id}] unexpected shape for input '{input}' for model '{model}'. Expected {expected}, got {found}"
    )]
    Shape { id: String, input: String, model: String, expected: String, found: String },
    #[error(
        "[request id: {id}] inference input '{input}' data-type is '{found}', but model '{model}' expects '{expected}'"
    )]
    Datatype { id: String, input: String, model: String, expected: &'static str, found: String },
    /// Anything else that is wrong in a request.
    #[error("[request id: {id}] {problem}")]
    Request { id: String, problem: Cow<'static, str> },
    /// The body is not what the protocol says, so there is no id either.
    #[error("{0}")]
    Malformed(Cow<'static, str>),
    #[error("request of more than {limit} bytes; --request-bytes-max sets the limit")]
    TooLarge { limit: usize },
    #[error("[request id: {id}] Exceeds maximum queue size")]
    QueueFull { id: String },
    #[error("[request id: {id}] Request timeout expired")]
    Timeout { id: String },
    #[error("the request's body took too long")]
    Late,
    #[error("the server holds too many bytes of requests; try again later")]
    TooMuch,
    #[error(
        "[request id: {id}] the score of sample {sample} is not finite: its features or the rows of its ids are \
         not; `allow_not_finite` in the model's config.toml returns such scores"
    )]
    NotFinite { id: String, sample: usize },
    #[error("loading and unloading are not allowed; start the server with --allow-control")]
    Forbidden,
    #[error("missing or wrong bearer token; send `Authorization: Bearer TOKEN`")]
    Unauthenticated,
    #[error("{0}")]
    Unimplemented(Cow<'static, str>),
    #[error("internal error: {0}")]
    Internal(Cow<'static, str>),
}

impl Error {
    pub fn kind(&self) -> Kind {
        match self {
            Self::UnknownModel { .. } | Self::UnknownVersion { .. } => Kind::NotFound,
            Self::NoVersions { .. } | Self::UnknownRegion { .. } => Kind::NotFound,
            Self::Load { .. }
            | Self::Shape { .. }
            | Self::Datatype { .. }
            | Self::Request { .. }
            | Self::NotFinite { .. }
            | Self::Malformed(_) => Kind::Invalid,
            Self::TooLarge { .. } => Kind::TooLarge,
            Self::QueueFull { .. } | Self::Timeout { .. } | Self::TooMuch => Kind::Unavailable,
            Self::Late => Kind::Late,
            Self::Forbidden => Kind::Forbidden,
            Self::Unauthenticated => Kind::Unauthenticated,
            Self::Unimplemented(_) => Kind::Unimplemented,
            Self::Internal(_) => Kind::Internal,
        }
    }

    pub(crate) fn malformed(problem: impl Into<Cow<'static, str>>) -> Self {
        Self::Malformed(problem.into())
    }
}

/// A request's id as Triton's messages show it.
pub(crate) fn shown_id(id: &str) -> String {
    if id.is_empty() { "<id_unknown>".into() } else { id.into() }
}
