//! The engine: sequences over a KV cache, steps, sampling, and the loop from a prompt to text. What computes is a backend, given at loading.
//!
//! * [`Engine`]: a loaded model: steps over [`Sequence`](cache::Sequence)s, logits out.
//! * [`cache`]: the KV cache: shared prefixes, copy on write, truncation, context shift, files.
//! * [`sampling`]: from logits to the next token; [`Generation`]: from logits to text, a state machine without an engine.
//! * [`Engine::generate`]: from a prompt to text; [`Engine::advance`]: many answers at once.
//! * [`Engine::submit`]: several steps on their way at once, over ranks that share a model layer by layer.
//! * [`scheduler`]: continuous batching of many jobs, with a prefix cache.
//! * [`worker`]: the thread of a scheduler, which loads its model again after a fault.
//! * [`Engine::profile`]: time per phase, compared with the machine's measured limits.
//! * [`Engine::trace`]: the activations that a run passes through, which `latent-compare` holds against those of another run.
//! * [`EngineOptions::resolve`]: what options mean for a model on a backend, without loading anything.
//! * [`memory`]: how much there is.
//!
//! A model is embedded in five lines:
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
//! Nothing here is global to the process, and no thread of the caller is bound to a CPU unless [`EngineOptions::pin`] says so.
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
mod drafted_text;
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
