//! Compares the search for control and user-defined tokens in a text with one that tries every
//! token at every position.

use crate::source::FuzzSource;
use crate::tokenizer_json::all_options;
use latent_text::{GgufVocab, RenderedText, Tokenizer};
use serde_json::{Map, Value, json};
use std::ops::Range;

/// A token in addition to the 256 bytes.
struct FuzzSpecialToken {
    name: String,
    control: bool,
}

/// Encodes a text made of pieces of a few overlapping tokens, with a vocabulary of these tokens and
/// the bytes. All options must give the same ids as the plain search.
///
/// # Panics
/// If they differ, or decoding does not return the text.
pub fn special_split(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let from_json = source.once_in(2);
    let letters = letters();
    let mut specials: Vec<FuzzSpecialToken> = Vec::new();
    for _ in 0..source.below(12) {
        // Few letters, so that names overlap and contain each other.
        let special = FuzzSpecialToken { name: name(&mut source, 5), control: source.once_in(2) };
        let taken =
            letters.contains(&special.name) || specials.iter().any(|other| other.name == special.name);
        if !special.name.is_empty() && !taken {
            specials.push(special);
        }
    }
    let text: String = (0..source.below(40)).map(|_| piece(&mut source, &specials)).collect();
    let built = if from_json { by_json(&letters, &specials) } else { by_gguf(&letters, &specials) };
    let tokenizer = built.unwrap_or_else(|error| panic!("the vocabulary is refused: {error}"));
    for how in all_options() {
        let ids = tokenizer.encode(&text, how).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        let is_admitted = |_, special: &FuzzSpecialToken| how.parse_special || !special.control;
        assert_eq!(ids, longest_matches(&text, &specials, is_admitted), "{text:?}, {how:?}");
        assert_eq!(tokenizer.decode(&ids, true), text, "{how:?}");
        if !how.parse_special {
            assert!(
                ids.iter().all(|id| !tokenizer.is_control(*id)),
                "{text:?} became control tokens: {ids:?}"
            );
        }
    }
    rendered(&mut source, &tokenizer, &text, &specials);
}

/// Encodes the same text as the result of a template with parts that came from outside. No control
/// token and no token of more than one letter may be found in these parts.
fn rendered(source: &mut FuzzSource<'_>, tokenizer: &Tokenizer, text: &str, specials: &[FuzzSpecialToken]) {
    let borders: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let mut content: Vec<Range<usize>> = Vec::new();
    let mut at = source.below(4);
    while let (Some(start), false) = (borders.get(at), source.is_empty()) {
        let end = borders.get(at + 1 + source.below(6)).copied().unwrap_or(text.len());
        if *start < end {
            content.push(*start..end);
        }
        at = borders.partition_point(|border| *border <= end) + source.below(6);
    }
    let overlaps =
        |range: &Range<usize>| content.iter().any(|other| other.start < range.end && range.start < other.end);
    let is_admitted = |at: usize, special: &FuzzSpecialToken| {
        let range = at..at + special.name.len();
        let letter = special.name.chars().count() == 1 && !special.control;
        letter || !overlaps(&range)
    };
    let expected = longest_matches(text, specials, is_admitted);
    let rendered = RenderedText { text: text.to_owned(), content: content.clone() };
    let ids = tokenizer.encode_rendered(&rendered, false).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    assert_eq!(ids, expected, "{text:?}, of which {content:?} came from outside");
}

fn name(source: &mut FuzzSource<'_>, longest: usize) -> String {
    (0..source.below(longest)).map(|_| *source.pick(&['<', '|', 'a', '>', 'é', '｜'])).collect()
}

fn piece(source: &mut FuzzSource<'_>, specials: &[FuzzSpecialToken]) -> String {
    if specials.is_empty() || source.once_in(3) {
        return name(source, 4);
    }
    let name = &source.pick(specials).name;
    let whole = !source.once_in(4);
    name.chars().take(if whole { usize::MAX } else { source.below(4) }).collect()
}

/// Finds the longest admitted token at each position, or else takes the bytes of a character.
fn longest_matches(
    text: &str,
    specials: &[FuzzSpecialToken],
    is_admitted: impl Fn(usize, &FuzzSpecialToken) -> bool,
) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let at = text.len() - rest.len();
        let here = specials
            .iter()
            .enumerate()
            .filter(|(_, special)| rest.starts_with(special.name.as_str()) && is_admitted(at, special));
        let taken = match here.max_by_key(|(_, special)| special.name.len()) {
            Some((at, special)) => {
                ids.push(256 + at as u32);
                special.name.len()
            }
            None => {
                ids.extend(rest.bytes().take(first.len_utf8()).map(u32::from));
                first.len_utf8()
            }
        };
        rest = &rest[taken..];
    }
    ids
}

/// The 256 bytes in the notation of byte-level vocabularies (GPT-2's bytes_to_unicode). Ids equal
/// bytes.
pub(crate) fn letters() -> Vec<String> {
    let mut moved = 0;
    let letter = |byte: u32| {
        let is_printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        moved += u32::from(!is_printable);
        char::from_u32(if is_printable { byte } else { 0xff + moved }).map(String::from).unwrap_or_default()
    };
    (0..256).map(letter).collect()
}

fn by_gguf(letters: &[String], specials: &[FuzzSpecialToken]) -> Result<Tokenizer, latent_text::TextError> {
    let names = letters.iter().chain(specials.iter().map(|special| &special.name));
    // Token types of GGUF: 1 is normal, 3 is control, 4 is user-defined.
    let types = specials.iter().map(|special| if special.control { 3 } else { 4 });
    Tokenizer::from_gguf(&GgufVocab {
        model: "gpt2",
        pre: Some("gpt-2"),
        tokens: names.map(String::as_bytes).collect(),
        token_types: Some(std::iter::repeat_n(1, letters.len()).chain(types).collect()),
        merges: Some(Vec::new()),
        ..GgufVocab::default()
    })
}

fn by_json(letters: &[String], specials: &[FuzzSpecialToken]) -> Result<Tokenizer, latent_text::TextError> {
    let vocabulary: Map<String, Value> =
        letters.iter().enumerate().map(|(id, letter)| (letter.clone(), id.into())).collect();
    let added = |(at, special): (usize, &FuzzSpecialToken)| {
        json!({
            "id": 256 + at, "content": special.name, "special": special.control,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": specials.iter().enumerate().map(added).collect::<Vec<Value>>(),
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": [],
        },
    });
    Tokenizer::from_hf(file.to_string().as_bytes(), None, None)
}
