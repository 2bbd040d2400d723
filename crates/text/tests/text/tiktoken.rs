//! tiktoken.model: the vocabulary in the folders of Kimi-K2 and Moonlight, against the ids of
//! Python's `tiktoken`.

use latent_formats::{Checkpoint, CheckpointSource};
use latent_text::{EncodeOptions, TextError, Tokenizer};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiktoken").join(name)
}

fn model() -> Vec<u8> {
    std::fs::read(data("tiktoken.model")).unwrap()
}

fn config() -> Value {
    serde_json::from_slice(&std::fs::read(data("tokenizer_config.json")).unwrap()).unwrap()
}

fn open() -> Tokenizer {
    Tokenizer::from_tiktoken(&model(), Some(&config()), None).unwrap()
}

#[test]
fn ids_equal_those_of_tiktoken() {
    let cases: Value = serde_json::from_slice(&std::fs::read(data("ids.json")).unwrap()).unwrap();
    let tokenizer = open();
    let ids = |value: &Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    assert!(cases.as_array().unwrap().len() >= 18);
    for case in cases.as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let encode = |parse_special| {
            tokenizer.encode(text, EncodeOptions { add_special: false, parse_special }).unwrap()
        };
        let special = encode(true);
        assert_eq!(special, ids(&case["special"]), "{text:?}");
        assert_eq!(tokenizer.decode(&special, true), text);
        assert_eq!(encode(false), ids(&case["ordinary"]), "{text:?}");
    }
}

#[test]
fn control_tokens_follow_the_ranks() {
    let tokenizer = open();
    let base = tokenizer.vocab_size() as u32 - 256;
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(base), Some(base + 1)));
    assert_eq!(tokenizer.end_of_generation(), [base + 1, base + 2]);
    // The last has `"special": false`, and a name like a control token.
    let control = [2, 12].map(|id| tokenizer.is_control(base + id));
    assert_eq!((control, tokenizer.is_control(base - 1)), ([true, true], false));
    assert_eq!(tokenizer.token_text(base + 255), Some(&*format!("<|reserved_token_{}|>", base + 255)));
    assert!(!tokenizer.adds_bos());
}

/// A folder as it is published, with config.json, tiktoken.model and tokenizer_config.json.
#[test]
fn a_folder_with_tiktoken_model_has_a_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let tensors = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
    std::fs::write(folder.path().join("model.safetensors"), tensors).unwrap();
    for name in ["tiktoken.model", "tokenizer_config.json"] {
        std::fs::copy(data(name), folder.path().join(name)).unwrap();
    }
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert!(
        matches!(checkpoint.source(), CheckpointSource::HuggingFace(source) if source.tokenizer.is_some())
    );
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap();
    let how = EncodeOptions { add_special: false, parse_special: false };
    assert_eq!(tokenizer.encode("Hello 模型", how).unwrap(), open().encode("Hello 模型", how).unwrap());
}

#[test]
fn malformed_files_are_rejected_with_the_line() {
    let text = String::from_utf8(model()).unwrap();
    let lines = text.lines().count();
    let refused = |model: &str, words: &[&str]| {
        let error = Tokenizer::from_tiktoken(model.as_bytes(), Some(&config()), None).err();
        let error = error.unwrap_or_else(|| panic!("{words:?} is not refused")).to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    let add = |line: &str| format!("{text}{line}\n");
    let line = format!("line {}", lines + 1);
    refused("", &["no tokens"]);
    refused(&add("YQ=="), &[&line, "not a token and its rank"]);
    refused(&add("Y*== 9"), &[&line, "base64"]);
    refused(&add(&format!(" {lines}")), &[&line, "empty"]);
    refused(&add("YWFhYWFhYWI= x"), &[&line, "invalid rank \"x\""]);
    refused(&add("YWFhYWFhYWI= 99999999999999999999"), &[&line, "invalid rank"]);
    refused(&add(&format!("YWFhYWFhYWI= {}", lines + 1)), &[&line, &format!("expected {lines}")]);
    refused(&add(&format!("YWFhYWFhYWI= {}", lines - 1)), &[&line, "without gaps"]);
    refused(&add(&format!("YQ== {lines}")), &["are the same", "\"a\""]);
    refused(&add(&format!("{} {lines}", "YWFh".repeat(200))), &[&line, "512 bytes"]);
    refused("YQ== 0\n", &["no token for the byte 0x00"]);
    let error = Tokenizer::from_tiktoken(b"\xff\xfe 0", Some(&config()), None).err().unwrap();
    assert!(error.to_string().contains("not text"), "{error}");
}

#[test]
fn an_unknown_tokenizer_program_is_rejected() {
    let with = |config: Option<Value>| Tokenizer::from_tiktoken(&model(), config.as_ref(), None);
    for class in [json!("TikTokenTokenizer"), json!("tokenization_moonshot.TikTokenTokenizer")] {
        assert!(with(Some(json!({"tokenizer_class": class}))).is_ok(), "{class}");
    }
    assert!(
        with(Some(json!({"auto_map": {"AutoTokenizer": "a/b--tokenization_kimi.TikTokenTokenizer"}})))
            .is_ok()
    );
    for config in [
        None,
        Some(json!({})),
        Some(json!({"auto_map": {"AutoTokenizer": ["tokenization_hy.HYTokenizer", null]}})),
    ] {
        let error = with(config).err().unwrap();
        assert!(matches!(&error, TextError::Unknown { .. }), "{error}");
        assert!(error.to_string().contains("tokenization_kimi"), "{error}");
    }
    let beyond = json!({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {"4000000000": {"content": "<x>"}}});
    assert!(with(Some(beyond)).err().unwrap().to_string().contains("4000000000"));
}
