//! Reader of SentencePiece's tokenizer.model, which older folders (MiniCPM's) hold instead of
//! tokenizer.json.
//!
//! The file is a protobuf message (sentencepiece_model.proto): pieces with scores and kinds, the
//! trainer's settings and the normalizer's. Supported are models of byte-pair encoding whose
//! normalizer changes only spaces. A GGUF file stores the same as tokenizer model `llama`.

use super::hf::{TokenRoles, max_ids};
use super::special::looks_special;
use super::{GgufVocab, Tokenizer, gguf, guarded, spm};
use crate::error::TextError;
use serde_json::Value;

/// Kinds of pieces, numbered as in a GGUF file's `token_type`.
pub(super) const NORMAL: i32 = 1;
pub(super) const UNKNOWN: i32 = 2;
pub(super) const CONTROL: i32 = 3;
pub(super) const USER_DEFINED: i32 = 4;
pub(super) const UNUSED: i32 = 5;
pub(super) const BYTE: i32 = 6;

// The values of llama.cpp's converter, so that both write the same GGUF file.
/// Score of tokens that tokenizer_config.json adds.
const ADDED: f32 = -1000.0;

/// Score of unused ids.
const NO_TOKEN: f32 = -10_000.0;

/// `TrainerSpec.ModelType.BPE`.
const BPE: u64 = 2;

/// A parsed tokenizer.model with the tokens of tokenizer_config.json.
#[derive(Debug, Default)]
pub(super) struct SentencePieces {
    pub(super) tokens: Vec<String>,
    pub(super) scores: Vec<f32>,
    pub(super) types: Vec<i32>,
    pub(super) unknown: Option<u32>,
    pub(super) padding: Option<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    /// Whether encoding prepends a space to texts.
    pub(super) space_prefix: bool,
    add_bos: Option<bool>,
    add_eos: bool,
}

impl Tokenizer {
    /// A tokenizer from the bytes of tokenizer.model and the model's JSON files.
    pub fn from_sentence_piece(
        model: &[u8],
        tokenizer_config: Option<&Value>,
        generation_config: Option<&Value>,
    ) -> Result<Tokenizer, TextError> {
        guarded("tokenizer.model", || {
            let pieces = SentencePieces::read(model, tokenizer_config)?;
            let listed = TokenRoles::new(None, generation_config).listed();
            let eos = pieces.eos.or(listed.first().copied());
            gguf::sentence_piece(&GgufVocab { eos, ..pieces.vocab() }, listed)
        })
    }
}

fn malformed(problem: impl Into<String>) -> TextError {
    TextError::Malformed(format!("tokenizer.model: {}", problem.into()))
}

impl SentencePieces {
    /// Parses a file, and adds the tokens of tokenizer_config.json.
    pub(super) fn read(model: &[u8], config: Option<&Value>) -> Result<SentencePieces, TextError> {
        let mut pieces = SentencePieces::default();
        let mut rules = SentencePieceSpec::default();
        for field in ProtobufFields(model) {
            // Unknown fields are skipped, as protobuf requires.
            match field? {
                (1, ProtobufValue::Bytes(piece)) => pieces.add(piece)?,
                (2, ProtobufValue::Bytes(trainer)) => rules.trainer(trainer)?,
                (3, ProtobufValue::Bytes(normalizer)) => rules.normalizer(normalizer)?,
                _ => {}
            }
        }
        if pieces.tokens.is_empty() {
            return Err(malformed("it has no pieces; is it a SentencePiece model?"));
        }
        rules.check()?;
        let known = |id: i32| u32::try_from(id).ok().filter(|id| (*id as usize) < pieces.tokens.len());
        let [unknown, bos, eos, padding] = rules.ids.map(known);
        (pieces.unknown, pieces.bos, pieces.eos, pieces.padding) = (unknown, bos, eos, padding);
        pieces.space_prefix = rules.space_prefix;
        pieces.configure(config)?;
        Ok(pieces)
    }

    /// The vocabulary in the form of a GGUF file.
    pub(super) fn vocab(&self) -> GgufVocab<'_> {
        GgufVocab {
            model: "llama",
            tokens: self.tokens.iter().map(String::as_bytes).collect(),
            token_types: Some(self.types.clone()),
            scores: Some(self.scores.clone()),
            bos: self.bos,
            eos: self.eos,
            unknown: self.unknown,
            add_bos: self.add_bos,
            add_eos: Some(self.add_eos),
            add_space_prefix: Some(self.space_prefix),
            ..GgufVocab::default()
        }
    }

    fn push(&mut self, text: String, score: f32, kind: i32) {
        self.tokens.push(text);
        self.scores.push(score);
        self.types.push(kind);
    }

    /// Adds a piece from its message.
    fn add(&mut self, message: &[u8]) -> Result<(), TextError> {
        // The defaults of `ModelProto.SentencePiece`.
        let (mut text, mut score, mut kind) = (None, 0.0, NORMAL);
        for field in ProtobufFields(message) {
            match field? {
                (1, ProtobufValue::Bytes(piece)) => text = Some(piece),
                (2, ProtobufValue::Four(bytes)) => score = f32::from_le_bytes(bytes),
                (3, ProtobufValue::Number(number)) => kind = i32::try_from(number).unwrap_or(0),
                _ => {}
            }
        }
        let id = self.tokens.len();
        let wrong = |problem: &str| malformed(format!("piece {id} {problem}"));
        let text = std::str::from_utf8(text.unwrap_or_default()).map_err(|_| wrong("is not UTF-8 text"))?;
        if !(NORMAL..=BYTE).contains(&kind) {
            return Err(wrong(&format!("is of kind {kind}, expected 1 to 6")));
        }
        if score.is_nan() {
            return Err(wrong("has a score that is not a number"));
        }
        // llama.cpp matches user-defined tokens before it replaces spaces, so its converter writes
        // them with spaces.
        let text = if kind == USER_DEFINED { spm::spaces(text) } else { text.to_owned() };
        self.push(text, score, kind);
        Ok(())
    }

    /// Adds the tokens and roles of tokenizer_config.json.
    fn configure(&mut self, config: Option<&Value>) -> Result<(), TextError> {
        let added = config.and_then(|config| config.get("added_tokens_decoder")?.as_object());
        for (id, token) in added.into_iter().flatten() {
            let wrong = |problem: String| {
                TextError::Malformed(format!(
                    "tokenizer_config.json: added_tokens_decoder, id {id:?}: {problem}"
                ))
            };
            let id: usize = id.parse().map_err(|_| wrong("it is not a number".into()))?;
            let most = max_ids(self.tokens.len());
            if id >= most {
                return Err(wrong(format!(
                    "the limit for a vocabulary of {} pieces is {most}",
                    self.tokens.len()
                )));
            }
            let content = token.get("content").and_then(Value::as_str);
            let content = content.ok_or_else(|| wrong("it has no content".into()))?;
            // Ids without a token get the name that llama.cpp's converter gives them.
            for hole in self.tokens.len()..=id {
                self.push(format!("[PAD{hole}]"), NO_TOKEN, UNUSED);
            }
            // The rule of llama.cpp's converter.
            let control = token.get("special") == Some(&Value::Bool(true)) || looks_special(content);
            (self.tokens[id], self.types[id]) = match control {
                true => (content.to_owned(), CONTROL),
                false => (spm::spaces(content), USER_DEFINED),
            };
            self.scores[id] = ADDED;
        }
        let roles = TokenRoles::new(config, None);
        let find = |text: &str| self.tokens.iter().position(|token| token == text).map(|id| id as u32);
        // tokenizer_config.json overrides the trainer's ids: a fine-tuned model may end with
        // another token.
        let (bos, eos) = (roles.bos.and_then(find), roles.eos.and_then(find));
        (self.bos, self.eos) = (bos.or(self.bos), eos.or(self.eos));
        (self.add_bos, self.add_eos) = (roles.add_bos, roles.add_eos);
        Ok(())
    }
}

/// The fields of `TrainerSpec` and `NormalizerSpec` that determine the encoding.
struct SentencePieceSpec {
    model_type: u64,
    /// Ids of the unknown token, BOS, EOS and padding; -1 if missing.
    ids: [i32; 4],
    /// `treat_whitespace_as_suffix`.
    suffixes: bool,
    normalizer: String,
    /// Whether `precompiled_charsmap` is not empty.
    charsmap: bool,
    /// `add_dummy_prefix`.
    space_prefix: bool,
    /// `remove_extra_whitespaces`.
    joins_spaces: bool,
    /// `escape_whitespaces`.
    escapes_spaces: bool,
}

impl Default for SentencePieceSpec {
    /// The defaults of sentencepiece_model.proto for missing fields.
    fn default() -> SentencePieceSpec {
        SentencePieceSpec {
            model_type: 1,
            ids: [0, 1, 2, -1],
            suffixes: false,
            normalizer: String::new(),
            charsmap: false,
            space_prefix: true,
            joins_spaces: true,
            escapes_spaces: true,
        }
    }
}

impl SentencePieceSpec {
    fn trainer(&mut self, message: &[u8]) -> Result<(), TextError> {
        for field in ProtobufFields(message) {
            match field? {
                (3, ProtobufValue::Number(number)) => self.model_type = number,
                (24, ProtobufValue::Number(flag)) => self.suffixes = flag != 0,
                // Protobuf sign-extends a negative int32 to 64 bits, so truncation gives its value.
                (field @ 40..=43, ProtobufValue::Number(id)) => self.ids[(field - 40) as usize] = id as i32,
                _ => {}
            }
        }
        Ok(())
    }

    fn normalizer(&mut self, message: &[u8]) -> Result<(), TextError> {
        for field in ProtobufFields(message) {
            match field? {
                (1, ProtobufValue::Bytes(name)) => {
                    self.normalizer = String::from_utf8_lossy(name).into_owned()
                }
                (2, ProtobufValue::Bytes(map)) => self.charsmap = !map.is_empty(),
                (3, ProtobufValue::Number(flag)) => self.space_prefix = flag != 0,
                (4, ProtobufValue::Number(flag)) => self.joins_spaces = flag != 0,
                (5, ProtobufValue::Number(flag)) => self.escapes_spaces = flag != 0,
                _ => {}
            }
        }
        Ok(())
    }

    /// Rejects unsupported rules: text would silently be encoded wrongly.
    fn check(&self) -> Result<(), TextError> {
        let problem = if self.model_type != BPE {
            let name = ["unigram", "byte-pair encoding", "words", "characters"];
            let at = usize::try_from(self.model_type).unwrap_or(0).wrapping_sub(1);
            format!("models of type {} are not supported", name.get(at).unwrap_or(&"(unknown)"))
        } else if self.charsmap {
            format!("its normalizer {:?} maps characters, which is not supported", self.normalizer)
        } else if self.joins_spaces {
            "it removes spaces of a text, which is not supported".into()
        } else if self.suffixes || !self.escapes_spaces {
            "its spaces do not begin pieces, which is not supported".into()
        } else {
            return Ok(());
        };
        Err(malformed(format!(
            "{problem}; save the tokenizer with transformers, and put its tokenizer.json into the folder"
        )))
    }
}

/// A value of a protobuf message, by wire type.
enum ProtobufValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Four([u8; 4]),
    Eight,
}

/// The fields of a protobuf message, in order.
struct ProtobufFields<'a>(&'a [u8]);

impl<'a> ProtobufFields<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        // A varint has at most ten bytes. A longer one is malformed.
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn bytes(&mut self, count: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }

    fn field(&mut self) -> Option<(u64, ProtobufValue<'a>)> {
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => ProtobufValue::Number(self.number()?),
            1 => self.bytes(8).map(|_| ProtobufValue::Eight)?,
            2 => {
                let count = self.number()?;
                ProtobufValue::Bytes(self.bytes(count)?)
            }
            5 => ProtobufValue::Four(self.bytes(4)?.try_into().ok()?),
            _ => return None,
        };
        Some((tag >> 3, value))
    }
}

impl<'a> Iterator for ProtobufFields<'a> {
    type Item = Result<(u64, ProtobufValue<'a>), TextError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let left = self.0.len();
        let field = self.field();
        // After an error the iterator ends. It must not resume inside a broken field.
        if field.is_none() {
            self.0 = &[];
        }
        let broken =
            || malformed(format!("invalid or truncated protobuf message ({left} bytes from its end)"));
        Some(field.ok_or_else(broken))
    }
}
