//! tokenizer.model: arbitrary protobuf messages, or generated pieces, after the pieces of the 256
//! bytes.

use crate::source::FuzzSource;
use crate::tokenizer_json::{all_options, check_token_limit};
use latent_text::{TextError, Tokenizer};
use serde_json::json;

/// Builds a tokenizer from a tokenizer.model whose first pieces are the unknown token, BOS, EOS,
/// the bytes and the space. An input that begins with a zero byte chooses further pieces, added
/// tokens and a text. Any other input is appended to the file as it is. With plain pieces only,
/// decoding must return the text.
///
/// # Panics
/// If it does not, or a library panics.
pub fn sentence_piece(bytes: &[u8]) {
    // Protobuf: trainer_spec (field 2) with model_type BPE, then normalizer_spec (field 3) with
    // remove_extra_whitespaces off and no character map.
    let mut file = vec![0x12, 2, 0x18, 2, 0x1a, 2, 0x20, 0];
    for (text, kind) in [("<unk>", 2), ("<s>", 3), ("</s>", 3)] {
        file.extend(piece(text, 0.0, kind));
    }
    (0..=255u8).for_each(|byte| file.extend(piece(&format!("<0x{byte:02X}>"), 0.0, 6)));
    file.extend(piece("▁", -1.0, 1));
    let mut text = "Hello wörld 12345 日本語、  aaaa▁▁".to_owned();
    let mut config = json!({"add_bos_token": false});
    let mut plain = true;
    match bytes.split_first() {
        Some((0, choices)) => {
            let mut source = FuzzSource::new(choices);
            for _ in 0..source.below(24) {
                let piece_text: String = (0..1 + source.below(6))
                    .map(|_| *source.pick(&["a", "b", "▁", "é", "日", "<", "s>"]))
                    .collect();
                // Types 1 to 6 are defined. 0 and 7 are not.
                let kind = if source.once_in(20) { source.byte() % 8 } else { 1 };
                plain &= kind == 1;
                file.extend(piece(&piece_text, -0.5 * source.below(40) as f32, kind));
            }
            let id = |source: &mut FuzzSource<'_>| (250 + source.below(250)).to_string();
            let added: serde_json::Map<_, _> = (0..source.below(5))
                .map(|_| (id(&mut source), json!({"content": source.text(), "special": source.once_in(2)})))
                .collect();
            plain &= added.is_empty();
            config["added_tokens_decoder"] = added.into();
            text = source.rest();
        }
        _ => {
            file.extend_from_slice(bytes);
            plain = bytes.is_empty();
        }
    }
    let built = Tokenizer::from_sentence_piece(&file, Some(&config), None);
    assert!(!matches!(built, Err(TextError::Internal { .. })), "{:?}", built.err());
    let Ok(tokenizer) = built else { return };
    for how in all_options() {
        let ids = tokenizer.encode(&text, how).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        if plain && !how.parse_special {
            assert_eq!(tokenizer.decode(&ids, true), text.replace('▁', " "), "{how:?}");
        }
        check_token_limit(&tokenizer, &text, how, &ids);
    }
}

/// The protobuf field `pieces` with text, score and type.
fn piece(text: &str, score: f32, kind: u8) -> Vec<u8> {
    // Tags: 10 is field 1 with a length, 0x15 is field 2 with 32 bits, 0x18 is field 3 with a
    // varint. Pieces are shorter than 128 bytes, so a length is one byte.
    let mut message = vec![10, text.len() as u8];
    message.extend(text.as_bytes());
    message.push(0x15);
    message.extend(score.to_le_bytes());
    message.extend([0x18, kind]);
    [&[10, message.len() as u8][..], &message].concat()
}
