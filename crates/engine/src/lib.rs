//! The engine: sequences over a KV cache, steps, sampling, and the loop from a prompt to text. A
//! backend, given when the model is loaded, computes the steps.
//!
//! * [`Engine`]: a loaded model, which runs steps of [`Sequence`](cache::Sequence)s and returns
//!   logits.
//! * [`cache`]: the KV cache: shared prefixes, copy on write, truncation, context shift, files.
//! * [`sampling`]: from logits to the next token.
//! * [`Generation`]: from logits to text, a state machine without an engine.
//! * [`Engine::generate`]: from a prompt to text.
//! * [`Engine::advance`]: one step for many answers.
//! * [`Engine::submit`]: pipelined steps, over ranks that share a model layer by layer.
//! * [`scheduler`]: continuous batching of many jobs, with a prefix cache.
//! * [`worker`]: the thread of a scheduler, which reloads its model after a fault.
//! * [`Engine::profile`]: time per phase, compared with the machine's measured limits.
//! * [`Engine::trace`]: the activations of a run, which `latent-compare` compares with another run.
//! * [`EngineOptions::resolve`]: the effect of options for a model on a backend, without loading
//!   it.
//! * [`memory`]: the available memory.
//!
//! To embed a model:
//!
//! ```
//! # use latent_engine::{Engine, EngineOptions, TokenEvent, Listener, Request, Session};
//! # use latent_text::{EncodeOptions, Tokenizer};
//! # use std::{path::Path, sync::Arc};
//! # struct Terminal;
//! # impl Listener for Terminal { fn token(&mut self, event: &TokenEvent<'_>) -> bool { print!("{}", event.text); true } fn rest(&mut self, text: &str) { print!("{text}") } }
//! # let (path, how) = (concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/mla-demo-Q4_K_M.gguf"), EncodeOptions { add_special: true, parse_special: false });
//! let checkpoint = Arc::new(latent_formats::Checkpoint::open(Path::new(path))?);
//! let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint)?);
//! let mut engine = Engine::load(&*latent_backends::cpu(), &checkpoint, &EngineOptions::default(), &mut |_, _| {})?;
//! let request = Request { prompt: tokenizer.encode("Once upon a time", how)?, max_tokens: Some(40), ..Request::default() };
//! let answer = engine.generate(&mut Session::default(), &request, &tokenizer, &mut Terminal)?;
//! # assert_eq!(answer.tokens.len(), 40);
//! # assert!(answer.text.split_whitespace().count() > 8, "{}", answer.text);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/generate.rs` is the same as a program.
//!
//! The engine has no state that is global to the process. It binds no thread of the caller to a CPU
//! unless [`EngineOptions::pin`] is set.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "what only events report"))]

mod advance;
mod averaged_timeline;
pub mod cache;
mod cache_id;
mod caught;
mod context_shift;
mod device_layers;
mod draft;
mod draft_kind;
mod embedding;
mod engine;
mod error;
mod flights;
mod generate;
mod generation;
mod in_flight;
mod indent;
mod kernel_calls;
mod load;
mod logits_taker;
mod lookup;
pub mod memory;
mod offload;
mod options;
mod phase_times;
mod pieces;
mod profile;
mod profiling;
mod rank;
mod record;
mod request;
pub mod sampling;
pub mod scheduler;
mod seq_error;
mod sequences;
mod session;
mod step;
mod summary;
mod timeline;
mod tracing;
pub mod worker;

pub use advance::{AnswerProgress, RunningAnswer};
pub use context_shift::ContextShift;
pub use device_layers::{DeviceLayers, Offload};
pub use draft::DraftInput;
pub use draft_kind::{Draft, DraftCount};
pub use embedding::Pooling;
pub use engine::Engine;
pub use error::EngineError;
pub use generate::ContextLimits;
pub use generation::{ChosenToken, Generation, LogitsProcessor};
pub use in_flight::Ticket;
pub use latent_backend::{
    ActivationTrace, AdapterScales, CancelToken, InputRows, KernelCalls, MemoryEstimate, NodeCalls,
    PeakRates, ProfileClock, TraceValues,
};
pub use latent_hosts::Hosts;
pub use options::{DEFAULT_BATCH_TOKENS, EngineOptions, MAX_CACHE_TOKENS, ResolvedOptions, SparseAttention};
pub use phase_times::PhaseTime;
pub use pieces::{LargePiece, PieceKind};
pub use profile::{PhaseProfile, RankProfile, Roofline, StepProfile, StepSize};
pub use profiling::RoutedBytes;
pub use rank::{Follower, Rank, check_cut, files_of_rank};
pub use record::LayerRouting;
pub use request::{Answer, Listener, Request, StopReason, TokenEvent};
pub use seq_error::SeqError;
pub use session::Session;
pub use step::{LogitsRequest, SeqInput, StepOutcome};
pub use summary::{DenseAttention, FrontSummary, Summary};
pub use timeline::{StepTimeline, TimelineSlice};
