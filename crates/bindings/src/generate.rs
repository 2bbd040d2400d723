//! Requests for generation.

use crate::answer::RunningGeneration;
use crate::error::Error;
use crate::model::ModelHandle;
use latent_engine::Request;
use latent_engine::sampling::SamplingParams;
use latent_engine::scheduler::Job;

/// How an answer is generated.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Most tokens; none: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// Texts before which the answer ends.
    pub stop: Vec<String>,
    /// Report log-probabilities of this many alternatives; none: of none.
    pub logprobs: Option<usize>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
}

impl ModelHandle {
    /// The options of a call that says nothing: what the model recommends, else Latent's own, with a fresh seed.
    pub fn generate_options(&self) -> GenerateOptions {
        let sampling = SamplingParams { seed: fresh_seed(), ..self.inner.sampling.clone() };
        GenerateOptions { sampling, ..GenerateOptions::default() }
    }

    /// Begins the answer to a prompt.
    ///
    /// # Errors
    /// An engine that has failed, or is another process's. A prompt or options that cannot be are found when the answer is asked for its first
    /// piece.
    pub fn generate(&self, prompt: Vec<u32>, options: &GenerateOptions) -> Result<RunningGeneration, Error> {
        let request = Request {
            prompt,
            sampling: options.sampling.clone(),
            max_tokens: options.max_tokens,
            stop: options.stop.iter().filter(|text| !text.is_empty()).cloned().collect(),
            logprobs: options.logprobs,
            ..Request::default()
        };
        let listening = self.submit(Job { request, ..Job::default() })?;
        Ok(RunningGeneration::new(self.clone(), listening))
    }
}

fn fresh_seed() -> u64 {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    time.map_or(0, |time| time.as_nanos() as u64)
}
