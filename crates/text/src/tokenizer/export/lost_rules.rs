//! Rules of a folder's tokenizer that GGUF keys cannot express.
//!
//! Rules are compared one by one. The tokens of a sample text would not show a rule that the text
//! does not trigger. Only pre-tokenizers are compared by sample texts ([`probes`]), because two
//! patterns can differ in form and split alike.

use super::pre_name::CHECK_TEXT;
use crate::error::TextError;
use crate::tokenizer::gguf::splitter;
use crate::tokenizer::hf::{AdmittedFile, ComponentValues, components_of};
use crate::tokenizer::normalize::{Normalizer, normalize};
use crate::tokenizer::split::{PreTokenizer, cut};
use crate::tokenizer::{Tokenizer, bytes, gguf::byte_token, pre, spm};
use serde_json::Value;
use std::collections::HashSet;

/// Maximum bytes of a component in a sentence.
const MAX_SHOWN: usize = 160;

/// Maximum number of tokens in a sentence.
const MAX_LISTED: usize = 5;

/// The rules of a tokenizer.json that a GGUF file with the pre-tokenizer `pre` cannot express, one
/// sentence each.
pub(super) fn of_json(
    json: &[u8],
    admitted: &AdmittedFile,
    own: &Tokenizer,
    pre: &str,
) -> Result<Vec<String>, TextError> {
    let ComponentValues { normalizer, pre_tokenizer, post_processor } = components_of(json)?;
    let mut lost = Vec::new();
    for step in flat(&normalizer, "normalizers") {
        lost.extend(normalizer_step(step, admitted.byte_level));
    }
    if admitted.byte_level {
        lost.extend(pieces(admitted, &pre_tokenizer, pre)?);
        lost.extend(byte_level_model(admitted, pre)?);
    } else {
        for step in flat(&pre_tokenizer, "pretokenizers") {
            lost.extend(pre_tokenizer_step(step, admitted));
        }
        lost.extend(merged_model(admitted));
    }
    lost.extend(processor(&post_processor, own));
    let normalized_only = |token: &&crate::tokenizer::hf::AddedToken| {
        !admitted.byte_level
            && !token.is_control()
            && !token.is_normalized()
            && token.content.contains(spm::SPACE)
    };
    let named = |rule: &str, told: &str, fits: &dyn Fn(&&crate::tokenizer::hf::AddedToken) -> bool| {
        tokens(rule, told, admitted.added.iter().filter(fits).map(|token| token.content.as_str()))
    };
    lost.extend(named("lstrip", LSTRIP, &|token| token.lstrip));
    lost.extend(named("rstrip", RSTRIP, &|token| token.rstrip));
    lost.extend(named("normalized: false", "the file matches spaces for ▁ as well", &normalized_only));
    Ok(lost)
}

const LSTRIP: &str = "the file keeps the white space before them";
const RSTRIP: &str = "the file keeps the white space after them";

/// Likewise for `added_tokens_decoder` in tokenizer_config.json, if the vocabulary is in another
/// file than tokenizer.json.
pub(super) fn of_config(config: Option<&Value>) -> Vec<String> {
    let added = config.and_then(|config| config.get("added_tokens_decoder")?.as_object());
    let with = |flag: &'static str| {
        let tokens = added.into_iter().flatten().map(|(_, token)| token);
        tokens
            .filter(move |token| token.get(flag) == Some(&Value::Bool(true)))
            .filter_map(|token| token.get("content")?.as_str())
    };
    let single = "the file also matches them inside of words";
    [("lstrip", LSTRIP), ("rstrip", RSTRIP), ("single_word", single)]
        .into_iter()
        .filter_map(|(flag, told)| tokens(flag, told, with(flag)))
        .collect()
}

/// `lstrip of the added tokens "<a>", "<b>": …`.
fn tokens<'a>(rule: &str, told: &str, tokens: impl Iterator<Item = &'a str>) -> Option<String> {
    let tokens: Vec<String> = tokens.map(|token| format!("{token:?}")).collect();
    let more = tokens.len().saturating_sub(MAX_LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let listed = tokens.iter().take(MAX_LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
    (!tokens.is_empty()).then(|| format!("{rule} of the added tokens {listed}{more}: {told}"))
}

/// The steps of a component, with sequences flattened.
fn flat<'a>(component: &'a Value, key: &str) -> Vec<&'a Value> {
    match component.get(key).and_then(Value::as_array) {
        Some(steps) => steps.iter().flat_map(|step| flat(step, key)).collect(),
        None if component.is_null() => Vec::new(),
        None => vec![component],
    }
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn shown(step: &Value) -> String {
    let mut text = step.to_string();
    if text.len() > MAX_SHOWN {
        text.truncate(text.floor_char_boundary(MAX_SHOWN));
        text.push('…');
    }
    text
}

fn normalizer_step(step: &Value, byte_level: bool) -> Option<String> {
    let space = spm::SPACE.to_string();
    let is = |key: &str, text: &str| step.get(key).and_then(Value::as_str) == Some(text);
    match kind(step) {
        "ByteLevel" if byte_level => None,
        "Prepend" if !byte_level && is("prepend", &space) => Some(prefix("normalizer", step)),
        "Replace" if !byte_level && is("content", &space) && step["pattern"]["String"] == " " => None,
        _ => Some(format!("normalizer {}: the file takes text as it is", shown(step))),
    }
}

/// The sentence for a rule that prepends a space to every text between two special tokens.
fn prefix(component: &str, step: &Value) -> String {
    format!(
        "{component} {}: the file prepends a space to the whole text only, not after special tokens",
        shown(step)
    )
}

fn pre_tokenizer_step(step: &Value, admitted: &AdmittedFile) -> Option<String> {
    if kind(step) != "Metaspace" {
        return Some(format!("pre_tokenizer {}: the file does not split text beforehand", shown(step)));
    }
    let always = |p: &PreTokenizer| p.prepends_space() && !p.prepends_once();
    if admitted.pre_tokenizers.iter().any(always) {
        return Some(prefix("pre_tokenizer", step));
    }
    let splits = step.get("split").and_then(Value::as_bool).unwrap_or(true);
    let across = admitted.vocabulary.keys().find(|text| text.chars().skip(1).any(|c| c == spm::SPACE));
    let across = across.filter(|_| splits)?;
    Some(format!("pre_tokenizer {}: the file joins words to pieces such as {across:?}", shown(step)))
}

/// The first difference between the rules `pre` and the folder's pre-tokenizer.
fn pieces(admitted: &AdmittedFile, component: &Value, pre: &str) -> Result<Option<String>, TextError> {
    let theirs = splitter(pre::named(pre)?.patterns)?;
    // Other normalizers are reported by themselves. Here, they would only hide differences of the
    // splitters.
    let mapped = admitted.normalizers.iter().any(|step| matches!(step, Normalizer::ByteLevel));
    let levels: &[Normalizer] = if mapped { &[Normalizer::ByteLevel] } else { &[] };
    let patterns: Vec<&str> = flat(component, "pretokenizers")
        .into_iter()
        .filter_map(|step| step["pattern"]["String"].as_str().or(step["pattern"]["Regex"].as_str()))
        .collect();
    for probe in probes(&patterns) {
        let own = normalize(levels, &probe).and_then(|text| cuts(&admitted.pre_tokenizers, &text));
        let (own, theirs) = match (own, cuts(&theirs, &probe)) {
            (Ok(own), Ok(theirs)) => (own, theirs),
            // A pattern that backtracks without end is not an error of the conversion.
            (Err(error), _) | (_, Err(error)) => {
                return Ok(Some(format!(
                    "pre_tokenizer: it could not be compared with the rules {pre:?}: {error}"
                )));
            }
        };
        if let Some(at) = (0..own.len().max(theirs.len())).find(|&i| own.get(i) != theirs.get(i)) {
            let shown = |pieces: &[String]| {
                let piece = |text: &String| String::from_utf8_lossy(&bytes::unmapped(text)).into_owned();
                let pieces: Vec<String> = pieces.iter().skip(at).take(3).map(piece).collect();
                format!("{pieces:?}")
            };
            return Ok(Some(format!(
                "pre_tokenizer: the rules {pre:?} split some texts differently, such as {} as {}",
                shown(&own),
                shown(&theirs)
            )));
        }
    }
    Ok(None)
}

fn cuts(steps: &[PreTokenizer], text: &str) -> Result<Vec<String>, TextError> {
    let mut pieces = Vec::new();
    cut(steps, text, true, &mut |piece, _| {
        pieces.push(piece.to_owned());
        Ok(())
    })?;
    Ok(pieces)
}

/// Sample texts: all sequences of three characters of the classes that patterns distinguish, runs
/// of each, contractions, and the characters of the folder's own patterns.
fn probes(patterns: &[&str]) -> Vec<String> {
    // Upper case, lower case, title case, modifiers, CJK, Thai, marks, digits of several scripts,
    // punctuation, symbols and kinds of white space.
    const CLASSES: [char; 30] = [
        'a', 'B', 'é', 'ǅ', 'ʰ', '中', 'あ', '한', 'ก', '\u{301}', '1', '٣', 'Ⅷ', '½', '\'', 's', '"', '_',
        '-', '/', '。', '+', '€', '🙂', ' ', '\u{a0}', '\t', '\n', '\r', '\u{3000}',
    ];
    let triples = CLASSES.iter().map(|a| {
        let pairs = CLASSES.iter().flat_map(|b| CLASSES.iter().map(move |c| (b, c)));
        pairs.flat_map(|(b, c)| [a, b, c]).collect::<String>()
    });
    let runs =
        CLASSES.iter().map(|c| (1..=9).map(|n| format!("x{}", c.to_string().repeat(n))).collect::<String>());
    let contractions =
        "it's I'm we've you'll he'd can't they're IT'S I'M WE'VE YOU'LL HE'D CAN'T THEY'RE o'clock";
    let own = patterns.iter().map(|pattern| {
        let letters = pattern.chars().map(|c| format!("a{c}b {c}{c}1{c} "));
        letters.chain([format!("a{pattern}b")]).collect::<String>()
    });
    triples.chain(runs).chain(own).chain([contractions.to_owned(), CHECK_TEXT.to_owned()]).collect()
}

/// Rules of a byte-level model that the tokenizer model `gpt2` cannot express.
fn byte_level_model(admitted: &AdmittedFile, pre: &str) -> Result<Vec<String>, TextError> {
    let options = &admitted.options;
    let mut lost = Vec::new();
    // GGUF has no key for `ignore_merges`. Readers derive it from the name of the rules.
    let theirs = pre::named(pre)?.ignore_merges;
    if theirs != options.ignore_merges {
        lost.push(format!(
            "model.ignore_merges is {}: the rules {pre:?} have {theirs}",
            options.ignore_merges
        ));
    }
    let mut utf8 = [0; 4];
    let whole =
        bytes::characters().iter().all(|c| admitted.vocabulary.contains_key(&*c.encode_utf8(&mut utf8)));
    if let Some(unknown) = options.unknown.as_ref().filter(|_| !whole) {
        lost.push(format!("model.unk_token: the file drops bytes without a token, which become {unknown:?}"));
    }
    Ok(lost)
}

/// Rules of a model that the tokenizer model `llama` cannot express. It merges the adjacent pair
/// with the best score.
fn merged_model(admitted: &AdmittedFile) -> Vec<String> {
    let AdmittedFile { options, vocabulary, merges, .. } = admitted;
    let mut lost = Vec::new();
    if options.ignore_merges {
        lost.push("model.ignore_merges is true: the file merges every word".into());
    }
    // `byte_fallback` of tokenizer.json needs tokens for all bytes of a character; otherwise the
    // character becomes one unknown token. A GGUF reader decides byte by byte.
    let found: HashSet<u8> = vocabulary.keys().filter_map(|text| byte_token(text)).collect();
    if found.len() < 256 {
        lost.push(format!(
            "model.unk_token: the file replaces each of {} bytes without a token",
            256 - found.len()
        ));
    }
    let listed: HashSet<(&str, &str)> = merges.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let control: HashSet<&str> = admitted.added.iter().map(|token| token.content.as_str()).collect();
    let plain =
        |text: &str| vocabulary.contains_key(text) && !control.contains(text) && byte_token(text).is_none();
    let unlisted = vocabulary.keys().filter(|text| plain(text)).find_map(|text| {
        let cuts = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
        let mut joined = cuts.filter(|(a, b)| plain(a) && plain(b));
        joined.find(|pair| !listed.contains(pair))
    });
    if let Some((a, b)) = unlisted {
        lost.push(format!(
            "model.merges: the file also joins pieces that no merge joins, such as {a:?} and {b:?}"
        ));
    }
    // A piece has one score, so all merges that produce it get the same rank.
    let mut made = HashSet::new();
    let mut last = String::new();
    let again = merges.iter().find(|(a, b)| {
        let text = format!("{a}{b}");
        // Consecutive merges that produce the same piece are adjacent ranks, so one rank for all of
        // them changes nothing.
        let again = text != last && made.contains(&text);
        made.insert(std::mem::replace(&mut last, text));
        again
    });
    if let Some((a, b)) = again {
        lost.push(format!(
            "model.merges: the file joins {a:?} and {b:?} as early as other parts of the same piece"
        ));
    }
    lost
}

/// Tokens that the post-processor adds in addition to BOS and EOS.
fn processor(component: &Value, own: &Tokenizer) -> Vec<String> {
    let text = |id: Option<u32>| id.and_then(|id| own.token_text(id));
    let mut lost = Vec::new();
    for step in flat(component, "processors") {
        let single: Vec<&Value> = step["single"].as_array().into_iter().flatten().collect();
        let last = single.len().saturating_sub(1);
        for (i, part) in single.iter().enumerate() {
            let Some(token) = part["SpecialToken"]["id"].as_str() else { continue };
            let begins = i == 0 && text(own.bos()) == Some(token);
            let ends = i == last && own.add_eos && text(own.eos()) == Some(token);
            if !begins && !ends {
                lost.push(format!("post_processor: the file does not add {token:?} to a text"));
            }
        }
    }
    lost
}
