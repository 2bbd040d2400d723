//! Response formats: checked and compiled response templates.

mod builtin;
mod compile;
mod region;
mod shape;
mod spec;

use super::error::ResponseFormatError;
use super::grammar::ToolGrammar;
use latent_jinja::RenderedText;
use serde_json::Value;
use shape::Anchor;
pub use shape::FormatSource;
pub(super) use shape::{
    ArgumentsShape, Body, CallShape, Delimiter, FieldKind, FormatField, FormatRules, StripRule, TaggedShape,
};
use std::collections::HashSet;
use std::sync::Arc;

/// How a model writes reasoning, answer and tool calls. Cheap to clone.
#[derive(Clone)]
pub struct ResponseFormat {
    pub(super) inner: Arc<FormatRules>,
}

/// Properties of a model that determine its format.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelHints<'a> {
    /// `response_template` of tokenizer_config.json.
    pub response_template: Option<&'a Value>,
    /// The chat template's source.
    pub chat_template: Option<&'a str>,
    /// `model_type` of config.json, or `general.architecture` of GGUF.
    pub architecture: Option<&'a str>,
}

impl From<FormatRules> for ResponseFormat {
    fn from(format: FormatRules) -> ResponseFormat {
        ResponseFormat { inner: Arc::new(format) }
    }
}

impl std::fmt::Debug for ResponseFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseFormat")
            .field("name", &self.inner.name)
            .field("source", &self.inner.source)
            .finish_non_exhaustive()
    }
}

impl ResponseFormat {
    /// The format of a model. The checkpoint's own response template has priority. Otherwise a
    /// built-in format is chosen by strings in the chat template, or by the architecture. For
    /// unknown models it is `generic`, which parses `<think>` only.
    ///
    /// # Errors
    /// The checkpoint's own template is invalid. (`hints` without a template never fail.)
    pub fn for_model(hints: &ModelHints<'_>) -> Result<ResponseFormat, ResponseFormatError> {
        match hints.response_template {
            Some(template) => ResponseFormat::from_template(template),
            None => Ok(builtin::choose(hints.chat_template, hints.architecture)?.into()),
        }
    }

    /// A format from a response template in Hugging Face's form, with the additional keys of
    /// docs/response-parsing.md.
    pub fn from_template(template: &Value) -> Result<ResponseFormat, ResponseFormatError> {
        Ok(compile::compile("checkpoint", FormatSource::Checkpoint, template)?.into())
    }

    /// A built-in format.
    pub fn named(name: &str) -> Result<ResponseFormat, ResponseFormatError> {
        Ok(builtin::named(name, FormatSource::Named)?.into())
    }

    /// Names of the built-in formats.
    pub fn names() -> Vec<&'static str> {
        builtin::names()
    }

    /// The format's name; `checkpoint` for the checkpoint's own.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Why it was chosen.
    pub fn source(&self) -> FormatSource {
        self.inner.source
    }

    /// The form of tool calls, for constrained decoding. `None` if the format has no tool calls, or
    /// describes them only in Hugging Face's keys.
    pub fn tool_grammar(&self) -> Option<&ToolGrammar> {
        self.inner.grammar.as_ref()
    }

    /// Whether the format separates reasoning from the answer.
    pub fn has_reasoning(&self) -> bool {
        self.inner.fields.iter().any(|field| field.kind == FieldKind::Reasoning)
    }

    /// Whether tool calls are recognised.
    pub fn has_tools(&self) -> bool {
        self.inner.fields.iter().any(|field| field.kind == FieldKind::Tools)
    }

    /// First opening and closing marker of the reasoning, if both are literals.
    pub fn reasoning_markers(&self) -> Option<(&str, &str)> {
        let field = self.inner.fields.iter().find(|field| field.kind == FieldKind::Reasoning)?;
        Some((field.open.literals().first()?, field.close.literals().first()?))
    }

    /// Every literal that the parser searches for. Control tokens that occur in one of them belong
    /// into [`ParserOptions::control_tokens`](super::ParserOptions::control_tokens).
    pub fn markers(&self) -> Vec<&str> {
        let mut all: Vec<&str> =
            self.inner.ignore.iter().chain(&self.inner.sections).map(String::as_str).collect();
        for field in &self.inner.fields {
            let lists = [field.open.literals(), field.close.literals(), &field.interrupted_by];
            all.extend(lists.into_iter().flatten().map(String::as_str));
            if let Body::Call(shape) = &field.body {
                all.extend(shape.markers());
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Markers that may occur in text before the first call: control tokens of the vocabulary that
    /// no call uses, and whole markers of reasoning and answer, even if calls use some of their
    /// tokens.
    pub fn free_markers(&self, control_tokens: &[String]) -> Vec<String> {
        let Some(call) = self.tool_grammar() else { return Vec::new() };
        let others = self.inner.fields.iter().filter(|field| field.kind != FieldKind::Tools);
        let around = others.flat_map(|field| [field.open.literals(), field.close.literals()]).flatten();
        let whole = self.inner.ignore.iter().chain(around);
        // Kimi-K3 writes all of its markers with the same few control tokens. As single tokens they
        // would let free text begin a call, so only whole markers of reasoning and answer are free.
        let parts = [&call.section_open, &call.open, &call.name_close, &call.close, &call.section_close];
        let in_call = |marker: &&String| parts.iter().any(|part| part.contains(marker.as_str()));
        let mut free: Vec<String> =
            control_tokens.iter().chain(whole).filter(|m| !in_call(m)).cloned().collect();
        free.sort_unstable();
        free.dedup();
        free
    }

    /// The vocabulary's control and user-defined tokens that occur in the markers, for
    /// [`ParserOptions::control_tokens`](super::ParserOptions::control_tokens). The caller then
    /// pushes the output token by token, with `special` for tokens that are
    /// [`Tokenizer::is_special`](crate::Tokenizer::is_special).
    pub fn control_tokens(&self, tokenizer: &crate::Tokenizer) -> Vec<String> {
        let ids = self.markers().into_iter().flat_map(|marker| tokenizer.special_tokens_in(marker));
        let texts = ids.filter_map(|id| Some(String::from_utf8_lossy(tokenizer.piece(id)?).into_owned()));
        // Some vocabularies have white space and words as user-defined tokens. A line end in a
        // marker must not require a special token.
        let mut found: Vec<String> = texts.filter(|text| text.starts_with(['<', '[', '｜'])).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The vocabulary's control tokens that occur in markers of this format, for output whose text
    /// omits control tokens. The caller adds their names to
    /// [`ParserOptions::control_tokens`](super::ParserOptions::control_tokens), and pushes each
    /// name as `special` when the model generates its token.
    pub fn marker_tokens(&self, tokenizer: &crate::Tokenizer) -> HashSet<u32> {
        let markers = self.markers();
        let marks = |name: &str| !name.is_empty() && markers.iter().any(|marker| marker.contains(name));
        let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        ids.filter(|id| tokenizer.is_control(*id) && tokenizer.token_text(*id).is_some_and(marks)).collect()
    }

    /// The beginning of the assistant's current turn in a rendered prompt: after the last anchor
    /// that the template wrote, or without one after the last message.
    pub fn assistant_turn(&self, prompt: &RenderedText) -> usize {
        // A message that contains the anchor's text must not move the beginning of the turn.
        let own = |range: &std::ops::Range<usize>| {
            let before = prompt.content.partition_point(|content| content.end <= range.start);
            prompt.content.get(before).is_none_or(|content| content.start >= range.end)
        };
        let last = match &self.inner.anchor {
            Anchor::Literals(texts) => {
                let ends = texts.iter().filter_map(|text| {
                    let found = prompt.text.rmatch_indices(text.as_str());
                    found.map(|(at, _)| at..at + text.len()).find(own).map(|range| range.end)
                });
                ends.max()
            }
            Anchor::Pattern(regex) => {
                let ends = regex.find_iter(&prompt.text).map(|found| found.range()).filter(own);
                ends.last().map(|range| range.end)
            }
        };
        last.or_else(|| prompt.content.last().map(|content| content.end)).unwrap_or(prompt.text.len())
    }
}
