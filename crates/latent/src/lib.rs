//! Language models in Rust programs.
//!
//! ```
//! use latent::{Chat, Model};
//!
//! let model = Model::demo().context(512).load()?; // Model::builder("model.gguf") of one of your own
//! let mut answer = model.chat(Chat::new().user("Tell me a story.")).max_tokens(20).start()?;
//! for piece in &mut answer {
//!     print!("{}", piece?.text);
//! }
//! let done = answer.finish()?;
//! assert_eq!(done.usage.completion, done.tokens.len());
//! # Ok::<(), latent::Error>(())
//! ```
//!
//! `docs/rust.md` takes you from `cargo add` to a server. The crate contains:
//!
//! * [`Model`]: a loaded model, shared by any number of threads. It runs on a thread of its own,
//!   which batches concurrent answers. [`Model::builder`] loads one.
//! * [`Model::chat`] and [`Model::complete`] create an [`AnswerRequest`].
//!   [`start`](AnswerRequest::start) returns an [`AnswerStream`], which is read piece by piece.
//!   [`finish`](AnswerStream::finish) returns the [`GeneratedAnswer`]. [`finish_all`] answers a
//!   batch.
//! * [`Model::embed`], [`Model::logits`], [`Model::session`], [`Model::resume`],
//!   [`Model::save_prompt_cache`], [`Model::plan`], [`Model::profile`], [`Model::with_engine`].
//! * [`TextCodec`]: tokenizer and chat template, without weights.
//! * [`LogitsProcessor`] and [`TokenSampler`]: your own code between logits and token.
//! * [`Error`] with an [`ErrorKind`], which carries data.
//!
//! The crates below are available as [`backend`], [`engine`], [`formats`], [`graph`], [`text`],
//! [`threads`] and [`types`].
//!
//! # Features
//!
//! All features are off by default.
//!
//! | feature | adds |
//! |---|---|
//! | `demo` | `Model::demo`: a model of 5.8 MB, built in |
//! | `drawing` | `PlanView::svg` and `html` |
//! | `gemm` | `GemmHandle`: products with 4-bit weights; with `gpu` also `marlin::GemmDevice` |
//! | `gpu` | `.device("gpu")` on Vulkan, Metal and DirectX 12 |
//! | `grammar` | `.json_schema(…)`, `.grammar(…)` |
//! | `hub` | models of Hugging Face's hub in `Model::builder` |
//! | `reference` | `.device("reference")`, the oracle of the tests |
//! | `stream` | `futures_core::Stream` for [`AnswerStream`] |
//! | `time-zones` | local time in chat templates that print the date, in place of UTC |
//! | `tracing` | spans and events of the engine |
//!
//! Without features, 44 packages are compiled. With `half` 2.7 there are 47;
//! `cargo update -p half --precise 2.6.0` avoids that.
//!
//! # Debug builds
//!
//! Unoptimized kernels run some three hundred times slower. Add to your `Cargo.toml`:
//!
//! ```toml
//! [profile.dev.package."*"]
//! opt-level = 3
//! ```
//!
//! # Forks
//!
//! A forked child process lacks the parent's threads: calls that need them fail there with
//! [`ErrorKind::Forked`].
#![forbid(unsafe_code)]
#![deny(missing_docs)]

/// The examples of the guide, which run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
pub struct RustGuide;

mod answer;
mod builder;
mod codec;
#[cfg(feature = "grammar")]
mod constraint;
mod conversation;
mod description;
#[cfg(feature = "hub")]
mod download;
mod embed;
mod error;
#[cfg(feature = "gemm")]
mod gemm;
mod listening;
mod logits;
mod message;
mod model;
mod open;
mod options;
mod plan;
mod process;
mod profile;
mod request;
mod session;
mod waiting;
mod worker;

pub use answer::{AnswerPiece, AnswerStream, GeneratedAnswer, GenerationUpdate, TokenLogprob};
pub use builder::ModelBuilder;
pub use codec::{ChatPrompt, TextCodec};
pub use conversation::{Chat, ChatOptions};
pub use description::{Description, LoadedAdapter};
pub use error::{Error, ErrorKind};
#[cfg(feature = "gemm")]
pub use gemm::{GemmHandle, GemmOptions, pack, quant_type};
pub use listening::AnswerCanceller;
pub use message::{Message, ToolCall, ToolCallDelta};
pub use model::Model;
#[cfg(feature = "demo")]
pub use open::open_demo;
pub use open::{open, open_with_adapters};
pub use options::LoadOptions;
pub use plan::{PlanView, PlannedOperation};
pub use request::GenerateOptions;
pub use request::TokenSampler;
pub use request::{AnswerRequest, Prompt, finish_all};
pub use session::SavedSession;
pub use waiting::WaitCheck;

pub use latent_backend as backend;
pub use latent_engine as engine;
pub use latent_engine::cache::{CacheSalt, DiskCache};
pub use latent_engine::sampling::{
    LogProbability, SamplerKind, SamplingField, SamplingNumber, SamplingParams,
};
pub use latent_engine::scheduler::{JobUsage, SchedulerOptions};
pub use latent_engine::{
    ContextShift, Draft, DraftCount, EngineOptions, Hosts, LogitsProcessor, Pooling, Request, StopReason,
};
pub use latent_formats as formats;
pub use latent_formats::Checkpoint;
#[cfg(feature = "grammar")]
pub use latent_grammar as grammar;
#[cfg(feature = "grammar")]
pub use latent_grammar::GrammarSource;
pub use latent_graph as graph;
pub use latent_graph::passes::Precision;
pub use latent_graph::{ModelConfig, Plan};
#[cfg(feature = "hub")]
pub use latent_hub as hub;
#[cfg(feature = "hub")]
pub use latent_hub::HubSettings;
#[cfg(feature = "gemm")]
pub use latent_marlin as marlin;
pub use latent_text as text;
pub use latent_text::Tokenizer;
pub use latent_threads as threads;
pub use latent_types as types;
pub use latent_types::{CacheType, Tier};
