//! Unusual and hostile tokenizer.json files. Each is rejected with an error that names the place,
//! or works within bounds.

use latent_text::{EncodeOptions, TextError, Tokenizer};
use serde_json::{Value, json};
use std::path::Path;

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

/// The demo model's tokenizer.json: byte-level, like DeepSeek-V3's.
fn demo() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/demo/tokenizer.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn open(file: &Value) -> Result<Tokenizer, TextError> {
    Tokenizer::from_hf(&serde_json::to_vec(file).unwrap(), None, None)
}

/// The demo's file with another value for one component.
fn with(key: &str, value: Value) -> Value {
    let mut file = demo();
    file[key] = value;
    file
}

/// A file with these tokens, merges and options of the model.
fn small(tokens: &[&str], merges: &[[&str; 2]], options: Value) -> Value {
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), json!(id))).collect();
    let mut model = json!({"type": "BPE", "vocab": vocab, "merges": merges});
    for (key, value) in options.as_object().unwrap() {
        model[key] = value.clone();
    }
    json!({"version": "1.0", "added_tokens": [], "model": model})
}

fn sequence(normalizers: Vec<Value>) -> Value {
    json!({"type": "Sequence", "normalizers": normalizers})
}

fn pre(component: Value) -> Value {
    with("pre_tokenizer", json!({"type": "Sequence", "pretokenizers": [component]}))
}

/// Checks that each file is rejected with an error that contains these words.
#[test]
fn unsupported_components_and_values_are_rejected() {
    let doubling = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let precompiled =
        |map: &str| with("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": map}));
    let replace = |pattern: Value, content: &str| {
        with("normalizer", sequence(vec![json!({"type": "Replace", "pattern": pattern, "content": content})]))
    };
    let template = |single: Value| {
        with(
            "post_processor",
            json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}),
        )
    };
    let split = |pattern: Value| {
        pre(json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false}))
    };
    let cases: Vec<(&str, Value, &[&str])> = vec![
        // Normalizers.
        (
            "replace-empty",
            replace(json!({"String": ""}), "x"),
            &["normalizer.normalizers[0].pattern.String", "\"\""],
        ),
        (
            "replace-empty-regex",
            replace(json!({"Regex": ""}), "x"),
            &["normalizer.normalizers[0].pattern", "does not match the empty text"],
        ),
        ("replace-star", replace(json!({"Regex": "a*"}), "x"), &["pattern", "does not match the empty text"]),
        ("replace-look-ahead", replace(json!({"Regex": "(?=a)"}), "x"), &["pattern", "look-around"]),
        (
            "replace-big",
            replace(json!({"String": "a"}), &"a".repeat(1_000_000)),
            &["content", "8 bytes of one"],
        ),
        (
            "replace-doubling-20",
            with("normalizer", sequence(vec![doubling.clone(); 20])),
            &["normalizers[3].content", "aa"],
        ),
        (
            "replace-doubling-64",
            with("normalizer", sequence(vec![doubling.clone(); 64])),
            &["normalizers[3].content"],
        ),
        (
            "replace-no-content",
            with("normalizer", json!({"type": "Replace", "pattern": {"String": "a"}})),
            &["content"],
        ),
        (
            "prepend-empty",
            with("normalizer", json!({"type": "Prepend", "prepend": ""})),
            &["normalizer.prepend", "1 to 64"],
        ),
        (
            "prepend-long",
            with("normalizer", json!({"type": "Prepend", "prepend": "x".repeat(65)})),
            &["normalizer.prepend"],
        ),
        (
            "many",
            with("normalizer", sequence(vec![json!({"type": "NFC"}); 33])),
            &["normalizers[32]", "at most 32"],
        ),
        ("precompiled-(empty)", precompiled(""), &["normalizer", "Precompiled", "NFKC"]),
        ("precompiled-00000000", precompiled("AAAAAA=="), &["Precompiled"]),
        ("precompiled-04", precompiled("BAAAAAA="), &["Precompiled"]),
        ("precompiled-ffffffff", precompiled("/////w=="), &["Precompiled"]),
        ("precompiled-0e33", precompiled("DjMAAA=="), &["Precompiled"]),
        (
            "bert",
            with("normalizer", json!({"type": "BertNormalizer", "lowercase": true})),
            &["BertNormalizer"],
        ),
        (
            "nmt",
            with("normalizer", sequence(vec![json!({"type": "Nmt"})])),
            &["normalizer.normalizers[0]", "Nmt"],
        ),
        ("no type", with("normalizer", json!({"prepend": "x"})), &["normalizer", "type"]),
        (
            "strip",
            with("normalizer", json!({"type": "Strip", "strip_left": 1, "strip_right": true})),
            &["strip_left", "is 1"],
        ),
        (
            "not a list",
            with("normalizer", json!({"type": "Sequence", "normalizers": {}})),
            &["normalizer.normalizers", "a list"],
        ),
        ("a number", with("normalizer", json!(7)), &["normalizer is 7"]),
        // Pre-tokenizers.
        (
            "fixedlength-0",
            pre(json!({"type": "FixedLength", "length": 0})),
            &["pretokenizers[0]", "FixedLength"],
        ),
        ("unicode scripts", pre(json!({"type": "UnicodeScripts"})), &["UnicodeScripts"]),
        ("delimiter", pre(json!({"type": "CharDelimiterSplit", "delimiter": "x"})), &["CharDelimiterSplit"]),
        ("split-empty", split(json!({"String": ""})), &["pretokenizers[0].pattern.String"]),
        ("split-open", split(json!({"Regex": "(a"})), &["pattern.Regex", "(a"]),
        (
            "split-huge",
            split(json!({"Regex": "(((((a{100}){100}){100}){100}){100})"})),
            &["pattern.Regex", "limit"],
        ),
        ("split-deep", split(json!({"Regex": "(".repeat(60_000)})), &["pattern.Regex"]),
        ("split-long", split(json!({"Regex": "a".repeat(100_000)})), &["pattern.Regex", "100000"]),
        ("split-neither", split(json!({"Glob": "*"})), &["pretokenizers[0].pattern", "Glob"]),
        (
            "behavior",
            pre(json!({"type": "Split", "pattern": {"String": "a"}, "behavior": "Eaten", "invert": false})),
            &["behavior", "Eaten"],
        ),
        (
            "metaspace-two",
            pre(json!({"type": "Metaspace", "replacement": "__"})),
            &["replacement", "one character"],
        ),
        (
            "metaspace-scheme",
            pre(json!({"type": "Metaspace", "replacement": "_", "prepend_scheme": "often"})),
            &["prepend_scheme", "often"],
        ),
        (
            "metaspace-both",
            pre(
                json!({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "add_prefix_space": false}),
            ),
            &["never"],
        ),
        // Decoders and post-processors.
        ("decoder", with("decoder", json!({"type": "WordPiece", "prefix": "##"})), &["decoder", "WordPiece"]),
        (
            "decoder-strip",
            with("decoder", json!({"type": "Strip", "content": "x", "start": 9, "stop": 0})),
            &["decoder", "Strip"],
        ),
        (
            "post-template-b",
            template(json!([{"Sequence": {"id": "B", "type_id": 0}}])),
            &["post_processor.single[0]", "sequence A"],
        ),
        ("post-template-empty", template(json!([{}])), &["post_processor.single[0]"]),
        (
            "post-roberta",
            with("post_processor", json!({"type": "RobertaProcessing"})),
            &["RobertaProcessing"],
        ),
    ];
    for (name, file, words) in cases {
        let error = open(&file).err().unwrap_or_else(|| panic!("{name} is not refused")).to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{name}: {error}");
        assert!(error.len() < 1200, "{name}: {} bytes of message", error.len());
    }
}

#[test]
fn unsupported_models_and_options_are_rejected() {
    let pairs = |options: Value| small(&["a", "b", "é", "ab", "#b", "aé"], &[["a", "b"]], options);
    let utf8 = small(&["a", "é", "aé"], &[["a", "é"]], json!({"continuing_subword_prefix": "#"}));
    let cases: Vec<(&str, Value, &[&str])> = vec![
        (
            "bpe-prefix",
            pairs(json!({"continuing_subword_prefix": "##"})),
            &["model.continuing_subword_prefix", "##"],
        ),
        ("bpe-prefix-invalid-utf8", utf8, &["model.continuing_subword_prefix", "\"#\""]),
        ("bpe-suffix", pairs(json!({"end_of_word_suffix": "</w>"})), &["model.end_of_word_suffix", "</w>"]),
        ("bpe-dropout", pairs(json!({"dropout": 0.1})), &["model.dropout", "0.1"]),
        ("bpe-flag", pairs(json!({"ignore_merges": "yes"})), &["model.ignore_merges", "yes"]),
        ("bpe-unknown", pairs(json!({"unk_token": "<unk>"})), &["unk_token", "<unk>"]),
        (
            "unigram",
            json!({"model": {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 0}}),
            &["model.type", "Unigram", "BPE"],
        ),
        ("wordpiece", pairs(json!({"type": "WordPiece"})), &["model.type", "WordPiece"]),
        ("no model", json!({"version": "1.0"}), &["no model"]),
        ("no tokens", small(&[], &[], json!({})), &["no tokens"]),
        ("merge-unknown", small(&["a", "b"], &[["a", "b"]], json!({})), &["merge 0", "\"ab\""]),
        ("merge-one", pairs(json!({"merges": ["ab"]})), &["merge", "ab", "line 1"]),
        ("merge-three", pairs(json!({"merges": [["a", "b", "c"]]})), &["two texts"]),
        ("two tokens, one id", small(&["a"], &[], json!({"vocab": {"a": 0, "b": 0}})), &["the same id, 0"]),
        ("negative id", small(&["a"], &[], json!({"vocab": {"a": -1}})), &["-1"]),
    ];
    for (name, file, words) in cases {
        let error = open(&file).err().unwrap_or_else(|| panic!("{name} is not refused")).to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{name}: {error}");
    }
}

/// A number in a small file must not cause an allocation of hundreds of megabytes.
#[test]
fn ids_are_bounded_by_the_number_of_tokens() {
    let with_id = |id: u32| {
        let mut file = small(&["a", "b"], &[], json!({}));
        file["model"]["vocab"]["c"] = json!(id);
        open(&file)
    };
    assert_eq!(with_id(65_535).unwrap().vocab_size(), 65_536);
    for id in [65_536, 4_194_302, u32::MAX] {
        let error = with_id(id).err().unwrap().to_string();
        assert!(error.contains(&id.to_string()) && error.contains("65536"), "{error}");
    }
    let mut file = small(&["a"], &[], json!({}));
    file["added_tokens"] = json!([{"id": 4_000_000, "content": "<x>", "special": true}]);
    assert!(open(&file).err().unwrap().to_string().contains("4000000"));
}

#[test]
fn added_tokens_that_contradict_the_vocabulary_are_refused() {
    let added = |tokens: Value| {
        let mut file = small(&["a", "b"], &[], json!({}));
        file["added_tokens"] = tokens;
        open(&file).err().map(|error| error.to_string())
    };
    assert_eq!(added(json!([{"id": 0, "content": "a"}, {"id": 2, "content": "<x>", "special": true}])), None);
    let error = added(json!([{"id": 2, "content": "a"}])).unwrap();
    assert!(error.contains("added_tokens[0]") && error.contains("\"a\""), "{error}");
    let error = added(json!([{"id": 2, "content": "<x>", "single_word": true}])).unwrap();
    assert!(error.contains("added_tokens[0].single_word"), "{error}");
}

/// Padding and truncation are for training. They do not apply to prompts, and allocate nothing.
#[test]
fn padding_and_truncation_are_ignored() {
    let expected = open(&demo()).unwrap().encode("Hello world", PLAIN).unwrap();
    assert!(expected.len() > 2);
    let padding = |strategy: Value, multiple: Value| json!({"strategy": strategy, "direction": "Right", "pad_to_multiple_of": multiple, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"});
    let truncation = |length: u64, stride: u64| json!({"direction": "Right", "max_length": length, "strategy": "LongestFirst", "stride": stride});
    for (key, value) in [
        ("padding", padding(json!({"Fixed": u64::MAX}), Value::Null)),
        ("padding", padding(json!({"Fixed": 1_000_000_000u64}), Value::Null)),
        ("padding", padding(json!("BatchLongest"), json!(1_000_000_000u64))),
        ("truncation", truncation(2, 0)),
        ("truncation", truncation(2, 2)),
        ("truncation", truncation(2, 9)),
    ] {
        let tokenizer = open(&with(key, value)).unwrap();
        assert_eq!(tokenizer.encode("Hello world", PLAIN).unwrap(), expected, "{key}");
    }
}

/// Normalizers may lengthen a text up to a limit, in time that is linear in its length.
#[test]
fn texts_that_grow_are_bounded() {
    let normalized = |normalizer: Value| open(&with("normalizer", normalizer)).unwrap();
    let four = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaa"});
    let two = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let tokenizer = normalized(sequence(vec![four, two]));
    let grown = tokenizer.encode(&"a".repeat(100_000), PLAIN).unwrap();
    assert_eq!(grown, open(&demo()).unwrap().encode(&"a".repeat(800_000), PLAIN).unwrap());
    // U+FDFA: a ligature that NFKC replaces by eighteen characters.
    let tokenizer = normalized(json!({"type": "NFKC"}));
    assert!(tokenizer.encode(&"\u{fdfa}".repeat(20_000), PLAIN).unwrap().len() > 20_000);
    let grows_twice = sequence(vec![json!({"type": "NFKC"}), json!({"type": "ByteLevel"})]);
    let error = normalized(grows_twice).encode(&"\u{fdfa}".repeat(200_000), PLAIN).unwrap_err().to_string();
    assert!(error.contains("12 times"), "{error}");
    let tokenizer = normalized(json!({"type": "NFC"}));
    let error = tokenizer.encode(&format!("a{}", "\u{301}".repeat(100_000)), PLAIN).unwrap_err().to_string();
    assert!(error.contains("combining marks"), "{error}");
    assert!(tokenizer.encode(&"a\u{301}".repeat(100_000), PLAIN).is_ok());
}

/// Found by fuzzing: each step doubled the bytes beyond ASCII, so thirty steps made a gigabyte from
/// one letter.
#[test]
fn byte_level_is_admitted_once() {
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let inner = json!({"type": "Sequence", "pretokenizers": [byte_level]});
    let twice = json!({"type": "Sequence", "pretokenizers": [byte_level, inner]});
    for (file, place) in [
        (with("pre_tokenizer", twice), "pre_tokenizer.pretokenizers[1].pretokenizers[0]"),
        (with("normalizer", sequence(vec![json!({"type": "ByteLevel"}); 2])), "normalizer.normalizers[1]"),
    ] {
        let error = open(&file).err().unwrap().to_string();
        assert!(error.contains(place) && error.contains("one ByteLevel"), "{error}");
    }
    assert!(open(&pre(byte_level)).is_ok());
}

/// 20 000 tokens with the same first letter. Once, each position of a text was compared with all of
/// them.
#[test]
fn many_added_tokens_are_matched_in_linear_time() {
    let mut file = demo();
    let added: Vec<Value> =
        (0..20_000).map(|i| json!({"id": 2000 + i, "content": format!("a{i}b"), "special": false})).collect();
    file["added_tokens"].as_array_mut().unwrap().extend(added);
    let tokenizer = open(&file).unwrap();
    let ids = tokenizer.encode(&"a".repeat(1_000_000), PLAIN).unwrap();
    assert_eq!(tokenizer.decode(&ids, false).len(), 1_000_000);
    assert_eq!(tokenizer.encode("a7ba19999b", PLAIN).unwrap(), [2007, 21_999]);
}

/// Catastrophic backtracking is an error, not a hang or a silently different split.
#[test]
fn catastrophic_backtracking_is_an_error() {
    let pattern = json!({"type": "Split", "pattern": {"Regex": "(?:(?=a)a+)+b"}, "behavior": "Isolated", "invert": false});
    let tokenizer = open(&pre(pattern)).unwrap();
    let error = tokenizer.encode(&"a".repeat(64), PLAIN).unwrap_err().to_string();
    assert!(error.contains("pattern"), "{error}");
}

/// Published tokenizers, with the rules of their files.
#[test]
fn published_tokenizers_are_supported() {
    let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let pre = |mut steps: Vec<Value>| {
        steps.push(bytes.clone());
        json!({"type": "Sequence", "pretokenizers": steps})
    };
    let llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let bailing = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
    let digits = json!({"type": "Digits", "individual_digits": true});
    let coder = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"].map(split).to_vec();
    let text = "I'll pay 12345 € for naïve 日本語 text,\r\n\r\n  don't   you?\t\n ";
    for (name, normalizer, pre_tokenizer) in [
        ("GLM-4", Value::Null, pre(vec![split(llama3)])),
        ("Ling", Value::Null, pre(vec![split(bailing)])),
        ("PLM", json!({"type": "NFC"}), pre(vec![split(llama3)])),
        ("DeepSeek-V2", sequence(vec![]), pre([coder, vec![digits]].concat())),
        ("GPT-2", Value::Null, json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true})),
    ] {
        let mut file = with("normalizer", normalizer);
        file["pre_tokenizer"] = pre_tokenizer;
        file["post_processor"] =
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true});
        let tokenizer = open(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        let ids = tokenizer.encode(text, PLAIN).unwrap();
        assert_eq!(tokenizer.decode(&ids, false), text, "{name}");
    }
}

/// MiniCPM3's tokenizer: SentencePiece converted to byte pairs.
#[test]
fn sentence_piece_as_byte_pairs() {
    let bytes: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut tokens = vec!["<unk>", "<s>", "</s>"];
    tokens.extend(bytes.iter().map(String::as_str));
    tokens.extend(["▁", "h", "e", "y", "he", "hey", "▁hey", "▁▁"]);
    let merges = [["h", "e"], ["he", "y"], ["▁", "hey"], ["▁", "▁"]];
    let mut file =
        small(&tokens, &merges, json!({"unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true}));
    file["normalizer"] = sequence(vec![
        json!({"type": "Prepend", "prepend": "▁"}),
        json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
    ]);
    file["decoder"] = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    file["added_tokens"] =
        json!([{"id": 1, "content": "<s>", "special": true}, {"id": 2, "content": "</s>", "special": true}]);
    file["post_processor"] = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {}});
    let config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}});
    let tokenizer = Tokenizer::from_hf(&serde_json::to_vec(&file).unwrap(), Some(&config), None).unwrap();
    assert!(tokenizer.adds_bos());
    let ids =
        tokenizer.encode("hey  hey é", EncodeOptions { add_special: true, parse_special: false }).unwrap();
    let texts: Vec<&str> = ids.iter().map(|id| tokenizer.token_text(*id).unwrap()).collect();
    assert_eq!(texts, ["<s>", "▁hey", "▁", "▁hey", "▁", "<0xC3>", "<0xA9>"]);
    assert_eq!(tokenizer.decode(&ids, false), "hey  hey é");
}

/// Text with the name of a control token never becomes the token, even if merges or whole pieces
/// would produce it.
#[test]
fn text_never_becomes_a_control_token_by_merging() {
    let mut file = small(&["<", "s", ">", "<s", "<s>"], &[["<", "s"], ["<s", ">"]], json!({}));
    file["added_tokens"] = json!([{"id": 4, "content": "<s>", "special": true}]);
    for ignore_merges in [false, true] {
        file["model"]["ignore_merges"] = json!(ignore_merges);
        let tokenizer = open(&file).unwrap();
        assert_eq!(tokenizer.encode("<s>", PLAIN).unwrap(), [3, 2]);
        assert_eq!(
            tokenizer.encode("<s>", EncodeOptions { add_special: false, parse_special: true }).unwrap(),
            [4]
        );
    }
}

#[test]
fn tokens_with_lstrip_and_rstrip_absorb_white_space() {
    let mut file = demo();
    file["added_tokens"]
        .as_array_mut()
        .unwrap()
        .push(json!({"id": 2000, "content": "<r>", "rstrip": true, "special": true}));
    let tokenizer = open(&file).unwrap();
    let with_control = EncodeOptions { add_special: false, parse_special: true };
    assert_eq!(tokenizer.encode("<r>  a", with_control).unwrap()[1..], tokenizer.encode("a", PLAIN).unwrap());
    // A token can then stand for a text of any length.
    assert_eq!(tokenizer.longest_text(10), None);
}
