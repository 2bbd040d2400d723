//! Chat templates: the dialect of Jinja in which models' publishers write them, as Hugging Face transformers renders it.
//!
//! Two things set this engine apart from a general one. Every operation is paid for before it is done, with
//! [`TemplateLimits`] on work, memory, depth and output, so that a template from a stranger ends in a text or in one [`Error`].
//! And strings know which of their bytes came from the inputs, through every operation, so that the names of
//! control tokens in a user's message can be told from those that the template writes ([`RenderedText::content`]).
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
