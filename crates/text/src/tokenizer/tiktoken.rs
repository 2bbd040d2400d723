//! Reader of tiktoken.model, which the folders of Kimi-K2 and Moonlight hold instead of
//! tokenizer.json.
//!
//! Each line has a byte string in Base64 and its rank: `YWI= 97`. The rules are in a Python file of
//! the model (tokenization_kimi.py), which is never run: its published pattern is compiled in. Of
//! all adjacent pairs that form a token, the one with the lowest rank merges first. 256 ids for
//! control tokens follow the ranks. tokenizer_config.json names some of them.

use super::bpe::{Bpe, VocabularyMap};
use super::hf::TokenRoles;
use super::pipeline::BpePipeline;
use super::special::looks_special;
use super::{
    FimTokens, Token, TokenClass, Tokenizer, TokenizerModel, TokenizerParts, bytes, gguf, guarded, pre,
};
use crate::base64;
use crate::error::TextError;
use serde_json::Value;

/// Maximum bytes of a token. Every split of a token is looked up, which is quadratic in its length.
/// Published tokens have up to 128 bytes.
const MAX_TOKEN: usize = 512;

/// Maximum number of tokens; published files have 163 584.
const MAX_TOKENS: usize = 1 << 20;

/// Number of ids after the ranks that are reserved for control tokens.
const RESERVED: usize = 256;

/// Python files of models whose rules are implemented.
const PROGRAMS: [&str; 2] = ["tokenization_kimi", "tokenization_moonshot"];

impl Tokenizer {
    /// A tokenizer from the bytes of tiktoken.model and the model's JSON files.
    ///
    /// # Errors
    /// A line that is not a token and its rank; missing or repeated ranks; an unknown Python file.
    pub fn from_tiktoken(
        model: &[u8],
        tokenizer_config: Option<&Value>,
        generation_config: Option<&Value>,
    ) -> Result<Tokenizer, TextError> {
        guarded("tiktoken.model", || {
            known_program(tokenizer_config)?;
            let ranks = ranks(model)?;
            let vocabulary = vocabulary(&ranks)?;
            let special = special_tokens(tokenizer_config, ranks.len())?;
            build(ranks, vocabulary, special, &TokenRoles::new(tokenizer_config, generation_config))
        })
    }
}

fn malformed(problem: String) -> TextError {
    TextError::Malformed(format!("tiktoken.model: {problem}"))
}

/// Rejects a model with an unknown Python file: tiktoken.model does not contain the pattern, and
/// with a wrong one text would silently be split wrongly.
fn known_program(config: Option<&Value>) -> Result<(), TextError> {
    let found = config.and_then(|config| {
        let map = config.get("auto_map").and_then(|map| map.get("AutoTokenizer"));
        let named = map.and_then(|name| name.as_str().or_else(|| name.get(0)?.as_str()));
        named.or_else(|| config.get("tokenizer_class").and_then(Value::as_str))
    });
    let found = found.unwrap_or("(none)");
    // `auto_map` may name a file of another repository: `owner/name--file.Class`.
    let program = found.split("--").last().unwrap_or(found).split('.').next().unwrap_or(found);
    if PROGRAMS.contains(&program) || found == "TikTokenTokenizer" {
        return Ok(());
    }
    Err(TextError::Unknown {
        what: "tokenizer program of tiktoken.model (auto_map.AutoTokenizer of tokenizer_config.json)",
        found: found.to_owned(),
        known: PROGRAMS.map(|name| format!("{name}.TikTokenTokenizer")).join(", "),
    })
}

/// The byte strings by rank.
pub(super) fn ranks(model: &[u8]) -> Result<Vec<Vec<u8>>, TextError> {
    let text = std::str::from_utf8(model).map_err(|error| malformed(format!("it is not text: {error}")))?;
    let mut ranks: Vec<Vec<u8>> = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let wrong = |problem: String| malformed(format!("line {}: {problem}", i + 1));
        let Some((code, rank)) = line.split_once(' ') else {
            let shown: String = line.chars().take(40).collect();
            return Err(wrong(format!("{shown:?} is not a token and its rank, such as \"YWI= 97\"")));
        };
        if code.len() > MAX_TOKEN.div_ceil(3) * 4 {
            return Err(wrong(format!("a token of more than {MAX_TOKEN} bytes")));
        }
        let token = base64::decode(code).ok_or_else(|| wrong(format!("invalid base64 {code:?}")))?;
        if token.is_empty() {
            return Err(wrong("an empty token".into()));
        }
        let rank: usize = rank.parse().map_err(|_| wrong(format!("invalid rank {rank:?}")))?;
        // Published files are in the order of ranks, so another rank means a damaged file.
        if rank != ranks.len() {
            return Err(wrong(format!(
                "rank {rank}, expected {}: ranks count up from 0 without gaps",
                ranks.len()
            )));
        }
        if rank >= MAX_TOKENS {
            return Err(wrong(format!("more than {MAX_TOKENS} tokens")));
        }
        ranks.push(token);
    }
    if ranks.is_empty() {
        return Err(malformed("it has no tokens".into()));
    }
    Ok(ranks)
}

/// The tokens after the ranks, in the order of their ids.
pub(super) fn special_tokens(
    config: Option<&Value>,
    base: usize,
) -> Result<Vec<(String, TokenClass)>, TextError> {
    let mut special: Vec<(String, TokenClass)> =
        (base..base + RESERVED).map(|id| (format!("<|reserved_token_{id}|>"), TokenClass::Control)).collect();
    let named = config.and_then(|config| config.get("added_tokens_decoder")).and_then(Value::as_object);
    for (id, token) in named.into_iter().flatten() {
        let wrong = |problem: String| {
            TextError::Malformed(format!("tokenizer_config.json: added_tokens_decoder, id {id:?}: {problem}"))
        };
        let number: usize = id.parse().map_err(|_| wrong("it is not a number".into()))?;
        // Ids below the ranks would replace text tokens.
        let slot = number.checked_sub(base).and_then(|i| special.get_mut(i));
        let slot = slot.ok_or_else(|| wrong(format!("expected {base} to {}", base + RESERVED - 1)))?;
        let content = token.get("content").and_then(Value::as_str).filter(|content| !content.is_empty());
        let content = content.ok_or_else(|| wrong("it has no content".into()))?;
        // Kimi's file declares `<|tool_call_begin|>` not special. Its name makes it a control
        // token.
        let special = token.get("special").and_then(Value::as_bool).unwrap_or(true);
        let control = special || looks_special(content);
        *slot = (content.to_owned(), if control { TokenClass::Control } else { TokenClass::UserDefined });
    }
    Ok(special)
}

/// The byte strings in the byte-level alphabet, with their ranks.
fn vocabulary(ranks: &[Vec<u8>]) -> Result<VocabularyMap, TextError> {
    let mut vocabulary = VocabularyMap::default();
    for (rank, token) in ranks.iter().enumerate() {
        let text = bytes::mapped(token).into_boxed_str();
        if let Some(other) = vocabulary.insert(text, rank as u32) {
            let text = String::from_utf8_lossy(token);
            return Err(malformed(format!("the tokens of rank {other} and {rank} are the same: {text:?}")));
        }
    }
    // Without a token for every byte, some text could not be encoded.
    let mut utf8 = [0; 4];
    let missing =
        bytes::characters().iter().position(|c| !vocabulary.contains_key(&*c.encode_utf8(&mut utf8)));
    match missing {
        Some(byte) => Err(malformed(format!("it has no token for the byte 0x{byte:02x}"))),
        None => Ok(vocabulary),
    }
}

fn build(
    ranks: Vec<Vec<u8>>,
    vocabulary: VocabularyMap,
    special: Vec<(String, TokenClass)>,
    roles: &TokenRoles<'_>,
) -> Result<Tokenizer, TextError> {
    let mut tokens: Vec<Token> = ranks
        .into_iter()
        .map(|token| Token { text: bytes::mapped(&token), bytes: token, ..Token::default() })
        .collect();
    let find = |text: &str| {
        let at = special.iter().position(|(content, _)| content == text)?;
        u32::try_from(vocabulary.len() + at).ok()
    };
    let bos = roles.bos.and_then(find);
    let eos = roles.eos.and_then(find).or(roles.listed.first().copied());
    tokens.extend(special.into_iter().map(|(text, kind)| Token {
        bytes: text.clone().into_bytes(),
        text,
        kind,
        ..Token::default()
    }));
    let pipeline = BpePipeline {
        normalizers: Vec::new(),
        pre_tokenizers: gguf::splitter(pre::named("kimi-k2")?.patterns)?,
        bpe: Bpe::ranked(vocabulary),
    };
    TokenizerParts {
        model: TokenizerModel::Bpe(Box::new(pipeline)),
        tokens,
        bos,
        eos,
        end: roles.listed.clone(),
        fim: FimTokens::default(),
        add_bos: roles.add_bos.unwrap_or(false),
        add_eos: roles.add_eos,
        space_prefix: false,
    }
    .build()
}
