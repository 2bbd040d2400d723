//! Text generation.

use crate::border::{self, guarded};
use crate::buffers::{give, latent_string};
use crate::error::{latent_error, latent_status};
use crate::event::{Callback, latent_callback};
use crate::generate_options::latent_generate_options;
use crate::model::latent_model;
use crate::sized::{self, SizedStruct};
use latent::{AnswerStream, Error, GenerateOptions, GeneratedAnswer, Model};
use latent_engine::StopReason;
use std::ffi::c_void;

/// Reason why a generation ended.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum latent_stop {
    /// The model generated a token that ends the answer.
    LATENT_STOP_END = 0,
    /// One of the strings in `stop` was generated.
    LATENT_STOP_STRING = 1,
    /// `max_tokens` tokens were generated.
    LATENT_STOP_LENGTH = 2,
    /// The context is full.
    LATENT_STOP_CONTEXT = 3,
    /// The callback returned false.
    LATENT_STOP_CALLER = 4,
}

/// Statistics of a finished generation. Set `size` before the call:
/// `latent_answer answer = {sizeof answer};`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct latent_answer {
    /// sizeof(latent_answer).
    pub size: usize,
    /// Reason why the generation ended: one of latent_stop.
    pub stop: i32,
    /// Number of tokens of the prompt.
    pub prompt_tokens: u64,
    /// Number of prompt tokens that were reused from the prefix cache.
    pub cached_tokens: u64,
    /// Number of generated tokens, including an end token.
    pub completion_tokens: u64,
    /// Time to process the prompt, in seconds.
    pub prompt_seconds: f64,
    /// Time to generate the tokens, in seconds.
    pub generate_seconds: f64,
}

// SAFETY: it begins with `size`, and has numbers only
unsafe impl SizedStruct for latent_answer {
    const NAME: &str = "latent_answer";
}

impl latent_answer {
    fn of(answer: &GeneratedAnswer) -> latent_answer {
        let usage = &answer.usage;
        let stop = match answer.stop {
            StopReason::End => latent_stop::LATENT_STOP_END,
            StopReason::StopString => latent_stop::LATENT_STOP_STRING,
            StopReason::Length => latent_stop::LATENT_STOP_LENGTH,
            StopReason::Context => latent_stop::LATENT_STOP_CONTEXT,
            StopReason::Interrupted => latent_stop::LATENT_STOP_CALLER,
        };
        latent_answer {
            size: size_of::<latent_answer>(),
            stop: stop as i32,
            prompt_tokens: usage.prompt as u64,
            cached_tokens: usage.cached as u64,
            completion_tokens: usage.completion as u64,
            prompt_seconds: usage.prompt_time.as_secs_f64(),
            generate_seconds: usage.generate_time.as_secs_f64(),
        }
    }

    /// Writes the statistics to `place`. Does nothing if `place` is NULL.
    ///
    /// # Safety
    /// `place` is NULL, or points to a struct whose first field is its size in bytes.
    pub(crate) unsafe fn tell(place: *mut latent_answer, answer: &GeneratedAnswer) -> Result<(), Error> {
        if place.is_null() {
            return Ok(());
        }
        // SAFETY: as the caller promises
        unsafe { sized::write(place, place.cast::<usize>().read_unaligned(), &latent_answer::of(answer)) }
    }
}

/// Converts the options of the caller. NULL selects the defaults of the model.
///
/// # Safety
/// `options` is NULL, or as the header says.
pub(crate) unsafe fn options_of(
    model: &Model,
    options: *const latent_generate_options,
) -> Result<GenerateOptions, Error> {
    let own = model.generate_options();
    // SAFETY: as the caller promises
    unsafe {
        match sized::read(options, latent_generate_options::of(&own))? {
            Some(options) => options.read(),
            None => Ok(own),
        }
    }
}

/// Passes every update to the callback, and returns the finished answer.
///
/// # Safety
/// The callback may be called.
pub(crate) unsafe fn follow(
    mut generating: AnswerStream,
    callback: &Callback,
) -> Result<GeneratedAnswer, Error> {
    while let Some(piece) = generating.next_update()? {
        // SAFETY: as the caller promises
        if !unsafe { callback.tell(piece) } {
            generating.stop();
        }
    }
    generating.finish()
}

/// Generates a continuation of a prompt. Blocks until the generation has ended.
///
/// - `prompt`, `count`: the prompt as `count` token ids.
/// - `options`: NULL for the defaults of the model (see latent_generate_options_init).
/// - `callback`, `user_data`: callback that receives each event, or NULL, and its argument.
/// - `answer`: receives statistics; may be NULL.
/// - `text`: receives the generated text, which the caller must release with latent_string_free;
///   may be NULL.
///
/// `answer` and `text` are not written if the call fails. If the callback ends the generation, the
/// call succeeds and `answer->stop` is LATENT_STOP_CALLER. Tokens at the beginning of the prompt
/// that are in the prefix cache are not computed again.
///
/// Returns LATENT_TOO_LONG if the prompt does not fit into the context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_generate(
    model: *const latent_model,
    prompt: *const u32,
    count: usize,
    options: *const latent_generate_options,
    callback: latent_callback,
    user_data: *mut c_void,
    answer: *mut latent_answer,
    text: *mut latent_string,
    error: *mut *mut latent_error,
) -> latent_status {
    // SAFETY: pointers are as the header says
    unsafe {
        guarded(error, || {
            let model = &border::given(model, "model")?.0;
            let prompt = border::elements(prompt, count, "prompt")?;
            let generating = model.complete(prompt).options(options_of(model, options)?).start()?;
            let done = follow(generating, &Callback { function: callback, user_data })?;
            latent_answer::tell(answer, &done)?;
            give(text, || latent_string::new(done.text));
            Ok(())
        })
    }
}
