//! Prompts: from a user's text to tokens, with the chat template or raw.

use super::chat_options::TemplateOptions;
use crate::exit::UsageError;
use anyhow::{Context, Result};
use latent::{ChatPrompt, TextCodec};
use latent_formats::Checkpoint;
use latent_graph::ModelConfig;
use latent_text::{ChatInput, EncodeOptions, RenderedText, TextError, Tokenizer};
use serde_json::{Value, json};
use std::sync::Arc;

/// The tokenizer of a model and its chat template, if any.
pub(super) struct ChatFormatter {
    pub(super) text: TextCodec,
    /// Variables of the template other than the messages.
    pub(super) options: TemplateOptions,
    fit: ContextFit,
}

/// Note about restored sessions of models that draft.
pub(super) const RUN_AGAIN: &str =
    "the restored tokens run again: the file has no rows of the MTP layer, which drafts need";

/// Limits of a prompt that are known before the model is loaded.
struct ContextFit {
    /// The requested context in tokens, or the model's limit.
    context: usize,
    /// The model's limit.
    largest: usize,
}

impl ChatFormatter {
    /// Uses the model's own tokenizer. `context` is the requested context, if any.
    pub(super) fn open(
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        context: Option<usize>,
    ) -> Result<ChatFormatter> {
        let tokenizer = Tokenizer::from_checkpoint(checkpoint).with_context(|| checkpoint.display_name())?;
        ChatFormatter::new(tokenizer, checkpoint, config, context)
    }

    pub(super) fn new(
        tokenizer: Tokenizer,
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        context: Option<usize>,
    ) -> Result<ChatFormatter> {
        let largest = config.context_length;
        // --ctx-size 0 and larger values mean the model's limit, as in `model::with_context`.
        let context = context.filter(|tokens| *tokens > 0).unwrap_or(largest).min(largest);
        let fit = ContextFit { context, largest };
        let text = TextCodec::new(tokenizer, checkpoint, config)?;
        Ok(ChatFormatter { text, options: TemplateOptions::default(), fit })
    }

    pub(super) fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.text.tokenizer()
    }

    /// Encodes a text without the template.
    pub(super) fn raw(&self, text: &str) -> Result<Vec<u32>> {
        let how = EncodeOptions { add_special: true, parse_special: self.options.allow_special };
        // Encoding stops as soon as the text cannot fit, so a huge file by mistake fails fast.
        self.if_fits(self.tokenizer().encode_within(text, how, self.fit.tokens()))?
            .map_err(|bytes| self.fit.too_long(bytes))
    }

    /// Maximum bytes of a prompt that fits into the context; `None` if the tokenizer's rules set no
    /// bound.
    pub(super) fn longest(&self) -> Option<usize> {
        self.tokenizer().longest_text(self.fit.tokens())
    }

    /// Refuses a text whose length alone exceeds the context.
    pub(super) fn check_length(&self, bytes: usize) -> Result<()> {
        match self.longest() {
            Some(longest) if bytes > longest => Err(self.fit.too_long(bytes)),
            _ => Ok(()),
        }
    }

    /// The tokens if they fit into the context with one token to spare, else the size of the text
    /// in bytes.
    fn if_fits(&self, encoded: Result<Vec<u32>, TextError>) -> Result<Result<Vec<u32>, usize>> {
        match encoded {
            Err(TextError::TooLong { bytes, .. }) => Ok(Err(bytes)),
            other => Ok(Ok(other?)),
        }
    }

    /// Encodes a conversation up to the beginning of the answer.
    pub(super) fn chat(&self, messages: &[Value]) -> Result<Vec<u32>> {
        let prompt = self.chat_if_fits(messages)?.map_err(|bytes| self.fit.too_long(bytes))?;
        Ok(prompt.tokens().to_vec())
    }

    /// Renders and encodes a conversation; if it does not fit into the context, the inner error is
    /// its size in bytes.
    pub(super) fn chat_if_fits(&self, messages: &[Value]) -> Result<Result<ChatPrompt, usize>> {
        let rendered = self.rendered(messages)?;
        let (special, limit) = (self.options.allow_special, self.fit.tokens());
        let tokens = self.if_fits(self.tokenizer().encode_rendered_within(&rendered, special, limit))?;
        Ok(tokens.map(|tokens| ChatPrompt::new(rendered, self.options.tools().clone(), tokens)))
    }

    /// Renders a conversation to the text of a prompt.
    fn rendered(&self, messages: &[Value]) -> Result<RenderedText> {
        let Some(template) = self.text.template() else {
            let problem = "the model has no chat template; use --raw to pass the prompt unchanged";
            return Err(UsageError(problem.into()).into());
        };
        let mut input = ChatInput::of_tokenizer(Value::Array(messages.to_vec()), self.tokenizer());
        self.options.apply(&mut input);
        Ok(template.render(&input)?)
    }
}

impl ContextFit {
    /// Maximum tokens of a prompt: one is left for the answer.
    fn tokens(&self) -> usize {
        self.context.saturating_sub(1)
    }

    fn too_long(&self, bytes: usize) -> anyhow::Error {
        let ContextFit { context, largest } = self;
        let more =
            if context < largest { format!(", or give --ctx-size up to {largest}") } else { String::new() };
        UsageError(format!(
            "the prompt has {bytes} bytes, more than {} tokens, but the context holds {context} including \
             the answer: shorten the prompt{more}",
            self.tokens()
        ))
        .into()
    }
}

/// A message of a conversation.
pub(super) fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}
