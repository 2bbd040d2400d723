//! Tokenizers, read from GGUF vocabularies, tokenizer.json, tiktoken.model, tokenizer.model and
//! tekken.json. All of them become byte-pair encoding ([`bpe`]) or SentencePiece ([`spm`]).

mod bpe;
mod bytes;
mod export;
mod fim;
mod gguf;
mod hf;
mod normalize;
mod numbers;
mod pattern;
mod pipeline;
mod pre;
mod rendered;
mod sentence_piece;
mod special;
mod split;
mod spm;
mod tekken;
mod tiktoken;

pub use export::{GgufTokenizer, HfTokenizer};
pub use fim::FimTokens;
pub use gguf::GgufVocab;

use crate::error::TextError;
use latent_types::panic_text;
use special::{Fragment, SpecialTokens};
use std::borrow::Cow;
use std::collections::HashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add BOS and EOS as the model's files say.
    pub add_special: bool,
    /// Encode the names of control tokens in the text as those tokens. Never set this for text from
    /// users.
    pub parse_special: bool,
}

/// The model that splits plain text into tokens.
enum TokenizerModel {
    /// Byte-pair encoding.
    Bpe(Box<pipeline::BpePipeline>),
    /// SentencePiece with scores and byte fallback.
    Spm(Box<spm::Spm>),
}

/// A tokenizer with its vocabulary.
pub struct Tokenizer {
    model: TokenizerModel,
    special: SpecialTokens,
    // One allocation for all texts, instead of one for each of 100 000 tokens and more.
    /// Concatenated texts of all tokens, as in the vocabulary.
    texts: String,
    ends: Vec<usize>,
    ids: HashMap<Box<str>, u32>,
    /// Concatenated bytes that the tokens decode to.
    pieces: Vec<u8>,
    piece_ends: Vec<usize>,
    bos: Option<u32>,
    eos: Option<u32>,
    end: Vec<u32>,
    fim: FimTokens,
    add_bos: bool,
    add_eos: bool,
    /// Whether encoding prepends a space to a text, which decoding removes.
    space_prefix: bool,
    /// Upper bound on the bytes of text that a token can represent; `None` if unbounded.
    longest_token: Option<usize>,
}

/// Names of control tokens that end generation, whatever the files say.
// Files name one EOS token, often `<|endoftext|>`, but chat models end their turns with another
// one.
const END_TEXTS: [&str; 12] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
    "[EOT]",
    "[EOS]",
    "<｜end▁of▁sentence｜>",
    "<|end_of_text|>",
    "<|return|>",
];

impl Tokenizer {
    /// Control tokens of fill-in-the-middle prompts.
    pub fn fim_tokens(&self) -> FimTokens {
        self.fim
    }

    /// Sets the FIM tokens: those that the file names, and the others by their usual names.
    fn with_fim(mut self, named: FimTokens) -> Tokenizer {
        self.fim = named.or(FimTokens::named(|name| self.token_id(name)), self.vocab_size());
        self.end.extend(self.fim.ends());
        self.end.sort_unstable();
        self.end.dedup();
        self
    }

    /// Token ids of a text.
    pub fn encode(&self, text: &str, how: EncodeOptions) -> Result<Vec<u32>, TextError> {
        self.encode_within(text, how, usize::MAX)
    }

    /// Token ids of a text, or [`TextError::TooLong`] if it has more than `limit` tokens. A text is
    /// rejected before encoding if `limit` tokens cannot represent its bytes, otherwise as soon as
    /// encoding exceeds the limit.
    pub fn encode_within(&self, text: &str, how: EncodeOptions, limit: usize) -> Result<Vec<u32>, TextError> {
        let mut prefixed = self.prefixed(text);
        if matches!(self.model, TokenizerModel::Spm(_)) && !how.parse_special && text.contains(spm::SPACE) {
            // SentencePiece encodes U+2581 like a space. Only names of control tokens contain the
            // character itself, and they are not matched here.
            prefixed = Cow::Owned(spm::spaces(&prefixed));
        }
        let fragments = self.special.split(&prefixed, how.parse_special);
        self.encode_fragments(text.len(), fragments, how.add_special, limit)
    }

    /// The text with the space that SentencePiece prepends.
    fn prefixed<'a>(&self, text: &'a str) -> Cow<'a, str> {
        // The space is added before special tokens are matched, as in SentencePiece: a user-defined
        // token that begins with a space can match it.
        if self.prepends(text) { Cow::Owned(format!(" {text}")) } else { Cow::Borrowed(text) }
    }

    fn prepends(&self, text: &str) -> bool {
        matches!(self.model, TokenizerModel::Spm(_)) && self.space_prefix && !text.is_empty()
    }

    /// Tokens of the fragments of a text of `bytes` bytes; see [`Tokenizer::encode_within`].
    fn encode_fragments<'a>(
        &self,
        bytes: usize,
        fragments: impl Iterator<Item = Fragment<'a>>,
        add_special: bool,
        limit: usize,
    ) -> Result<Vec<u32>, TextError> {
        // The error has a lower bound on the number of tokens. Counting all of them would be the
        // work that the limit avoids.
        let too_long = || {
            let least = self.longest_token.map_or(0, |longest| bytes.div_ceil(longest.max(1)));
            TextError::TooLong { bytes, limit, tokens: least.max(limit.saturating_add(1)) }
        };
        if self.longest_text(limit).is_some_and(|longest| bytes > longest) {
            return Err(too_long());
        }
        let encoded = guarded("text", || {
            let mut ids = Vec::new();
            if add_special && self.add_bos {
                ids.extend(self.bos);
            }
            let mut first = true;
            let mut fragments = fragments.peekable();
            while let Some(fragment) = fragments.next() {
                match fragment {
                    // A prompt that begins with a control token gets no space before it.
                    Fragment::Text(" ")
                        if first
                            && self.space_prefix
                            && matches!(self.model, TokenizerModel::Spm(_))
                            && matches!(fragments.peek(), Some(Fragment::Token(id)) if self.is_control(*id)) =>
                        {}
                    Fragment::Token(id) => ids.push(id),
                    Fragment::Text(text) => self.encode_plain(text, first, limit, &mut ids)?,
                }
                if ids.len() > limit {
                    return Err(too_long());
                }
                first = false;
            }
            if add_special && self.add_eos {
                ids.extend(self.eos);
            }
            if ids.len() > limit { Err(too_long()) } else { Ok(ids) }
        });
        encoded.map_err(|error| if matches!(error, TextError::TooLong { .. }) { too_long() } else { error })
    }

    /// An upper bound on the bytes of text that `tokens` tokens can represent. `None` if the
    /// tokenizer's rules may drop text, or turn any amount of it into one token.
    pub fn longest_text(&self, tokens: usize) -> Option<usize> {
        tokens.checked_mul(self.longest_token?)
    }

    /// Appends the tokens of a text without special tokens; `first`: it is the beginning of the
    /// whole text.
    fn encode_plain(
        &self,
        text: &str,
        first: bool,
        limit: usize,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let mut push = |id| {
            if ids.len() == ids.capacity() {
                // Grow by half. Doubling would need three times the memory during the copy, and
                // encoding may use at most 40 bytes per byte of text (tests/memory.rs).
                ids.reserve_exact(1024.max(ids.len() / 2));
            }
            ids.push(id);
            let tokens = ids.len();
            if tokens > limit { Err(TextError::TooLong { bytes: text.len(), limit, tokens }) } else { Ok(()) }
        };
        match &self.model {
            TokenizerModel::Bpe(pipeline) => pipeline.encode(text, first, &mut push),
            TokenizerModel::Spm(spm) => spm.encode(text, |text| self.text_token(text), &mut push),
        }
    }

    /// The token of a piece of text. Control and user-defined tokens are excluded: SentencePiece
    /// never merges to them.
    fn text_token(&self, text: &str) -> Option<u32> {
        self.token_id(text).filter(|id| !self.is_special(*id))
    }

    /// The bytes that a token decodes to; for a control token, its name.
    pub fn piece(&self, id: u32) -> Option<&[u8]> {
        let end = *self.piece_ends.get(id as usize)?;
        let start = if id == 0 { 0 } else { self.piece_ends[id as usize - 1] };
        Some(&self.pieces[start..end])
    }

    /// Number of tokens in the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.ends.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether prompts begin with BOS.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Tokens that end generation.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.end
    }

    /// Whether a token is a control token.
    pub fn is_control(&self, id: u32) -> bool {
        self.special.is_control(id)
    }

    /// Whether a token is a control or user-defined token. Merges never produce such a token.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.is_special(id)
    }

    /// Ids of the control and user-defined tokens in a text.
    pub fn special_tokens_in(&self, text: &str) -> Vec<u32> {
        let tokens = self.special.split(text, true).filter_map(|fragment| match fragment {
            Fragment::Token(id) => Some(id),
            Fragment::Text(_) => None,
        });
        tokens.collect()
    }

    /// A token's text in the vocabulary.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        let end = *self.ends.get(id as usize)?;
        let start = if id == 0 { 0 } else { self.ends[id as usize - 1] };
        Some(&self.texts[start..end])
    }

    /// The id of a token by its text in the vocabulary.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    pub(crate) fn space_prefix(&self) -> bool {
        self.space_prefix
    }
}

struct TokenizerParts {
    model: TokenizerModel,
    tokens: Vec<Token>,
    bos: Option<u32>,
    eos: Option<u32>,
    end: Vec<u32>,
    fim: FimTokens,
    add_bos: bool,
    add_eos: bool,
    space_prefix: bool,
}

/// A token of a vocabulary.
#[derive(Clone, Default)]
struct Token {
    /// The text in the vocabulary.
    text: String,
    /// The bytes that the token decodes to.
    bytes: Vec<u8>,
    kind: TokenClass,
    /// `lstrip`: the token includes white space before it.
    strips_left: bool,
    /// `rstrip`: the token includes white space after it.
    strips_right: bool,
    /// Whether a space in the token's text matches U+2581 as well.
    spaced: bool,
}

impl Token {
    /// Bytes of the longest text that the token represents.
    fn longest_text(&self) -> usize {
        // U+2581 has three bytes in UTF-8, so text may be longer than the token.
        let spaces = if self.spaced { self.text.matches(' ').count() } else { 0 };
        self.text.len() + spaces * (spm::SPACE.len_utf8() - 1)
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum TokenClass {
    #[default]
    Plain,
    /// Matched as a whole in any text.
    UserDefined,
    /// Matched as a whole, and only if control tokens are parsed.
    Control,
}

impl TokenizerParts {
    fn build(self) -> Result<Tokenizer, TextError> {
        let count = self.tokens.len() as u32;
        for (what, id) in [("beginning", self.bos), ("end", self.eos)] {
            if let Some(id) = id.filter(|id| *id >= count) {
                return Err(TextError::Malformed(format!(
                    "its {what} token is {id}, but there are {count} tokens"
                )));
            }
        }
        let longest_token = self.longest_token();
        let mut tokenizer = Tokenizer {
            model: self.model,
            special: SpecialTokens::default(),
            texts: String::new(),
            ends: Vec::with_capacity(self.tokens.len()),
            ids: HashMap::with_capacity(self.tokens.len()),
            pieces: Vec::new(),
            piece_ends: Vec::with_capacity(self.tokens.len()),
            bos: self.bos,
            eos: self.eos,
            end: self.end.into_iter().filter(|id| *id < count).collect(),
            fim: FimTokens::default(),
            add_bos: self.add_bos,
            add_eos: self.add_eos,
            space_prefix: self.space_prefix,
            longest_token,
        };
        for (id, token) in self.tokens.into_iter().enumerate() {
            let Token { text, bytes, kind, strips_left, strips_right, spaced } = token;
            tokenizer.texts.push_str(&text);
            tokenizer.ends.push(tokenizer.texts.len());
            tokenizer.pieces.extend_from_slice(&bytes);
            tokenizer.piece_ends.push(tokenizer.pieces.len());
            if kind != TokenClass::Plain {
                let strips = (strips_left, strips_right);
                let mut add = |text: &str| {
                    tokenizer.special.add(text, id as u32, kind == TokenClass::Control, strips);
                };
                add(&text);
                if spaced {
                    add(&spm::spaces(&text));
                    add(&text.replace(' ', spm::SPACE.encode_utf8(&mut [0; 4])));
                }
                if kind == TokenClass::Control && END_TEXTS.contains(&text.as_str()) {
                    tokenizer.end.push(id as u32);
                }
            }
            // Unused ids have empty texts. Of tokens with equal texts, the lowest id counts.
            if !text.is_empty() {
                tokenizer.ids.entry(text.into_boxed_str()).or_insert(id as u32);
            }
        }
        tokenizer.end.extend(self.eos);
        tokenizer.end.sort_unstable();
        tokenizer.end.dedup();
        tokenizer.special.finish()?;
        Ok(tokenizer.with_fim(self.fim))
    }

    /// Upper bound on the bytes of text that a token can represent; `None` if unbounded.
    fn longest_token(&self) -> Option<usize> {
        // A token that strips can include any amount of white space.
        if self.tokens.iter().any(|token| token.strips_left || token.strips_right) {
            return None;
        }
        let longest = self.tokens.iter().map(|token| token.bytes.len()).max()?.max(1);
        match &self.model {
            TokenizerModel::Bpe(pipeline) => longest.checked_mul(pipeline.shrinks()?),
            // Texts of the vocabulary contain U+2581, which is longer than the space that it
            // decodes to, and a text may contain it too.
            TokenizerModel::Spm(spm) => spm
                .keeps_text()
                .then(|| self.tokens.iter().map(Token::longest_text).fold(longest, usize::max)),
        }
    }
}

/// Runs `work` and turns a panic of a library into an error. This is the last defense against
/// hostile files and texts: one request must not end the server.
fn guarded<T>(what: &str, work: impl FnOnce() -> Result<T, TextError>) -> Result<T, TextError> {
    // Unwind safe: results are new values and the workspace is local to the call, so no
    // half-modified state survives.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(TextError::Internal { what: what.to_owned(), problem: panic_text(&*panic).to_owned() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        let text = guarded::<()>("text", || panic!("out of {}", "range")).unwrap_err().to_string();
        assert!(text.contains("text") && text.contains("out of range"), "{text}");
    }
}
