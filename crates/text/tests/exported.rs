//! Tokenizers written in the form of another kind of file.
#![allow(missing_docs, reason = "tests")]

use latent_formats::{Checkpoint, HfSource, Outline, Source, TokenizerFile, TokenizerKind, TokenizerPlace};
use latent_text::{Encode, GgufTokenizer, HfTokenizer, TextError, Tokenizer};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// A folder with these files alone.
fn folder(kind: TokenizerKind, bytes: Vec<u8>, config: Value) -> HfSource {
    HfSource {
        config: json!({}).as_object().unwrap().clone(),
        tokenizer: Some(TokenizerFile { kind, place: TokenizerPlace::Held(bytes.into()) }),
        tokenizer_config: Some(config),
        chat_template: None,
        generation_config: None,
    }
}

/// Two published vocabularies: what their rules are called is found by the hash of llama.cpp's converter.
#[test]
fn published_vocabularies_come_back_under_the_name_of_their_rules() {
    for name in ["deepseek-llm", "deepseek-coder"] {
        let outline = Outline::open(&data(&format!("ggml-vocab-{name}.gguf"))).unwrap();
        let Source::Gguf(source) = outline.source() else { panic!("a GGUF file was expected") };
        let hf = HfTokenizer::new(&source.metadata).unwrap();
        let mut json = hf.tokenizer;
        // a pattern that no table has, so that the hash alone can tell
        let splits = json["pre_tokenizer"]["pretokenizers"].as_array_mut().unwrap();
        let pattern = splits[0]["pattern"]["Regex"].as_str().unwrap().to_owned();
        splits[0]["pattern"]["Regex"] = format!("(?:{pattern})").into();
        let config = Value::Object(hf.config);
        let size = source.metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap().len();
        let source_folder = folder(TokenizerKind::Json, json.to_string().into_bytes(), config);
        let back = GgufTokenizer::new(&source_folder, size + 3, None).unwrap().unwrap();
        assert_eq!((back.model, back.pre.as_str()), ("gpt2", name));
        assert_eq!(back.tokens.len(), size + 3);
        assert_eq!((back.tokens[size].clone(), back.token_types[size]), (format!("[PAD{size}]"), 5));
        let own: Vec<String> = source
            .metadata
            .strings("tokenizer.ggml.tokens")
            .unwrap()
            .unwrap()
            .iter()
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .collect();
        assert!(back.tokens[..size] == own[..], "{name}");
        let merges = source.metadata.strings("tokenizer.ggml.merges").unwrap().unwrap().len();
        assert_eq!(back.merges.unwrap().len(), merges, "{name}");
    }
}

#[test]
fn rules_that_nobody_knows_are_refused_unless_they_are_named() {
    let mut json: Value =
        serde_json::from_slice(&std::fs::read(data("demo/tokenizer.json")).unwrap()).unwrap();
    let known = folder(TokenizerKind::Json, json.to_string().into_bytes(), json!({}));
    assert_eq!(GgufTokenizer::new(&known, 1024, None).unwrap().unwrap().pre, "deepseek-v3");
    json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\p{N}{1,2}".into();
    let odd = folder(TokenizerKind::Json, json.to_string().into_bytes(), json!({}));
    let error = GgufTokenizer::new(&odd, 1024, None).unwrap_err();
    assert!(
        matches!(error, TextError::Inexpressible { .. }) && error.to_string().contains("--pre"),
        "{error}"
    );
    assert_eq!(GgufTokenizer::new(&odd, 1024, Some("qwen2")).unwrap().unwrap().pre, "qwen2");
    let said = GgufTokenizer::new(&odd, 1024, Some("nosuch")).unwrap_err().to_string();
    assert!(said.contains("nosuch"), "{said}");
    let said = GgufTokenizer::new(&known, 1000, None).unwrap_err().to_string();
    assert!(said.contains("1024 tokens") && said.contains("1000"), "{said}");
}

#[test]
fn a_tiktoken_vocabulary_gets_the_merges_of_its_ranks() {
    let config: Value =
        serde_json::from_slice(&std::fs::read(data("tiktoken/tokenizer_config.json")).unwrap()).unwrap();
    let bytes = std::fs::read(data("tiktoken/tiktoken.model")).unwrap();
    let own = Tokenizer::from_tiktoken(&bytes, Some(&config), None).unwrap();
    let source = folder(TokenizerKind::Tiktoken, bytes, config);
    let written = GgufTokenizer::new(&source, own.vocab_size(), None).unwrap().unwrap();
    assert_eq!(written.pre, "kimi-k2");
    let merges = written.merges.unwrap();
    assert!(!merges.is_empty());
    for merge in &merges {
        let (left, right) = merge.split_once(' ').unwrap();
        let rank = |text: &str| written.tokens.iter().position(|token| token == text);
        let whole = rank(&format!("{left}{right}")).unwrap();
        assert!(rank(left).unwrap() < whole && rank(right).unwrap() < whole, "{merge}");
    }
}

/// Byte-pair encoding of characters with tokens for bytes: SentencePiece's vocabularies as tokenizer.json holds them.
#[test]
fn a_vocabulary_of_sentence_piece_goes_both_ways() {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["▁", "t", "h", "e", "n", "th", "he", "the", "▁the", "▁t"].map(str::to_owned));
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, text)| (text.clone(), id.into())).collect();
    let added = |id: usize| json!({"id": id, "content": tokens[id], "special": true});
    let json = json!({
        "added_tokens": [added(0), added(1), added(2)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab,
            "merges": ["t h", "h e", "th e", "▁ the", "▁ t"]},
    });
    let config = json!({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true});
    let own = Tokenizer::from_hf(json.to_string().as_bytes(), Some(&config), None).unwrap();
    let source = folder(TokenizerKind::Json, json.to_string().into_bytes(), config);
    let written = GgufTokenizer::new(&source, tokens.len(), None).unwrap().unwrap();
    assert_eq!((written.model, written.pre.as_str()), ("llama", "default"));
    assert_eq!(written.token_types[..4], [2, 3, 3, 6]);
    let scores = written.scores.clone().unwrap();
    let score = |text: &str| scores[tokens.iter().position(|token| token == text).unwrap()];
    assert!(score("th") > score("he") && score("he") > score("the") && score("the") > score("▁the"));

    let mut writer = latent_formats::gguf::Writer::new();
    use latent_formats::gguf::WriterValue as V;
    writer.key("tokenizer.ggml.model", V::String("llama".into()));
    writer.key("tokenizer.ggml.pre", V::String("default".into()));
    writer.key("tokenizer.ggml.tokens", V::Strings(tokens.iter().map(|t| t.as_bytes().to_vec()).collect()));
    writer.key("tokenizer.ggml.scores", V::F32s(scores));
    writer.key("tokenizer.ggml.token_type", V::I32s(written.token_types.clone()));
    for (key, id) in &written.ids {
        writer.key(format!("tokenizer.ggml.{key}"), V::U32(*id));
    }
    for (key, flag) in &written.flags {
        writer.key(format!("tokenizer.ggml.{key}"), V::Bool(*flag));
    }
    let mut file = Vec::new();
    writer.write(&mut file, |_, _| Ok(())).unwrap();
    let header = latent_formats::gguf::Header::parse(&file, file.len() as u64).unwrap();
    let back = HfTokenizer::new(&header.metadata).unwrap();
    let back =
        Tokenizer::from_hf(back.tokenizer.to_string().as_bytes(), Some(&Value::Object(back.config)), None)
            .unwrap();
    for text in ["the then", " the  éthe\n", ""] {
        let how = Encode { add_special: true, parse_special: true };
        assert_eq!(back.encode(text, how).unwrap(), own.encode(text, how).unwrap(), "{text:?}");
    }
}

#[test]
fn a_file_without_a_tokenizer_has_none() {
    let mut writer = latent_formats::gguf::Writer::new();
    writer.key("tokenizer.ggml.model", latent_formats::gguf::WriterValue::String("none".into()));
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("x.gguf");
    let mut file = Vec::new();
    writer.write(&mut file, |_, _| Ok(())).unwrap();
    std::fs::write(&path, file).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert!(matches!(Tokenizer::from_checkpoint(&checkpoint), Err(TextError::Missing)));
}
