//! Two published vocabularies, against the ids of the models' own tokenizers.

use latent_formats::Checkpoint;
use latent_text::{Detokenizer, EncodeOptions, FimTokens, GgufVocab, Tokenizer};
use std::path::{Path, PathBuf};

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn vocabulary(name: &str) -> (Tokenizer, Vec<String>, Vec<Vec<u32>>) {
    let checkpoint = Checkpoint::open(&data(&format!("ggml-vocab-{name}.gguf"))).unwrap();
    let texts = std::fs::read_to_string(data(&format!("ggml-vocab-{name}.gguf.inp"))).unwrap();
    // The separator follows every text, including the last one.
    let mut texts: Vec<String> = texts.split("\n__ggml_vocab_test__\n").map(str::to_owned).collect();
    texts.pop();
    let ids = std::fs::read_to_string(data(&format!("ggml-vocab-{name}.gguf.out"))).unwrap();
    let numbers = |line: &str| line.split_whitespace().map(|n| n.parse().unwrap()).collect();
    (Tokenizer::from_checkpoint(&checkpoint).unwrap(), texts, ids.lines().map(numbers).collect())
}

#[test]
fn ids_equal_those_of_the_models_own_tokenizer() {
    for name in ["deepseek-llm", "deepseek-coder"] {
        let (tokenizer, texts, ids) = vocabulary(name);
        assert_eq!(texts.len(), ids.len(), "{name}");
        for (text, ids) in texts.iter().zip(&ids) {
            assert_eq!(&tokenizer.encode(text, PLAIN).unwrap(), ids, "{name}: {text:?}");
            assert_eq!(&tokenizer.decode(ids, false), text, "{name}: {text:?}");
        }
    }
}

#[test]
fn a_stream_never_emits_half_a_character() {
    let (tokenizer, texts, ids) = vocabulary("deepseek-llm");
    for (text, ids) in texts.iter().zip(&ids) {
        let mut stream = Detokenizer::new(&tokenizer, false);
        let mut whole = String::new();
        for id in ids {
            whole.push_str(&stream.push(*id));
            assert!(text.starts_with(&whole), "{text:?} does not begin with {whole:?}");
        }
        assert_eq!(whole + &stream.finish(), *text);
    }
    // An emoji without its last byte.
    let bytes = tokenizer.encode("🙂", PLAIN).unwrap();
    let mut stream = Detokenizer::new(&tokenizer, false);
    let begun: String = bytes[..bytes.len() - 1].iter().map(|id| stream.push(*id)).collect();
    assert_eq!((begun.as_str(), stream.finish().as_str()), ("", "\u{fffd}"));
}

#[test]
fn control_tokens_are_parsed_only_when_asked() {
    let (tokenizer, _, _) = vocabulary("deepseek-llm");
    let bos = tokenizer.token_text(tokenizer.bos().unwrap()).unwrap().to_owned();
    let text = format!("{bos}Hello");
    let parsed = tokenizer.encode(&text, EncodeOptions { add_special: false, parse_special: true }).unwrap();
    assert_eq!(parsed[0], tokenizer.bos().unwrap());
    let plain = tokenizer.encode(&text, PLAIN).unwrap();
    assert!(!plain.contains(&tokenizer.bos().unwrap()));
    assert_eq!(tokenizer.decode(&plain, false), text);
    assert!(tokenizer.end_of_generation().contains(&tokenizer.eos().unwrap()));
}

#[test]
fn a_megabyte_of_one_letter_is_encoded() {
    let (tokenizer, _, _) = vocabulary("deepseek-llm");
    for text in ["a".repeat(1 << 20), " ".repeat(1 << 20), "\n".repeat(1 << 18)] {
        let ids = tokenizer.encode(&text, PLAIN).unwrap();
        assert_eq!(tokenizer.decode(&ids, false), text);
    }
}

/// A byte-level vocabulary with all bytes and a few merges.
fn small<'a>(pre: &'a str, tokens: &'a [String], merges: &'a [String]) -> GgufVocab<'a> {
    GgufVocab {
        model: "gpt2",
        pre: Some(pre),
        tokens: tokens.iter().map(String::as_bytes).collect(),
        merges: Some(merges.iter().map(String::as_bytes).collect()),
        ..GgufVocab::default()
    }
}

fn bytes() -> Vec<String> {
    let mut moved = 0;
    (0..256u32)
        .map(|b| {
            let stands = matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            moved += u32::from(!stands);
            char::from_u32(if stands { b } else { 0x100 + moved - 1 }).unwrap().to_string()
        })
        .collect()
}

#[test]
fn fim_tokens_come_from_the_file_or_known_names() {
    let mut tokens = bytes();
    let names = ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "<|file_sep|>"];
    tokens.extend(names.map(str::to_owned));
    let first = 256;
    let vocab = small("deepseek-coder", &tokens, &[]);
    let named = Tokenizer::from_gguf(&vocab).unwrap();
    let expected = FimTokens {
        prefix: Some(first),
        suffix: Some(first + 1),
        middle: Some(first + 2),
        file: Some(first + 3),
        ..FimTokens::default()
    };
    assert_eq!(named.fim_tokens(), expected);
    assert!(named.fim_tokens().missing().is_empty());
    // The file separator ends the generation: the text of another file would follow.
    assert!(named.end_of_generation().contains(&(first + 3)));
    // The file's ids have priority, unless the vocabulary lacks them.
    let fim = FimTokens { prefix: Some(65), suffix: Some(u32::MAX), ..FimTokens::default() };
    let tokenizer = Tokenizer::from_gguf(&GgufVocab { fim, ..vocab }).unwrap();
    assert_eq!(tokenizer.fim_tokens(), FimTokens { prefix: Some(65), ..expected });
    let without = Tokenizer::from_gguf(&small("deepseek-coder", &tokens[..257], &[])).unwrap();
    assert_eq!(without.fim_tokens().missing(), ["suffix", "middle"]);
}

#[test]
fn every_pre_tokenizer_compiles_and_keeps_the_text() {
    let tokens = bytes();
    let text = "I'll pay 12345 € for naïve 日本語 text,\r\n\r\n  don't   you?  नमस्ते ไทย 한국어 ㄅㄆ ！…\t\n ";
    for pre in [
        "deepseek-llm",
        "deepseek-coder",
        "deepseek-v3",
        "glm4",
        "kimi-k2",
        "youtu",
        "gigachat",
        "gpt-4o",
        "tekken",
        "qwen2",
        "bailingmoe2",
        "llama-bpe",
        "gpt-2",
    ] {
        let tokenizer = Tokenizer::from_gguf(&small(pre, &tokens, &[])).unwrap();
        let ids = tokenizer.encode(text, PLAIN).unwrap();
        assert_eq!(ids.len(), text.len(), "{pre}");
        assert_eq!(tokenizer.decode(&ids, false), text, "{pre}");
    }
}

#[test]
fn unknown_rules_are_refused_with_the_known_ones() {
    let tokens = bytes();
    for pre in ["default", "nonsense"] {
        let error = Tokenizer::from_gguf(&small(pre, &tokens, &[])).err().unwrap().to_string();
        assert!(error.contains(pre) && error.contains("deepseek-v3"), "{error}");
    }
    let model = GgufVocab { model: "bert", ..small("gpt-2", &tokens, &[]) };
    assert!(Tokenizer::from_gguf(&model).err().unwrap().to_string().contains("bert"));
    let merges = ["ab".to_owned()];
    assert!(
        Tokenizer::from_gguf(&small("gpt-2", &tokens, &merges)).err().unwrap().to_string().contains("ab")
    );
    let short = GgufVocab { token_types: Some(vec![1]), ..small("gpt-2", &tokens, &[]) };
    assert!(Tokenizer::from_gguf(&short).is_err());
}

#[test]
fn merges_do_not_cross_splits() {
    let mut tokens = bytes();
    tokens.extend(["12", "123", "1234", "ab", "abc"].map(str::to_owned));
    let merges = ["1 2", "12 3", "123 4", "a b", "ab c"].map(str::to_owned);
    let count = |pre: &str, text: &str| {
        Tokenizer::from_gguf(&small(pre, &tokens, &merges)).unwrap().encode(text, PLAIN).unwrap().len()
    };
    // Runs of digits: at most three in deepseek-v3, one in deepseek-coder, any number in
    // deepseek-llm.
    assert_eq!(
        [count("deepseek-v3", "1234"), count("deepseek-coder", "1234"), count("deepseek-llm", "1234")],
        [2, 4, 1]
    );
    assert_eq!(count("gpt-2", "abcabc"), 2);
}

#[test]
fn sentence_piece_merges_by_score_and_falls_back_to_bytes() {
    let mut tokens: Vec<String> = vec!["<unk>".into(), "<s>".into(), "</s>".into()];
    tokens.extend((0..256).map(|b| format!("<0x{b:02X}>")));
    let pieces = ["▁", "a", "b", "c", "ab", "bc", "▁a", "abc", "▁ab"];
    tokens.extend(pieces.map(str::to_owned));
    let mut scores = vec![0.0; 259];
    scores.extend([-9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -4.0, -5.0]);
    let mut types = vec![2, 3, 3];
    types.extend([6; 256]);
    types.extend([1; 9]);
    let vocab = GgufVocab {
        model: "llama",
        tokens: tokens.iter().map(String::as_bytes).collect(),
        scores: Some(scores),
        token_types: Some(types),
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        ..GgufVocab::default()
    };
    let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
    let texts = |text: &str| -> Vec<&str> {
        let ids = tokenizer.encode(text, PLAIN).unwrap();
        ids.iter().map(|id| tokenizer.token_text(*id).unwrap()).collect()
    };
    // "bc" has the best score, so "ab" is not merged. Then "▁a" precedes "abc".
    assert_eq!(texts("abc"), ["▁a", "bc"]);
    assert_eq!(texts("ab"), ["▁ab"]);
    assert_eq!(texts("é"), ["▁", "<0xC3>", "<0xA9>"]);
    let ids = tokenizer.encode("ab é c", EncodeOptions { add_special: true, parse_special: false }).unwrap();
    assert_eq!(ids[0], 1);
    assert_eq!(tokenizer.decode(&ids, false), "ab é c");
}
