//! Perplexity: e to the mean negative log-likelihood of a text.

use crate::chunks::{ScoredPosition, TokenChunks, run_chunks};
use crate::error::EvalError;
use crate::log_softmax::LogSoftmax;
use crate::logits_file::LogitsWriter;
use crate::statistics::{Estimate, Moments};
use latent_engine::Engine;
use serde::{Deserialize, Serialize};

/// How well a model predicts a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Perplexity {
    /// Tokens per chunk.
    pub context: usize,
    pub chunks: usize,
    /// Number of scored positions in all chunks.
    pub positions: usize,
    /// Mean of −ln p of the next token, in nats.
    pub nll: Estimate,
    /// e to `nll`.
    pub perplexity: Estimate,
    /// Perplexity of all chunks up to each one.
    pub running: Vec<f64>,
    /// −ln p at each position, in nats.
    #[serde(skip)]
    pub token_nll: Vec<f32>,
}

/// Computes the perplexity of a text in chunks. All log-probabilities are written to `logits`, if
/// given.
///
/// # Errors
/// As for [`run_chunks`]; logits that are not finite; a file that cannot be written.
pub fn perplexity(
    engine: &mut Engine,
    chunks: &TokenChunks,
    bos: Option<u32>,
    mut logits: Option<&mut LogitsWriter>,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<Perplexity, EvalError> {
    let mut nll = Moments::default();
    let mut running = Vec::with_capacity(chunks.count());
    let mut token_nll = Vec::with_capacity(chunks.count() * chunks.scored().len());
    let last = chunks.scored().end - 1;
    let mut sink = |position: ScoredPosition<'_>| {
        let softmax = LogSoftmax::of(position.logits).ok_or_else(|| position.not_finite())?;
        let value = -softmax.ln_p(position.logits[position.next as usize]);
        nll.add(value);
        // `divergence` needs a value per position. f32 halves the memory of a long text.
        token_nll.push(value as f32);
        // Once per chunk, as llama-perplexity prints it.
        if position.row == last {
            running.push(nll.mean().exp());
        }
        logits.as_mut().map_or(Ok(()), |writer| writer.add(&softmax, position.logits))
    };
    run_chunks(engine, chunks, bos, &mut sink, progress)?;
    let mean = nll.estimate();
    Ok(Perplexity {
        context: chunks.context(),
        chunks: chunks.count(),
        positions: nll.count,
        nll: mean,
        perplexity: mean.exp(),
        running,
        token_nll,
    })
}
