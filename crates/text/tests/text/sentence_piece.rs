//! SentencePiece's tokenizer.model, against the ids of the Python package `sentencepiece`.

use crate::support;
use latent_formats::{Checkpoint, HfSource, TokenizerFile, TokenizerKind, TokenizerPlace};
use latent_text::{EncodeOptions, GgufTokenizer, GgufVocab, TextError, Tokenizer};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/sentence_piece").join(name)
}

fn model() -> Vec<u8> {
    std::fs::read(data("tokenizer.model")).unwrap()
}

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

/// The model's message followed by another `rules` field. Of duplicate fields, protobuf uses the
/// last one.
fn with_rules(field: u8, rules: &[u8]) -> Vec<u8> {
    [model(), vec![field << 3 | 2, rules.len() as u8], rules.to_vec()].concat()
}

#[test]
fn ids_equal_those_of_sentencepiece() {
    let tokenizer = Tokenizer::from_sentence_piece(&model(), None, None).unwrap();
    let cases: Value = serde_json::from_slice(&std::fs::read(data("ids.json")).unwrap()).unwrap();
    assert!(cases.as_array().unwrap().len() >= 8);
    for case in cases.as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<u32> =
            case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(tokenizer.encode(text, PLAIN).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.decode(&ids, true), text.replace('▁', " "), "{text:?}");
    }
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.adds_bos()), (Some(1), Some(2), true));
    assert_eq!(tokenizer.end_of_generation(), [2]);
}

/// Pieces of spaces, pieces that absorb the prepended space, and names between words.
#[test]
fn user_defined_pieces_are_matched_first_like_in_sentencepiece() {
    let model = std::fs::read(data("user_defined.model")).unwrap();
    let tokenizer = Tokenizer::from_sentence_piece(&model, None, None).unwrap();
    let source = HfSource {
        tokenizer: Some(TokenizerFile {
            kind: TokenizerKind::SentencePiece,
            place: TokenizerPlace::Held(model.into()),
        }),
        ..HfSource::default()
    };
    let written = GgufTokenizer::new(&source, tokenizer.vocab_size(), None).unwrap().unwrap();
    assert_eq!((written.tokens[4].as_str(), written.token_types[4]), ("   ", 4));
    let gguf = support::read(&written);
    // Files of other converters keep `▁`.
    let marked = GgufTokenizer {
        tokens: written.tokens.iter().map(|text| text.replace(' ', "▁")).collect(),
        ..written
    };
    let marked = support::read(&marked);
    let cases: Value = serde_json::from_slice(&std::fs::read(data("user_defined.json")).unwrap()).unwrap();
    assert!(cases.as_array().unwrap().len() >= 68);
    for case in cases.as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<u32> =
            case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        for tokenizer in [&tokenizer, &gguf, &marked] {
            assert_eq!(tokenizer.encode(text, PLAIN).unwrap(), ids, "{text:?}");
            assert_eq!(tokenizer.decode(&ids, true), text.replace('▁', " "), "{text:?}");
            // A token's name in a user's message is text, and its spaces are spaces.
            let content = std::iter::once(0..text.len()).collect();
            let rendered = latent_text::RenderedText { text: text.into(), content };
            let inside = tokenizer.encode_rendered(&rendered, false).unwrap();
            let named = |id: &u32| (7..=11).contains(id);
            assert!(!inside.iter().any(named), "{text:?}: {inside:?}");
            if !ids.iter().any(named) && !text.contains('▁') {
                assert_eq!(inside[1..], ids, "{text:?}");
            }
        }
    }
}

#[test]
fn tokenizer_config_names_and_adds_tokens() {
    let base = Tokenizer::from_sentence_piece(&model(), None, None).unwrap().vocab_size();
    let config = json!({"bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>", "add_bos_token": false, "added_tokens_decoder": {
        (base + 1).to_string(): {"content": "<|im_end|>", "special": true},
        (base + 2).to_string(): {"content": "two▁words", "special": false}}});
    let generation = json!({"eos_token_id": [2, base + 1]});
    let tokenizer = Tokenizer::from_sentence_piece(&model(), Some(&config), Some(&generation)).unwrap();
    assert_eq!((tokenizer.vocab_size(), tokenizer.adds_bos()), (base + 3, false));
    let [hole, end, words] = [0, 1, 2].map(|i| (base + i) as u32);
    assert_eq!((tokenizer.eos(), tokenizer.end_of_generation()), (Some(end), &[2, end][..]));
    assert!(tokenizer.is_control(end) && !tokenizer.is_special(hole));
    assert!(tokenizer.encode("of two words here", PLAIN).unwrap().contains(&words));

    let source = HfSource {
        tokenizer: Some(TokenizerFile {
            kind: TokenizerKind::SentencePiece,
            place: TokenizerPlace::Held(model().into()),
        }),
        tokenizer_config: Some(config),
        generation_config: Some(generation),
        ..HfSource::default()
    };
    let written = GgufTokenizer::new(&source, base + 5, None).unwrap().unwrap();
    assert_eq!((written.model, written.pre.as_str(), written.tokens.len()), ("llama", "default", base + 5));
    assert_eq!(written.token_types[..4], [2, 3, 3, 6]);
    assert_eq!(written.token_types[base..], [5, 3, 4, 5, 5]);
    assert_eq!(written.tokens[words as usize], "two words");
    let scores = written.scores.unwrap();
    assert_eq!(scores[base..base + 3], [-10_000.0, -1000.0, -1000.0]);
    assert!(scores[300] > scores[301]);
    for (key, id) in
        [("bos_token_id", 1), ("eos_token_id", end), ("eot_token_id", 2), ("unknown_token_id", 0)]
    {
        assert!(written.ids.contains(&(key, id)), "{key}: {:?}", written.ids);
    }
    for (key, flag) in [("add_space_prefix", true), ("add_bos_token", false), ("add_eos_token", false)] {
        assert!(written.flags.contains(&(key, flag)), "{key}: {:?}", written.flags);
    }
}

#[test]
fn unsupported_rules_and_damaged_files_are_rejected() {
    let refused = |bytes: &[u8]| Tokenizer::from_sentence_piece(bytes, None, None).err().unwrap().to_string();
    // `model_type` 1, `remove_extra_whitespaces`, a map of characters, and `escape_whitespaces`
    // off.
    for (field, rules, word) in [
        (2, &[0x18, 1][..], "unigram"),
        (3, &[0x20, 1], "removes spaces"),
        (3, &[0x12, 1, 7], "maps characters"),
        (3, &[0x28, 0], "begin pieces"),
    ] {
        let said = refused(&with_rules(field, rules));
        assert!(said.contains(word) && said.contains("tokenizer.json"), "{said}");
    }
    let whole = model();
    assert!(refused(b"").contains("no pieces") && refused(b"{\"a\": 1}").contains("protobuf"));
    for end in (1..whole.len()).step_by(97) {
        let said = Tokenizer::from_sentence_piece(&whole[..end], None, None).err();
        // A file that ends between two fields lacks the rules.
        assert!(said.is_some(), "{end}");
    }
    let piece = |fields: &[u8]| [&[10, fields.len() as u8][..], fields, &whole].concat();
    for (bytes, word) in [
        (piece(&[10, 1, 0xff]), "UTF-8"),
        (piece(&[10, 1, b'x', 0x18, 9]), "kind 9"),
        (piece(&[10, 1, b'x', 0x15, 0, 0, 0xc0, 0x7f]), "not a number"),
    ] {
        let said = refused(&bytes);
        assert!(said.contains("piece 0") && said.contains(word), "{said}");
    }
    let config = json!({"added_tokens_decoder": {"4000000000": {"content": "x"}}});
    let said = Tokenizer::from_sentence_piece(&whole, Some(&config), None).err().unwrap().to_string();
    assert!(said.contains("4000000000") && said.contains("limit"), "{said}");
}

#[test]
fn a_folder_with_tokenizer_model_has_a_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    let one = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let tensors = [&(one.len() as u64).to_le_bytes()[..], one.as_bytes(), &[0; 4]].concat();
    std::fs::write(folder.path().join("model.safetensors"), tensors).unwrap();
    std::fs::copy(data("tokenizer.model"), folder.path().join("tokenizer.model")).unwrap();
    let tokenizer = Tokenizer::from_checkpoint(&Checkpoint::open(folder.path()).unwrap()).unwrap();
    assert_eq!(tokenizer.token_text(1), Some("<s>"));
}

/// `▁` has more bytes than the space that it replaces.
#[test]
fn a_text_of_space_markers_is_not_rejected_as_too_long() {
    let bytes: Vec<String> = (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    let runs = ["▁", "▁▁", "▁▁▁▁", "▁▁▁▁▁▁▁▁"];
    let vocab = GgufVocab {
        model: "llama",
        tokens: bytes.iter().map(String::as_bytes).chain(runs.map(str::as_bytes)).collect(),
        scores: Some(vec![0.0; bytes.len() + runs.len()]),
        add_space_prefix: Some(false),
        ..GgufVocab::default()
    };
    let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
    let text = "▁".repeat(80);
    let ids = tokenizer.encode(&text, PLAIN).unwrap();
    assert_eq!(ids, [bytes.len() as u32 + 3; 10]);
    assert_eq!(tokenizer.encode_within(&text, PLAIN, 10).unwrap(), ids);
    assert!(tokenizer.encode_within(&text, PLAIN, 9).is_err());
}

proptest! {
    #[test]
    fn no_file_breaks_the_reader(changes in vec((any::<u16>(), any::<u8>()), 1..12), end in any::<u16>(), tail in vec(any::<u8>(), 0..24)) {
        let mut bytes = model();
        for (at, byte) in changes {
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(bytes.len().min(usize::from(end)));
        bytes.extend(tail);
        match Tokenizer::from_sentence_piece(&bytes, None, None) {
            Ok(tokenizer) => drop(tokenizer.encode("the License 今天 <s>", PLAIN).unwrap()),
            Err(error) => prop_assert!(!matches!(error, TextError::Internal { .. }), "{error}"),
        }
    }
}
