//! Parsing of responses into reasoning, answer and tool calls.
//!
//! The same parser handles streams and whole responses. The markers that it searches for are data:
//! a response template in Hugging Face's form, the checkpoint's own or a built-in one
//! (`response_templates/`), compiled to a [`ResponseFormat`]. See docs/response-parsing.md.
//!
//! * [`ResponseFormat::for_model`] chooses a format; [`ResponseParser`] parses text into
//!   [`ResponseEvent`]s.
//! * [`ToolGrammar`] describes the format's tool calls for constrained decoding.

mod call;
mod call_events;
mod error;
mod event;
mod format;
mod grammar;
mod input;
mod json_call;
mod open_call;
mod options;
mod parser;
mod pattern;
mod regions;
mod run;
mod state;
mod tagged;
mod text_out;
mod watch;
mod watches;

pub use error::ResponseFormatError;
pub use event::{CallEnding, ResponseEvent};
pub use format::{FormatSource, ModelHints, ResponseFormat};
pub use grammar::{ArgumentsGrammar, KindGrammar, TaggedGrammar, ToolGrammar};
pub use options::ParserOptions;
pub use parser::ResponseParser;
