//! All kinds of results, as printed by `latent eval --json` and read by `latent eval report`.

use crate::choice::ChoiceAccuracy;
use crate::divergence::Divergence;
use crate::perplexity::Perplexity;
use crate::question::QuestionAccuracy;
use crate::retrieval::Retrieval;
use crate::routing::RoutingStatistics;
use crate::weights::WeightErrors;
use serde::{Deserialize, Serialize};

/// A result, the model, and the input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The model.
    pub model: EvaluatedModel,
    /// The text, questions or other input file; empty if the evaluation has none.
    // Results of older versions lack some fields; `latent eval report` still reads them.
    #[serde(default)]
    pub input: String,
    #[serde(flatten)]
    pub found: EvaluationResult,
}

/// The model and the settings that affect its results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluatedModel {
    pub file: String,
    #[serde(default)]
    pub name: String,
    /// Exact or default arithmetic; empty if the model was not run.
    #[serde(default)]
    pub precision: String,
    /// The instruction set.
    #[serde(default)]
    pub isa: String,
    /// Type of the KV cache.
    #[serde(default)]
    pub cache: String,
    /// Description of what it was compared with; empty if it was not.
    #[serde(default)]
    pub base: String,
    /// Latent's version.
    pub version: String,
}

/// The result.
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
