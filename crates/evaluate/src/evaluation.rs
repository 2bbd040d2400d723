//! Every kind of result, as `latent eval --json` prints it and a report reads it.

use crate::choice::ChoiceAccuracy;
use crate::divergence::Divergence;
use crate::perplexity::Perplexity;
use crate::question::QuestionAccuracy;
use crate::retrieval::Retrieval;
use crate::routing::RoutingStatistics;
use crate::weights::WeightErrors;
use serde::{Deserialize, Serialize};

/// A result, and what it was measured of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// What was measured.
    pub model: EvaluatedModel,
    /// The text, questions or other input file; empty if the evaluation has none.
    #[serde(default)]
    pub input: String,
    #[serde(flatten)]
    pub found: EvaluationResult,
}

/// The model, and the settings that change its numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluatedModel {
    pub file: String,
    #[serde(default)]
    pub name: String,
    /// Exact or default arithmetic; empty where the model was not run.
    #[serde(default)]
    pub precision: String,
    /// The instruction set.
    #[serde(default)]
    pub isa: String,
    /// Type of the KV cache.
    #[serde(default)]
    pub cache: String,
    /// What it was compared with, in words; empty where it was not.
    #[serde(default)]
    pub base: String,
    /// Latent's version.
    pub version: String,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "evaluation", rename_all = "snake_case")]
pub enum EvaluationResult {
    Perplexity(Perplexity),
    Kl(Divergence),
    /// Multiple choice.
    Choice(ChoiceAccuracy),
    Questions(QuestionAccuracy),
    Retrieval(Retrieval),
    Routing(RoutingStatistics),
    Weights(WeightErrors),
}
