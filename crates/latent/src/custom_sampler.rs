//! Sampling by code of the caller.

use latent_engine::LogitsProcessor;

/// Samples tokens in place of Latent's samplers: see [`AnswerRequest::sampler`](crate::AnswerRequest::sampler). Closures implement it.
pub trait TokenSampler: Send {
    /// The next token. `tokens` are the prompt and what was sampled so far; `logits` has one element per token of the vocabulary, −∞ for those
    /// that a grammar or a processor forbids. The answer fails if the returned token is forbidden or not in the vocabulary.
    fn sample(&mut self, tokens: &[u32], logits: &[f32]) -> u32;
}

impl<F: FnMut(&[u32], &[f32]) -> u32 + Send> TokenSampler for F {
    fn sample(&mut self, tokens: &[u32], logits: &[f32]) -> u32 {
        self(tokens, logits)
    }
}

/// A sampler of the caller as the engine calls it.
pub(crate) struct SamplerProcessor<S>(S);

impl<S: TokenSampler> SamplerProcessor<S> {
    pub(crate) fn new(sampler: S) -> SamplerProcessor<S> {
        SamplerProcessor(sampler)
    }
}

impl<S: TokenSampler> LogitsProcessor for SamplerProcessor<S> {
    fn process(&mut self, _tokens: &[u32], _logits: &mut [f32]) {}

    fn sample(&mut self, tokens: &[u32], logits: &[f32]) -> Option<u32> {
        Some(self.0.sample(tokens, logits))
    }
}
