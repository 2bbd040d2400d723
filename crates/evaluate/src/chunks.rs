//! Texts in chunks that run from an empty context, and their scored positions.

use crate::error::EvalError;
use latent_engine::cache::Sequence;
use latent_engine::{Engine, LogitsRequest};
use std::ops::Range;

/// Tokens of a text in chunks of equal length. The second half of each chunk is scored: its tokens
/// have enough context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenChunks {
    tokens: Vec<u32>,
    context: usize,
}

impl TokenChunks {
    /// Cuts a text into chunks of `context` tokens, at most `most` of them. A remainder is dropped.
    ///
    /// # Errors
    /// [`EvalError::TooShort`] without a whole chunk, [`EvalError::NoPositions`] for chunks of
    /// fewer than 4 tokens.
    pub fn cut(mut tokens: Vec<u32>, context: usize, most: Option<usize>) -> Result<TokenChunks, EvalError> {
        // `scored` is empty below 4: 3 / 2 .. 2.
        if context < 4 {
            return Err(EvalError::NoPositions { context });
        }
        let count = (tokens.len() / context).min(most.unwrap_or(usize::MAX));
        if count == 0 {
            return Err(EvalError::TooShort { tokens: tokens.len(), context });
        }
        tokens.truncate(count * context);
        Ok(TokenChunks { tokens, context })
    }

    pub fn count(&self) -> usize {
        self.tokens.len() / self.context
    }

    pub fn context(&self) -> usize {
        self.context
    }

    /// All tokens in order.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The rows of a chunk whose logits are scored by the following token: from the middle to the
    /// last but one.
    pub fn scored(&self) -> Range<usize> {
        // llama-perplexity scores the same rows, so the results can be compared. The last row has
        // no next token in the chunk.
        self.context / 2..self.context - 1
    }
}

/// A scored position.
#[derive(Clone, Copy, Debug)]
pub struct ScoredPosition<'a> {
    /// Index of the chunk.
    pub chunk: usize,
    /// Row in the chunk.
    pub row: usize,
    /// The next token of the text.
    pub next: u32,
    /// The logits, one per token of the vocabulary.
    pub logits: &'a [f32],
}

impl ScoredPosition<'_> {
    /// The error for logits without probabilities.
    pub(crate) fn not_finite(&self) -> EvalError {
        EvalError::NotFinite { chunk: self.chunk + 1, row: self.row }
    }
}

/// Runs all chunks and passes the scored positions to `sink`, in order. `bos`, if any, replaces the
/// first token of each chunk. `progress` is called with the number of finished tokens; if it
/// returns false, the run stops.
pub fn run_chunks(
    engine: &mut Engine,
    chunks: &TokenChunks,
    bos: Option<u32>,
    sink: &mut dyn FnMut(ScoredPosition<'_>) -> Result<(), EvalError>,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<(), EvalError> {
    let scored: Vec<usize> = chunks.scored().collect();
    let step = engine.chunk_for(chunks.context);
    let mut tokens = Vec::with_capacity(chunks.context);
    for (chunk, text) in chunks.tokens.chunks_exact(chunks.context).enumerate() {
        tokens.clear();
        tokens.extend_from_slice(text);
        // As in llama-perplexity: replacing a token keeps the length of the chunk. The scored text
        // is not affected, because the first half is not scored.
        tokens[0] = bos.unwrap_or(text[0]);
        let mut sequence = Sequence::default();
        let mut result = Ok(());
        let mut on_logits = |row: usize, logits: &[f32]| {
            if result.is_ok() {
                // The engine's callback returns nothing, so the first error of `sink` is kept until
                // `prefill` returns.
                result = sink(ScoredPosition { chunk, row, next: text[row + 1], logits });
            }
        };
        let done = chunk * chunks.context;
        let ran = engine.prefill(
            &mut sequence,
            &tokens,
            step,
            LogitsRequest::Rows(&scored),
            &mut on_logits,
            &mut |rows| progress(done + rows),
        );
        engine.release(sequence);
        result?;
        ran?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_into_whole_chunks_whose_second_half_is_scored() {
        let chunks = TokenChunks::cut((0..25).collect(), 8, None).unwrap();
        assert_eq!((chunks.count(), chunks.tokens().len(), chunks.scored()), (3, 24, 4..7));
        assert_eq!(TokenChunks::cut((0..25).collect(), 8, Some(2)).unwrap().count(), 2);
        let short = TokenChunks::cut((0..7).collect(), 8, None).unwrap_err().to_string();
        assert!(short.contains("7 tokens") && short.contains("option `context`"), "{short}");
        assert!(matches!(
            TokenChunks::cut((0..7).collect(), 3, None),
            Err(EvalError::NoPositions { context: 3 })
        ));
    }
}
