//! Limit on the number of reasoning tokens.
//!
//! The limit is a logits processor, so that it also holds inside of batches and with grammars.

use crate::reasoning::ReasoningLimit;
use latent_engine::LogitsProcessor;
use latent_text::{Detokenizer, EncodeOptions, ResponseEvent, ResponseParser, TextError, Tokenizer};
use std::collections::VecDeque;
use std::sync::Arc;

/// Ends the reasoning of one answer after a number of tokens. It then allows only the tokens of the
/// message and of the end marker, one after the other.
pub(crate) struct ReasoningBudget {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer<Arc<Tokenizer>>,
    /// Tracks whether the answer is in its reasoning.
    parser: ResponseParser,
    events: Vec<ResponseEvent>,
    /// Tokens of the message and of the end marker.
    ending: Vec<u32>,
    /// Tokens of `ending` that are still to be forced.
    forced: VecDeque<u32>,
    /// Remaining reasoning tokens.
    left: usize,
    /// Whether the last token ended in the middle of a UTF-8 character.
    in_character: bool,
}

impl ReasoningBudget {
    /// `parser` has parsed the prompt. `marker` ends the reasoning.
    pub(crate) fn new(
        tokenizer: &Arc<Tokenizer>,
        parser: ResponseParser,
        marker: &str,
        limit: &ReasoningLimit,
    ) -> Result<ReasoningBudget, TextError> {
        // The message comes from the client: names of control tokens in it must stay text. The
        // marker comes from the template and usually is a control token.
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

    /// Starts to force the ending if the budget is used up.
    fn force(&mut self) {
        // A character is completed first: a forced token in the middle would leave invalid UTF-8.
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
        // Forced tokens and the marker itself do not count.
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
            // A grammar or `logit_bias` may have banned it. It must stay possible, or no token is.
            logits[next] = if own.is_finite() { own } else { 0.0 };
        }
    }

    fn accepted(&mut self, tokens: &[u32]) {
        if let Some(token) = tokens.last() {
            self.follow(*token);
        }
    }
}
