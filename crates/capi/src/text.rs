//! Tokenization.

use crate::border::{self, guarded, null};
use crate::buffers::{latent_string, latent_tokens};
use crate::error::{latent_error, latent_status};
use crate::model::latent_model;
use std::ffi::c_char;

/// Converts text to token ids.
///
/// - `text`, `length`: UTF-8 text of `length` bytes.
/// - `add_special`: if not 0, adds the tokens that begin (and end) a prompt.
/// - `parse_special`: if not 0, converts names of control tokens in the text to these tokens. Do
///   not set it for untrusted text.
/// - `tokens`: receives the ids, to be released with latent_tokens_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_tokenize(
    model: *const latent_model,
    text: *const c_char,
    length: usize,
    add_special: u32,
    parse_special: u32,
    tokens: *mut latent_tokens,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            let model = border::given(model, "model")?;
            let text = border::text(text, length, "text")?;
            if tokens.is_null() {
                return Err(null("tokens"));
            }
            tokens.write(latent_tokens::new(model.0.text().encode(
                text,
                add_special != 0,
                parse_special != 0,
            )?));
            Ok(())
        })
    }
}

/// Converts token ids to text. Invalid UTF-8 is replaced by U+FFFD.
///
/// - `tokens`, `count`: array of `count` token ids.
/// - `special`: if not 0, includes the names of control tokens.
/// - `text`: receives the text, to be released with latent_string_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_detokenize(
    model: *const latent_model,
    tokens: *const u32,
    count: usize,
    special: u32,
    text: *mut latent_string,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            let model = border::given(model, "model")?;
            let tokens = border::elements(tokens, count, "tokens")?;
            if text.is_null() {
                return Err(null("text"));
            }
            text.write(latent_string::new(model.0.text().decode(tokens, special != 0)?));
            Ok(())
        })
    }
}
