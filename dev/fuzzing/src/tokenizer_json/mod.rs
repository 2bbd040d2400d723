//! tokenizer.json: generated from components, or any bytes.

mod components;

use crate::source::FuzzSource;
use latent_text::{ChatInput, ChatTemplate, EncodeOptions, TextError, Tokenizer};
use serde_json::{Value, json};

/// Texts that different components treat differently.
const TEXTS: [&str; 10] = [
    "",
    " ",
    "Hello wörld 12345 aaaa",
    "<s>ab</s> <pad>",
    "日本語 🙂 e\u{301}\u{fdfa}\u{fdfa}",
    "a\0b\r\n\t\u{feff}\u{ad}c",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "▁a▁b Ġa",
    "don't I'LL it's",
    "\n\n\n   \n",
];

/// Builds a tokenizer from a tokenizer.json of any components and parameters, and encodes texts
/// with it. An input that begins with a zero byte is interpreted as choices; any other is the file
/// itself.
///
/// # Panics
/// If the library panics, an id is outside the vocabulary, or encoding the same text twice gives
/// different ids.
pub fn tokenizer_json(bytes: &[u8]) {
    let Some((0, choices)) = bytes.split_first() else { return run(bytes, None, None, &[]) };
    let mut source = FuzzSource::new(choices);
    let file = components::file(&mut source);
    let token = |source: &mut FuzzSource<'_>| json!(*source.pick(&["<s>", "</s>", "a", "", "nothing"]));
    let config = source.once_in(3).then(|| {
        json!({
            "bos_token": token(&mut source),
            "eos_token": {"content": token(&mut source)},
            "add_bos_token": source.once_in(2),
            "add_eos_token": source.once_in(2),
        })
    });
    let generation = source.once_in(4).then(|| json!({"eos_token_id": [source.number(), source.number()]}));
    let own = source.rest();
    run(file.to_string().as_bytes(), config.as_ref(), generation.as_ref(), &[&own]);
}

fn run(file: &[u8], config: Option<&Value>, generation: Option<&Value>, own: &[&str]) {
    let built = Tokenizer::from_hf(file, config, generation);
    assert!(!matches!(built, Err(TextError::Internal { .. })), "{:?}", built.err());
    let Ok(tokenizer) = built else { return };
    for id in 0..tokenizer.vocab_size().min(300) as u32 {
        assert!(tokenizer.piece(id).is_some() && tokenizer.token_text(id).is_some());
    }
    for text in TEXTS.iter().chain(own) {
        for how in all_options() {
            let encoded = tokenizer.encode(text, how);
            assert!(!matches!(encoded, Err(TextError::Internal { .. })), "{encoded:?}");
            let Ok(ids) = encoded else { continue };
            check_token_limit(&tokenizer, text, how, &ids);
            assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()), "{ids:?} of {text:?}");
            assert_eq!(tokenizer.encode(text, how).ok(), Some(ids.clone()), "{text:?}");
            let _ = (tokenizer.decode(&ids, true), tokenizer.decode(&ids, false));
        }
    }
}

/// Checks the limit of tokens: the number of tokens of the text is accepted as a limit, and one
/// less is refused.
pub(crate) fn check_token_limit(tokenizer: &Tokenizer, text: &str, how: EncodeOptions, ids: &[u32]) {
    let bound = tokenizer.longest_text(ids.len());
    assert!(bound.is_none_or(|bytes| text.len() <= bytes), "{text:?} of {} tokens, {bound:?}", ids.len());
    assert_eq!(tokenizer.encode_within(text, how, ids.len()).ok().as_deref(), Some(ids), "{text:?}");
    if let Some(fewer) = ids.len().checked_sub(1) {
        assert!(tokenizer.encode_within(text, how, fewer).is_err(), "{text:?} in {fewer} tokens");
    }
}

pub(crate) fn all_options() -> impl Iterator<Item = EncodeOptions> {
    [(false, false), (false, true), (true, false), (true, true)]
        .map(|(add_special, parse_special)| EncodeOptions { add_special, parse_special })
        .into_iter()
}

/// Builds a tokenizer and a chat template from the same arbitrary bytes, and encodes and renders
/// with them.
pub fn tokenizer(bytes: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_hf(bytes, None, None) {
        let how = EncodeOptions { add_special: true, parse_special: true };
        if let Ok(ids) = tokenizer.encode("Hello, wörld <s> 123", how) {
            let _ = tokenizer.decode(&ids, true);
        }
    }
    if bytes.len() < 4096
        && let Ok(source) = std::str::from_utf8(bytes)
        && let Ok(template) = ChatTemplate::new(source)
    {
        let _ = template.render(&ChatInput::new(json!([{"role": "user", "content": "Hi"}])));
    }
}
