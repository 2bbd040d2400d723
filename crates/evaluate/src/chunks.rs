//! A text in chunks, each run from an empty context, and the positions of them that count.

use crate::error::EvalError;
use latent_engine::cache::Sequence;
use latent_engine::{Engine, LogitsRequest};
use std::ops::Range;

/// Tokens of a text in chunks of one length. Of each chunk the second half counts: there the model knows what came before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenChunks {
    tokens: Vec<u32>,
    context: usize,
}

impl TokenChunks {
    /// Cuts a text into chunks of `context` tokens, `most` of them at most. What does not fill a chunk is left out.
    ///
    /// # Errors
    /// [`EvalError::TooShort`] without a whole chunk, [`EvalError::NoPositions`] for chunks of fewer than 4 tokens.
    pub fn cut(mut tokens: Vec<u32>, context: usize, most: Option<usize>) -> Result<TokenChunks, EvalError> {
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

    /// All tokens, chunk after chunk.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The rows of a chunk whose logits count, by the token that comes after each: from the middle to the last but one.
    pub fn scored(&self) -> Range<usize> {
        self.context / 2..self.context - 1
    }
}

/// One position that counts.
#[derive(Clone, Copy, Debug)]
pub struct ScoredPosition<'a> {
    /// The chunk, from 0.
    pub chunk: usize,
    /// The row within it.
    pub row: usize,
    /// The token of the text that comes next.
    pub next: u32,
    /// The logits, one per token of the vocabulary.
    pub logits: &'a [f32],
}

impl ScoredPosition<'_> {
    /// The error for logits that give no probabilities.
    pub(crate) fn not_finite(&self) -> EvalError {
        EvalError::NotFinite { chunk: self.chunk + 1, row: self.row }
    }
}

/// Runs all chunks and passes on the positions that count, in order. The model's `bos` token, if
/// any, replaces the first token of each chunk. `progress` is called with the number of finished
/// tokens; if it returns false, the run stops.
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
        tokens[0] = bos.unwrap_or(text[0]);
        let mut sequence = Sequence::default();
        let mut result = Ok(());
        let mut hear = |row: usize, logits: &[f32]| {
            if result.is_ok() {
                result = sink(ScoredPosition { chunk, row, next: text[row + 1], logits });
            }
        };
        let done = chunk * chunks.context;
        let ran = engine.prefill(
            &mut sequence,
            &tokens,
            step,
            LogitsRequest::Rows(&scored),
            &mut hear,
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
    fn a_text_is_cut_into_whole_chunks_whose_second_half_counts() {
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
