//! Grammars as constraints on answers.

use crate::codec::{ChatPrompt, TextCodec};
use crate::error::{Error, ErrorKind};
use latent_engine::LogitsProcessor;
use latent_grammar::{GrammarError, GrammarLimits, GrammarSource, Grammars, Reasoning};
use std::sync::OnceLock;

/// The compiler of a model's grammars. It is created for the first grammar, since its token tables
/// take time and memory.
#[derive(Default)]
pub(crate) struct LazyGrammars(OnceLock<Result<Grammars, GrammarError>>);

impl LazyGrammars {
    /// The logits processor that constrains an answer to a grammar. `prompt` is the conversation,
    /// if any.
    ///
    /// # Errors
    /// If the grammar cannot be compiled within its limits.
    pub(crate) fn constraint(
        &self,
        text: &TextCodec,
        source: &GrammarSource,
        prompt: Option<&ChatPrompt>,
    ) -> Result<Box<dyn LogitsProcessor>, Error> {
        // A failure is stored too: the tokenizer does not change, so another attempt would fail as
        // well.
        let grammars = self.0.get_or_init(|| Grammars::new(text.tokenizer(), GrammarLimits::default()));
        let grammars = grammars.as_ref().map_err(refused)?;
        let reasoning = prompt.and_then(|prompt| reasoning(text, prompt, source));
        let grammar = grammars.compile(source, reasoning.as_ref()).map_err(|error| refused(&error))?;
        Ok(Box::new(grammar.constraint()))
    }
}

/// The markers of unconstrained reasoning that may precede the constrained text.
fn reasoning(text: &TextCodec, prompt: &ChatPrompt, source: &GrammarSource) -> Option<Reasoning> {
    let (begin, end) = text.format().reasoning_markers()?;
    // If the prompt has opened the reasoning, the model must be able to close it under any grammar.
    let open = text.format().opens_reasoning(&prompt.rendered);
    // A schema describes the answer only, so reasoning may precede it if the chat template knows
    // the marker. A caller's own grammar covers all that the model writes.
    let own = matches!(source, GrammarSource::Gbnf(_) | GrammarSource::Lark(_) | GrammarSource::Regex(_));
    let thinks = text.chat_template().unwrap_or_default().contains(begin) && !own;
    (open || thinks).then(|| Reasoning { begin: begin.to_owned(), end: end.to_owned(), open })
}

fn refused(error: &GrammarError) -> Error {
    Error::new(ErrorKind::Grammar, error.to_string())
}
