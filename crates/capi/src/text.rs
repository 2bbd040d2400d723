//! From text to tokens and back.

use crate::border::{self, guarded, null};
use crate::buffers::{latent_string, latent_tokens};
use crate::error::{latent_error, latent_status};
use crate::model::latent_model;
use std::ffi::c_char;

/// The tokens of `length` bytes of UTF-8. With `add_special` those that begin (and end) a prompt
/// are added; with `parse_special` names of control tokens in the text become those tokens, which
/// is not for text that others have written.
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

/// The text of `count` tokens; includes the names of control tokens if `special` is set. Invalid
/// UTF-8 becomes U+FFFD.
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
