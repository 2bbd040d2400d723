//! Errors. Each has a kind with data, which applications map to status codes and exceptions.

use latent_backend::BackendError;
use latent_engine::EngineError;
use latent_engine::scheduler::{JobError, Refusal};
use latent_formats::FormatError;
use latent_graph::{ConfigError, GraphError};
use latent_text::TextError;
use std::sync::Arc;
use std::time::Duration;

/// The kind of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An invalid argument or option.
    Argument {
        /// The name of the argument, if the error is about one: that of the builder's method.
        name: Option<String>,
    },
    /// The file does not exist.
    NotFound,
    /// The file cannot be read, or is malformed.
    File,
    /// The model's architecture or tokenizer is not supported.
    Unsupported,
    /// The model or a sequence does not fit into memory.
    Memory,
    /// The prompt does not fit into the context.
    TooLong {
        /// Tokens of the prompt, or a lower bound if counting stopped early.
        tokens: usize,
        /// Context size in tokens, or the limit that was exceeded.
        context: usize,
    },
    /// A chat template or a text that cannot be rendered or encoded.
    Text,
    /// A grammar or schema that is not supported, or too complex to continue.
    Grammar,
    /// Too many requests wait. See [`ModelBuilder::max_waiting`](crate::ModelBuilder::max_waiting).
    Busy {
        /// Estimated time until the queue has room.
        retry_after: Duration,
    },
    /// The deadline of the request has passed.
    Deadline {
        /// Number of answer tokens until then.
        completion: usize,
    },
    /// A model cannot be downloaded, because of the network, the hub, or the disk.
    Download,
    /// The caller cancelled the call.
    Cancelled,
    /// This process was forked from the one that loaded the model.
    Forked,
    /// The engine failed, because of an error in Latent or the machine.
    Engine,
}

/// An error with a kind and a message. Its source is the error of the crate below, such as an
/// [`EngineError`](crate::engine::EngineError), if it has one.
///
/// ```
/// use latent::{Chat, ErrorKind, Model};
/// let model = Model::demo().context(64).load()?;
/// let error = model.chat(Chat::new().user("again ".repeat(100))).start().err().unwrap();
/// let status = match error.kind() {
///     ErrorKind::Argument { .. } | ErrorKind::Text => 400,
///     ErrorKind::TooLong { tokens, context } => {
///         assert!(tokens > context);
///         413
///     }
///     ErrorKind::Busy { .. } => 429,
///     _ => 500,
/// };
/// assert_eq!(status, 413);
/// # Ok::<(), latent::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    cause: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}

/// Errors of the same kind with the same message are equal.
impl PartialEq for Error {
    fn eq(&self, other: &Error) -> bool {
        (&self.kind, &self.message) == (&other.kind, &other.message)
    }
}

impl Eq for Error {}

impl Error {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), cause: None }
    }

    /// An error of this kind with the message of its cause.
    fn of(kind: ErrorKind, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error { kind, message: cause.to_string(), cause: Some(Arc::new(cause)) }
    }

    /// An invalid argument whose name is in the message only.
    pub fn argument(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Argument { name: None }, message)
    }

    /// An invalid argument with this name.
    pub fn argument_named(name: &str, message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Argument { name: Some(name.to_owned()) }, message)
    }

    /// A panic, which is an error of Latent.
    pub fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
        let text = latent_types::panic_text(panic);
        Error::new(ErrorKind::Engine, format!("internal panic: {text} (please report this)"))
    }

    /// The kind of the error, with its data.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// What is wrong, where, and what to do.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Adds text before the message.
    pub(crate) fn prefixed(self, prefix: &str) -> Error {
        Error { message: format!("{prefix}{}", self.message), ..self }
    }

    /// The error for a request to a worker thread that has ended.
    pub(crate) fn gone() -> Error {
        Error::new(ErrorKind::Engine, "the engine has failed and no longer runs: load the model again")
    }

    /// The error for a call that the caller cancelled.
    pub(crate) fn cancelled() -> Error {
        Error::new(ErrorKind::Cancelled, "stopped")
    }
}

impl From<FormatError> for Error {
    fn from(error: FormatError) -> Error {
        let kind = match &error {
            FormatError::Io { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
                ErrorKind::NotFound
            }
            _ => ErrorKind::File,
        };
        Error::of(kind, error)
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Error {
        let kind = match &error {
            ConfigError::Unsupported { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::File,
        };
        Error::of(kind, error)
    }
}

impl From<GraphError> for Error {
    fn from(error: GraphError) -> Error {
        Error::of(ErrorKind::File, error)
    }
}

impl From<TextError> for Error {
    fn from(error: TextError) -> Error {
        let kind = match &error {
            TextError::Format(_) => ErrorKind::File,
            TextError::Unknown { .. } | TextError::UnknownPre { .. } => ErrorKind::Unsupported,
            TextError::Malformed(_) | TextError::Component { .. } => ErrorKind::File,
            TextError::TooLong { tokens, limit, .. } => {
                ErrorKind::TooLong { tokens: *tokens, context: *limit }
            }
            TextError::Internal { .. } => ErrorKind::Engine,
            _ => ErrorKind::Text,
        };
        match error {
            // Errors of the file keep the kind of their own conversion.
            TextError::Format(error) => error.into(),
            other => Error::of(kind, other),
        }
    }
}

impl From<BackendError> for Error {
    fn from(error: BackendError) -> Error {
        EngineError::from(error).into()
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Error {
        let kind = match &error {
            EngineError::Audit { .. } | EngineError::CacheFile(_) => ErrorKind::File,
            EngineError::Memory(_) | EngineError::Piece(_) | EngineError::StatesFull(_) => ErrorKind::Memory,
            // The message names the option; see `LoadOptions::by_word`.
            EngineError::Options(_) | EngineError::Sequence { .. } | EngineError::Rows { .. } => {
                ErrorKind::Argument { name: None }
            }
            EngineError::CacheFull(full) => {
                ErrorKind::TooLong { tokens: full.cached + full.rows, context: full.capacity }
            }
            EngineError::Constraint(_) => ErrorKind::Grammar,
            EngineError::Stopped => ErrorKind::Cancelled,
            _ => ErrorKind::Engine,
        };
        // Errors of the file keep the kind of their own conversion.
        match error {
            EngineError::Format(error) => error.into(),
            EngineError::ModelConfig(error) => error.into(),
            EngineError::Graph(error) => error.into(),
            other => Error::of(kind, other),
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        let kind = match &refusal {
            Refusal::TooLong { tokens, context } => ErrorKind::TooLong { tokens: *tokens, context: *context },
            Refusal::Parameter(error) => ErrorKind::Argument { name: Some(error.name.to_owned()) },
            Refusal::Invalid(_) => ErrorKind::Argument { name: None },
            Refusal::Full { retry_after, .. } => ErrorKind::Busy { retry_after: *retry_after },
            _ => ErrorKind::Engine,
        };
        Error::new(kind, refusal.to_string())
    }
}

impl From<JobError> for Error {
    fn from(error: JobError) -> Error {
        let kind = match &error {
            JobError::Deadline { completion } => ErrorKind::Deadline { completion: *completion },
            JobError::Constraint(_) => ErrorKind::Grammar,
            _ => ErrorKind::Engine,
        };
        Error::new(kind, error.to_string())
    }
}
