//! A loaded model and its single conversation.

use latent_backend::BackendError;
use latent_backend_wgpu::{GpuBackend, GpuError};
use latent_engine::sampling::{RecommendedParams, SamplingParams};
use latent_engine::{
    DEFAULT_BATCH_TOKENS, Engine, EngineError, EngineOptions, Listener, PieceKind, Request, Session,
    TokenEvent,
};
use latent_formats::Checkpoint;
use latent_graph::passes::{CacheForm, MlaChoice};
use latent_graph::{CheckpointTensors, ModelConfig};
use latent_text::{ChatInput, ChatTemplate, EncodeOptions, Tokenizer};
use serde_json::{Value, json};
use std::error::Error;
use std::sync::Arc;

/// Options of an answer.
#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AnswerOptions {
    /// If none, the model's recommendation, or else Latent's default.
    temperature: Option<f32>,
    max_tokens: Option<usize>,
    seed: u64,
}

/// A model on the device.
pub(crate) struct Model {
    engine: Engine,
    tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    sampling: SamplingParams,
    session: Session,
    /// Bytes per token of a cache with the keys and values of all heads, which the page shows for
    /// comparison.
    expanded_token_bytes: usize,
}

impl Model {
    /// Loads a GGUF file with room for a conversation of `context` tokens, at most the model's
    /// context length.
    pub(crate) fn load(
        backend: &GpuBackend,
        name: &str,
        bytes: Vec<u8>,
        context: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Model, Box<dyn Error>> {
        let checkpoint = Arc::new(Checkpoint::from_bytes(name, bytes)?);
        let config = ModelConfig::from_checkpoint(&checkpoint)?;
        let options = EngineOptions {
            context: Some(context.clamp(1, config.context_length)),
            // A browser does not report free GPU memory, so a larger batch cannot be chosen safely.
            max_batch_tokens: Some(DEFAULT_BATCH_TOKENS),
            // The module is built without threads (`build.sh`).
            threads: Some(1),
            ..EngineOptions::default()
        };
        let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint)?);
        let template = latent_text::chat_template(&checkpoint)?.map(ChatTemplate::new).transpose()?;
        let sampling = RecommendedParams::of(&checkpoint)?.params();
        let engine = Engine::load(backend, &checkpoint, &options, progress)?;
        // Only the size of a token in such a cache is computed; nothing is allocated.
        let expanded = EngineOptions { form: CacheForm::Expanded, mla: MlaChoice::Naive, ..options };
        let expanded = expanded.resolve(backend, &config)?;
        let stages = expanded.stages(&config, &CheckpointTensors(&checkpoint))?;
        let expanded_token_bytes = expanded.token_bytes(&stages);
        let session = Session::default();
        Ok(Model { engine, tokenizer, template, sampling, session, expanded_token_bytes })
    }

    /// Properties of the model for the page.
    pub(crate) fn description(&self) -> Value {
        let summary = self.engine.summary();
        json!({
            "name": summary.name,
            "parameters": summary.parameters,
            "weight_bytes": summary.weight_bytes,
            "load_seconds": summary.load_time.as_secs_f64(),
            "context": self.engine.context(),
            "largest_context": self.engine.largest_context(),
            "cache_type": summary.cache.to_string(),
            "token_bytes": summary.token_bytes,
            "expanded_token_bytes": self.expanded_token_bytes,
            "temperature": self.sampling.temperature,
            "chat": self.template.is_some(),
        })
    }

    /// Answers a conversation, a list of objects with `role` and `content`. A model without a chat
    /// template continues the text of the last message.
    pub(crate) fn answer(
        &mut self,
        messages: Value,
        options: &AnswerOptions,
        listener: &mut dyn Listener,
    ) -> Result<Value, Box<dyn Error>> {
        let own = &self.sampling;
        let sampling = SamplingParams {
            temperature: options.temperature.unwrap_or(own.temperature),
            seed: options.seed,
            ..own.clone()
        };
        let prompt = self.prompt(messages)?;
        let request = Request { prompt, sampling, max_tokens: options.max_tokens, ..Request::default() };
        let answer = self.engine.generate(&mut self.session, &request, &self.tokenizer, listener);
        // The device may be lost, so the rows of the session cannot be relied on after an error.
        let answer = answer.inspect_err(|_| self.session = Session::default())?;
        let rows = self.session.sequence.len();
        Ok(json!({
            "text": answer.text,
            "stop": answer.stop,
            "prompt_tokens": answer.prompt_tokens,
            "cached_tokens": answer.cached_tokens,
            "prompt_seconds": answer.prompt_seconds,
            "tokens": answer.tokens.len(),
            "generate_seconds": answer.generate_seconds,
            "cached_rows": rows,
            "cache_bytes": rows * self.engine.summary().token_bytes,
            "expanded_cache_bytes": rows * self.expanded_token_bytes,
        }))
    }

    fn prompt(&self, messages: Value) -> Result<Vec<u32>, Box<dyn Error>> {
        let Some(template) = &self.template else {
            let last = messages.as_array().and_then(|messages| messages.last()?.get("content")?.as_str());
            let text = last.ok_or("the conversation has no text to continue")?;
            return Ok(self
                .tokenizer
                .encode(text, EncodeOptions { add_special: true, parse_special: false })?);
        };
        let text = |id: Option<u32>| id.and_then(|id| self.tokenizer.token_text(id)).unwrap_or_default();
        let input = ChatInput {
            bos_token: text(self.tokenizer.bos()).to_owned(),
            eos_token: text(self.tokenizer.eos()).to_owned(),
            ..ChatInput::new(messages)
        };
        Ok(self.tokenizer.encode_rendered(&template.render(&input)?, false)?)
    }
}

/// Passes events of an answer to the page, and ends the answer when the page stops it.
pub(crate) struct PageListener<'p> {
    pub(crate) may_continue: &'p dyn Fn() -> bool,
    /// Receives pieces of the answer.
    pub(crate) on_text: &'p dyn Fn(&str),
    /// Receives the number of processed tokens of the prompt, and their total.
    pub(crate) on_prompt: &'p dyn Fn(usize, usize),
}

impl Listener for PageListener<'_> {
    fn prompt(&mut self, done: usize, total: usize) -> bool {
        (self.on_prompt)(done, total);
        (self.may_continue)()
    }

    fn token(&mut self, event: &TokenEvent<'_>) -> bool {
        if !event.text.is_empty() {
            (self.on_text)(event.text);
        }
        (self.may_continue)()
    }

    fn rest(&mut self, text: &str) {
        (self.on_text)(text);
    }
}

/// The message for the page if the error is one of the device or of its limits.
fn device_error_text(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<GpuError>() {
        return Some(error.for_page());
    }
    match error.downcast_ref::<EngineError>()? {
        EngineError::Backend(BackendError::Device(inner) | BackendError::Lost(inner)) => {
            inner.downcast_ref::<GpuError>().map(GpuError::for_page)
        }
        EngineError::Piece(piece) => Some(match piece.of {
            PieceKind::Cache { .. } => format!(
                "this browser's GPU limits buffers to less than a context of this length needs; at most {} \
                 tokens fit",
                piece.fits()
            ),
            PieceKind::Step { .. } => {
                "this browser's GPU limits buffers to less than a step of this model needs".into()
            }
        }),
        _ => None,
    }
}

/// The message of an error with its causes.
pub(crate) fn error_text(error: &(dyn Error + 'static)) -> String {
    if let Some(text) = device_error_text(error) {
        return text;
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        // Many messages already end with their cause.
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}
