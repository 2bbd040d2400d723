//! Conversion of a model folder's tokenizer to the `tokenizer.ggml.*` keys of a GGUF file. The keys
//! are those that llama.cpp's converter writes.

use super::{lost_rules, pre_name};
use crate::error::TextError;
use crate::tokenizer::bpe::BpeOptions;
use crate::tokenizer::hf::{AdmittedFile, TokenRoles, admitted, components_of};
use crate::tokenizer::sentence_piece::{
    BYTE, CONTROL, NORMAL, SentencePieces, UNKNOWN, UNUSED, USER_DEFINED,
};
use crate::tokenizer::tekken::TekkenTokens;
use crate::tokenizer::{GgufVocab, TokenClass, Tokenizer, bytes, gguf::byte_token, spm, tiktoken};
use latent_formats::{HfSource, TokenizerKind};
use latent_types::Setting;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// Score of tokens that merges do not produce. It is below all ranks.
const NO_SCORE: f32 = -1e6;

/// The tokenizer of a GGUF file. The fields are its keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufTokenizer {
    /// `model`: `gpt2` (byte-pair encoding) or `llama` (SentencePiece).
    pub model: &'static str,
    /// `pre`.
    pub pre: String,
    /// `tokens`, one for each row of the model's embedding.
    pub tokens: Vec<String>,
    /// `token_type`.
    pub token_types: Vec<i32>,
    /// `scores`, of `llama`.
    pub scores: Option<Vec<f32>>,
    /// `merges`, of `gpt2`.
    pub merges: Option<Vec<String>>,
    /// Keys with a token's id, such as `bos_token_id`.
    pub ids: Vec<(&'static str, u32)>,
    /// Keys with a flag, such as `add_bos_token`.
    pub flags: Vec<(&'static str, bool)>,
    /// Tokens that end generation in the folder, and that GGUF has no key for.
    pub lost_ends: Vec<u32>,
    /// Rules of the folder's tokenizer that GGUF has no key for, one sentence each.
    pub lost_rules: Vec<String>,
}

impl GgufTokenizer {
    /// The tokenizer of a model folder, padded to `vocab_size` tokens; `None` if the folder has
    /// none. The name of the pre-tokenizer rules is `pre`, or is detected. With detected rules, a
    /// sample text must have the tokens of the folder's own tokenizer.
    ///
    /// # Errors
    /// A tokenizer that cannot be read; [`TextError::Inexpressible`] for one that GGUF files have
    /// no keys for.
    pub fn new(
        source: &HfSource,
        vocab_size: usize,
        pre: Option<&str>,
    ) -> Result<Option<GgufTokenizer>, TextError> {
        let Some(file) = &source.tokenizer else { return Ok(None) };
        let own = Tokenizer::from_source_folder(source)?;
        if own.vocab_size() > vocab_size {
            let problem =
                format!("it has {} tokens, but the model's embedding {vocab_size}", own.vocab_size());
            return Err(inexpressible(problem));
        }
        let (bytes, config) = (file.read()?, source.tokenizer_config.as_ref());
        let mut written = match file.kind {
            TokenizerKind::Json => from_json(&bytes, &own, pre)?,
            TokenizerKind::Tiktoken => {
                let ranks = tiktoken::ranks(&bytes)?;
                let special = tiktoken::special_tokens(config, ranks.len())?;
                from_ranks(&ranks, [Vec::new(), special], rules(pre, &own, Some("kimi-k2"))?)
            }
            // Both kinds of files have rules that are known by name, unless a hash says otherwise.
            TokenizerKind::Tekken => {
                let TekkenTokens { special, ranks, .. } = TekkenTokens::read(&bytes)?;
                from_ranks(&ranks, [special, Vec::new()], rules(pre, &own, Some("tekken"))?)
            }
            TokenizerKind::SentencePiece => from_sentence_piece(SentencePieces::read(&bytes, config)?),
        };
        if file.kind != TokenizerKind::Json {
            written.lost_rules = lost_rules::of_config(config);
        }
        // The embedding may have more rows than the vocabulary has tokens. GGUF needs one for each
        // row.
        for id in written.tokens.len()..vocab_size {
            written.push(&format!("[PAD{id}]"), UNUSED);
        }
        if let Some(scores) = &mut written.scores {
            scores.resize(vocab_size, NO_SCORE);
        }
        written.name_tokens(source, &own);
        // Read back like a GGUF file, so that a difference is found before anything is written.
        let read = Tokenizer::from_gguf(&written.vocab())?;
        if pre.is_none() && pre_name::check_tokens(&read)? != pre_name::check_tokens(&own)? {
            let problem = format!(
                "the rules {:?} split a text differently than the folder's own; set the rules with {}",
                written.pre,
                Setting::PreTokenizer
            );
            return Err(inexpressible(problem));
        }
        let ends = read.end_of_generation();
        written.lost_ends = own.end_of_generation().iter().filter(|id| !ends.contains(id)).copied().collect();
        Ok(Some(written))
    }

    fn push(&mut self, text: &str, kind: i32) {
        self.tokens.push(text.to_owned());
        self.token_types.push(kind);
    }

    /// The keys as a reader of the file sees them.
    fn vocab(&self) -> GgufVocab<'_> {
        let id = |key: &str| self.ids.iter().find(|(name, _)| *name == key).map(|(_, id)| *id);
        let flag = |key: &str| self.flags.iter().find(|(name, _)| *name == key).map(|(_, flag)| *flag);
        GgufVocab {
            model: self.model,
            pre: Some(&self.pre),
            tokens: self.tokens.iter().map(String::as_bytes).collect(),
            token_types: Some(self.token_types.clone()),
            scores: self.scores.clone(),
            merges: self.merges.as_ref().map(|merges| merges.iter().map(String::as_bytes).collect()),
            bos: id("bos_token_id"),
            eos: id("eos_token_id"),
            eot: id("eot_token_id"),
            eom: id("eom_token_id"),
            fim: crate::FimTokens::default(),
            unknown: id("unknown_token_id"),
            add_bos: flag("add_bos_token"),
            add_eos: flag("add_eos_token"),
            add_space_prefix: flag("add_space_prefix"),
        }
    }

    /// Sets the keys with ids and flags.
    fn name_tokens(&mut self, source: &HfSource, own: &Tokenizer) {
        // Reversed, so that of equal texts the lowest id counts, as in `Tokenizer`.
        let by_name: HashMap<&str, u32> =
            self.tokens.iter().enumerate().rev().map(|(id, text)| (text.as_str(), id as u32)).collect();
        let named = |role: &str| {
            let entry = source.tokenizer_config.as_ref()?.get(format!("{role}_token"))?;
            let text = entry.as_str().or_else(|| entry.get("content").and_then(Value::as_str))?;
            by_name.get(text).copied()
        };
        let numbered = |role: &str| {
            let id = source.config.get(&format!("{role}_token_id"))?.as_u64()?;
            u32::try_from(id).ok().filter(|id| (*id as usize) < self.tokens.len())
        };
        // GLM's template begins prompts with this token.
        let glm = || by_name.get("[gMASK]").copied();
        let mut ids = Vec::new();
        ids.extend(own.bos().or_else(|| numbered("bos")).or_else(glm).map(|id| ("bos_token_id", id)));
        ids.extend(own.eos().or_else(|| numbered("eos")).map(|id| ("eos_token_id", id)));
        let listed = TokenRoles::new(None, source.generation_config.as_ref()).listed();
        // GGUF has three keys for tokens that end generation: EOS, EOT and EOM. Further ones are
        // lost.
        let further =
            listed.iter().filter(|id| Some(**id) != own.eos() && (**id as usize) < self.tokens.len());
        ids.extend(["eot_token_id", "eom_token_id"].into_iter().zip(further.copied()));
        for (key, role) in [
            ("unknown_token_id", "unk"),
            // llama.cpp's key is misspelled.
            ("seperator_token_id", "sep"),
            ("padding_token_id", "pad"),
            ("cls_token_id", "cls"),
            ("mask_token_id", "mask"),
        ] {
            ids.extend(named(role).or_else(|| numbered(role)).map(|id| (key, id)));
        }
        let named = |key: &str| ids.iter().any(|(other, _)| *other == key);
        let further: Vec<_> = self.ids.drain(..).filter(|(key, _)| !named(key)).collect();
        ids.extend(further);
        self.ids = ids;
        self.flags.extend([("add_bos_token", own.add_bos), ("add_eos_token", own.add_eos)]);
    }
}

fn inexpressible(problem: String) -> TextError {
    TextError::Inexpressible { to: "GGUF keys", problem }
}

/// The name of the pre-tokenizer rules of a byte-level tokenizer.
fn rules(pre: Option<&str>, own: &Tokenizer, by_patterns: Option<&'static str>) -> Result<String, TextError> {
    if let Some(pre) = pre {
        return Ok(pre.to_owned());
    }
    let found = pre_name::by_hash(own)?.or(by_patterns);
    found.map(str::to_owned).ok_or_else(|| {
        inexpressible(format!(
            "no known rules match its pre-tokenizer; if llama.cpp has a name for them, set it with {}",
            Setting::PreTokenizer
        ))
    })
}

fn from_json(json: &[u8], own: &Tokenizer, pre: Option<&str>) -> Result<GgufTokenizer, TextError> {
    let read = admitted(json)?;
    let AdmittedFile { added, byte_level, space_prefix, options, vocabulary, merges, .. } = &read;
    let byte_level = *byte_level;
    let mut texts = vec![None; own.vocab_size()];
    for (text, id) in vocabulary {
        texts[*id as usize] = Some((text.to_string(), piece_type(text, byte_level, options)));
    }
    // After the vocabulary, because added tokens override it.
    for token in added {
        let kind = if token.is_control() { CONTROL } else { USER_DEFINED };
        let spaced = kind == USER_DEFINED && !byte_level;
        let text = if spaced { spm::spaces(&token.content) } else { token.content.clone() };
        texts[token.id as usize] = Some((text, kind));
    }
    if let Some(id) = options.unknown.as_deref().and_then(|text| vocabulary.get(text))
        && let Some((_, kind)) = &mut texts[*id as usize]
    {
        *kind = UNKNOWN;
    }
    let mut written = GgufTokenizer::default();
    for (id, token) in texts.into_iter().enumerate() {
        match token {
            Some((text, kind)) => written.push(&text, kind),
            None => written.push(&format!("[PAD{id}]"), UNUSED),
        }
    }
    if byte_level {
        let by_patterns = pre_name::by_patterns(&components_of(json)?.pre_tokenizer, options.ignore_merges);
        written.model = "gpt2";
        written.pre = rules(pre, own, by_patterns)?;
        written.merges = Some(merges.iter().map(|(left, right)| merge(left, right)).collect());
    } else if options.byte_fallback {
        written.model = "llama";
        written.pre = "default".into();
        written.scores = Some(scores(&written, merges));
        written.flags.push(("add_space_prefix", *space_prefix));
    } else {
        return Err(inexpressible("it has neither a byte-level alphabet nor tokens for bytes".into()));
    }
    written.lost_rules = lost_rules::of_json(json, &read, own, &written.pre)?;
    Ok(written)
}

fn from_sentence_piece(pieces: SentencePieces) -> GgufTokenizer {
    let ids = [("unknown_token_id", pieces.unknown), ("padding_token_id", pieces.padding)];
    GgufTokenizer {
        model: "llama",
        pre: "default".into(),
        ids: ids.into_iter().filter_map(|(key, id)| Some((key, id?))).collect(),
        flags: vec![("add_space_prefix", pieces.space_prefix)],
        tokens: pieces.tokens,
        token_types: pieces.types,
        scores: Some(pieces.scores),
        ..GgufTokenizer::default()
    }
}

fn piece_type(text: &str, byte_level: bool, options: &BpeOptions) -> i32 {
    if !byte_level && options.byte_fallback && byte_token(text).is_some() { BYTE } else { NORMAL }
}

/// A merge as text: `left right`. Spaces within a part are written as `Ġ`, because readers split at
/// the first one.
fn merge(left: &str, right: &str) -> String {
    let part = |text: &str| text.replace(' ', "Ġ");
    format!("{} {}", part(left), part(right))
}

/// Scores from merges. SentencePiece merges the pair whose result has the best score first, so the
/// negated rank is a score with the same order.
fn scores(written: &GgufTokenizer, merges: &[(String, String)]) -> Vec<f32> {
    let mut ranks: HashMap<String, usize> = HashMap::with_capacity(merges.len());
    for (left, right) in merges {
        let next = ranks.len();
        ranks.entry(format!("{left}{right}")).or_insert(next);
    }
    let score = |text: &String| ranks.get(text).map_or(NO_SCORE, |rank| -(*rank as f32));
    written.tokens.iter().map(score).collect()
}

/// A vocabulary of byte strings in the order of ranks, with special tokens before (tekken) or after
/// (tiktoken) them.
fn from_ranks(
    ranks: &[Vec<u8>],
    [before, behind]: [Vec<(String, TokenClass)>; 2],
    pre: String,
) -> GgufTokenizer {
    let by_bytes: HashMap<&[u8], u32> =
        ranks.iter().enumerate().map(|(rank, token)| (token.as_slice(), rank as u32)).collect();
    let mut written = GgufTokenizer { model: "gpt2", pre, ..GgufTokenizer::default() };
    let push_special = |written: &mut GgufTokenizer, special: Vec<(String, TokenClass)>| {
        for (text, kind) in special {
            written.push(&text, if kind == TokenClass::Control { CONTROL } else { USER_DEFINED });
        }
    };
    push_special(&mut written, before);
    let mut merges = Vec::new();
    for (rank, token) in ranks.iter().enumerate() {
        written.push(&bytes::mapped(token), NORMAL);
        // GGUF lists merges, which these files do not contain: the last merge of each token follows
        // from the ranks.
        if let [left, right] = parts(token, rank as u32, &by_bytes)[..] {
            merges.push(merge(&bytes::mapped(left), &bytes::mapped(right)));
        }
    }
    written.merges = Some(merges);
    push_special(&mut written, behind);
    written
}

/// The parts of a token after all merges of ranks below its own. They are two, unless the token
/// cannot be produced by merges.
fn parts<'a>(token: &'a [u8], rank: u32, ranks: &HashMap<&[u8], u32>) -> Vec<&'a [u8]> {
    // The beginning of each part, and the end.
    let mut cuts: Vec<usize> = (0..=token.len()).collect();
    loop {
        let pairs = cuts.windows(3).enumerate();
        let joined = pairs.filter_map(|(i, cut)| Some((*ranks.get(&token[cut[0]..cut[2]])?, i)));
        match joined.filter(|(joined, _)| *joined < rank).min() {
            Some((_, i)) => drop(cuts.remove(i + 1)),
            None => return cuts.windows(2).map(|cut| &token[cut[0]..cut[1]]).collect(),
        }
    }
}

/// Ids of tokens that merges do not produce: unknown, control and user-defined ones.
pub(super) fn outside_the_model(types: &[i32]) -> HashSet<usize> {
    let outside = |kind: &i32| matches!(*kind, UNKNOWN | CONTROL | USER_DEFINED);
    types.iter().enumerate().filter(|(_, kind)| outside(kind)).map(|(id, _)| id).collect()
}

pub(super) fn is_unused(kind: i32) -> bool {
    kind == UNUSED
}

pub(super) fn is_user_defined(kind: i32) -> bool {
    kind == USER_DEFINED
}
