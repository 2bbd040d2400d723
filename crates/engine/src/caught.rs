//! Catches panics in the code of one answer.

use crate::error::EngineError;
use latent_types::panic_text;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code that belongs to one answer: its sampler, its processors, its listener.
///
/// # Errors
/// [`EngineError::Panicked`] if it panics.
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> Result<T, EngineError> {
    // Unwind-safe: a half-done change belongs to that answer, which ends after the error.
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| EngineError::Panicked(panic_text(&*panic).to_owned()))
}
