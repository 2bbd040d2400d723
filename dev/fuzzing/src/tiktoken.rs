//! tiktoken.model: arbitrary lines, or generated tokens, after the lines of the 256 bytes.

use crate::source::FuzzSource;
use crate::tokenizer_json::{all_options, check_token_limit};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use latent_text::{TextError, Tokenizer};
use serde_json::json;

/// Builds a tokenizer from a tiktoken.model whose first 256 tokens are the bytes. An input that
/// begins with a zero byte chooses further tokens, the names of control tokens and a text. Any
/// other input is appended to the file as it is. Decoding must always return the text.
///
/// # Panics
/// If it does not, or a library panics.
pub fn tiktoken(bytes: &[u8]) {
    let mut file: Vec<u8> = (0..=255u8).flat_map(|byte| line(&[byte], byte.into()).into_bytes()).collect();
    let mut text = "Hello wörld 12345 日本語、don't aaaa".to_owned();
    let mut config = json!({"tokenizer_class": "TikTokenTokenizer"});
    match bytes.split_first() {
        Some((0, choices)) => {
            let mut source = FuzzSource::new(choices);
            let count = source.below(24);
            for rank in 256..256 + count {
                let token: Vec<u8> =
                    // The bytes of `é` and the first two of `日`, so that tokens split characters.
                    (0..1 + source.below(6)).map(|_| *source.pick(b"ab \xc3\xa9\xe6\x971<")).collect();
                let rank = if source.once_in(40) { source.number() as usize } else { rank };
                file.extend(line(&token, rank).into_bytes());
            }
            let id = |source: &mut FuzzSource<'_>| (256 + count + source.below(260)).to_string();
            let names: serde_json::Map<_, _> = (0..source.below(5))
                .map(|_| (id(&mut source), json!({"content": source.text(), "special": source.once_in(2)})))
                .collect();
            config["added_tokens_decoder"] = names.into();
            text = source.rest();
        }
        _ => file.extend_from_slice(bytes),
    }
    let built = Tokenizer::from_tiktoken(&file, Some(&config), None);
    assert!(!matches!(built, Err(TextError::Internal { .. })), "{:?}", built.err());
    let Ok(tokenizer) = built else { return };
    for how in all_options() {
        let ids = tokenizer.encode(&text, how).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!(tokenizer.decode(&ids, true), text, "{how:?}");
        check_token_limit(&tokenizer, &text, how, &ids);
    }
}

fn line(token: &[u8], rank: usize) -> String {
    format!("{} {rank}\n", STANDARD.encode(token))
}
