//! Tokenizers from tokenizer.json and the files beside it.

use super::{Kind, Model, Parts, Tokenizer, bytes, gguf::byte_token, spm};
use crate::error::TextError;
use serde_json::Value;

impl Tokenizer {
    /// A tokenizer from the bytes of tokenizer.json; the other two files say which tokens begin and end a text.
    ///
    /// # Errors
    /// When the file is no tokenizer.
    pub fn from_hf(
        tokenizer_json: &[u8],
        tokenizer_config: Option<&Value>,
        generation_config: Option<&Value>,
    ) -> Result<Tokenizer, TextError> {
        let json: Value = serde_json::from_slice(tokenizer_json)
            .map_err(|e| TextError::Malformed(format!("tokenizer.json: {e}")))?;
        let mut inner = tokenizers::Tokenizer::from_bytes(tokenizer_json)
            .map_err(|e| TextError::Malformed(format!("tokenizer.json: {e}")))?;
        let byte_level = json.get("decoder").is_some_and(|d| mentions(d, "ByteLevel"));
        let added = inner.get_added_tokens_decoder();
        let mut tokens = Vec::new();
        for id in 0..id_count(&inner)? {
            let text = inner.id_to_token(id).unwrap_or_default();
            let kind = match added.get(&id) {
                Some(token) if token.special => Kind::Control,
                Some(_) => Kind::UserDefined,
                None => Kind::Plain,
            };
            let piece = match byte_token(&text) {
                _ if kind != Kind::Plain => text.clone().into_bytes(),
                Some(byte) if !byte_level => vec![byte],
                _ if byte_level => bytes::unmapped(&text),
                _ => text.replace(spm::SPACE, " ").into_bytes(),
            };
            tokens.push((text, piece, kind));
        }
        // special tokens are cut out before the text comes here
        inner.set_encode_special_tokens(true);
        let find = |text: &str| inner.token_to_id(text);
        let config = tokenizer_config.unwrap_or(&Value::Null);
        let named = |key: &str| config.get(key).and_then(token_name).and_then(find);
        let added_first = |text: &str| first_special(&json, text);
        let bos = named("bos_token");
        let eos = named("eos_token");
        let listed = generation_config.and_then(|g| g.get("eos_token_id")).map(ids).unwrap_or_default();
        let flag = |key: &str| config.get(key).and_then(Value::as_bool);
        let add_bos =
            flag("add_bos_token").unwrap_or_else(|| bos_text(config).is_some_and(|text| added_first(&text)));
        let add_eos = flag("add_eos_token").unwrap_or(false);
        let space_prefix = !byte_level && mentions(json.get("normalizer").unwrap_or(&Value::Null), "Prepend");
        Parts {
            model: Model::Bpe(Box::new(inner)),
            tokens,
            bos,
            eos: eos.or(listed.first().copied()),
            end: listed,
            add_bos,
            add_eos,
            space_prefix,
        }
        .build()
    }
}

/// Most ids that a vocabulary may count; the largest published ones have a quarter of a million.
const MAX_IDS: u32 = 1 << 22;

/// One more than the largest id: vocabularies may have holes, which become empty tokens.
fn id_count(inner: &tokenizers::Tokenizer) -> Result<u32, TextError> {
    let largest = inner.get_vocab(true).into_values().max();
    match largest {
        None => Err(TextError::Malformed("tokenizer.json has no tokens".into())),
        Some(id) if id >= MAX_IDS => {
            Err(TextError::Malformed(format!("tokenizer.json has the id {id}; the limit is {MAX_IDS}")))
        }
        Some(id) => Ok(id + 1),
    }
}

fn bos_text(config: &Value) -> Option<String> {
    config.get("bos_token").and_then(token_name).map(str::to_owned)
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

/// Whether the post-processor of tokenizer.json puts this token before a text.
fn first_special(json: &Value, text: &str) -> bool {
    let Some(single) = json.get("post_processor").and_then(|p| find_key(p, "single")) else { return false };
    let first = single.as_array().and_then(|parts| parts.first());
    first.and_then(|part| part.get("SpecialToken")?.get("id")?.as_str()) == Some(text)
}

/// The value of a key, anywhere below (at most a few levels, as serde_json limits depth).
fn find_key<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    match value {
        Value::Object(map) => map.get(key).or_else(|| map.values().find_map(|v| find_key(v, key))),
        Value::Array(list) => list.iter().find_map(|v| find_key(v, key)),
        _ => None,
    }
}

/// Whether a component of this type stands anywhere below.
fn mentions(value: &Value, component: &str) -> bool {
    match value {
        Value::Object(map) => {
            map.get("type").and_then(Value::as_str) == Some(component)
                || map.values().any(|v| mentions(v, component))
        }
        Value::Array(list) => list.iter().any(|v| mentions(v, component)),
        _ => false,
    }
}
