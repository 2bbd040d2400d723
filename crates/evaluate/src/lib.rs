//! Evaluation of models: metrics comparable with other programs, and an HTML report.
//!
//! * [`perplexity`]: how well a model predicts a text, computed as by llama.cpp's tool.
//! * [`Divergence`]: distance of next-token probabilities from those in a [logits
//!   file](LogitsReader) of llama.cpp's format.
//! * [`ChoiceQuestion`], [`Question`], [`Haystack`]: likeliest endings, exactly right answers,
//!   facts found in long prompts.
//! * [`routing`]: load of experts, and the number of experts that a step reads.
//! * [`weight_errors`]: distance of weights from those of another file.
//! * [`compare`]: where two runs diverge.
//! * [`report`]: charts of results in one HTML file.
//!
//! Formulas and units: docs/evaluating.md.
//!
//! ```
//! use latent_engine::{Engine, EngineOptions};
//! use latent_evaluate::{TokenChunks, perplexity};
//! use latent_text::{EncodeOptions, Tokenizer};
//! # use std::{path::Path, sync::Arc};
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/mla-demo-Q4_K_M.gguf");
//! let checkpoint = Arc::new(latent_formats::Checkpoint::open(Path::new(path))?);
//! let tokenizer = Tokenizer::from_checkpoint(&checkpoint)?;
//! let mut engine = Engine::load(&*latent_backends::cpu(), &checkpoint, &EngineOptions::default(), &mut |_, _| {})?;
//! let text = "Once there was a fox who lived at the edge of a forest. ".repeat(20);
//! let tokens = tokenizer.encode(&text, EncodeOptions { add_special: true, parse_special: false })?;
//! let chunks = TokenChunks::cut(tokens, 64, None)?;
//! let found = perplexity(&mut engine, &chunks, tokenizer.bos(), None, &mut |_| true)?;
//! assert!(found.perplexity.value > 1.0 && found.perplexity.value < 20.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod choice;
mod chunks;
pub mod compare;
mod divergence;
mod error;
mod evaluation;
mod jsonl;
mod log_softmax;
mod logits_file;
mod perplexity;
mod question;
mod report;
mod retrieval;
mod routing;
mod statistics;
mod weights;

pub use choice::{ChoiceAccuracy, ChoiceCount, ChoiceQuestion, EndingScore, encoded, score_endings};
pub use chunks::{ScoredPosition, TokenChunks, run_chunks};
pub use divergence::{Divergence, Quantiles, divergence};
pub use error::EvalError;
pub use evaluation::{EvaluatedModel, Evaluation, EvaluationResult};
pub use log_softmax::LogSoftmax;
pub use logits_file::{BaseRow, LogitsReader, LogitsWriter};
pub use perplexity::{Perplexity, perplexity};
pub use question::{Question, QuestionAccuracy, QuestionKind, WrongAnswer, answer};
pub use report::report;
pub use retrieval::{Haystack, Needle, PromptEncoder, Retrieval, RetrievalCase, RetrievalCell, found};
pub use routing::{LayerLoad, RoutingStatistics, StepExperts, routing};
pub use statistics::Estimate;
pub use weights::{TensorError, WeightErrors, WeightGroup, weight_errors};
