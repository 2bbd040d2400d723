//! Errors: functions return a code and store an object with a message in an out-parameter.
//!
//! The message is not stored per thread. A caller that multiplexes tasks over threads (coroutines,
//! goroutines, schedulers of other languages) receives the message of its own call, and need not
//! copy it before the next one.

use latent::{Error, ErrorKind, LoadOptions};
use std::ffi::{CString, c_char};

/// Result of a call.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum latent_status {
    /// The call succeeded.
    LATENT_OK = 0,
    /// An argument or option is invalid: NULL, invalid UTF-8, a wrong length, or a value out of
    /// range.
    LATENT_INVALID_ARGUMENT = 1,
    /// The model file does not exist.
    LATENT_NOT_FOUND = 2,
    /// The model file cannot be read or is malformed.
    LATENT_BAD_FILE = 3,
    /// The architecture or the tokenizer of the model is not supported.
    LATENT_UNSUPPORTED = 4,
    /// There is not enough memory. If a model does not fit, the message states its requirement.
    LATENT_OUT_OF_MEMORY = 5,
    /// The prompt does not fit into the context.
    LATENT_TOO_LONG = 6,
    /// The chat template cannot be rendered, or a text cannot be encoded.
    LATENT_BAD_TEXT = 7,
    /// The operation was cancelled before it completed.
    LATENT_STOPPED = 8,
    /// The object was created before this process was forked. Its threads do not exist in the
    /// child.
    LATENT_FORKED = 9,
    /// The engine failed or panicked, which is a bug in Latent. Load the model again.
    LATENT_ENGINE = 10,
}

use latent_status::*;

/// Description of a failed call: a latent_status and a message.
///
/// Functions that can fail take a `latent_error **error` as their last argument, which may be NULL.
/// Otherwise, the function sets `*error` to NULL if it succeeds, and to a new object if it fails.
/// The caller must release the object with latent_error_free.
pub struct latent_error {
    status: latent_status,
    message: CString,
}

impl latent_error {
    pub(crate) fn new(error: &Error) -> latent_error {
        // A C string ends at its first NUL, which would hide the rest of the message.
        let message = LoadOptions::by_word(error.message()).replace('\0', "\u{fffd}");
        latent_error { status: status(error.kind()), message: CString::new(message).unwrap_or_default() }
    }

    pub(crate) fn status(&self) -> latent_status {
        self.status
    }
}

fn status(kind: &ErrorKind) -> latent_status {
    match kind {
        ErrorKind::Argument { .. } | ErrorKind::Grammar => LATENT_INVALID_ARGUMENT,
        ErrorKind::NotFound => LATENT_NOT_FOUND,
        ErrorKind::File => LATENT_BAD_FILE,
        ErrorKind::Unsupported => LATENT_UNSUPPORTED,
        ErrorKind::Memory => LATENT_OUT_OF_MEMORY,
        ErrorKind::TooLong { .. } => LATENT_TOO_LONG,
        ErrorKind::Text => LATENT_BAD_TEXT,
        ErrorKind::Cancelled | ErrorKind::Deadline { .. } => LATENT_STOPPED,
        ErrorKind::Forked => LATENT_FORKED,
        // A full queue cannot occur: the C API has no option that bounds it.
        _ => LATENT_ENGINE,
    }
}

/// Returns the status code of `error`, or LATENT_OK if `error` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_error_status(error: *const latent_error) -> latent_status {
    // SAFETY: the caller gives NULL or an error of this library that was not freed
    unsafe { error.as_ref() }.map_or(LATENT_OK, |error| error.status)
}

/// Returns the message of `error`: NUL-terminated UTF-8 that states what failed, where, the value,
/// and the remedy. Returns an empty string if `error` is NULL.
///
/// The string belongs to `error` and is valid until latent_error_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_error_message(error: *const latent_error) -> *const c_char {
    // SAFETY: the caller gives NULL or an error of this library that was not freed
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |error| error.message.as_ptr())
}

/// Releases an error object. Does nothing if `error` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_error_free(error: *mut latent_error) {
    if !error.is_null() {
        // SAFETY: it came from Box::into_raw in border.rs, and the caller frees it once
        drop(unsafe { Box::from_raw(error) });
    }
}
