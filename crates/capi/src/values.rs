//! Numbers: logits and embeddings.

use crate::border::{self, guarded};
use crate::error::{latent_error, latent_status};
use crate::model::latent_model;
use latent::Error;
use std::ffi::c_char;

/// The logits after the last of `count` tokens, or with `all` after each of them, into `logits`,
/// which holds `logits_count` elements: latent_model_vocab_size, or `count` times that.
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

/// The embedding of `length` bytes of UTF-8, of length 1: the mean of the last hidden states, into
/// `values`, which holds `values_count` elements: latent_model_hidden_size.
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

/// Checks the room for rows of numbers.
pub(crate) fn fits(name: &str, found: usize, rows: usize, width: usize) -> Result<(), Error> {
    if rows.checked_mul(width) == Some(found) {
        return Ok(());
    }
    Err(Error::argument(format!("{name} has room for {found} elements, expected {rows} rows of {width}")))
}
