//! Logits and embeddings.

use crate::border::{self, guarded};
use crate::error::{latent_error, latent_status};
use crate::model::latent_model;
use latent::Error;
use std::ffi::c_char;

/// Computes logits for a sequence of `count` tokens.
///
/// - `tokens`, `count`: array of `count` token ids.
/// - `all`: if 0, computes the logits after the last token only, otherwise after each token.
/// - `logits`, `logits_count`: output buffer and its number of elements: latent_model_vocab_size,
///   or `count` times that if `all` is not 0. Row-major, one row per token.
///
/// Returns LATENT_INVALID_ARGUMENT if `logits_count` has another value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_logits(
    model: *const latent_model,
    tokens: *const u32,
    count: usize,
    all: u32,
    logits: *mut f32,
    logits_count: usize,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            let model = &border::given(model, "model")?.0;
            let tokens = border::elements(tokens, count, "tokens")?;
            let out = border::elements_mut(logits, logits_count, "logits")?;
            // Checked before the model runs, which may take long.
            let rows = if all != 0 { tokens.len() } else { 1 };
            fits("logits", out.len(), rows, model.description().vocab_size)?;
            let logits = if all != 0 { model.all_logits(tokens)? } else { model.logits(tokens)? };
            out.copy_from_slice(&logits);
            Ok(())
        })
    }
}

/// Computes the embedding of a text: the mean of its last hidden states, normalized to a Euclidean
/// length of 1.
///
/// - `text`, `length`: UTF-8 text of `length` bytes.
/// - `values`, `values_count`: output buffer and its number of elements, which must be
///   latent_model_hidden_size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_embed(
    model: *const latent_model,
    text: *const c_char,
    length: usize,
    values: *mut f32,
    values_count: usize,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            let model = &border::given(model, "model")?.0;
            let text = border::text(text, length, "text")?;
            let out = border::elements_mut(values, values_count, "values")?;
            fits("values", out.len(), 1, model.description().hidden_size)?;
            out.copy_from_slice(&model.embed([text])?.concat());
            Ok(())
        })
    }
}

/// Checks that a buffer of `found` elements has the size of `rows` rows of `width` elements.
pub(crate) fn fits(name: &str, found: usize, rows: usize, width: usize) -> Result<(), Error> {
    if rows.checked_mul(width) == Some(found) {
        return Ok(());
    }
    Err(Error::argument(format!("{name} has room for {found} elements, expected {rows} rows of {width}")))
}
