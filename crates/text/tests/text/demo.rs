//! The demo model's tokenizer, from tokenizer.json and from its GGUF file, against the ids of
//! Python's `tokenizers`.

use latent_formats::Checkpoint;
use latent_text::{EncodeOptions, Tokenizer};
use serde_json::Value;
use std::path::Path;

fn json(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/demo").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn from_json() -> Tokenizer {
    let file = serde_json::to_vec(&json("tokenizer.json")).unwrap();
    let (config, generation) = (json("tokenizer_config.json"), json("generation_config.json"));
    Tokenizer::from_hf(&file, Some(&config), Some(&generation)).unwrap()
}

fn from_gguf() -> Tokenizer {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/mla-demo-Q4_K_M.gguf");
    Tokenizer::from_checkpoint(&Checkpoint::open(&path).unwrap()).unwrap()
}

#[test]
fn both_files_give_the_ids_of_python_tokenizers() {
    let cases = json("ids.json");
    assert!(cases.as_array().unwrap().len() >= 12);
    for (name, tokenizer) in [("json", from_json()), ("gguf", from_gguf())] {
        for case in cases.as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let expected: Vec<u64> = case["ids"].as_array().unwrap().iter().flat_map(Value::as_u64).collect();
            let ids =
                tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: true }).unwrap();
            let found: Vec<u64> = ids.iter().map(|id| u64::from(*id)).collect();
            assert_eq!(found, expected, "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&ids[1..], true), text, "{name}");
        }
    }
}

#[test]
fn both_files_agree_on_tokens_and_their_roles() {
    let (a, b) = (from_json(), from_gguf());
    assert_eq!((a.bos(), a.eos(), a.adds_bos()), (b.bos(), b.eos(), b.adds_bos()));
    assert_eq!((a.bos(), a.eos()), (Some(0), Some(1)));
    assert_eq!((a.end_of_generation(), b.end_of_generation()), (&[1][..], &[1][..]));
    for id in 0..a.vocab_size() as u32 {
        assert_eq!((a.token_text(id), a.piece(id)), (b.token_text(id), b.piece(id)), "{id}");
        assert_eq!(a.is_control(id), b.is_control(id), "{id}");
    }
    assert_eq!(a.piece(u32::MAX), None);
}

/// The look-ahead of these rules backtracks over a run of spaces. It must not do so again for every
/// space.
#[test]
fn long_runs_of_one_character_are_decoded_unchanged() {
    let tokenizer = from_gguf();
    for unit in [" ", "a", "\n", "!", "é", "1"] {
        let text = unit.repeat((1 << 20) / unit.len());
        let ids =
            tokenizer.encode(&text, EncodeOptions { add_special: false, parse_special: false }).unwrap();
        assert!(tokenizer.decode(&ids, false) == text, "{unit:?}");
    }
}

#[test]
fn damaged_files_are_errors() {
    for bytes in [&b""[..], b"{", b"{}", b"[1]", br#"{"model": {"type": "BPE", "vocab": {}, "merges": []}}"#]
    {
        assert!(Tokenizer::from_hf(bytes, None, None).is_err(), "{:?}", String::from_utf8_lossy(bytes));
    }
}
