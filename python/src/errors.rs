//! Conversion of errors to Python exceptions.

use latent::{Error, ErrorKind, LoadOptions};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Converts an error to an exception of `latent.errors` with the same message.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let name = match error.kind() {
        ErrorKind::Argument { .. } | ErrorKind::Grammar => "ArgumentError",
        ErrorKind::NotFound => "ModelNotFoundError",
        ErrorKind::File => "FileError",
        ErrorKind::Unsupported => "UnsupportedError",
        ErrorKind::Memory => "OutOfMemoryError",
        ErrorKind::TooLong { .. } => "TooLongError",
        ErrorKind::Text => "TextError",
        ErrorKind::Cancelled | ErrorKind::Deadline { .. } => "StoppedError",
        ErrorKind::Forked => "ForkedError",
        // A full queue cannot occur: the Python API has no option that bounds it.
        _ => "EngineError",
    };
    let class = py.import("latent.errors").and_then(|module| module.getattr(name));
    match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
        Ok(class) => PyErr::from_type(class, LoadOptions::by_word(error.message()).into_owned()),
        // The package is damaged. Its own ImportError says so.
        Err(missing) => missing,
    }
}

/// Converts an error of a 4-bit product to an exception.
pub(crate) fn refused(py: Python<'_>, error: latent_marlin::Error) -> PyErr {
    exception(py, &error.into())
}

/// Makes an `ArgumentError`.
pub(crate) fn argument(py: Python<'_>, message: impl Into<String>) -> PyErr {
    exception(py, &Error::argument(message))
}
