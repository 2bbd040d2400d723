//! Conversion of tokenizers between file formats.

use crate::support;
use latent_formats::{
    Checkpoint, CheckpointSource, HfSource, Outline, TokenizerFile, TokenizerKind, TokenizerPlace,
};
use latent_text::{EncodeOptions, GgufTokenizer, HfTokenizer, TextError, Tokenizer};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// A folder with only these files.
fn folder(kind: TokenizerKind, bytes: Vec<u8>, config: Value) -> HfSource {
    HfSource {
        config: json!({}).as_object().unwrap().clone(),
        tokenizer: Some(TokenizerFile { kind, place: TokenizerPlace::Held(bytes.into()) }),
        tokenizer_config: Some(config),
        ..HfSource::default()
    }
}

/// For these published vocabularies, the pre-tokenizer's name is found by the hash that llama.cpp's
/// converter uses.
#[test]
fn published_vocabularies_keep_the_name_of_their_pre_tokenizer() {
    for name in ["deepseek-llm", "deepseek-coder"] {
        let outline = Outline::open(&data(&format!("ggml-vocab-{name}.gguf"))).unwrap();
        let CheckpointSource::Gguf(source) = outline.source() else { panic!("a GGUF file was expected") };
        let hf = HfTokenizer::new(&source.metadata).unwrap();
        let mut json = hf.tokenizer;
        // An equivalent pattern that is not in the tables, so that only the hash identifies the
        // rules.
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

fn demo_json() -> Value {
    serde_json::from_slice(&std::fs::read(data("demo/tokenizer.json")).unwrap()).unwrap()
}

fn ids(tokenizer: &Tokenizer, text: &str, parse_special: bool) -> Vec<u32> {
    tokenizer.encode(text, EncodeOptions { add_special: true, parse_special }).unwrap()
}

/// DeepSeek's published tokenizer.json has `"special": false` for `<｜User｜>`.
#[test]
fn tokens_do_not_depend_on_the_container() {
    const NAMES: [(&str, bool); 8] = [
        ("<｜User｜>", false),
        ("<｜fim▁begin｜>", false),
        ("<|im_end|>", false),
        ("<pad>", false),
        ("<unused7>", false),
        ("[gMASK]", true),
        ("<think>", false),
        ("two▁words", false),
    ];
    const TEXT: &str =
        "a <｜User｜>b<｜fim▁begin｜><|im_end|> <pad> <unused7>[gMASK]<think>c</think> two▁words two words";
    let mut json = demo_json();
    let added = json["added_tokens"].as_array_mut().unwrap();
    for (i, (name, special)) in NAMES.iter().enumerate() {
        match added.iter_mut().find(|token| token["content"] == **name) {
            Some(token) => token["special"] = (*special).into(),
            None => {
                added.push(json!({"id": 1100 + i, "content": name, "special": special, "normalized": false}))
            }
        }
    }
    let mut tiktoken: Value =
        serde_json::from_slice(&std::fs::read(data("tiktoken/tokenizer_config.json")).unwrap()).unwrap();
    let decoder = tiktoken["added_tokens_decoder"].as_object_mut().unwrap();
    let free: Vec<String> = decoder.keys().take(NAMES.len()).cloned().collect();
    for (id, (name, special)) in free.iter().zip(NAMES) {
        decoder[id] = json!({"content": name, "special": special});
    }
    let added: serde_json::Map<String, Value> = (0..NAMES.len())
        .map(|i| ((500 + i).to_string(), json!({"content": NAMES[i].0, "special": NAMES[i].1})))
        .collect();
    let sources = [
        folder(TokenizerKind::Json, json.to_string().into_bytes(), json!({})),
        folder(TokenizerKind::Tiktoken, std::fs::read(data("tiktoken/tiktoken.model")).unwrap(), tiktoken),
        folder(
            TokenizerKind::SentencePiece,
            std::fs::read(data("sentence_piece/tokenizer.model")).unwrap(),
            json!({"added_tokens_decoder": added}),
        ),
    ];
    for source in sources {
        let kind = source.tokenizer.as_ref().unwrap().kind;
        let own = Tokenizer::from_source(&CheckpointSource::HuggingFace(source.clone())).unwrap();
        let written = GgufTokenizer::new(&source, own.vocab_size(), None).unwrap().unwrap();
        let gguf = support::read(&written);
        for parse_special in [false, true] {
            let plain = ids(&own, TEXT, parse_special);
            assert_eq!(plain, ids(&gguf, TEXT, parse_special), "{kind:?} {parse_special}");
            let control = plain.iter().filter(|id| own.is_control(**id) && Some(**id) != own.bos()).count();
            assert_eq!(control, if parse_special { 6 } else { 0 }, "{kind:?} {parse_special}: {plain:?}");
        }
        assert_eq!(own.end_of_generation(), gguf.end_of_generation(), "{kind:?}");
    }
}

/// A folder of the demo tokenizer with a change.
fn changed(change: impl FnOnce(&mut Value)) -> HfSource {
    let mut json = demo_json();
    change(&mut json);
    let config = json!({"bos_token": "<｜begin▁of▁sentence｜>"});
    folder(TokenizerKind::Json, json.to_string().into_bytes(), config)
}

/// Each lost rule is reported, although it does not change the ids of the text that llama.cpp's
/// converter hashes.
#[test]
fn rules_that_gguf_cannot_represent_are_reported() {
    let lost = |source: &HfSource, pre| GgufTokenizer::new(source, 2048, pre).unwrap().unwrap().lost_rules;
    assert_eq!(lost(&changed(|_| {}), None), [""; 0]);
    type Change = fn(&mut Value);
    let cases: [(Change, &[&str]); 9] = [
        (|json| json["normalizer"] = json!({"type": "NFC"}), &["normalizer {\"type\":\"NFC\"}"]),
        (
            |json| {
                json["normalizer"] = json!({"type": "Sequence", "normalizers": [{"type": "NFC"},
                    {"type": "Replace", "pattern": {"String": "foo"}, "content": "bar"},
                    {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}]});
            },
            &["\"NFC\"", "\"foo\"", "\"Lowercase\""],
        ),
        (|json| json["added_tokens"][1]["lstrip"] = true.into(), &["lstrip of the added tokens \""]),
        (|json| json["added_tokens"][2]["rstrip"] = true.into(), &["rstrip of the added tokens \""]),
        (
            |json| {
                for token in json["added_tokens"].as_array_mut().unwrap() {
                    token["lstrip"] = true.into();
                    token["rstrip"] = true.into();
                }
            },
            &["lstrip", "rstrip"],
        ),
        (|json| json["model"]["ignore_merges"] = true.into(), &["model.ignore_merges is true"]),
        (
            // A digit that no sample text contains.
            |json| {
                let first = &mut json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
                *first = first.as_str().unwrap().replace("\\p{N}", "[\\p{N}&&[^Ⅻ]]").into();
            },
            &["pre_tokenizer: the rules \"deepseek-v3\" split some texts differently"],
        ),
        (
            |json| {
                json["post_processor"] = json!({"type": "TemplateProcessing", "single": [
                    {"SpecialToken": {"id": "<｜User｜>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                    {"SpecialToken": {"id": "<｜Assistant｜>", "type_id": 0}}], "pair": [], "special_tokens": {}});
            },
            &[
                "post_processor: the file does not add \"<｜User｜>\"",
                "post_processor: the file does not add \"<｜Assistant｜>\"",
            ],
        ),
        (
            |json| {
                json["pre_tokenizer"]["pretokenizers"].as_array_mut().unwrap().insert(0,
                json!({"type": "Split", "pattern": {"String": "\u{200b}"}, "behavior": "Removed", "invert": false}))
            },
            &["pre_tokenizer: the rules"],
        ),
    ];
    for (i, (change, rules)) in cases.into_iter().enumerate() {
        let found = lost(&changed(change), Some("deepseek-v3"));
        assert_eq!(found.len(), rules.len(), "{i}: {found:?}");
        for (found, rule) in found.iter().zip(rules) {
            assert!(found.contains(rule), "{i}: {found} has no {rule}");
        }
    }
    let many = json!({"added_tokens_decoder": {"330": {"content": "<a>", "lstrip": true, "rstrip": true, "single_word": true}}});
    let bytes = std::fs::read(data("sentence_piece/tokenizer.model")).unwrap();
    let found = lost(&folder(TokenizerKind::SentencePiece, bytes, many), None);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found.iter().all(|rule| rule.contains("\"<a>\"")), "{found:?}");
}

#[test]
fn unknown_rules_need_a_named_pre_tokenizer() {
    let mut json: Value =
        serde_json::from_slice(&std::fs::read(data("demo/tokenizer.json")).unwrap()).unwrap();
    let known = folder(TokenizerKind::Json, json.to_string().into_bytes(), json!({}));
    assert_eq!(GgufTokenizer::new(&known, 1024, None).unwrap().unwrap().pre, "deepseek-v3");
    json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\p{N}{1,2}".into();
    let odd = folder(TokenizerKind::Json, json.to_string().into_bytes(), json!({}));
    let error = GgufTokenizer::new(&odd, 1024, None).unwrap_err();
    assert!(
        matches!(error, TextError::Inexpressible { .. }) && error.to_string().contains("`pre_tokenizer`"),
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

/// Byte-pair encoding of characters with byte tokens: SentencePiece's vocabularies in
/// tokenizer.json.
#[test]
fn a_sentence_piece_vocabulary_converts_in_both_directions() {
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
        let how = EncodeOptions { add_special: true, parse_special: true };
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
