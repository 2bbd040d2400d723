//! Parser of tokenizer.json. Components become JSON values. Vocabulary and merges are parsed
//! directly, because JSON values of a large vocabulary would need more memory.

use super::components;
use super::json_at::LocatedValue;
use crate::error::TextError;
use crate::tokenizer::bpe::{BpeOptions, VocabularyMap};
use crate::tokenizer::normalize::Normalizer;
use crate::tokenizer::special::looks_special;
use crate::tokenizer::split::PreTokenizer;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;

/// Maximum bytes of a component's JSON; the longest published one, with a list of letters, has
/// 8000.
const MAX_COMPONENT: usize = 1 << 20;

/// Maximum bytes of the file; the largest published ones have 35 million.
const MAX_FILE: usize = 128 << 20;

/// The parsed keys of the file. `padding` and `truncation` are for training and are ignored: a
/// prompt is never padded or cut.
#[derive(serde::Deserialize)]
struct HfTokenizerFile<'a> {
    #[serde(default)]
    added_tokens: Option<Vec<AddedToken>>,
    #[serde(borrow)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow)]
    decoder: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
}

/// An entry of `added_tokens`.
#[derive(serde::Deserialize)]
pub(in crate::tokenizer) struct AddedToken {
    pub(in crate::tokenizer) id: u32,
    pub(in crate::tokenizer) content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    pub(in crate::tokenizer) lstrip: bool,
    #[serde(default)]
    pub(in crate::tokenizer) rstrip: bool,
    #[serde(default)]
    single_word: bool,
    normalized: Option<bool>,
}

impl AddedToken {
    /// Whether it is a control token: declared special, or named like one. llama.cpp's converter
    /// has the same rule, so a folder and its GGUF file agree.
    pub(in crate::tokenizer) fn is_control(&self) -> bool {
        self.special || looks_special(&self.content)
    }

    /// Whether it is matched in the normalized text.
    pub(in crate::tokenizer) fn is_normalized(&self) -> bool {
        // The default of the `tokenizers` library.
        self.normalized.unwrap_or(!self.special)
    }
}

/// The options of `model`.
// The fields are values, so that errors can show what the file has.
#[derive(serde::Deserialize)]
struct ModelHead {
    #[serde(default, rename = "type")]
    ty: Value,
    #[serde(default)]
    dropout: Value,
    #[serde(default)]
    continuing_subword_prefix: Value,
    #[serde(default)]
    end_of_word_suffix: Value,
    #[serde(default)]
    unk_token: Value,
    #[serde(default)]
    fuse_unk: Value,
    #[serde(default)]
    byte_fallback: Value,
    #[serde(default)]
    ignore_merges: Value,
}

/// The tokens of `model`.
#[derive(serde::Deserialize)]
struct ModelBody {
    vocab: VocabularyMap,
    merges: Vec<Merge>,
}

/// The two parts of a merge: a list of two strings, or in older files one string with a space
/// between the parts.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Merge, D::Error> {
        deserializer.deserialize_any(MergeVisitor)
    }
}

struct MergeVisitor;

impl<'de> Visitor<'de> for MergeVisitor {
    type Value = Merge;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a merge: two texts, or one with a space between its parts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Merge, E> {
        match text.split_once(' ') {
            // Two spaces are ambiguous: a part may contain a space.
            Some((left, right)) if !right.contains(' ') => Ok(Merge(left.to_owned(), right.to_owned())),
            _ => Err(E::custom(format!("merge {text:?} has no space between two parts, or several"))),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merge, A::Error> {
        let mut next = |i| list.next_element::<String>()?.ok_or_else(|| A::Error::invalid_length(i, &self));
        let merge = Merge(next(0)?, next(1)?);
        match list.next_element::<String>()? {
            Some(_) => Err(A::Error::invalid_length(3, &self)),
            None => Ok(merge),
        }
    }
}

/// A parsed file that has accepted components only.
pub(in crate::tokenizer) struct AdmittedFile {
    pub(in crate::tokenizer) added: Vec<AddedToken>,
    pub(in crate::tokenizer) normalizers: Vec<Normalizer>,
    pub(in crate::tokenizer) pre_tokenizers: Vec<PreTokenizer>,
    /// Whether tokens are in the byte-level alphabet.
    pub(in crate::tokenizer) byte_level: bool,
    /// The token that the post-processor prepends.
    pub(in crate::tokenizer) first: Option<String>,
    /// Whether encoding prepends a space to texts, which decoding removes.
    pub(in crate::tokenizer) space_prefix: bool,
    pub(in crate::tokenizer) options: BpeOptions,
    pub(in crate::tokenizer) vocabulary: VocabularyMap,
    pub(in crate::tokenizer) merges: Vec<(String, String)>,
}

impl AdmittedFile {
    /// Parses a file and checks its components.
    pub(super) fn read(bytes: &[u8]) -> Result<AdmittedFile, TextError> {
        if bytes.len() > MAX_FILE {
            let problem = format!("tokenizer.json has {} bytes; the limit is {MAX_FILE}", bytes.len());
            return Err(TextError::Malformed(problem));
        }
        // Components are borrowed as raw JSON and parsed one by one, each within `MAX_COMPONENT`.
        let file: HfTokenizerFile<'_> = serde_json::from_slice(bytes)
            .map_err(|e| TextError::Malformed(format!("tokenizer.json: {e}")))?;
        let added = file.added_tokens.unwrap_or_default();
        if let Some((i, token)) = added.iter().enumerate().find(|(_, token)| token.single_word) {
            return Err(TextError::Component {
                place: format!("added_tokens[{i}].single_word"),
                found: format!("is true (of the token {:?})", token.content),
                accepted: "false".into(),
            });
        }
        let normalizer = component("normalizer", file.normalizer)?;
        let pre_tokenizer = component("pre_tokenizer", file.pre_tokenizer)?;
        let decoder = component("decoder", file.decoder)?;
        let post_processor = component("post_processor", file.post_processor)?;
        let normalizers = components::normalizers(&LocatedValue::new("normalizer", &normalizer))?;
        let pre_tokenizers = components::pre_tokenizers(&LocatedValue::new("pre_tokenizer", &pre_tokenizer))?;
        let reads_bytes = components::reads_bytes(&LocatedValue::new("decoder", &decoder))?;
        let first = components::first_token(&LocatedValue::new("post_processor", &post_processor))?
            .map(str::to_owned);
        let writes_bytes = normalizers.iter().any(|n| matches!(n, Normalizer::ByteLevel))
            || pre_tokenizers.iter().any(|p| matches!(p, PreTokenizer::ByteLevel { .. }));
        // Without a decoder, decoding inverts the pre-tokenizer.
        let byte_level = reads_bytes || (decoder.is_null() && writes_bytes);
        // Llama 2's file prepends by a normalizer, later files by `Metaspace`.
        let prefixed = normalizers.iter().any(|n| matches!(n, Normalizer::Prepend(_)))
            || pre_tokenizers.iter().any(PreTokenizer::prepends_space);
        let (options, body) = model(file.model)?;
        Ok(AdmittedFile {
            added,
            normalizers,
            pre_tokenizers,
            byte_level,
            first,
            space_prefix: prefixed && !byte_level,
            options,
            vocabulary: body.vocab,
            merges: body.merges.into_iter().map(|Merge(left, right)| (left, right)).collect(),
        })
    }
}

/// Components as JSON; null if missing.
pub(in crate::tokenizer) struct ComponentValues {
    pub(in crate::tokenizer) normalizer: Value,
    pub(in crate::tokenizer) pre_tokenizer: Value,
    pub(in crate::tokenizer) post_processor: Value,
}

/// The components of a file.
pub(super) fn components_of(bytes: &[u8]) -> Result<ComponentValues, TextError> {
    let file: HfTokenizerFile<'_> =
        serde_json::from_slice(bytes).map_err(|e| TextError::Malformed(format!("tokenizer.json: {e}")))?;
    Ok(ComponentValues {
        normalizer: component("normalizer", file.normalizer)?,
        pre_tokenizer: component("pre_tokenizer", file.pre_tokenizer)?,
        post_processor: component("post_processor", file.post_processor)?,
    })
}

/// Parses a component; null if it is missing.
fn component(name: &str, raw: Option<&RawValue>) -> Result<Value, TextError> {
    let Some(raw) = raw.map(RawValue::get) else { return Ok(Value::Null) };
    if raw.len() > MAX_COMPONENT {
        let problem = format!("tokenizer.json: {name} has {} bytes; the limit is {MAX_COMPONENT}", raw.len());
        return Err(TextError::Malformed(problem));
    }
    serde_json::from_str(raw).map_err(|e| TextError::Malformed(format!("tokenizer.json: {name}: {e}")))
}

/// Parses the model. Only byte-pair encoding is supported; all published models with MLA have it.
fn model(raw: Option<&RawValue>) -> Result<(BpeOptions, ModelBody), TextError> {
    let malformed = |e| TextError::Malformed(format!("tokenizer.json: model: {e}"));
    let raw = raw.ok_or_else(|| TextError::Malformed("tokenizer.json has no model".into()))?.get();
    // The options first: an unsupported model must be named as such, not as one with a malformed
    // vocabulary.
    let head: ModelHead = serde_json::from_str(raw).map_err(malformed)?;
    let refuse = |key: &str, value: &Value, accepted: &str| {
        LocatedValue::new(&format!("model.{key}"), value).refused(accepted)
    };
    // Files from before 2021 have no type.
    if !head.ty.is_null() && head.ty != "BPE" {
        return Err(refuse("type", &head.ty, "BPE"));
    }
    if !head.dropout.is_null() && head.dropout.as_f64() != Some(0.0) {
        return Err(refuse("dropout", &head.dropout, "null, as dropout is for training"));
    }
    for (key, value) in [
        ("continuing_subword_prefix", &head.continuing_subword_prefix),
        ("end_of_word_suffix", &head.end_of_word_suffix),
    ] {
        if !value.is_null() && value != "" {
            return Err(refuse(key, value, "null or an empty text"));
        }
    }
    let flag = |key, value: &Value| match value {
        Value::Null => Ok(false),
        Value::Bool(flag) => Ok(*flag),
        other => Err(refuse(key, other, "true or false")),
    };
    let unknown = match &head.unk_token {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => return Err(refuse("unk_token", other, "a text or null")),
    };
    let options = BpeOptions {
        unknown,
        fuse_unknown: flag("fuse_unk", &head.fuse_unk)?,
        byte_fallback: flag("byte_fallback", &head.byte_fallback)?,
        ignore_merges: flag("ignore_merges", &head.ignore_merges)?,
    };
    Ok((options, serde_json::from_str(raw).map_err(malformed)?))
}
