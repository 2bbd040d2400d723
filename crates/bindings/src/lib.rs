//! What the interfaces for other languages share: the C API and the Python package are thin layers over this crate.
//!
//! * [`ModelHandle`]: an opened model. A thread of its own runs it, so that callers on any threads share its steps, stop waiting when they like, and never
//!   lend their own threads.
//! * [`LoadOptions`]: how it is run, by the names of the command line's flags.
//! * [`RunningGeneration`]: an answer, piece by piece; dropped, it ends.
//! * [`ChatPrompt`]: a conversation, and what the model's answer to it consists of ([`Message`]).
//! * [`GemmHandle`]: products with 4-bit weights.
//! * [`PlanView`]: what a step computes, as text, data and drawing.
//! * [`Error`]: what went wrong, with a kind that languages map to codes and exceptions.
//!
//! A forked child process lacks the parent's threads: calls that need them fail there with
//! [`ErrorKind::Forked`].
//!
//! ```
//! use latent_bindings::{GenerateOptions, LoadOptions, ModelHandle};
//! let model = ModelHandle::load(None, LoadOptions::default(), &mut || true)?;
//! let options = GenerateOptions { max_tokens: Some(8), ..model.generate_options() };
//! let answer = model.generate(model.encode("Once upon a time", true, false)?, &options)?.finish(&mut || true)?;
//! assert_eq!(answer.tokens.len(), 8);
//! # Ok::<(), latent_bindings::Error>(())
//! ```
#![forbid(unsafe_code)]

mod answer;
mod chat;
mod description;
mod embed;
mod error;
mod gemm;
mod generate;
mod listening;
mod logits;
mod message;
mod model;
mod open;
mod options;
mod plan;
mod process;
mod profile;
mod waiting;
mod worker;

pub use answer::{GeneratedAnswer, GenerationUpdate, RunningGeneration};
pub use chat::{ChatOptions, ChatPrompt};
pub use description::Description;
pub use error::{Error, ErrorKind};
pub use gemm::{GemmHandle, GemmOptions, pack, quant_type};
pub use generate::GenerateOptions;
pub use message::{Message, ToolCall};
pub use model::ModelHandle;
pub use open::{DEMO_NAME, open};
pub use options::LoadOptions;
pub use plan::{PlanView, PlannedOperation};
pub use waiting::WaitCheck;
