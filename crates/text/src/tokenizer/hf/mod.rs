//! Tokenizers from tokenizer.json, tokenizer_config.json and generation_config.json.

mod components;
mod file;
mod json_at;

use super::bpe::Bpe;
use super::pipeline::BpePipeline;
use super::{
    FimTokens, Token, TokenClass, Tokenizer, TokenizerModel, TokenizerParts, bytes, gguf::byte_token,
    guarded, spm,
};
use crate::error::TextError;
pub(super) use file::{AddedToken, AdmittedFile, ComponentValues};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

impl Tokenizer {
    /// A tokenizer from the bytes of tokenizer.json. The other two files name BOS and EOS.
    ///
    /// # Errors
    /// [`TextError::Component`] for an unknown component or parameter; [`TextError::Malformed`] for
    /// other malformed files.
    pub fn from_hf(
        tokenizer_json: &[u8],
        tokenizer_config: Option<&Value>,
        generation_config: Option<&Value>,
    ) -> Result<Tokenizer, TextError> {
        guarded("tokenizer.json", || {
            let admitted = AdmittedFile::read(tokenizer_json)?;
            let roles = TokenRoles::new(tokenizer_config, generation_config);
            build(admitted, &roles)
        })
    }
}

/// Parses and checks a tokenizer.json.
pub(super) fn admitted(tokenizer_json: &[u8]) -> Result<AdmittedFile, TextError> {
    guarded("tokenizer.json", || AdmittedFile::read(tokenizer_json))
}

/// The components of a tokenizer.json as JSON.
pub(super) fn components_of(tokenizer_json: &[u8]) -> Result<ComponentValues, TextError> {
    file::components_of(tokenizer_json)
}

fn build(admitted: AdmittedFile, roles: &TokenRoles<'_>) -> Result<Tokenizer, TextError> {
    let tokens = tokens(&admitted)?;
    let control: HashSet<u32> =
        admitted.added.iter().filter(|token| token.is_control()).map(|token| token.id).collect();
    let find = |text: &str| {
        // Added tokens override the vocabulary, and later ones earlier ones.
        let added = admitted.added.iter().rev().find(|token| token.content == text).map(|token| token.id);
        added.or_else(|| admitted.vocabulary.get(text).copied())
    };
    let bos = roles.bos.and_then(find);
    let eos = roles.eos.and_then(find).or(roles.listed.first().copied());
    // Files without `add_bos_token` may prepend BOS by their post-processor.
    let add_bos =
        roles.add_bos.unwrap_or_else(|| roles.bos.is_some() && roles.bos == admitted.first.as_deref());
    let bpe = Bpe::new(admitted.vocabulary, admitted.merges, &control, &admitted.options)
        .map_err(|problem| TextError::Malformed(format!("tokenizer.json: model: {problem}")))?;
    let pipeline =
        BpePipeline { normalizers: admitted.normalizers, pre_tokenizers: admitted.pre_tokenizers, bpe };
    TokenizerParts {
        model: TokenizerModel::Bpe(Box::new(pipeline)),
        tokens,
        bos,
        eos,
        end: roles.listed.clone(),
        fim: FimTokens::default(),
        add_bos,
        add_eos: roles.add_eos,
        space_prefix: admitted.space_prefix,
    }
    .build()
}

/// BOS and EOS tokens from tokenizer_config.json and generation_config.json.
pub(in crate::tokenizer) struct TokenRoles<'a> {
    pub(super) bos: Option<&'a str>,
    pub(super) eos: Option<&'a str>,
    pub(super) add_bos: Option<bool>,
    pub(super) add_eos: bool,
    /// `eos_token_id` of generation_config.json.
    pub(super) listed: Vec<u32>,
}

impl<'a> TokenRoles<'a> {
    pub(in crate::tokenizer) fn new(
        tokenizer_config: Option<&'a Value>,
        generation_config: Option<&Value>,
    ) -> TokenRoles<'a> {
        let config = tokenizer_config.unwrap_or(&Value::Null);
        let named = |key: &str| config.get(key).and_then(token_name);
        let flag = |key: &str| config.get(key).and_then(Value::as_bool);
        TokenRoles {
            bos: named("bos_token"),
            eos: named("eos_token"),
            add_bos: flag("add_bos_token"),
            add_eos: flag("add_eos_token").unwrap_or(false),
            listed: generation_config.and_then(|g| g.get("eos_token_id")).map(ids).unwrap_or_default(),
        }
    }
}

impl TokenRoles<'_> {
    /// The tokens that end generation according to generation_config.json.
    pub(in crate::tokenizer) fn listed(self) -> Vec<u32> {
        self.listed
    }
}

/// Maximum number of ids; the largest published vocabularies have a quarter of a million.
const MAX_IDS: usize = 1 << 22;

/// Number of ids allowed in any vocabulary. In larger ones, at most three quarters of the ids may
/// be unused, so that one large id in a small file cannot exhaust memory.
const FREE_IDS: usize = 1 << 16;

/// Maximum number of ids of a vocabulary with `tokens` tokens.
pub(super) fn max_ids(tokens: usize) -> usize {
    tokens.saturating_mul(4).clamp(FREE_IDS, MAX_IDS)
}

/// All tokens by id. Unused ids have empty texts.
fn tokens(admitted: &AdmittedFile) -> Result<Vec<Token>, TextError> {
    let malformed = |problem: String| TextError::Malformed(format!("tokenizer.json: {problem}"));
    let AdmittedFile { vocabulary, added, byte_level, .. } = admitted;
    // Checked before the list is allocated: its length is the largest id, whatever the file's size.
    let listed = vocabulary.values().chain(added.iter().map(|token| &token.id));
    let Some(largest) = listed.max().map(|id| *id as usize) else {
        return Err(malformed("it has no tokens".into()));
    };
    let count = vocabulary.len() + added.len();
    if largest >= max_ids(count) {
        let problem = format!("it has the id {largest} with {count} tokens; the limit is {}", max_ids(count));
        return Err(malformed(problem));
    }
    let mut tokens = vec![Token::default(); largest + 1];
    for (text, id) in vocabulary {
        let token = &mut tokens[*id as usize];
        if !token.text.is_empty() {
            return Err(malformed(format!(
                "the tokens {:?} and {text:?} have the same id, {id}",
                token.text
            )));
        }
        let bytes = match byte_token(text) {
            // In a byte-level vocabulary, `<0x41>` is ordinary text.
            _ if *byte_level => bytes::unmapped(text),
            Some(byte) => vec![byte],
            None => spm::spaces(text).into_bytes(),
        };
        *token = Token { text: text.to_string(), bytes, kind: TokenClass::Plain, ..Token::default() };
    }
    add(&mut tokens, vocabulary, added, *byte_level)?;
    Ok(tokens)
}

/// Overrides the vocabulary with the added tokens.
fn add(
    tokens: &mut [Token],
    vocabulary: &super::bpe::VocabularyMap,
    added: &[AddedToken],
    byte_level: bool,
) -> Result<(), TextError> {
    let mut ids = HashMap::new();
    for (i, token) in added.iter().enumerate() {
        let AddedToken { id, content, lstrip, rstrip, .. } = token;
        let other =
            vocabulary.get(content.as_str()).or(ids.get(content.as_str())).filter(|other| *other != id);
        // One text with two ids: encoding and decoding would not be inverse.
        if let Some(other) = other {
            let problem =
                format!("added_tokens[{i}] gives {content:?} the id {id}, but it already has the id {other}");
            return Err(TextError::Malformed(format!("tokenizer.json: {problem}")));
        }
        ids.insert(content.as_str(), *id);
        let kind = if token.is_control() { TokenClass::Control } else { TokenClass::UserDefined };
        // In a normalized text spaces are U+2581. A token that is matched there is matched in the
        // original text by both.
        let spaced = kind == TokenClass::UserDefined && !byte_level && token.is_normalized();
        tokens[*id as usize] = Token {
            text: content.clone(),
            bytes: if spaced { spm::spaces(content) } else { content.clone() }.into_bytes(),
            kind,
            strips_left: *lstrip,
            strips_right: *rstrip,
            spaced,
        };
    }
    Ok(())
}

/// A token of tokenizer_config.json: a string, or an object with `content`.
fn token_name(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content").and_then(Value::as_str))
}

/// One id or a list of ids.
fn ids(value: &Value) -> Vec<u32> {
    let one = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(list) => list.iter().filter_map(one).collect(),
        other => one(other).into_iter().collect(),
    }
}
