//! Reader of tekken.json, which Mistral's own folders hold instead of tokenizer.json.
//!
//! The file lists special tokens, which have the first ids, and byte strings in the order of ranks,
//! whose ids follow. Of all adjacent pairs that form a token, the one with the lowest rank merges
//! first. A file has more byte strings than the model: the first ones are used.

use super::bpe::{Bpe, VocabularyMap};
use super::hf::TokenRoles;
use super::pipeline::BpePipeline;
use super::{FimTokens, Token, TokenClass, Tokenizer, TokenizerModel, TokenizerParts, bytes, gguf, guarded};
use crate::base64;
use crate::error::TextError;
use serde::Deserialize;
use serde_json::Value;

/// Maximum bytes of a token; see `tiktoken.rs`.
const MAX_TOKEN: usize = 512;

/// Maximum number of tokens; published models have 131 072.
const MAX_TOKENS: usize = 1 << 20;

/// Special tokens of older files, which do not list them (from mistral-common).
const SPECIAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

#[derive(Deserialize)]
struct TekkenFile {
    config: TekkenConfig,
    vocab: Vec<RankedToken>,
    #[serde(default)]
    special_tokens: Option<Vec<TekkenSpecialToken>>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct RankedToken {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct TekkenSpecialToken {
    rank: usize,
    token_str: String,
    #[serde(default = "always")]
    is_control: bool,
}

fn always() -> bool {
    true
}

/// The tokens of a file.
pub(super) struct TekkenTokens {
    /// The pattern that splits text.
    pattern: String,
    /// The special tokens, which have the first ids.
    pub(super) special: Vec<(String, TokenClass)>,
    /// The byte strings by rank.
    pub(super) ranks: Vec<Vec<u8>>,
}

impl TekkenTokens {
    pub(super) fn read(json: &[u8]) -> Result<TekkenTokens, TextError> {
        let file: TekkenFile = serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
        let TekkenConfig { pattern, default_vocab_size: all, default_num_special_tokens: special } =
            file.config;
        let count = all.checked_sub(special).filter(|count| *count > 0 && all <= MAX_TOKENS);
        let count = count.ok_or_else(|| {
            malformed(format!(
                "default_vocab_size is {all} and default_num_special_tokens {special}: expected up to {MAX_TOKENS} tokens, and fewer special ones"
            ))
        })?;
        if file.vocab.len() < count {
            return Err(malformed(format!(
                "vocab has {} tokens, expected {count}: default_vocab_size less default_num_special_tokens",
                file.vocab.len()
            )));
        }
        let mut ranks = Vec::with_capacity(count);
        for (at, token) in file.vocab.into_iter().take(count).enumerate() {
            let wrong = |problem: String| malformed(format!("vocab, token {at}: {problem}"));
            // Ids are positions. With a hole, all later tokens would have wrong ids.
            if token.rank != at {
                return Err(wrong(format!("rank {}, expected {at}: ranks count up from 0", token.rank)));
            }
            // Base64 needs four characters for three bytes.
            if token.token_bytes.len() > MAX_TOKEN.div_ceil(3) * 4 {
                return Err(wrong(format!("a token of more than {MAX_TOKEN} bytes")));
            }
            let code = &token.token_bytes;
            let bytes = base64::decode(code).ok_or_else(|| wrong(format!("invalid base64 {code:?}")))?;
            if bytes.is_empty() {
                return Err(wrong("an empty token".into()));
            }
            ranks.push(bytes);
        }
        Ok(TekkenTokens { pattern, special: special_tokens(file.special_tokens, special)?, ranks })
    }
}

/// The special tokens by id. Unused ids get mistral-common's name for them, `<SPECIAL_n>`.
fn special_tokens(
    listed: Option<Vec<TekkenSpecialToken>>,
    count: usize,
) -> Result<Vec<(String, TokenClass)>, TextError> {
    let mut all: Vec<Option<(String, TokenClass)>> = vec![None; count];
    let usual = || {
        let usual = SPECIAL.iter().take(count).enumerate();
        usual
            .map(|(rank, text)| TekkenSpecialToken { rank, token_str: (*text).into(), is_control: true })
            .collect()
    };
    for token in listed.unwrap_or_else(usual) {
        let TekkenSpecialToken { rank, token_str: text, is_control } = token;
        let wrong = |problem: &str| malformed(format!("special_tokens, {text:?} of rank {rank}: {problem}"));
        let slot = all.get_mut(rank);
        let slot = slot.ok_or_else(|| wrong("the rank is not below default_num_special_tokens"))?;
        // An empty text would match at every position.
        if slot.is_some() || text.is_empty() {
            return Err(wrong("another token has the rank, or it has no text"));
        }
        *slot = Some((text, if is_control { TokenClass::Control } else { TokenClass::UserDefined }));
    }
    let named = |(id, token): (usize, Option<_>)| {
        token.unwrap_or_else(|| (format!("<SPECIAL_{id}>"), TokenClass::Control))
    };
    Ok(all.into_iter().enumerate().map(named).collect())
}

fn malformed(problem: String) -> TextError {
    TextError::Malformed(format!("tekken.json: {problem}"))
}

impl Tokenizer {
    /// A tokenizer from the bytes of tekken.json.
    ///
    /// # Errors
    /// What is not such a file; missing, repeated or empty tokens; a pattern that is not supported.
    pub fn from_tekken(json: &[u8], generation_config: Option<&Value>) -> Result<Tokenizer, TextError> {
        guarded("tekken.json", || {
            let TekkenTokens { pattern, special, ranks } = TekkenTokens::read(json)?;
            let roles = TokenRoles::new(None, generation_config);
            let find = |text: &str| {
                let at = special.iter().position(|(special, _)| special == text)?;
                u32::try_from(at).ok()
            };
            let (bos, eos) = (find("<s>"), find("</s>"));
            let mut tokens: Vec<Token> = Vec::with_capacity(special.len() + ranks.len());
            let mut vocabulary = VocabularyMap::default();
            for (rank, token) in ranks.iter().enumerate() {
                // Byte strings need not be UTF-8, so each byte becomes one character.
                let text = bytes::mapped(token).into_boxed_str();
                // The cast is exact: `MAX_TOKENS` is 2^20.
                if vocabulary.insert(text, (special.len() + rank) as u32).is_some() {
                    let text = String::from_utf8_lossy(token);
                    return Err(malformed(format!("vocab, token {rank}: {text:?} occurs twice")));
                }
            }
            // Without a token for every byte, some text could not be encoded.
            let mut utf8 = [0; 4];
            let mut characters = bytes::characters().iter();
            if let Some(byte) = characters.position(|c| !vocabulary.contains_key(&*c.encode_utf8(&mut utf8)))
            {
                return Err(malformed(format!("it has no token for the byte 0x{byte:02x}")));
            }
            tokens.extend(special.into_iter().map(|(text, kind)| Token {
                bytes: text.clone().into_bytes(),
                text,
                kind,
                ..Token::default()
            }));
            let named = |bytes: Vec<u8>| Token { text: bytes::mapped(&bytes), bytes, ..Token::default() };
            tokens.extend(ranks.into_iter().map(named));
            let pipeline = BpePipeline {
                normalizers: Vec::new(),
                pre_tokenizers: gguf::splitter(&[pattern.as_str()])?,
                bpe: Bpe::ranked(vocabulary),
            };
            TokenizerParts {
                model: TokenizerModel::Bpe(Box::new(pipeline)),
                tokens,
                bos,
                eos,
                end: roles.listed,
                fim: FimTokens::default(),
                // mistral-common begins every prompt with BOS. The file has no key for it.
                add_bos: true,
                add_eos: false,
                space_prefix: false,
            }
            .build()
        })
    }
}
