//! Conversations with a chat template.

use crate::border::{self, guarded};
use crate::buffers::{give, latent_string, latent_tokens};
use crate::error::{latent_error, latent_status};
use crate::event::{Callback, latent_callback};
use crate::generate::{follow, latent_answer, options_of};
use crate::generate_options::latent_generate_options;
use crate::model::latent_model;
use latent::{Chat, ChatOptions, ChatPrompt, Error, Model};
use serde_json::Value;
use std::ffi::{c_char, c_void};

/// Renders a conversation to the prompt of the model.
///
/// # Safety
/// Each text pointer is NULL or points to as many bytes as its length says.
unsafe fn prompt(
    model: &Model,
    messages: (*const c_char, usize),
    variables: (*const c_char, usize),
) -> Result<ChatPrompt, Error> {
    // SAFETY: as the caller promises
    let (messages, variables) = unsafe {
        (
            border::text(messages.0, messages.1, "messages")?,
            border::text(variables.0, variables.1, "variables")?,
        )
    };
    let options = match variables {
        "" => ChatOptions::default(),
        variables => ChatOptions::from_json(json("variables", variables)?)?,
    };
    model.text().render(&Chat::from_json(json("messages", messages)?)?.options(options))
}

fn json(name: &str, text: &str) -> Result<Value, Error> {
    latent_formats::json::parse(text)
        .map_err(|problem| Error::argument(format!("{name} is not JSON: {problem}")))
}

/// Renders a conversation with the chat template of the model.
///
/// - `messages`: JSON array of messages, UTF-8 of `messages_length` bytes, such as `[{"role":
///   "user", "content": "Hello"}]`.
/// - `variables`: JSON object of template variables such as `enable_thinking`, including `tools`
///   and `add_generation_prompt`. NULL and a length of 0 for none.
/// - `text`: receives the prompt as text, to be released with latent_string_free; may be NULL.
/// - `tokens`: receives the prompt as token ids, to be released with latent_tokens_free; may be
///   NULL.
///
/// Names of control tokens within message contents are encoded as plain text. `text` and `tokens`
/// are not written if the call fails.
///
/// Returns LATENT_BAD_TEXT if the model has no chat template or the template cannot be rendered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_render_chat(
    model: *const latent_model,
    messages: *const c_char,
    messages_length: usize,
    variables: *const c_char,
    variables_length: usize,
    text: *mut latent_string,
    tokens: *mut latent_tokens,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            let model = &border::given(model, "model")?.0;
            let prompt = prompt(model, (messages, messages_length), (variables, variables_length))?;
            give(text, || latent_string::new(prompt.text().to_owned()));
            give(tokens, || latent_tokens::new(prompt.tokens().to_vec()));
            Ok(())
        })
    }
}

/// Generates the next message of a conversation: latent_render_chat followed by latent_generate,
/// whose parameters have the same meaning here. Blocks until the generation has ended.
///
/// `message` may be NULL. Otherwise it receives the parsed message as a JSON object, which can be
/// appended to `messages`: `{"role": "assistant", "content": …}`, with `reasoning_content` and
/// `tool_calls` if there are any. The caller must release it with latent_string_free.
///
/// `answer` and `message` are not written if the call fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_chat(
    model: *const latent_model,
    messages: *const c_char,
    messages_length: usize,
    variables: *const c_char,
    variables_length: usize,
    options: *const latent_generate_options,
    callback: latent_callback,
    user_data: *mut c_void,
    answer: *mut latent_answer,
    message: *mut latent_string,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            let model = &border::given(model, "model")?.0;
            let prompt = prompt(model, (messages, messages_length), (variables, variables_length))?;
            let generating = model.complete(prompt).options(options_of(model, options)?).start()?;
            let done = follow(generating, &Callback { function: callback, user_data })?;
            latent_answer::tell(answer, &done)?;
            give(message, || latent_string::new(done.message.unwrap_or_default().to_json().to_string()));
            Ok(())
        })
    }
}
