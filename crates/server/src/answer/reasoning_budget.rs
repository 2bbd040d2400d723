//! A limit on the tokens of reasoning.

use crate::reasoning::ReasoningLimit;
use latent_engine::LogitsProcessor;
use latent_text::{Detokenizer, EncodeOptions, ResponseEvent, ResponseParser, TextError, Tokenizer};
use std::collections::VecDeque;
use std::sync::Arc;

/// Ends the reasoning of one answer after a number of tokens: it then allows only the tokens of the marker that ends it, one after the other.
pub(crate) struct ReasoningBudget {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer<Arc<Tokenizer>>,
    /// Follows the answer, to know where it reasons.
    parser: ResponseParser,
    events: Vec<ResponseEvent>,
    /// The message and the marker.
    ending: Vec<u32>,
    forced: VecDeque<u32>,
    left: usize,
    /// Whether the text of the last token ended in the middle of a character.
    in_character: bool,
}

impl ReasoningBudget {
    /// `parser` has been given the prompt; `marker` ends reasoning.
    pub(crate) fn new(
        tokenizer: &Arc<Tokenizer>,
        parser: ResponseParser,
        marker: &str,
        limit: &ReasoningLimit,
    ) -> Result<ReasoningBudget, TextError> {
        // the message is text, whatever it holds; the marker is the template's
        let mut ending =
            tokenizer.encode(&limit.message, EncodeOptions { add_special: false, parse_special: false })?;
        ending.extend(tokenizer.encode(marker, EncodeOptions { add_special: false, parse_special: true })?);
        Ok(ReasoningBudget {
            tokenizer: Arc::clone(tokenizer),
            detokenizer: Detokenizer::new(Arc::clone(tokenizer), false),
            parser,
            events: Vec::new(),
            ending,
            forced: VecDeque::new(),
            left: limit.tokens,
            in_character: false,
        })
    }

    /// Begins to end the reasoning where its tokens have run out. A character is completed first.
    fn force(&mut self) {
        if self.left == 0 && self.forced.is_empty() && !self.in_character && self.parser.in_reasoning() {
            self.forced.extend(&self.ending);
        }
    }

    fn follow(&mut self, token: u32) {
        let reasoned = self.parser.in_reasoning();
        if self.tokenizer.is_control(token) {
            let name = self.tokenizer.token_text(token).unwrap_or_default();
            self.parser.push(name, true, &mut self.events);
            self.in_character = false;
        } else {
            let text = self.detokenizer.push(token);
            self.in_character = text.is_empty();
            self.parser.push(&text, false, &mut self.events);
        }
        self.events.clear();
        if self.forced.pop_front().is_none() && reasoned && self.parser.in_reasoning() {
            self.left = self.left.saturating_sub(1);
        }
    }
}

impl LogitsProcessor for ReasoningBudget {
    fn process(&mut self, _: &[u32], logits: &mut [f32]) {
        self.force();
        let Some(next) = self.forced.front().map(|token| *token as usize) else { return };
        if let Some(own) = logits.get(next).copied() {
            logits.fill(f32::NEG_INFINITY);
            // another processor may have banned it
            logits[next] = if own.is_finite() { own } else { 0.0 };
        }
    }

    fn accepted(&mut self, tokens: &[u32]) {
        if let Some(token) = tokens.last() {
            self.follow(*token);
        }
    }
}
