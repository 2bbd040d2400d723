//! tekken.json: the vocabulary in Mistral's own folders.

use latent_formats::{Checkpoint, HfSource, TokenizerFile, TokenizerKind, TokenizerPlace};
use latent_text::{EncodeOptions, GgufTokenizer, TextError, Tokenizer};
use serde_json::{Value, json};

const PATTERN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Special tokens before the byte strings.
const SPECIAL: u32 = 24;

/// Standard base64 of up to three bytes at a time.
fn base64(bytes: &[u8]) -> String {
    const SIGNS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let word = (0..3).fold(0u32, |word, i| word << 8 | u32::from(three.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            let sign = SIGNS[(word >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= three.len() { sign as char } else { '=' });
        }
    }
    text
}

/// All bytes, some words in merge order, and one token more than the model has.
fn file() -> Value {
    let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    tokens.extend(["he", "ll", "hell", " hell", "hello", "é", "more"].map(|word| word.as_bytes().to_vec()));
    let vocab: Vec<Value> = tokens
        .iter()
        .enumerate()
        .map(|(rank, token)| json!({"rank": rank, "token_bytes": base64(token), "token_str": null}))
        .collect();
    json!({
        "config": {"pattern": PATTERN, "num_vocab_tokens": 300, "default_vocab_size": 256 + 6 + SPECIAL,
            "default_num_special_tokens": SPECIAL, "version": "v13"},
        "vocab": vocab,
        "special_tokens": [
            {"rank": 0, "token_str": "<unk>", "is_control": true}, {"rank": 1, "token_str": "<s>", "is_control": true},
            {"rank": 2, "token_str": "</s>", "is_control": true}, {"rank": 3, "token_str": "[INST]", "is_control": true},
            {"rank": 21, "token_str": "[think]", "is_control": false},
        ],
    })
}

fn open(file: &Value) -> Result<Tokenizer, TextError> {
    Tokenizer::from_tekken(file.to_string().as_bytes(), None)
}

fn encode(tokenizer: &Tokenizer, text: &str, parse_special: bool) -> Vec<u32> {
    tokenizer.encode(text, EncodeOptions { add_special: false, parse_special }).unwrap()
}

#[test]
fn special_tokens_come_first_and_low_ranks_merge_first() {
    let tokenizer = open(&file()).unwrap();
    assert_eq!(tokenizer.vocab_size(), 262 + SPECIAL as usize);
    let word = |rank: u32| SPECIAL + rank;
    assert_eq!(encode(&tokenizer, "hello", false), [word(260)]);
    // "he" and "ll" merge before "hell". Pieces are not merged with each other.
    assert_eq!(encode(&tokenizer, "hell hello!", false), [word(258), word(259), word(111), word(33)]);
    assert_eq!(encode(&tokenizer, "é1", false), [word(261), word(49)]);
    // The vocabulary is truncated to the model's size.
    assert_eq!(
        encode(&tokenizer, "more", false),
        "more".bytes().map(|byte| word(byte.into())).collect::<Vec<_>>()
    );
    assert_eq!(encode(&tokenizer, "[INST]hello</s>", true), [3, word(260), 2]);
    assert_ne!(encode(&tokenizer, "[INST]", false), [3]);
    let text = "hell\n  Hello 你好 12 [INST]";
    assert_eq!(tokenizer.decode(&encode(&tokenizer, text, false), true), text);
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.adds_bos()), (Some(1), Some(2), true));
    assert_eq!(tokenizer.token_text(5), Some("<SPECIAL_5>"));
    assert_eq!([3, 5, 21, word(0)].map(|id| tokenizer.is_control(id)), [true, true, false, false]);
}

#[test]
fn older_files_have_the_usual_special_tokens() {
    let mut old = file();
    old["special_tokens"] = Value::Null;
    let tokenizer = open(&old).unwrap();
    assert_eq!(tokenizer.token_text(17), Some("[SYSTEM_PROMPT]"));
    assert_eq!(tokenizer.token_text(20), Some("<SPECIAL_20>"));
}

#[test]
fn a_gguf_file_has_the_same_ids() {
    let place = TokenizerPlace::Held(file().to_string().into_bytes().into());
    let tokenizer = Some(TokenizerFile { kind: TokenizerKind::Tekken, place });
    let source = HfSource { tokenizer, ..HfSource::default() };
    let written = GgufTokenizer::new(&source, 300, None).unwrap().unwrap();
    assert_eq!((written.tokens.len(), written.pre.as_str()), (300, "tekken"));
    assert_eq!(written.tokens[3], "[INST]");
}

#[test]
fn a_folder_with_tekken_json_has_a_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("params.json"), r#"{"dim": 8, "n_layers": 1}"#).unwrap();
    let header = r#"{"norm.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let tensors = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
    std::fs::write(folder.path().join("consolidated.safetensors"), tensors).unwrap();
    std::fs::write(folder.path().join("tekken.json"), file().to_string()).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert!(checkpoint.info("model.norm.weight").is_some());
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap();
    assert_eq!(encode(&tokenizer, "hello", false), [SPECIAL + 260]);
}

#[test]
fn malformed_files_are_rejected_with_the_token() {
    #[track_caller]
    fn refused(change: impl FnOnce(&mut Value), parts: &str) {
        let mut file = file();
        change(&mut file);
        let error = open(&file).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("tekken.json") && error.contains(parts), "no {parts:?} in {error}");
    }
    refused(|f| f["vocab"][7]["rank"] = json!(8), "token 7: rank 8, expected 7");
    refused(|f| f["vocab"][7]["token_bytes"] = json!("="), "token 7: invalid base64");
    refused(|f| f["vocab"][7]["token_bytes"] = json!(""), "token 7: an empty token");
    refused(|f| f["vocab"][7]["token_bytes"] = json!(base64(&[8])), "token 8");
    refused(|f| f["config"]["default_vocab_size"] = json!(SPECIAL), "default_vocab_size is 24");
    refused(|f| f["config"]["default_vocab_size"] = json!(500), "vocab has 263 tokens, expected 476");
    refused(|f| f["config"]["default_vocab_size"] = json!(100), "no token for the byte 0x");
    refused(|f| f["special_tokens"][1]["rank"] = json!(0), "\"<s>\" of rank 0: another token");
    refused(|f| f["special_tokens"][1]["rank"] = json!(24), "not below default_num_special_tokens");
    refused(|f| f["vocab"] = json!({}), "expected a sequence");
    refused(|f| drop(f.as_object_mut().map(|f| f.remove("config"))), "missing field `config`");
    let cut = file().to_string();
    assert!(Tokenizer::from_tekken(&cut.as_bytes()[..cut.len() / 2], None).is_err());
}
