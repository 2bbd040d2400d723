//! Options of generation as a plain structure, for interfaces of other languages.

use crate::model::Model;
use latent_engine::sampling::SamplingParams;
use std::hash::{BuildHasher, RandomState};

/// How an answer is generated: see [`AnswerRequest::options`](crate::AnswerRequest::options).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// Most tokens; none: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// Texts before which the answer ends.
    pub stop: Vec<String>,
    /// Report log-probabilities of this many alternatives; none: of none.
    pub logprobs: Option<usize>,
    /// How tokens are sampled.
    pub sampling: SamplingParams,
    /// A scale for each LoRA adapter of the model; none: those that it was loaded with.
    pub adapter_scales: Option<Vec<f32>>,
}

impl Model {
    /// The options of a request that sets nothing: what the model recommends, else Latent's own, with a fresh seed.
    pub fn generate_options(&self) -> GenerateOptions {
        let sampling = SamplingParams { seed: fresh_seed(), ..self.inner.sampling.clone() };
        GenerateOptions { sampling, ..GenerateOptions::default() }
    }
}

/// A seed from the system's randomness.
pub(crate) fn fresh_seed() -> u64 {
    RandomState::new().hash_one(std::time::SystemTime::now())
}
