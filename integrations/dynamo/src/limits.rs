//! Stop conditions and minimum length of answers.

use dynamo_backend_common::{DynamoError, StopConditions};
use latent_engine::LogitsProcessor;
use latent_text::Tokenizer;

/// Stop conditions in addition to the model's end-of-generation tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stops {
    /// Tokens that end it, sorted.
    tokens: Vec<u32>,
    /// Tokens that it has at least.
    at_least: usize,
}

impl Stops {
    pub(crate) fn new(asked: &StopConditions) -> Stops {
        let lists = [&asked.stop_token_ids, &asked.stop_token_ids_visible, &asked.stop_token_ids_hidden];
        let mut tokens: Vec<u32> = lists.into_iter().flatten().flatten().copied().collect();
        if asked.ignore_eos == Some(true) {
            tokens.clear();
        }
        tokens.sort_unstable();
        tokens.dedup();
        Stops { tokens, at_least: asked.min_tokens.unwrap_or(0) as usize }
    }

    /// Whether an answer of `len` tokens ends with this one.
    pub(crate) fn end(&self, token: u32, len: usize) -> bool {
        len >= self.at_least && self.tokens.binary_search(&token).is_ok()
    }

    /// What keeps the answer from ending too early, if anything must.
    pub(crate) fn processor(&self, tokenizer: &Tokenizer, prompt: usize) -> Option<Box<dyn LogitsProcessor>> {
        let ends = tokenizer.end_of_generation().iter().chain(&self.tokens).copied().collect();
        (self.at_least > 0).then(|| Box::new(AtLeast { ends, len: prompt + self.at_least }) as _)
    }
}

/// Forbids the end until the text has `len` tokens. If a grammar allows only the end, the answer
/// ends anyway.
struct AtLeast {
    ends: Vec<u32>,
    len: usize,
}

impl LogitsProcessor for AtLeast {
    fn process(&mut self, tokens: &[u32], logits: &mut [f32]) {
        if tokens.len() >= self.len {
            return;
        }
        let other =
            |(id, logit): (usize, &f32)| *logit > f32::NEG_INFINITY && !self.ends.contains(&(id as u32));
        if !logits.iter().enumerate().any(other) {
            return;
        }
        for end in &self.ends {
            if let Some(logit) = logits.get_mut(*end as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

/// Why a stop condition cannot be kept.
pub(crate) fn check(asked: &StopConditions) -> Result<(), DynamoError> {
    if asked.max_thinking_tokens.is_some() {
        return Err(crate::error::invalid(
            "max_thinking_tokens is not supported: bound the answer with max_tokens",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_with_its_stop_tokens_but_not_too_early() {
        let asked = StopConditions {
            stop_token_ids: Some(vec![9, 4]),
            stop_token_ids_hidden: Some(vec![4, 2]),
            min_tokens: Some(3),
            ..StopConditions::default()
        };
        let stops = Stops::new(&asked);
        assert_eq!([2, 4, 9, 3].map(|token| stops.end(token, 3)), [true, true, true, false]);
        assert!(!stops.end(9, 2));
        let ignored = StopConditions { ignore_eos: Some(true), ..asked };
        assert!(!Stops::new(&ignored).end(9, 5));
    }

    #[test]
    fn the_end_is_forbidden_until_there_are_enough_tokens_unless_nothing_else_is_left() {
        let mut processor = AtLeast { ends: vec![1, 3, 99], len: 2 };
        let mut logits = [0.0; 4];
        processor.process(&[7], &mut logits);
        assert_eq!(logits, [0.0, f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY]);
        let mut logits = [0.0; 4];
        processor.process(&[7, 7], &mut logits);
        assert_eq!(logits, [0.0; 4]);
        let mut only = [f32::NEG_INFINITY, 0.5, f32::NEG_INFINITY, f32::NEG_INFINITY];
        processor.process(&[7], &mut only);
        assert_eq!(only[1], 0.5);
    }
}
