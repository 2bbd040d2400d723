//! Errors with a kind, which each language maps to its own error type.

use latent_backend::BackendError;
use latent_engine::EngineError;
use latent_engine::scheduler::{JobError, Refusal};
use latent_formats::FormatError;
use latent_graph::{ConfigError, GraphError};
use latent_text::TextError;

/// Kinds of errors: what a caller may want to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// An argument or option that cannot be.
    Argument,
    /// The file is not there.
    NotFound,
    /// The file cannot be read, or is malformed.
    File,
    /// The model's architecture or tokenizer is not known.
    Unsupported,
    /// It does not fit into memory.
    Memory,
    /// The prompt does not fit into the context.
    TooLong,
    /// A chat template or a text that cannot be rendered or encoded.
    Text,
    /// The caller stopped it.
    Stopped,
    /// This process was forked from the one that loaded the model.
    Forked,
    /// The engine failed: an error of Latent, or of the machine.
    Engine,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Of which kind it is.
    pub kind: ErrorKind,
    /// What, where, and what can be done.
    pub message: String,
}

impl Error {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    /// An argument that cannot be.
    pub fn argument(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Argument, message)
    }

    /// A panic, which is an error of Latent.
    pub fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
        let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        let text =
            text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into());
        Error::new(ErrorKind::Engine, format!("a panic, which is an error of Latent: {text}"))
    }

    /// A request to a thread that has ended.
    pub(crate) fn gone() -> Error {
        Error::new(ErrorKind::Engine, "the engine has failed and no longer runs: load the model again")
    }

    /// The caller stopped it.
    pub(crate) fn stopped() -> Error {
        Error::new(ErrorKind::Stopped, "stopped")
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
        Error::new(kind, error.to_string())
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Error {
        let kind = match &error {
            ConfigError::Unsupported { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::File,
        };
        Error::new(kind, error.to_string())
    }
}

impl From<GraphError> for Error {
    fn from(error: GraphError) -> Error {
        Error::new(ErrorKind::File, error.to_string())
    }
}

impl From<TextError> for Error {
    fn from(error: TextError) -> Error {
        match error {
            TextError::Format(error) => error.into(),
            TextError::Unknown { .. } => Error::new(ErrorKind::Unsupported, error.to_string()),
            TextError::Malformed(_) | TextError::Component { .. } => {
                Error::new(ErrorKind::File, error.to_string())
            }
            TextError::TooLong { .. } => Error::new(ErrorKind::TooLong, error.to_string()),
            TextError::Internal { .. } => Error::new(ErrorKind::Engine, error.to_string()),
            other => Error::new(ErrorKind::Text, other.to_string()),
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
        let kind = match error {
            EngineError::Format(error) => return error.into(),
            EngineError::ModelConfig(error) => return error.into(),
            EngineError::Graph(error) => return error.into(),
            EngineError::Audit { .. } => ErrorKind::File,
            EngineError::Memory(_) | EngineError::Piece(_) => ErrorKind::Memory,
            EngineError::Options(_) | EngineError::Sequence { .. } | EngineError::Rows { .. } => {
                ErrorKind::Argument
            }
            EngineError::CacheFull(_) | EngineError::StatesFull(_) => ErrorKind::TooLong,
            EngineError::Stopped => ErrorKind::Stopped,
            _ => ErrorKind::Engine,
        };
        Error::new(kind, error.to_string())
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        let kind = match &refusal {
            Refusal::TooLong { .. } => ErrorKind::TooLong,
            Refusal::Invalid(_) => ErrorKind::Argument,
            _ => ErrorKind::Engine,
        };
        Error::new(kind, refusal.to_string())
    }
}

impl From<JobError> for Error {
    fn from(error: JobError) -> Error {
        Error::new(ErrorKind::Engine, error.to_string())
    }
}
