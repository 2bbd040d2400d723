//! Runs code of one answer and catches its panics.

use crate::error::EngineError;
use latent_types::panic_text;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code that belongs to one answer: its sampler, its processors, its reader.
///
/// # Errors
/// [`EngineError::Panicked`] where it panics. What it has left half done belongs to that answer, which ends.
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| EngineError::Panicked(panic_text(&*panic).to_owned()))
}
