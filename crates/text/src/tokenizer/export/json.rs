//! Conversion of the `tokenizer.ggml.*` keys of a GGUF file to tokenizer.json and
//! tokenizer_config.json.

use super::pre_name;
use super::vocabulary::{is_unused, is_user_defined, outside_the_model};
use crate::error::TextError;
use crate::tokenizer::gguf::pair;
use crate::tokenizer::{GgufVocab, Tokenizer, pre, spm};
use latent_formats::gguf::Metadata;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};

/// The tokenizer of a model folder.
#[derive(Clone, Debug)]
pub struct HfTokenizer {
    /// tokenizer.json.
    pub tokenizer: Value,
    /// tokenizer_config.json, without a chat template.
    pub config: Map<String, Value>,
    /// Tokens that end generation.
    pub ends: Vec<u32>,
}

impl HfTokenizer {
    /// The tokenizer in the metadata of a GGUF file.
    ///
    /// # Errors
    /// [`TextError::Missing`] if the file has no tokenizer; [`TextError::Inexpressible`] if the
    /// result would encode a sample text differently.
    pub fn new(metadata: &Metadata) -> Result<HfTokenizer, TextError> {
        let vocab = GgufVocab::from_metadata(metadata)?;
        let own = Tokenizer::from_gguf(&vocab)?;
        let texts: Vec<String> =
            vocab.tokens.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect();
        let types = vocab.token_types.clone().unwrap_or_else(|| vec![1; texts.len()]);
        let named = |key: &str| -> Result<Option<usize>, TextError> {
            let id = metadata.u64(&format!("tokenizer.ggml.{key}_token_id"))?;
            Ok(id.and_then(|id| usize::try_from(id).ok()).filter(|id| *id < texts.len()))
        };
        let mut config = Map::new();
        config.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
        config.insert("add_bos_token".into(), own.add_bos.into());
        config.insert("add_eos_token".into(), own.add_eos.into());
        for (role, key) in
            // GGUF's key is misspelled in llama.cpp.
            [
                ("bos", "bos"),
                ("eos", "eos"),
                ("unk", "unknown"),
                ("pad", "padding"),
                ("sep", "seperator"),
            ]
        {
            if let Some(id) = named(key)? {
                config.insert(format!("{role}_token"), texts[id].as_str().into());
            }
        }
        config.insert("clean_up_tokenization_spaces".into(), false.into());
        let parts = ExportParts { vocab: &vocab, own: &own, texts: &texts, types: &types };
        let tokenizer = parts.tokenizer()?;
        // Read the result back, so that a converted model never encodes text differently in
        // silence.
        let read =
            Tokenizer::from_hf(tokenizer.to_string().as_bytes(), Some(&Value::Object(config.clone())), None)?;
        if pre_name::check_tokens(&read)? != pre_name::check_tokens(&own)? {
            let problem = "it would split a text differently".into();
            return Err(TextError::Inexpressible { to: "tokenizer.json", problem });
        }
        Ok(HfTokenizer { tokenizer, config, ends: own.end_of_generation().to_vec() })
    }
}

struct ExportParts<'a> {
    vocab: &'a GgufVocab<'a>,
    own: &'a Tokenizer,
    texts: &'a [String],
    types: &'a [i32],
}

impl ExportParts<'_> {
    fn tokenizer(&self) -> Result<Value, TextError> {
        let outside = outside_the_model(self.types);
        let bytes = self.vocab.model == "gpt2";
        let mut model = Map::new();
        let mut ids: HashMap<&str, usize> = HashMap::new();
        let mut added: Vec<Value> = Vec::new();
        for (id, text) in self.texts.iter().enumerate() {
            if outside.contains(&id) {
                added.push(json!({
                    "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": !is_user_defined(self.types[id]),
                }));
            }
            // SentencePiece's unknown and control tokens are part of the model's vocabulary too.
            let inside = if bytes { !outside.contains(&id) } else { true };
            if inside && !is_unused(self.types[id]) && !text.is_empty() {
                model.insert(text.clone(), id.into());
                ids.entry(text).or_insert(id);
            }
        }
        let (merges, pre_tokenizer, normalizer, decoder, options) =
            if bytes { self.byte_level(&ids)? } else { self.sentence_piece(&ids, &outside) };
        let mut parts = json!({
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
        });
        if let (Value::Object(parts), Value::Object(options)) = (&mut parts, options) {
            parts.extend(options);
            parts.insert("vocab".into(), Value::Object(model));
            parts.insert("merges".into(), merges.into());
        }
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "post_processor": self.post_processor(), "decoder": decoder, "model": parts,
        }))
    }

    /// Merges, pre-tokenizer, normalizer, decoder and options of the model.
    fn byte_level(&self, ids: &HashMap<&str, usize>) -> Result<Components, TextError> {
        let rules = pre::named(self.vocab.pre.unwrap_or("(none)"))?;
        let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let mut steps: Vec<Value> = rules.patterns.iter().map(split).collect();
        let byte_level = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
        steps.push(byte_level(false));
        let mut merges = Vec::new();
        for merge in self.vocab.merges.iter().flatten() {
            let (left, right) = pair(merge)?;
            // A merge applies only if both parts and the result are tokens. Other programs reject a
            // file with other merges.
            let known = [left.as_str(), &right, &format!("{left}{right}")].map(|text| ids.contains_key(text));
            if known == [true; 3] {
                merges.push(format!("{left} {right}"));
            }
        }
        let pre_tokenizer = json!({"type": "Sequence", "pretokenizers": steps});
        let options = json!({"ignore_merges": rules.ignore_merges});
        Ok((merges, pre_tokenizer, Value::Null, byte_level(true), options))
    }

    fn sentence_piece(&self, ids: &HashMap<&str, usize>, outside: &HashSet<usize>) -> Components {
        let scores = self.vocab.scores.as_deref().unwrap_or_default();
        let score = |id: usize| scores.get(id).copied().unwrap_or(f32::MIN);
        let inside = |id: usize| !outside.contains(&id) && !is_unused(self.types[id]);
        // Every split of a token into two tokens is a merge. SentencePiece merges the best score
        // first, so the score gives the rank.
        let mut found: Vec<(f32, usize, usize, &str)> = Vec::new();
        for (id, text) in self.texts.iter().enumerate().filter(|(id, _)| inside(*id)) {
            for (at, _) in text.char_indices().skip(1) {
                let (left, right) = text.split_at(at);
                if let (Some(a), Some(b)) = (ids.get(left), ids.get(right))
                    && inside(*a)
                    && inside(*b)
                {
                    found.push((score(id), *a.max(b), at, text));
                }
            }
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        let merges =
            found.into_iter().map(|(_, _, at, text)| format!("{} {}", &text[..at], &text[at..])).collect();
        let space = spm::SPACE.to_string();
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": space});
        let back = json!({"type": "Replace", "pattern": {"String": space}, "content": " "});
        let mut decoders = vec![back, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        let mut normalizers = vec![replace];
        if self.own.space_prefix() {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": space}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let unknown = self.vocab.unknown.and_then(|id| self.texts.get(id as usize));
        let options = json!({"byte_fallback": true, "fuse_unk": true, "unk_token": unknown});
        let normalizer = json!({"type": "Sequence", "normalizers": normalizers});
        (merges, Value::Null, normalizer, json!({"type": "Sequence", "decoders": decoders}), options)
    }

    /// A post-processor that prepends BOS if prompts begin with it.
    fn post_processor(&self) -> Value {
        let bos = self.vocab.bos.filter(|_| self.own.adds_bos());
        let Some((id, text)) = bos.and_then(|id| Some((id, self.texts.get(id as usize)?))) else {
            return json!({
                "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true,
            });
        };
        let token = json!({"SpecialToken": {"id": text, "type_id": 0}});
        let sequence = |name: &str, kind: u32| json!({"Sequence": {"id": name, "type_id": kind}});
        json!({
            "type": "TemplateProcessing",
            "single": [token, sequence("A", 0)],
            "pair": [token, sequence("A", 0), sequence("B", 1)],
            "special_tokens": {text: {"id": text, "ids": [id], "tokens": [text]}},
        })
    }
}

/// Merges, pre-tokenizer, normalizer, decoder, options of the model.
type Components = (Vec<String>, Value, Value, Value, Value);
