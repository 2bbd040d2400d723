//! Tokenizers from the vocabulary of a GGUF file.

use super::{Kind, Model, Parts, Tokenizer, bytes, pre, spm};
use crate::error::TextError;
use formats::gguf::Metadata;
use formats::{Checkpoint, Source};
use std::collections::HashMap;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

/// The `tokenizer.ggml.*` keys of a file.
#[derive(Clone, Debug, Default)]
pub struct GgufVocab<'a> {
    /// `model`: `gpt2` (byte-pair encoding) or `llama` (SentencePiece).
    pub model: &'a str,
    /// `pre`: which rules cut the text first.
    pub pre: Option<&'a str>,
    /// `tokens`.
    pub tokens: Vec<&'a [u8]>,
    /// `token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Option<Vec<i32>>,
    /// `scores`.
    pub scores: Option<Vec<f32>>,
    /// `merges`.
    pub merges: Option<Vec<&'a [u8]>>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`.
    pub eot: Option<u32>,
    /// `eom_token_id`.
    pub eom: Option<u32>,
    /// `unknown_token_id`.
    pub unknown: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
}

impl<'a> GgufVocab<'a> {
    /// The vocabulary in a file's metadata.
    ///
    /// # Errors
    /// [`TextError::Missing`] when there is none; a key of another type than expected.
    pub fn from_metadata(metadata: &'a Metadata) -> Result<GgufVocab<'a>, TextError> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let id = |name: &str| -> Result<Option<u32>, TextError> {
            Ok(metadata.u64(&key(name))?.and_then(|id| u32::try_from(id).ok()))
        };
        Ok(GgufVocab {
            model: metadata.str("tokenizer.ggml.model")?.ok_or(TextError::Missing)?,
            pre: metadata.str("tokenizer.ggml.pre")?,
            tokens: metadata.strings("tokenizer.ggml.tokens")?.ok_or(TextError::Missing)?,
            token_types: metadata
                .numbers(&key("token_type"))?
                .map(|v| v.into_iter().map(|n| n as i32).collect()),
            scores: metadata.numbers(&key("scores"))?.map(|v| v.into_iter().map(|n| n as f32).collect()),
            merges: metadata.strings("tokenizer.ggml.merges")?,
            bos: id("bos_token_id")?,
            eos: id("eos_token_id")?,
            eot: id("eot_token_id")?,
            eom: id("eom_token_id")?,
            unknown: id("unknown_token_id")?,
            add_bos: metadata.bool(&key("add_bos_token"))?,
            add_eos: metadata.bool(&key("add_eos_token"))?,
            add_space_prefix: metadata.bool(&key("add_space_prefix"))?,
        })
    }
}

impl Tokenizer {
    /// The tokenizer of an opened model.
    ///
    /// # Errors
    /// When the model has none, or one that is not known or malformed.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Tokenizer, TextError> {
        match checkpoint.source() {
            Source::Gguf(source) => Tokenizer::from_gguf(&GgufVocab::from_metadata(&source.metadata)?),
            Source::HuggingFace(source) => {
                let bytes = source.tokenizer_json.as_ref().ok_or(TextError::Missing)?.read()?;
                Tokenizer::from_hf(
                    &bytes,
                    source.tokenizer_config.as_ref(),
                    source.generation_config.as_ref(),
                )
            }
        }
    }

    /// A tokenizer from a GGUF vocabulary.
    ///
    /// # Errors
    /// Rules that are not known; a vocabulary that contradicts itself.
    pub fn from_gguf(vocab: &GgufVocab<'_>) -> Result<Tokenizer, TextError> {
        if vocab.tokens.is_empty() {
            return Err(TextError::Missing);
        }
        for (what, len) in [
            ("token_type", vocab.token_types.as_ref().map(Vec::len)),
            ("scores", vocab.scores.as_ref().map(Vec::len)),
        ] {
            if let Some(len) = len.filter(|len| *len != vocab.tokens.len()) {
                let problem = format!("{what} has {len} entries for {} tokens", vocab.tokens.len());
                return Err(TextError::Malformed(problem));
            }
        }
        match vocab.model {
            "gpt2" => bpe(vocab),
            "llama" => sentence_piece(vocab),
            other => Err(TextError::Unknown {
                what: "tokenizer model",
                found: other.to_owned(),
                known: "gpt2 (byte-pair encoding), llama (SentencePiece)".into(),
            }),
        }
    }
}

fn kind(vocab: &GgufVocab<'_>, id: usize) -> Kind {
    match vocab.token_types.as_ref().map_or(1, |types| types[id]) {
        2 | 3 => Kind::Control,
        4 => Kind::UserDefined,
        _ => Kind::Plain,
    }
}

fn end_of(vocab: &GgufVocab<'_>) -> Vec<u32> {
    [vocab.eot, vocab.eom].into_iter().flatten().collect()
}

fn bpe(vocab: &GgufVocab<'_>) -> Result<Tokenizer, TextError> {
    let pre = pre::named(vocab.pre.unwrap_or("(none)"))?;
    let mut tokens = Vec::with_capacity(vocab.tokens.len());
    let mut ids = HashMap::with_capacity(vocab.tokens.len());
    for (id, text) in vocab.tokens.iter().enumerate() {
        let text = String::from_utf8_lossy(text).into_owned();
        let kind = kind(vocab, id);
        let bytes = if kind == Kind::Plain { bytes::unmapped(&text) } else { text.clone().into_bytes() };
        ids.entry(text.clone()).or_insert(id as u32);
        tokens.push((text, bytes, kind));
    }
    let merges = match &vocab.merges {
        Some(merges) => merges.iter().map(|merge| pair(merge)).collect::<Result<Vec<_>, _>>()?,
        None => derived_merges(&ids),
    };
    // a merge whose parts or result are no tokens can never apply
    let merges = merges
        .into_iter()
        .filter(|(a, b)| ids.contains_key(a) && ids.contains_key(b) && ids.contains_key(&format!("{a}{b}")))
        .collect();
    let model = BPE::builder()
        .vocab_and_merges(ids.into_iter().collect::<tokenizers::models::bpe::Vocab>(), merges)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(|e| TextError::Malformed(e.to_string()))?;
    let mut inner = tokenizers::Tokenizer::new(model);
    inner.with_pre_tokenizer(Some(splitter(pre.patterns)?));
    Parts {
        model: Model::Bpe(Box::new(inner)),
        tokens,
        bos: vocab.bos,
        eos: vocab.eos,
        end: end_of(vocab),
        add_bos: vocab.add_bos.unwrap_or(pre.add_bos),
        add_eos: vocab.add_eos.unwrap_or(false),
        space_prefix: false,
    }
    .build()
}

/// The patterns one after the other, then bytes to characters.
fn splitter(patterns: &[&str]) -> Result<Sequence, TextError> {
    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    for pattern in patterns {
        let pattern = SplitPattern::Regex((*pattern).to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
        steps.push(split.map_err(|e| TextError::Malformed(e.to_string()))?.into());
    }
    steps.push(ByteLevel::new(false, true, false).into());
    Ok(Sequence::new(steps))
}

/// The two parts of a merge, at the first space after the first character.
fn pair(merge: &[u8]) -> Result<(String, String), TextError> {
    let text = String::from_utf8_lossy(merge);
    let first = text.chars().next().map_or(0, char::len_utf8);
    let at = text[first..].find(' ').map(|at| at + first);
    match at {
        Some(at) => Ok((text[..at].to_owned(), text[at + 1..].to_owned())),
        None => Err(TextError::Malformed(format!("merge {text:?} has no space"))),
    }
}

/// Merges of a vocabulary whose ids are ranks (tiktoken): every way to put a token together from two of lower rank, in the order of ranks.
fn derived_merges(ids: &HashMap<String, u32>) -> Vec<(String, String)> {
    let mut ranked: Vec<(u32, u32, String, String)> = Vec::new();
    for (text, id) in ids {
        for (at, _) in text.char_indices().skip(1) {
            let (a, b) = text.split_at(at);
            if let (Some(first), Some(second)) = (ids.get(a), ids.get(b))
                && first < id
                && second < id
            {
                ranked.push((*id, *first.max(second), a.to_owned(), b.to_owned()));
            }
        }
    }
    ranked.sort();
    ranked.into_iter().map(|(_, _, a, b)| (a, b)).collect()
}

fn sentence_piece(vocab: &GgufVocab<'_>) -> Result<Tokenizer, TextError> {
    let Some(scores) = vocab.scores.clone() else {
        return Err(TextError::Malformed("a SentencePiece vocabulary needs tokenizer.ggml.scores".into()));
    };
    let mut bytes = [None; 256];
    let mut tokens = Vec::with_capacity(vocab.tokens.len());
    for (id, text) in vocab.tokens.iter().enumerate() {
        let text = String::from_utf8_lossy(text).into_owned();
        let byte = byte_token(&text);
        if let Some(byte) = byte {
            bytes[usize::from(byte)] = Some(id as u32);
        }
        let kind = kind(vocab, id);
        let piece = match byte {
            Some(byte) => vec![byte],
            None if kind == Kind::Plain => text.replace(spm::SPACE, " ").into_bytes(),
            None => text.clone().into_bytes(),
        };
        tokens.push((text, piece, kind));
    }
    Parts {
        model: Model::Spm(Box::new(spm::Spm { scores, bytes, unknown: vocab.unknown })),
        tokens,
        bos: vocab.bos,
        eos: vocab.eos,
        end: end_of(vocab),
        add_bos: vocab.add_bos.unwrap_or(true),
        add_eos: vocab.add_eos.unwrap_or(false),
        space_prefix: vocab.add_space_prefix.unwrap_or(true),
    }
    .build()
}

/// `<0xAB>` → 0xAB.
pub(super) fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}
