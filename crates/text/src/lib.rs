//! Tokenizers, chat templates and response parsing.
//!
//! * [`Tokenizer`]: text to token ids and back, from a GGUF vocabulary, tokenizer.json,
//!   tiktoken.model, tekken.json or SentencePiece's tokenizer.model.
//! * [`GgufTokenizer`], [`HfTokenizer`]: conversion of a tokenizer between kinds of files.
//! * [`Detokenizer`]: streaming text from tokens, in whole characters.
//! * [`ChatTemplate`]: messages to a prompt, by the model's own Jinja template, with limits on its
//!   work and memory.
//! * [`ResponseParser`]: a streaming response to reasoning, answer and tool calls.
//!
//! ```
//! let template = latent_text::ChatTemplate::new("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")?;
//! let input = latent_text::ChatInput::new(serde_json::json!([{"role": "user", "content": "Hi"}]));
//! let rendered = template.render(&input)?;
//! assert_eq!(rendered.text, "<user>Hi");
//! // content of messages is distinguished from the template's own text
//! assert_eq!(rendered.content, [6..8]);
//! # Ok::<(), latent_text::TextError>(())
//! ```
#![forbid(unsafe_code)]

mod base64;
mod date;
mod detokenizer;
mod error;
mod response;
mod sources;
mod template;
mod tokenizer;

pub use date::Moment;
pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use latent_jinja::RenderedText;
pub use response::{
    ArgumentsGrammar, CallEnding, FormatSource, KindGrammar, ModelHints, ParserOptions, ResponseEvent,
    ResponseFormat, ResponseFormatError, ResponseParser, TaggedGrammar, ToolGrammar,
};
pub use sources::{chat_template, response_template};
pub use template::{ChatInput, ChatTemplate};
pub use tokenizer::{EncodeOptions, FimTokens, GgufTokenizer, GgufVocab, HfTokenizer, Tokenizer};

#[cfg(test)]
mod tests {
    // Sizes come from files and callers. The root Cargo.toml turns overflow checks on for this
    // crate.
    #[test]
    fn sizes_that_wrap_are_errors_in_this_crate() {
        let sum = std::panic::catch_unwind(|| std::hint::black_box(usize::MAX) + std::hint::black_box(1));
        assert!(
            sum.is_err(),
            "overflow checks are off: see [profile.release.package] in the root Cargo.toml"
        );
    }
}
