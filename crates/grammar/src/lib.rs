//! Structured output: compiles JSON schemas, grammars and tool calls to token masks.
//!
//! * [`GrammarSource`] is the constraint of a request. [`Grammars::compile`] compiles it to a
//!   [`Grammar`], within [`GrammarLimits`].
//! * [`Constraint`] is the state of one response in a grammar: which tokens may come next.
//! * [`ToolCalls`] describes tool calls in a model's own format.
//!
//! llguidance computes the masks. This crate validates and bounds its inputs, which come from
//! clients, converts GBNF to its Lark dialect, and runs it on threads of its own
//! (docs/adr/0023-llguidance.md).
//!
//! ```
//! use latent_grammar::{GrammarError, GrammarLimits, Grammars, GrammarSource};
//! # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/mla-demo-Q4_K_M.gguf");
//! # let checkpoint = latent_formats::Checkpoint::open(data.as_ref()).unwrap();
//! # let tokenizer = latent_text::Tokenizer::from_checkpoint(&checkpoint).unwrap();
//! let grammars = Grammars::new(&tokenizer, GrammarLimits::default())?;
//! let grammar = grammars.compile(&GrammarSource::Choice(vec!["yes".into(), "no".into()]), None)?;
//! let (mut constraint, mut logits) = (grammar.constraint(), vec![0.0; tokenizer.vocab_size()]);
//! constraint.process(&[], &mut logits);
//! let allowed = |logits: &[f32], text: &str| logits[tokenizer.token_id(text).unwrap() as usize] == 0.0;
//! assert!(allowed(&logits, "y") && !allowed(&logits, "x"));
//!
//! let error = grammars.compile(&GrammarSource::Gbnf("root ::= [a-z".into()), None).err().unwrap();
//! assert_eq!(error.to_string(), "the GBNF grammar is malformed at line 1, column 10: this `[` is not closed");
//! # Ok::<(), GrammarError>(())
//! ```
#![forbid(unsafe_code)]

mod cache;
mod compile;
mod constraint;
mod cost;
mod cpu_time;
mod error;
mod gbnf;
mod grammar;
mod lark;
mod limits;
mod schema;
mod tools;
mod vocabulary;
mod watch;
mod workers;

pub use compile::Grammars;
pub use compile::{GrammarSource, Reasoning};
pub use constraint::Constraint;
pub use error::{GrammarError, SourcePosition};
pub use grammar::Grammar;
pub use limits::GrammarLimits;
pub use tools::{CallableTool, ToolCalls, ToolRequirement};
