//! Sampling: from logits to the next token.
//!
//! The default chain has llama.cpp's order: logit bias, penalties, DRY, top-n-sigma, top-k,
//! typical, top-p, min-p, XTC, temperature, adaptive-p. [`SamplingParams::samplers`] sets another
//! order. At temperature 0, the likeliest token after bias, penalties and DRY is chosen. Mirostat
//! replaces the truncating samplers. Reported probabilities are those of the model before the
//! chain, unless the request asks for those after it.

mod adaptive;
mod breakers;
mod candidate;
mod check;
mod dry;
mod error;
mod fields;
mod infill;
mod kind;
mod logprob;
mod mirostat;
mod params;
mod penalties;
mod random;
mod recommended;
mod sampler;
mod stop;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_chains;
mod truncation;

pub use breakers::DEFAULT_BREAKERS;
pub use error::ParamError;
pub use fields::{SamplingField, SamplingNumber};
pub use kind::SamplerKind;
pub use logprob::{LogProbability, log_probabilities};
pub use params::SamplingParams;
pub use recommended::RecommendedParams;
pub use sampler::Sampler;
pub use stop::StopStrings;
