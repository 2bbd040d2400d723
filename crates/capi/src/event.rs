//! Events passed to a callback.

use latent::GenerationUpdate;
use std::ffi::{c_char, c_void};

/// What has become of an answer.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum latent_event_kind {
    /// Part of the prompt has run: `done` of `total` tokens.
    LATENT_EVENT_PROMPT = 0,
    /// A token was chosen, and `text` is certain now; it may be empty.
    LATENT_EVENT_TOKEN = 1,
    /// `text` was held back until the end.
    LATENT_EVENT_REST = 2,
}

use latent_event_kind::*;

/// What has become of an answer.
#[repr(C)]
pub struct latent_event {
    /// The library's sizeof(latent_event).
    pub size: usize,
    /// What it is.
    pub kind: latent_event_kind,
    /// The token; 0 if none was chosen.
    pub token: u32,
    /// UTF-8 with a NUL behind it. It lives until the callback returns.
    pub text: *const c_char,
    /// Its bytes.
    pub text_length: usize,
    /// Tokens of the prompt that are in the KV cache.
    pub done: u64,
    /// Tokens of the prompt.
    pub total: u64,
}

/// Hears of an answer, on the thread that asked for it. It returns whether to go on; on false the
/// answer ends. It must return: no exception and no longjmp may leave it.
pub type latent_callback =
    Option<unsafe extern "C" fn(user_data: *mut c_void, event: *const latent_event) -> bool>;

/// A callback with what belongs to it.
pub(crate) struct Callback {
    pub(crate) function: latent_callback,
    pub(crate) user_data: *mut c_void,
}

impl Callback {
    /// Tells a piece; whether to go on.
    ///
    /// # Safety
    /// The function may be called with the data.
    pub(crate) unsafe fn tell(&self, piece: GenerationUpdate) -> bool {
        let Some(function) = self.function else { return true };
        let (kind, token, text, done, total) = match piece {
            GenerationUpdate::Prompt { done, total } => (LATENT_EVENT_PROMPT, 0, String::new(), done, total),
            GenerationUpdate::Token { token, text, .. } => (LATENT_EVENT_TOKEN, token, text, 0, 0),
            GenerationUpdate::Rest(text) => (LATENT_EVENT_REST, 0, text, 0, 0),
            // Updates of newer versions of the library, for which this API has no event.
            _ => return true,
        };
        let text_length = text.len();
        let mut bytes = text.into_bytes();
        bytes.push(0);
        let event = latent_event {
            size: size_of::<latent_event>(),
            kind,
            token,
            text: bytes.as_ptr().cast(),
            text_length,
            done: done as u64,
            total: total as u64,
        };
        // SAFETY: as the caller promises
        unsafe { function(self.user_data, &raw const event) }
    }
}
