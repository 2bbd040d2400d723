//! Encodes any text with real vocabularies, and decodes it.

use crate::source::FuzzSource;
use crate::tokenizer_json::{all_options, check_token_limit};
use latent_formats::Checkpoint;
use latent_text::{Detokenizer, EncodeOptions, GgufVocab, Tokenizer};
use std::path::Path;
use std::sync::OnceLock;

/// Files with a byte-level vocabulary, relative to the `crates` folder.
const FILES: [&str; 3] = [
    "../models/mla-demo-Q4_K_M.gguf",
    "text/tests/data/ggml-vocab-deepseek-llm.gguf",
    "text/tests/data/ggml-vocab-deepseek-coder.gguf",
];

/// Encodes a text with the vocabulary that the first byte chooses. Decoding must return the same
/// text: as a whole, by pieces, and streamed.
///
/// # Panics
/// If it does not.
pub fn encode(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let chosen = source.below(FILES.len() + 1);
    // Repetition makes long texts from short inputs.
    let times = *source.pick(&[1, 1, 1, 2, 7, 100]);
    let text = source.rest().repeat(times);
    if chosen < FILES.len() {
        byte_level(vocabulary(chosen), &text);
    } else {
        sentence_piece(&text);
    }
}

fn byte_level(tokenizer: &Tokenizer, text: &str) {
    for how in all_options() {
        let ids = tokenizer.encode(text, how).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        check_token_limit(tokenizer, text, how, &ids);
        let bos = usize::from(how.add_special && tokenizer.adds_bos());
        assert_eq!(ids.first().filter(|_| bos > 0).copied(), tokenizer.bos().filter(|_| bos > 0));
        let ids = &ids[bos..];
        let pieces: Vec<u8> =
            ids.iter().flat_map(|id| tokenizer.piece(*id).unwrap_or_default()).copied().collect();
        assert_eq!(pieces, text.as_bytes(), "{how:?}");
        assert_eq!(tokenizer.decode(ids, true), text, "{how:?}");
        let mut stream = Detokenizer::new(tokenizer, true);
        let streamed: String = ids.iter().map(|id| stream.push(*id)).collect();
        assert!(text.starts_with(&streamed), "{streamed:?} of {text:?}");
        assert_eq!(streamed + &stream.finish(), text, "{how:?}");
        if !how.parse_special {
            assert!(
                ids.iter().all(|id| !tokenizer.is_control(*id)),
                "{text:?} became control tokens: {ids:?}"
            );
        }
    }
}

fn vocabulary(chosen: usize) -> &'static Tokenizer {
    static ALL: [OnceLock<Tokenizer>; FILES.len()] = [const { OnceLock::new() }; FILES.len()];
    ALL[chosen].get_or_init(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates").join(FILES[chosen]);
        let checkpoint = Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}"));
        Tokenizer::from_checkpoint(&checkpoint).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    })
}

/// A SentencePiece vocabulary with scores and byte fallback. It encodes a space as U+2581 and
/// decodes U+2581 as a space, so a text that contains U+2581 does not return unchanged.
fn sentence_piece(text: &str) {
    const PIECES: [&str; 12] = ["▁", "a", "b", "c", "ab", "bc", "▁a", "abc", "▁ab", "▁▁", "é", "日本"];
    static BUILT: OnceLock<Tokenizer> = OnceLock::new();
    let tokenizer = BUILT.get_or_init(|| {
        let controls = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter();
        let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
        let tokens: Vec<String> = controls.chain(bytes).chain(PIECES.map(str::to_owned)).collect();
        let vocab = GgufVocab {
            model: "llama",
            tokens: tokens.iter().map(String::as_bytes).collect(),
            // Some scores are equal, and their order is not that of the ids.
            scores: Some((0..tokens.len()).map(|id| -((id * 37 % 11) as f32)).collect()),
            // llama.cpp's token types: 1 is normal, 2 is unknown, 3 is control, 6 is a byte.
            token_types: Some([2, 3, 3].into_iter().chain([6; 256]).chain([1; PIECES.len()]).collect()),
            bos: Some(1),
            eos: Some(2),
            unknown: Some(0),
            ..GgufVocab::default()
        };
        Tokenizer::from_gguf(&vocab).unwrap_or_else(|error| panic!("{error}"))
    });
    let how = EncodeOptions { add_special: true, parse_special: false };
    let ids = tokenizer.encode(text, how).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    assert_eq!(ids[0], 1);
    assert_eq!(tokenizer.decode(&ids, false), text.replace('▁', " "));
}
