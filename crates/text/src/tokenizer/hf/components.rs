//! The accepted components of tokenizer.json and the accepted values of their parameters. Anything
//! else is an error: if a component were ignored, text would silently be split wrongly.

use super::json_at::LocatedValue;
use crate::error::TextError;
use crate::tokenizer::normalize::Normalizer;
use crate::tokenizer::pattern::{SplitPattern, shortest_match};
use crate::tokenizer::pre;
use crate::tokenizer::split::{Behavior, PreTokenizer, Prepend, SplitMatcher};

/// Maximum number of steps of a normalizer or a pre-tokenizer, including nested sequences.
const MAX_STEPS: usize = 32;

/// Maximum growth of a text by all replacements.
const MAX_GROWTH: f64 = 8.0;

/// Maximum number of bytes to prepend.
const MAX_PREPEND: usize = 64;

const NORMALIZERS: &str =
    "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, ByteLevel";
const PRE_TOKENIZERS: &str =
    "Sequence, Split, ByteLevel, Digits, Punctuation, Metaspace, Whitespace, WhitespaceSplit";
const DECODERS: &str =
    "Sequence, ByteLevel, ByteFallback, Fuse, Metaspace, Replace of ▁ by a space, Strip of one leading space";
const POST_PROCESSORS: &str = "Sequence, ByteLevel, TemplateProcessing";

/// The steps of `normalizer`.
pub(super) fn normalizers(place: &LocatedValue<'_>) -> Result<Vec<Normalizer>, TextError> {
    let mut steps = Vec::new();
    add_normalizers(place, &mut steps, &mut 1.0)?;
    Ok(steps)
}

fn add_normalizers(
    place: &LocatedValue<'_>,
    steps: &mut Vec<Normalizer>,
    growth: &mut f64,
) -> Result<(), TextError> {
    if place.is_null() {
        return Ok(());
    }
    let step = match place.component(NORMALIZERS)? {
        "Sequence" => {
            return place
                .list("normalizers")?
                .iter()
                .try_for_each(|place| add_normalizers(place, steps, growth));
        }
        "NFC" => Normalizer::Nfc,
        "NFD" => Normalizer::Nfd,
        "NFKC" => Normalizer::Nfkc,
        "NFKD" => Normalizer::Nfkd,
        "Lowercase" => Normalizer::Lowercase,
        "Strip" => Normalizer::Strip {
            left: place.flag("strip_left", None)?,
            right: place.flag("strip_right", None)?,
        },
        "StripAccents" => Normalizer::StripAccents,
        "ByteLevel" => {
            once(place, steps.iter().any(|step| matches!(step, Normalizer::ByteLevel)))?;
            Normalizer::ByteLevel
        }
        "Prepend" => {
            let prefix = place.at("prepend")?;
            let text = prefix.text()?;
            if text.is_empty() || text.len() > MAX_PREPEND {
                return Err(prefix.refused(&format!("a text of 1 to {MAX_PREPEND} bytes")));
            }
            Normalizer::Prepend(text.to_owned())
        }
        "Replace" => replace(place, growth)?,
        _ => return Err(place.unknown(NORMALIZERS)),
    };
    steps.push(step);
    counted(place, steps.len())
}

fn counted(place: &LocatedValue<'_>, steps: usize) -> Result<(), TextError> {
    if steps > MAX_STEPS { Err(place.refused(&format!("at most {MAX_STEPS} steps"))) } else { Ok(()) }
}

/// Rejects a second `ByteLevel`. Each one doubles the bytes that are not ASCII, so thirty of them
/// would make a gigabyte of one letter.
fn once(place: &LocatedValue<'_>, before: bool) -> Result<(), TextError> {
    if before { Err(place.refused("one ByteLevel: its output is already byte-level")) } else { Ok(()) }
}

/// `Replace` of `pattern` by `content`. Growth is bounded over all replacements, because it
/// multiplies.
fn replace(place: &LocatedValue<'_>, growth: &mut f64) -> Result<Normalizer, TextError> {
    let (pattern, source, shortest) = pattern(&place.at("pattern")?)?;
    // An empty match would insert `content` between all characters.
    let Some(shortest) = shortest.filter(|shortest| *shortest > 0) else {
        return Err(place
            .at("pattern")?
            .refused("a pattern without look-around that does not match the empty text"));
    };
    let content = place.at("content")?;
    let text = content.text()?;
    // The worst case: a text that consists of shortest matches only.
    *growth *= (text.len() as f64 / shortest as f64).max(1.0);
    if *growth > MAX_GROWTH {
        return Err(
            content.refused(&format!("replacements that together make at most {MAX_GROWTH} bytes of one"))
        );
    }
    // An expression can match any length, so only literals give a bound.
    let shrinks =
        source.filter(|_| !text.is_empty()).map(|literal| literal.len().div_ceil(text.len()).max(1));
    Ok(Normalizer::Replace { pattern, content: text.to_owned(), shrinks })
}

/// `{"String": …}` or `{"Regex": …}`: the pattern, the text of a literal, and the minimum length of
/// a match in bytes.
fn pattern<'a>(
    place: &LocatedValue<'a>,
) -> Result<(SplitPattern, Option<&'a str>, Option<usize>), TextError> {
    let compile = |place: &LocatedValue<'_>, source: &str| {
        SplitPattern::new(source)
            .map_err(|problem| place.problem(&format!("the pattern cannot be used: {problem}")))
    };
    if let Some(literal) = place.get("String") {
        let text = literal.text()?;
        if text.is_empty() {
            return Err(literal.refused("a non-empty text"));
        }
        return Ok((compile(&literal, &escaped(text))?, Some(text), Some(text.len())));
    }
    let regex = place.get("Regex").ok_or_else(|| place.refused("{\"String\": …} or {\"Regex\": …}"))?;
    let source = regex.text()?;
    Ok((compile(&regex, source)?, None, shortest_match(source)))
}

/// A pattern that matches a text literally.
fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len() * 2);
    for c in text.chars() {
        if c.is_ascii_punctuation() {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// The steps of `pre_tokenizer`.
pub(super) fn pre_tokenizers(place: &LocatedValue<'_>) -> Result<Vec<PreTokenizer>, TextError> {
    let mut steps = Vec::new();
    add_pre_tokenizers(place, &mut steps)?;
    Ok(steps)
}

fn add_pre_tokenizers(place: &LocatedValue<'_>, steps: &mut Vec<PreTokenizer>) -> Result<(), TextError> {
    if place.is_null() {
        return Ok(());
    }
    let split = |pattern, behavior, invert| PreTokenizer::Split { pattern, behavior, invert };
    let step = match place.component(PRE_TOKENIZERS)? {
        "Sequence" => {
            return place
                .list("pretokenizers")?
                .iter()
                .try_for_each(|place| add_pre_tokenizers(place, steps));
        }
        "Split" => {
            let (pattern, ..) = pattern(&place.at("pattern")?)?;
            split(
                SplitMatcher::Pattern(pattern),
                behavior(&place.at("behavior")?)?,
                place.flag("invert", Some(false))?,
            )
        }
        "ByteLevel" => {
            once(place, steps.iter().any(|step| matches!(step, PreTokenizer::ByteLevel { .. })))?;
            let pattern = match place.flag("use_regex", Some(true))? {
                true => Some(SplitPattern::new(pre::GPT_2).map_err(|problem| place.problem(&problem))?),
                false => None,
            };
            PreTokenizer::ByteLevel { prefix_space: place.flag("add_prefix_space", None)?, pattern }
        }
        "Digits" => {
            let behavior = if place.flag("individual_digits", None)? {
                Behavior::Isolated
            } else {
                Behavior::Contiguous
            };
            // The method of `char` that the `tokenizers` library, which is in Rust, calls here.
            split(SplitMatcher::Characters(char::is_numeric), behavior, false)
        }
        "Punctuation" => {
            // ASCII punctuation includes symbols such as `$`, which `\p{P}` does not contain.
            let behavior = place.get("behavior").map_or(Ok(Behavior::Isolated), |place| behavior(&place))?;
            let pattern =
                SplitPattern::new(r"[!-/:-@\[-`{-~\p{P}]").map_err(|problem| place.problem(&problem))?;
            split(SplitMatcher::Pattern(pattern), behavior, false)
        }
        "Metaspace" => metaspace(place)?,
        // The `tokenizers` library defines this component by the same pattern.
        "Whitespace" => {
            let pattern = SplitPattern::new(r"\w+|[^\w\s]+").map_err(|problem| place.problem(&problem))?;
            split(SplitMatcher::Pattern(pattern), Behavior::Removed, true)
        }
        "WhitespaceSplit" => split(SplitMatcher::Characters(char::is_whitespace), Behavior::Removed, false),
        _ => return Err(place.unknown(PRE_TOKENIZERS)),
    };
    steps.push(step);
    counted(place, steps.len())
}

fn behavior(place: &LocatedValue<'_>) -> Result<Behavior, TextError> {
    Ok(match place.text()? {
        "Removed" => Behavior::Removed,
        "Isolated" => Behavior::Isolated,
        "MergedWithPrevious" => Behavior::MergedWithPrevious,
        "MergedWithNext" => Behavior::MergedWithNext,
        "Contiguous" => Behavior::Contiguous,
        _ => return Err(place.refused("Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous")),
    })
}

fn metaspace(place: &LocatedValue<'_>) -> Result<PreTokenizer, TextError> {
    let replacement = place.at("replacement")?;
    // Splitting looks for a single character. The library's type is `char` too.
    let mut characters = replacement.text()?.chars();
    let (Some(character), None) = (characters.next(), characters.next()) else {
        return Err(replacement.refused("one character"));
    };
    // Older files have `add_prefix_space` instead of `prepend_scheme`.
    let prefix = place.flag("add_prefix_space", Some(true))?;
    let prepend = match place.get("prepend_scheme") {
        None if prefix => Prepend::Always,
        None => Prepend::Never,
        Some(scheme) => match (scheme.text()?, prefix) {
            ("always", true) => Prepend::Always,
            ("first", true) => Prepend::First,
            ("never", _) => Prepend::Never,
            ("always" | "first", false) => return Err(scheme.refused("never, as add_prefix_space is false")),
            _ => return Err(scheme.refused("always, first, never")),
        },
    };
    Ok(PreTokenizer::Metaspace { replacement: character, prepend, split: place.flag("split", Some(true))? })
}

/// Whether `decoder` maps characters to bytes. [`crate::Detokenizer`] has its own rules, which are
/// equal to those of the accepted decoders only.
pub(super) fn reads_bytes(place: &LocatedValue<'_>) -> Result<bool, TextError> {
    if place.is_null() {
        return Ok(false);
    }
    match place.component(DECODERS)? {
        "Sequence" => {
            place.list("decoders")?.iter().try_fold(false, |any, place| Ok(reads_bytes(place)? || any))
        }
        "ByteLevel" => Ok(true),
        "ByteFallback" | "Fuse" | "Metaspace" => Ok(false),
        "Replace" => {
            let literal = place.at("pattern")?.get("String");
            let is_space = literal.as_ref().is_some_and(|p| p.text().is_ok_and(|text| text == "▁"))
                && place.at("content")?.text()? == " ";
            if is_space { Ok(false) } else { Err(place.refused(DECODERS)) }
        }
        // The inverse of a prepended space; `Detokenizer` removes at most one.
        "Strip" => {
            let number = |key| place.at(key)?.number();
            let one_space =
                place.at("content")?.text()? == " " && number("start")? <= 1 && number("stop")? == 0;
            if one_space { Ok(false) } else { Err(place.refused(DECODERS)) }
        }
        _ => Err(place.unknown(DECODERS)),
    }
}

/// The token that `post_processor` prepends.
pub(super) fn first_token<'a>(place: &LocatedValue<'a>) -> Result<Option<&'a str>, TextError> {
    if place.is_null() {
        return Ok(None);
    }
    match place.component(POST_PROCESSORS)? {
        "Sequence" => {
            let mut first = None;
            for place in place.list("processors")? {
                first = first.or(first_token(&place)?);
            }
            Ok(first)
        }
        "ByteLevel" => Ok(None),
        "TemplateProcessing" => {
            let mut first = None;
            for (i, part) in place.list("single")?.iter().enumerate() {
                // Whether EOS is added is decided by `add_eos_token` of tokenizer_config.json, so
                // tokens after the text are ignored here.
                if let Some(token) = part.get("SpecialToken") {
                    let text = token.at("id")?.text()?;
                    first = first.or((i == 0).then_some(text));
                } else if part.at("Sequence")?.at("id")?.text()? != "A" {
                    return Err(part.refused("special tokens and the sequence A"));
                }
            }
            Ok(first)
        }
        _ => Err(place.unknown(POST_PROCESSORS)),
    }
}
