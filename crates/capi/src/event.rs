//! Events that are passed to a callback during generation.

use latent::GenerationUpdate;
use std::ffi::{c_char, c_void};

/// Type of a latent_event.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum latent_event_kind {
    /// A chunk of the prompt was processed: `done` of `total` tokens are in the KV cache.
    LATENT_EVENT_PROMPT = 0,
    /// A token was generated. `text` is the text that became final with it. It is empty if the
    /// token ends within a UTF-8 character or within a possible stop string.
    LATENT_EVENT_TOKEN = 1,
    /// The generation ended. `text` is the remaining text, which had been held back.
    LATENT_EVENT_REST = 2,
}

use latent_event_kind::*;

/// Event of a generation. Later versions of the library may append fields.
#[repr(C)]
pub struct latent_event {
    /// sizeof(latent_event) in the library. It is smaller than in this header if the library is
    /// older.
    pub size: usize,
    /// Type of the event.
    pub kind: latent_event_kind,
    /// Token id for LATENT_EVENT_TOKEN; 0 for other events.
    pub token: u32,
    /// NUL-terminated UTF-8, empty for LATENT_EVENT_PROMPT. Valid until the callback returns.
    pub text: *const c_char,
    /// Length of `text` in bytes, without the terminating NUL.
    pub text_length: usize,
    /// For LATENT_EVENT_PROMPT, the number of prompt tokens in the KV cache; 0 for other events.
    pub done: u64,
    /// For LATENT_EVENT_PROMPT, the number of tokens of the prompt; 0 for other events.
    pub total: u64,
}

/// Callback that receives the events of a generation.
///
/// It runs on the thread that called latent_generate or latent_chat. `user_data` is the pointer
/// given to that function. `event` is valid until the callback returns. Return true to continue, or
/// false to end the generation.
///
/// The callback may call functions of this library, also for the same model. It must return
/// normally: do not leave it with a C++ exception or longjmp.
pub type latent_callback =
    Option<unsafe extern "C" fn(user_data: *mut c_void, event: *const latent_event) -> bool>;

/// A callback and its `user_data`.
pub(crate) struct Callback {
    pub(crate) function: latent_callback,
    pub(crate) user_data: *mut c_void,
}

impl Callback {
    /// Passes an update to the callback. Returns whether to continue the generation.
    ///
    /// # Safety
    /// The function may be called with `user_data`.
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
