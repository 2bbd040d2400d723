//! Tokenizers from the vocabulary of a GGUF file.

use super::bpe::{Bpe, BpeOptions, VocabularyMap};
use super::pattern::SplitPattern;
use super::pipeline::BpePipeline;
use super::special::looks_special;
use super::split::{Behavior, PreTokenizer, SplitMatcher};
use super::{
    FimTokens, Token, TokenClass, Tokenizer, TokenizerModel, TokenizerParts, bytes, guarded, pre, spm,
};
use crate::error::TextError;
use latent_formats::gguf::Metadata;
use latent_formats::{Checkpoint, CheckpointSource, HfSource, TokenizerKind};
use std::collections::HashSet;

/// The `tokenizer.ggml.*` keys of a file.
#[derive(Clone, Debug, Default)]
pub struct GgufVocab<'a> {
    /// `model`: `gpt2` (byte-pair encoding) or `llama` (SentencePiece).
    pub model: &'a str,
    /// `pre`: the pre-tokenizer rules.
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
    /// `fim_pre_token_id` and the like.
    pub fim: FimTokens,
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
            // Older files have these keys without `fim`.
            fim: FimTokens {
                prefix: id("fim_pre_token_id")?.or(id("prefix_token_id")?),
                suffix: id("fim_suf_token_id")?.or(id("suffix_token_id")?),
                middle: id("fim_mid_token_id")?.or(id("middle_token_id")?),
                pad: id("fim_pad_token_id")?,
                repository: id("fim_rep_token_id")?,
                file: id("fim_sep_token_id")?,
            },
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
        Tokenizer::from_source(checkpoint.source())
    }

    /// The tokenizer from a model's metadata; tensors are not needed.
    ///
    /// # Errors
    /// When the model has none, or one that is not known or malformed.
    pub fn from_source(source: &CheckpointSource) -> Result<Tokenizer, TextError> {
        match source {
            CheckpointSource::Gguf(source) => {
                Tokenizer::from_gguf(&GgufVocab::from_metadata(&source.metadata)?)
            }
            CheckpointSource::HuggingFace(source) => Tokenizer::from_source_folder(source),
        }
    }

    /// The tokenizer of a model folder.
    pub(super) fn from_source_folder(source: &HfSource) -> Result<Tokenizer, TextError> {
        let file = source.tokenizer.as_ref().ok_or(TextError::Missing)?;
        let (config, generation) = (source.tokenizer_config.as_ref(), source.generation_config.as_ref());
        match file.kind {
            TokenizerKind::Json => Tokenizer::from_hf(&file.read()?, config, generation),
            TokenizerKind::Tiktoken => Tokenizer::from_tiktoken(&file.read()?, config, generation),
            TokenizerKind::SentencePiece => Tokenizer::from_sentence_piece(&file.read()?, config, generation),
            TokenizerKind::Tekken => Tokenizer::from_tekken(&file.read()?, generation),
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
            "gpt2" => guarded("vocabulary", || bpe(vocab)),
            "llama" => guarded("vocabulary", || sentence_piece(vocab, end_of(vocab))),
            // llama.cpp's converter writes this for a model without a tokenizer.
            "none" | "no_vocab" => Err(TextError::Missing),
            other => Err(TextError::Unknown {
                what: "tokenizer model",
                found: other.to_owned(),
                known: "gpt2 (byte-pair encoding), llama (SentencePiece)".into(),
            }),
        }
    }
}

fn kind(vocab: &GgufVocab<'_>, id: usize) -> TokenClass {
    match vocab.token_types.as_ref().map_or(1, |types| types[id]) {
        // Text must not become the unknown token by its name `<unk>`.
        2 | 3 => TokenClass::Control,
        // Some converters write DeepSeek's control tokens as user-defined.
        4 if looks_special(&String::from_utf8_lossy(vocab.tokens[id])) => TokenClass::Control,
        4 => TokenClass::UserDefined,
        _ => TokenClass::Plain,
    }
}

fn end_of(vocab: &GgufVocab<'_>) -> Vec<u32> {
    [vocab.eot, vocab.eom].into_iter().flatten().collect()
}

fn bpe(vocab: &GgufVocab<'_>) -> Result<Tokenizer, TextError> {
    // Older files lack `pre`. Their rules are unknown, so `named` rejects them.
    let pre = pre::named(vocab.pre.unwrap_or("(none)"))?;
    let mut tokens = Vec::with_capacity(vocab.tokens.len());
    let mut ids = VocabularyMap::default();
    let mut control = HashSet::new();
    for (id, text) in vocab.tokens.iter().enumerate() {
        let text = String::from_utf8_lossy(text).into_owned();
        let kind = kind(vocab, id);
        if kind == TokenClass::Control {
            control.insert(id as u32);
        }
        let bytes =
            if kind == TokenClass::Plain { bytes::unmapped(&text) } else { text.clone().into_bytes() };
        // Of equal texts, the lowest id is used.
        ids.entry(text.clone().into_boxed_str()).or_insert(id as u32);
        tokens.push(Token { text, bytes, kind, ..Token::default() });
    }
    let merges = match &vocab.merges {
        Some(merges) => merges.iter().map(|merge| pair(merge)).collect::<Result<Vec<_>, _>>()?,
        None => derived_merges(&ids),
    };
    // A merge applies only if both parts and the result are tokens. `Bpe::new` rejects others,
    // which have no effect in llama.cpp.
    let known = |text: &str| ids.contains_key(text);
    let merges: Vec<_> =
        merges.into_iter().filter(|(a, b)| known(a) && known(b) && known(&format!("{a}{b}"))).collect();
    let options = BpeOptions { ignore_merges: pre.ignore_merges, ..BpeOptions::default() };
    let bpe = Bpe::new(ids, merges, &control, &options).map_err(TextError::Malformed)?;
    let pipeline = BpePipeline { normalizers: Vec::new(), pre_tokenizers: splitter(pre.patterns)?, bpe };
    TokenizerParts {
        model: TokenizerModel::Bpe(Box::new(pipeline)),
        tokens,
        bos: vocab.bos,
        eos: vocab.eos,
        end: end_of(vocab),
        fim: vocab.fim,
        add_bos: vocab.add_bos.unwrap_or(pre.add_bos),
        add_eos: vocab.add_eos.unwrap_or(false),
        space_prefix: false,
    }
    .build()
}

/// Steps that split by each of the patterns, then map bytes to characters.
pub(super) fn splitter(patterns: &[&str]) -> Result<Vec<PreTokenizer>, TextError> {
    let mut steps = Vec::with_capacity(patterns.len() + 1);
    for pattern in patterns {
        let pattern = SplitPattern::new(pattern).map_err(TextError::Malformed)?;
        let pattern = SplitMatcher::Pattern(pattern);
        steps.push(PreTokenizer::Split { pattern, behavior: Behavior::Isolated, invert: false });
    }
    steps.push(PreTokenizer::ByteLevel { prefix_space: false, pattern: None });
    Ok(steps)
}

/// The two parts of a merge, separated by the first space after the first character.
pub(super) fn pair(merge: &[u8]) -> Result<(String, String), TextError> {
    let text = String::from_utf8_lossy(merge);
    // The first part has at least one character, which may be a space.
    let first = text.chars().next().map_or(0, char::len_utf8);
    let at = text[first..].find(' ').map(|at| at + first);
    match at {
        Some(at) => Ok((text[..at].to_owned(), text[at + 1..].to_owned())),
        None => Err(TextError::Malformed(format!("merge {text:?} has no space"))),
    }
}

/// Maximum bytes of a token for which merges are derived.
const MAX_RANKED: usize = 1024;

/// Merges of a vocabulary whose ids are ranks (tiktoken): every split of a token into two tokens of
/// lower rank, in the order of ranks.
pub(super) fn derived_merges(ids: &VocabularyMap) -> Vec<(String, String)> {
    let mut ranked: Vec<(u32, u32, String, String)> = Vec::new();
    // Every split of a token is looked up, which is quadratic in its length. Longer tokens occur
    // only in hostile files.
    for (text, id) in ids.iter().filter(|(text, _)| text.len() <= MAX_RANKED) {
        for (at, _) in text.char_indices().skip(1) {
            let (a, b) = text.split_at(at);
            if let (Some(first), Some(second)) = (ids.get(a), ids.get(b))
                && first < id
                && second < id
            {
                ranked.push((*id, *first.max(second), a.into(), b.into()));
            }
        }
    }
    // The map's order is random. Sorting also makes equal ranks deterministic.
    ranked.sort();
    ranked.into_iter().map(|(_, _, a, b)| (a, b)).collect()
}

/// The tokenizer of a vocabulary with scores. `end` are the tokens that end generation.
pub(super) fn sentence_piece(vocab: &GgufVocab<'_>, end: Vec<u32>) -> Result<Tokenizer, TextError> {
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
            // The name of a control token is not text, so a `SPACE` in it is kept.
            None if kind == TokenClass::Control => text.clone().into_bytes(),
            None => spm::spaces(&text).into_bytes(),
        };
        let spaced = kind == TokenClass::UserDefined;
        tokens.push(Token { text, bytes: piece, kind, spaced, ..Token::default() });
    }
    let texts =
        tokens.iter().filter(|token| token.kind != TokenClass::Control).map(|token| token.text.as_str());
    let model = spm::Spm::new(scores, bytes, vocab.unknown, texts);
    TokenizerParts {
        model: TokenizerModel::Spm(Box::new(model)),
        tokens,
        bos: vocab.bos,
        eos: vocab.eos,
        end,
        fim: vocab.fim,
        // llama.cpp's defaults for SentencePiece.
        add_bos: vocab.add_bos.unwrap_or(true),
        add_eos: vocab.add_eos.unwrap_or(false),
        space_prefix: vocab.add_space_prefix.unwrap_or(true),
    }
    .build()
}

/// `<0xAB>` → 0xAB.
pub(super) fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    // `from_str_radix` accepts a sign: `<0x+F>` is ordinary text.
    let plain = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if plain { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::byte_token;

    #[test]
    fn byte_tokens_have_two_hexadecimal_digits() {
        assert_eq!(byte_token("<0x0a>"), Some(10));
        assert_eq!(byte_token("<0xFF>"), Some(255));
        for other in ["<0x+F>", "<0x-1>", "<0xF>", "<0x0FF>", "<0x 1>", "0x0A", "<0xGG>"] {
            assert_eq!(byte_token(other), None, "{other}");
        }
    }
}
