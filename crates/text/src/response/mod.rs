//! What a model wrote, taken apart: reasoning, answer, tool calls.
//!
//! One executor serves streams and whole responses. What it looks for is data: a response template in Hugging Face's form, the checkpoint's
//! own or one of ours (`response_templates/`), compiled to a [`ResponseFormat`]. See docs/response-parsing.md.
//!
//! * [`ResponseFormat::for_model`] chooses; [`ResponseParser`] parses; [`ResponseEvent`] is what comes out.
//! * [`ToolGrammar`] describes the format's tool calls for constrained decoding.

mod call;
mod call_events;
mod error;
mod event;
mod format;
mod grammar;
mod input;
mod json_call;
mod marker_tokens;
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
