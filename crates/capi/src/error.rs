//! Errors: a code that is returned, and an object with a message by way of an out-parameter.
//!
//! An out-parameter rather than a message of the thread: what runs on many threads for one caller
//! (coroutines, goroutines, other languages' schedulers) finds the message of its own call, and
//! nothing has to be copied before the next one.

use latent::{Error, ErrorKind, LoadOptions};
use std::ffi::{CString, c_char};

/// What became of a call.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum latent_status {
    /// The call has succeeded.
    LATENT_OK = 0,
    /// An invalid argument or option: NULL, invalid UTF-8, a wrong length, a value out of range.
    LATENT_INVALID_ARGUMENT = 1,
    /// The model's file is not there.
    LATENT_NOT_FOUND = 2,
    /// The model's file cannot be read, or is malformed.
    LATENT_BAD_FILE = 3,
    /// The model's architecture or tokenizer is not known.
    LATENT_UNSUPPORTED = 4,
    /// The model does not fit into memory; the message says what it needs.
    LATENT_OUT_OF_MEMORY = 5,
    /// The prompt does not fit into the context.
    LATENT_TOO_LONG = 6,
    /// A chat template or a text that cannot be rendered or encoded.
    LATENT_BAD_TEXT = 7,
    /// The caller stopped it.
    LATENT_STOPPED = 8,
    /// This process was forked from the one that loaded the model, whose threads are not here.
    LATENT_FORKED = 9,
    /// The engine failed, or panicked, which is an error of Latent: load the model again.
    LATENT_ENGINE = 10,
}

use latent_status::*;

/// Why a call failed.
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

/// The code of an error; LATENT_OK for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_error_status(error: *const latent_error) -> latent_status {
    // SAFETY: the caller gives NULL or an error of this library that was not freed
    unsafe { error.as_ref() }.map_or(LATENT_OK, |error| error.status)
}

/// The message of an error: what, where, the value, and what can be done; UTF-8. It lives as long
/// as the error. An empty text for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_error_message(error: *const latent_error) -> *const c_char {
    // SAFETY: the caller gives NULL or an error of this library that was not freed
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |error| error.message.as_ptr())
}

/// Frees an error. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_error_free(error: *mut latent_error) {
    if !error.is_null() {
        // SAFETY: it came from Box::into_raw in border.rs, and the caller frees it once
        drop(unsafe { Box::from_raw(error) });
    }
}
