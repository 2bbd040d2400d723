//! Sampling: from logits to the next token.
//!
//! The chain, in llama.cpp's order: logit bias, penalties, DRY, top-k, typical, top-p, min-p, XTC, temperature; at temperature 0 the
//! likeliest token after bias, penalties and DRY. Probabilities that are reported are those of the model: before any of it.

mod candidate;
mod dry;
mod logprob;
mod params;
mod penalties;
mod random;
mod recommended;
mod sampler;
mod stop;
#[cfg(test)]
mod tests;
mod truncation;

pub use logprob::{LogProbability, log_probabilities};
pub use params::SamplingParams;
pub use recommended::Recommended;
pub use sampler::Sampler;
pub use stop::StopStrings;
