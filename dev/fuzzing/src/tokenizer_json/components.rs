//! Generates a tokenizer.json from every component of the format, with plain or unusual parameters.

use crate::source::FuzzSource;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// Maximum depth of nested sequences.
const MAX_DEPTH: usize = 3;

const PATTERNS: [&str; 18] = [
    "",
    "a",
    " ",
    "a*",
    "(a+)+$",
    "\\p{L}+",
    "\\p{N}{1,3}",
    "(?=a)",
    "(?<=a)b",
    "(?!\\S)",
    "[",
    "(?i:'s|'t)",
    "x{1000}{1000}",
    ".",
    "(\\w)\\1",
    "\\s+(?!\\S)|\\s+",
    "^|$",
    "[\u{4e00}-\u{9fa5}]+",
];

/// Generates a file.
pub(super) fn file(source: &mut FuzzSource<'_>) -> Value {
    let mut file = Map::new();
    file.insert("version".into(), "1.0".into());
    file.insert("truncation".into(), rarely(source, truncation));
    file.insert("padding".into(), rarely(source, padding));
    file.insert("added_tokens".into(), added_tokens(source));
    file.insert("normalizer".into(), often(source, |s| normalizer(s, 0)));
    file.insert("pre_tokenizer".into(), often(source, |s| pre_tokenizer(s, 0)));
    file.insert("post_processor".into(), rarely(source, |s| post_processor(s, 0)));
    file.insert("decoder".into(), often(source, |s| decoder(s, 0)));
    file.insert("model".into(), model(source));
    if source.once_in(16) {
        let keys: Vec<String> = file.keys().cloned().collect();
        let key = source.pick(&keys).clone();
        let _ = if source.once_in(2) { file.remove(&key) } else { file.insert(key, odd(source)) };
    }
    Value::Object(file)
}

fn rarely(source: &mut FuzzSource<'_>, make: fn(&mut FuzzSource<'_>) -> Value) -> Value {
    if source.once_in(5) { make(source) } else { Value::Null }
}

fn often(source: &mut FuzzSource<'_>, make: fn(&mut FuzzSource<'_>) -> Value) -> Value {
    if source.once_in(3) { Value::Null } else { make(source) }
}

/// A value of an unexpected type.
fn odd(source: &mut FuzzSource<'_>) -> Value {
    match source.below(6) {
        0 => Value::Null,
        1 => source.number().into(),
        2 => u64::MAX.into(),
        3 => source.text().into(),
        4 => json!([]),
        _ => json!({}),
    }
}

/// The given parameter, or in rare cases another value.
fn param(source: &mut FuzzSource<'_>, usual: impl Into<Value>) -> Value {
    if source.once_in(20) { odd(source) } else { usual.into() }
}

fn flag(source: &mut FuzzSource<'_>) -> Value {
    let usual = source.once_in(2);
    param(source, usual)
}

/// A length, plausible or absurd.
fn length(source: &mut FuzzSource<'_>) -> Value {
    let number = source.number();
    if source.once_in(12) { u64::MAX.into() } else { number.into() }
}

fn truncation(source: &mut FuzzSource<'_>) -> Value {
    json!({
        "direction": *source.pick(&["Left", "Right"]),
        "max_length": length(source),
        "strategy": *source.pick(&["LongestFirst", "OnlyFirst", "OnlySecond"]),
        "stride": length(source),
    })
}

fn padding(source: &mut FuzzSource<'_>) -> Value {
    let strategy = if source.once_in(2) { json!("BatchLongest") } else { json!({"Fixed": length(source)}) };
    json!({
        "strategy": strategy,
        "direction": *source.pick(&["Left", "Right"]),
        "pad_to_multiple_of": if source.once_in(2) { length(source) } else { Value::Null },
        "pad_id": source.below(8),
        "pad_type_id": 0,
        "pad_token": source.text(),
    })
}

fn added_tokens(source: &mut FuzzSource<'_>) -> Value {
    let contents = ["<s>", "</s>", "<pad>", "a", "aa", "é", " ", "<", "▁", "", "ab", "\n"];
    let token = |source: &mut FuzzSource<'_>| {
        let content: Value =
            if source.once_in(8) { source.text().into() } else { (*source.pick(&contents)).into() };
        let id: Value = if source.once_in(8) { length(source) } else { source.below(16).into() };
        json!({
            "id": id,
            "content": param(source, content),
            "single_word": source.once_in(6),
            "lstrip": source.once_in(6),
            "rstrip": source.once_in(6),
            "normalized": source.once_in(3),
            "special": source.once_in(2),
        })
    };
    (0..source.below(6)).map(|_| token(source)).collect()
}

fn pattern(source: &mut FuzzSource<'_>) -> Value {
    let text: Value = if source.once_in(6) { source.text().into() } else { (*source.pick(&PATTERNS)).into() };
    match source.below(8) {
        0 => odd(source),
        1 | 2 => json!({"String": text}),
        _ => json!({"Regex": text}),
    }
}

/// A replacement for a match, in some cases long enough to make every text long.
fn replacement(source: &mut FuzzSource<'_>) -> Value {
    let text = source.text();
    let times = *source.pick(&[1, 1, 1, 2, 100, 10_000]);
    param(source, text.repeat(times))
}

fn sequence(
    source: &mut FuzzSource<'_>,
    key: &str,
    depth: usize,
    make: fn(&mut FuzzSource<'_>, usize) -> Value,
) -> Value {
    let count = *source.pick(&[0, 1, 2, 2, 3, 20]);
    // Copies make long sequences from few bytes of input.
    let copies = source.once_in(4);
    let parts: Vec<Value> = if copies {
        vec![make(source, depth + 1); count]
    } else {
        (0..count).map(|_| make(source, depth + 1)).collect()
    };
    json!({"type": "Sequence", key: parts})
}

fn normalizer(source: &mut FuzzSource<'_>, depth: usize) -> Value {
    match source.below(if depth < MAX_DEPTH { 17 } else { 14 }) {
        0 => json!({"type": "NFC"}),
        1 => json!({"type": "NFD"}),
        2 => json!({"type": "NFKC"}),
        3 => json!({"type": "NFKD"}),
        4 => json!({"type": "Lowercase"}),
        5 => json!({"type": "StripAccents"}),
        6 => json!({"type": "Nmt"}),
        7 => json!({"type": "ByteLevel"}),
        8 => json!({"type": "Strip", "strip_left": flag(source), "strip_right": flag(source)}),
        9 => json!({"type": "Prepend", "prepend": replacement(source)}),
        10 | 11 => json!({"type": "Replace", "pattern": pattern(source), "content": replacement(source)}),
        12 => json!({"type": "Precompiled", "precompiled_charsmap": charsmap(source)}),
        13 => json!({
            "type": "BertNormalizer",
            "clean_text": flag(source),
            "handle_chinese_chars": flag(source),
            "strip_accents": if source.once_in(2) { Value::Null } else { flag(source) },
            "lowercase": flag(source),
        }),
        _ => sequence(source, "normalizers", depth, normalizer),
    }
}

/// SentencePiece's precompiled_charsmap: the length of the trie, the trie, and zero-terminated
/// texts. Each of them may be wrong.
fn charsmap(source: &mut FuzzSource<'_>) -> Value {
    let words: Vec<u32> = (0..source.below(8)).map(|_| source.u64() as u32).collect();
    let length = match source.below(4) {
        0 => source.u64() as u32,
        1 => source.number() as u32,
        _ => 4 * words.len() as u32,
    };
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend_from_slice(source.text().as_bytes());
    bytes.truncate(if source.once_in(6) { source.below(8) } else { bytes.len() });
    param(source, STANDARD.encode(bytes))
}

fn behavior(source: &mut FuzzSource<'_>) -> &'static str {
    source.pick::<&str>(&["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"])
}

fn byte_level(source: &mut FuzzSource<'_>) -> Value {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": flag(source),
        "trim_offsets": flag(source),
        "use_regex": flag(source),
    })
}

fn metaspace(source: &mut FuzzSource<'_>) -> Value {
    let sign = *source.pick(&["▁", "a", "", "ab", "\0"]);
    let scheme = *source.pick(&["always", "first", "never"]);
    json!({
        "type": "Metaspace",
        "replacement": param(source, sign),
        "prepend_scheme": param(source, scheme),
        "split": flag(source),
    })
}

fn pre_tokenizer(source: &mut FuzzSource<'_>, depth: usize) -> Value {
    match source.below(if depth < MAX_DEPTH { 16 } else { 13 }) {
        0 | 1 => byte_level(source),
        2 => json!({"type": "BertPreTokenizer"}),
        3 => json!({"type": "Whitespace"}),
        4 => json!({"type": "WhitespaceSplit"}),
        5 => json!({"type": "UnicodeScripts"}),
        6 => {
            let delimiter = *source.pick(&["a", " ", "é", "", "ab"]);
            json!({"type": "CharDelimiterSplit", "delimiter": param(source, delimiter)})
        }
        7 => metaspace(source),
        8 | 9 => json!({
            "type": "Split",
            "pattern": pattern(source),
            "behavior": behavior(source),
            "invert": flag(source),
        }),
        10 => json!({"type": "Punctuation", "behavior": behavior(source)}),
        11 => json!({"type": "Digits", "individual_digits": flag(source)}),
        12 => json!({"type": "FixedLength", "length": length(source)}),
        _ => sequence(source, "pretokenizers", depth, pre_tokenizer),
    }
}

fn post_processor(source: &mut FuzzSource<'_>, depth: usize) -> Value {
    let pair =
        |source: &mut FuzzSource<'_>| json!([*source.pick(&["<s>", "</s>", "a", ""]), source.below(16)]);
    match source.below(if depth < MAX_DEPTH { 8 } else { 6 }) {
        0 => byte_level(source),
        1 => json!({"type": "BertProcessing", "sep": pair(source), "cls": pair(source)}),
        2 => json!({
            "type": "RobertaProcessing",
            "sep": pair(source),
            "cls": pair(source),
            "trim_offsets": flag(source),
            "add_prefix_space": flag(source),
        }),
        3..=5 => template_processing(source),
        _ => sequence(source, "processors", depth, post_processor),
    }
}

fn template_processing(source: &mut FuzzSource<'_>) -> Value {
    let piece = |source: &mut FuzzSource<'_>| {
        let type_id = source.below(3);
        match source.below(3) {
            0 => {
                json!({"SpecialToken": {"id": *source.pick(&["<s>", "</s>", "nothing"]), "type_id": type_id}})
            }
            _ => json!({"Sequence": {"id": *source.pick(&["A", "B"]), "type_id": type_id}}),
        }
    };
    let pieces =
        |source: &mut FuzzSource<'_>| -> Value { (0..source.below(4)).map(|_| piece(source)).collect() };
    let mut special = Map::new();
    for token in ["<s>", "</s>"] {
        if !source.once_in(4) {
            let ids: Vec<usize> = (0..source.below(3)).map(|_| source.below(16)).collect();
            let tokens: Vec<&str> = (0..source.below(3)).map(|_| token).collect();
            special.insert(token.into(), json!({"id": token, "ids": ids, "tokens": tokens}));
        }
    }
    json!({"type": "TemplateProcessing", "single": pieces(source), "pair": pieces(source), "special_tokens": special})
}

fn decoder(source: &mut FuzzSource<'_>, depth: usize) -> Value {
    match source.below(if depth < MAX_DEPTH { 13 } else { 10 }) {
        0 | 1 => byte_level(source),
        2 => json!({"type": "ByteFallback"}),
        3 => json!({"type": "Fuse"}),
        4 => json!({"type": "BPEDecoder", "suffix": source.text()}),
        5 => json!({"type": "WordPiece", "prefix": source.text(), "cleanup": flag(source)}),
        6 => metaspace(source),
        7 => json!({
            "type": "CTC",
            "pad_token": source.text(),
            "word_delimiter_token": source.text(),
            "cleanup": flag(source),
        }),
        8 => json!({"type": "Replace", "pattern": pattern(source), "content": replacement(source)}),
        9 => {
            let content = *source.pick(&["a", " ", ""]);
            json!({
                "type": "Strip",
                "content": param(source, content),
                "start": length(source),
                "stop": length(source),
            })
        }
        _ => sequence(source, "decoders", depth, decoder),
    }
}

/// The tokens of the vocabulary: single letters, joined letters, and bytes.
const TOKENS: [&str; 24] = [
    "<s>", "</s>", "a", "b", "aa", "ab", "aaaa", "é", "▁", "▁a", "Ġ", "Ġa", "Ã", "©", "H", "e", "l", "lo",
    "<unk>", "##a", "#a", "<0x61>", "1", "12",
];

fn vocabulary(source: &mut FuzzSource<'_>) -> Map<String, Value> {
    let mut vocabulary = Map::new();
    // With a shorter vocabulary, merges and special tokens name tokens that do not exist.
    let count = TOKENS.len() - source.below(TOKENS.len());
    for (id, token) in TOKENS.iter().take(count).enumerate() {
        let id: Value = match source.below(64) {
            63 => length(source),
            62 => source.below(8).into(),
            _ => id.into(),
        };
        vocabulary.insert((*token).into(), id);
    }
    if source.once_in(6) {
        vocabulary.insert(source.text(), length(source));
    }
    vocabulary
}

fn affix(source: &mut FuzzSource<'_>) -> Value {
    if source.once_in(4) {
        let affix = *source.pick(&["#", "##", "", "é", "a", "</w>", "aaaaaaaaaaaaaaaa"]);
        param(source, affix)
    } else {
        Value::Null
    }
}

fn model(source: &mut FuzzSource<'_>) -> Value {
    match source.below(8) {
        0..=4 => bpe(source),
        5 => json!({
            "type": "WordPiece",
            "unk_token": *source.pick(&["<unk>", "nothing"]),
            "continuing_subword_prefix": *source.pick(&["##", "#", "", "é"]),
            "max_input_chars_per_word": length(source),
            "vocab": vocabulary(source),
        }),
        6 => json!({
            "type": "WordLevel",
            "vocab": vocabulary(source),
            "unk_token": *source.pick(&["<unk>", "nothing"]),
        }),
        _ => {
            let scores = [0.0, -1.5, 1e300, -1e300, 5e-324];
            let vocabulary: Vec<Value> = vocabulary(source)
                .into_iter()
                .map(|(token, _)| json!([token, *source.pick(&scores)]))
                .collect();
            json!({
                "type": "Unigram",
                "vocab": vocabulary,
                "unk_id": if source.once_in(3) { length(source) } else { Value::Null },
                "byte_fallback": flag(source),
            })
        }
    }
}

fn bpe(source: &mut FuzzSource<'_>) -> Value {
    let vocabulary = vocabulary(source);
    let sides = ["a", "b", "aa", "é", "Ġ", "▁", "l", "#a", "1", "", "nothing", "H"];
    // Older versions of the library write a merge as one text with a space, newer ones as a pair.
    let old_style = source.once_in(4);
    let merges: Vec<Value> = (0..source.below(10))
        .map(|_| {
            let (left, right) = (*source.pick(&sides), *source.pick(&sides));
            if source.once_in(16) {
                return odd(source);
            }
            if old_style { json!(format!("{left} {right}")) } else { json!([left, right]) }
        })
        .collect();
    let dropout =
        if source.once_in(6) { json!(*source.pick(&[0.0, 0.5, 1.0, 1.5, -1.0])) } else { Value::Null };
    let unknown = if source.once_in(2) { json!(*source.pick(&["<unk>", "nothing"])) } else { Value::Null };
    json!({
        "type": "BPE",
        "dropout": dropout,
        "unk_token": unknown,
        "continuing_subword_prefix": affix(source),
        "end_of_word_suffix": affix(source),
        "fuse_unk": flag(source),
        "byte_fallback": flag(source),
        "ignore_merges": flag(source),
        "vocab": vocabulary,
        "merges": merges,
    })
}
