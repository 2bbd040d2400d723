//! Errors as exceptions, with the same words.

use latent_bindings::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The exception of an error: a class of `latent.errors`.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let name = match error.kind {
        ErrorKind::Argument => "ArgumentError",
        ErrorKind::NotFound => "ModelNotFoundError",
        ErrorKind::File => "FileError",
        ErrorKind::Unsupported => "UnsupportedError",
        ErrorKind::Memory => "OutOfMemoryError",
        ErrorKind::TooLong => "TooLongError",
        ErrorKind::Text => "TextError",
        ErrorKind::Stopped => "StoppedError",
        ErrorKind::Forked => "ForkedError",
        ErrorKind::Engine => "EngineError",
    };
    let class = py.import("latent.errors").and_then(|module| module.getattr(name));
    match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
        Ok(class) => PyErr::from_type(class, error.message.clone()),
        Err(missing) => missing,
    }
}

/// The exception of an argument that cannot be.
pub(crate) fn argument(py: Python<'_>, message: impl Into<String>) -> PyErr {
    exception(py, &Error::argument(message))
}
