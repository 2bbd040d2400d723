//! Chat template engine: the Jinja dialect of published models, rendered as Hugging Face
//! transformers renders it (Jinja2 3.1, `ImmutableSandboxedEnvironment`, `trim_blocks`,
//! `lstrip_blocks`, `loopcontrols`, a `tojson` without HTML escapes).
//!
//! It differs from a general-purpose engine in two ways:
//!
//! * A template is an untrusted program. Every operation is charged before it runs, against
//!   [`TemplateLimits`] for work, memory, depth and output. Rendering returns a text or an
//!   [`Error`]; it cannot exhaust the stack, the memory or the processor.
//! * Every string tracks which of its bytes came from the inputs ([`RenderedText::content`]). The
//!   tokenizer accepts a control token's name only outside of these ranges, so a user cannot forge
//!   a turn by typing `<|assistant|>`.
//!
//! ```
//! use latent_jinja::{TemplateLimits, StringTrust, RenderRequest, Template};
//! let template = Template::parse("<|user|>{{ text }}", &TemplateLimits::DEFAULT)?;
//! let text = serde_json::json!("Hi <|user|>");
//! let mut render = RenderRequest::new(&template, TemplateLimits::DEFAULT);
//! render.define("text", &text, StringTrust::Content)?;
//! let rendered = render.finish()?;
//! assert_eq!(rendered.text, "<|user|>Hi <|user|>");
//! assert_eq!(rendered.content, [8..19]);
//! # Ok::<(), latent_jinja::Error>(())
//! ```
#![forbid(unsafe_code)]

mod ast;
mod chars;
mod error;
mod eval;
mod filters;
mod functions;
mod lexer;
mod limits;
mod meter;
mod methods;
mod parser;
mod python;
mod runtime;
mod symbols;
mod template;
mod tests;
mod text;
mod value;

pub use error::{Error, ErrorKind};
pub use limits::TemplateLimits;
pub use template::{RenderRequest, RenderUsage, RenderedText, StringTrust, Template};
