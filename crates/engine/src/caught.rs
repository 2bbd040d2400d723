//! Code of one answer, whose panics are its own.

use crate::error::EngineError;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code that belongs to one answer: its sampler, its processors, its reader.
///
/// # Errors
/// [`EngineError::Panicked`] where it panics. What it has left half done belongs to that answer, which ends.
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        EngineError::Panicked(text.unwrap_or_else(|| "no message".into()))
    })
}
