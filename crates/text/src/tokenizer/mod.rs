//! Tokenizers: from text to token ids and back, from GGUF vocabularies and from tokenizer.json.

mod bytes;
mod gguf;
mod hf;
mod pre;
mod special;
mod spm;

pub use gguf::GgufVocab;

use crate::error::TextError;
use special::{Fragment, SpecialTokens};
use std::collections::HashMap;

/// How a text is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encode {
    /// Add the tokens that begin (and end) a prompt.
    pub add_special: bool,
    /// Read the names of control tokens in the text as those tokens. Not for text that a user may have written.
    pub parse_special: bool,
}

/// What cuts a fragment of plain text into tokens.
enum Model {
    /// Byte-pair encoding through the tokenizers library.
    Bpe(Box<tokenizers::Tokenizer>),
    /// SentencePiece by scores, with bytes to fall back on.
    Spm(Box<spm::Spm>),
}

/// A tokenizer with its vocabulary.
pub struct Tokenizer {
    model: Model,
    special: SpecialTokens,
    /// Texts of all tokens as the vocabulary writes them, one after the other.
    texts: String,
    ends: Vec<usize>,
    ids: HashMap<Box<str>, u32>,
    /// Bytes that each token stands for, one after the other.
    pieces: Vec<u8>,
    piece_ends: Vec<usize>,
    bos: Option<u32>,
    eos: Option<u32>,
    end: Vec<u32>,
    add_bos: bool,
    add_eos: bool,
    /// Whether a text gets a space in front, which decoding takes away again.
    space_prefix: bool,
}

/// Texts of tokens that end a generation, whatever else a file says.
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
    /// Token ids of a text.
    ///
    /// # Errors
    /// When the text cannot be encoded.
    pub fn encode(&self, text: &str, how: Encode) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        if how.add_special && self.add_bos {
            ids.extend(self.bos);
        }
        let mut first = true;
        for fragment in self.special.split(text, how.parse_special) {
            match fragment {
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(text) => self.encode_plain(text, first, &mut ids)?,
            }
            first = false;
        }
        if how.add_special && self.add_eos {
            ids.extend(self.eos);
        }
        Ok(ids)
    }

    fn encode_plain(&self, text: &str, first: bool, ids: &mut Vec<u32>) -> Result<(), TextError> {
        match &self.model {
            Model::Bpe(bpe) => {
                let encoding = bpe.encode_fast(text, false).map_err(|e| TextError::Encode(e.to_string()))?;
                ids.extend_from_slice(encoding.get_ids());
            }
            Model::Spm(spm) => spm.encode(text, first && self.space_prefix, |text| self.token_id(text), ids),
        }
        Ok(())
    }

    /// The bytes that a token stands for in a text; control tokens stand for their names.
    pub fn piece(&self, id: u32) -> Option<&[u8]> {
        let end = *self.piece_ends.get(id as usize)?;
        let start = if id == 0 { 0 } else { self.piece_ends[id as usize - 1] };
        Some(&self.pieces[start..end])
    }

    /// The text of tokens; bytes that are no UTF-8 become U+FFFD. Control tokens are left out unless `special`.
    pub fn decode(&self, ids: &[u32], special: bool) -> String {
        let mut stream = crate::Detokenizer::new(self, special);
        let mut text = String::new();
        for id in ids {
            text.push_str(&stream.push(*id));
        }
        text + &stream.finish()
    }

    /// Tokens in the vocabulary.
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

    /// Tokens after which a generation is over.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.end
    }

    /// Whether a token controls the model rather than standing for text.
    pub fn is_control(&self, id: u32) -> bool {
        self.special.is_control(id)
    }

    /// A token as the vocabulary writes it.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        let end = *self.ends.get(id as usize)?;
        let start = if id == 0 { 0 } else { self.ends[id as usize - 1] };
        Some(&self.texts[start..end])
    }

    /// The id of a token as the vocabulary writes it.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    pub(crate) fn space_prefix(&self) -> bool {
        self.space_prefix
    }
}

/// What a tokenizer is put together from.
struct Parts {
    model: Model,
    /// Text, bytes, and whether it is control or user-defined, of each token.
    tokens: Vec<(String, Vec<u8>, Kind)>,
    bos: Option<u32>,
    eos: Option<u32>,
    end: Vec<u32>,
    add_bos: bool,
    add_eos: bool,
    space_prefix: bool,
}

/// What a token is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// Matched in any text as a whole.
    UserDefined,
    /// Matched only where control tokens are parsed.
    Control,
}

impl Parts {
    fn build(self) -> Result<Tokenizer, TextError> {
        let count = self.tokens.len() as u32;
        for (what, id) in [("beginning", self.bos), ("end", self.eos)] {
            if let Some(id) = id.filter(|id| *id >= count) {
                return Err(TextError::Malformed(format!(
                    "its {what} token is {id}, but there are {count} tokens"
                )));
            }
        }
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
            add_bos: self.add_bos,
            add_eos: self.add_eos,
            space_prefix: self.space_prefix,
        };
        for (id, (text, bytes, kind)) in self.tokens.into_iter().enumerate() {
            tokenizer.texts.push_str(&text);
            tokenizer.ends.push(tokenizer.texts.len());
            tokenizer.pieces.extend_from_slice(&bytes);
            tokenizer.piece_ends.push(tokenizer.pieces.len());
            if kind != Kind::Plain {
                tokenizer.special.add(&text, id as u32, kind == Kind::Control);
                if kind == Kind::Control && END_TEXTS.contains(&text.as_str()) {
                    tokenizer.end.push(id as u32);
                }
            }
            // holes of a vocabulary have no text to be found by
            if !text.is_empty() {
                tokenizer.ids.entry(text.into_boxed_str()).or_insert(id as u32);
            }
        }
        tokenizer.end.extend(self.eos);
        tokenizer.end.sort_unstable();
        tokenizer.end.dedup();
        tokenizer.special.finish()?;
        Ok(tokenizer)
    }
}
