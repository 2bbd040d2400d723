//! Memory of tokenization: at most 40 bytes per byte of text, and with a limit of tokens, only as
//! much as that many tokens need.
#![allow(missing_docs, reason = "tests")]
#![allow(unsafe_code, reason = "an allocator that counts")]

use latent_formats::Checkpoint;
use latent_text::{EncodeOptions, GgufVocab, TextError, Tokenizer};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

/// Bytes in use and their peak.
struct TextAllocator;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator with the arguments given.
unsafe impl GlobalAlloc for TextAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both allocations exist while one is copied into the other.
        grow(size);
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

fn grow(bytes: usize) {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(now, Ordering::Relaxed);
}

#[global_allocator]
static ALLOCATOR: TextAllocator = TextAllocator;

/// The peak of bytes in use, less those in use before the call.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = work();
    (result, PEAK.load(Ordering::Relaxed) - before)
}

fn data(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn gguf(name: &str) -> Tokenizer {
    Tokenizer::from_checkpoint(&Checkpoint::open(&data(name)).unwrap()).unwrap()
}

/// The demo's tokenizer with NFC, which must copy its text.
fn normalizing() -> Tokenizer {
    let mut file: serde_json::Value =
        serde_json::from_slice(&std::fs::read(data("demo/tokenizer.json")).unwrap()).unwrap();
    file["normalizer"] = serde_json::json!({"type": "NFC"});
    Tokenizer::from_hf(&serde_json::to_vec(&file).unwrap(), None, None).unwrap()
}

/// A vocabulary of SentencePiece, which merges a whole text without splitting it first.
fn sentence_piece() -> Tokenizer {
    let mut tokens: Vec<String> = vec!["<unk>".into(), "<s>".into(), "</s>".into()];
    tokens.extend((0..256).map(|b| format!("<0x{b:02X}>")));
    let pieces = ["▁", "a", "aa", "aaaa", "▁▁", "▁a", "a▁", "th", "e", "the", "t", "h"];
    tokens.extend(pieces.map(str::to_owned));
    let count = tokens.len();
    let vocab = GgufVocab {
        model: "llama",
        tokens: tokens.iter().map(String::as_bytes).collect(),
        scores: Some((0..count).map(|i| -(i as f32)).collect()),
        token_types: Some(
            (0..count).map(|i| [2, 3, 3].get(i).copied().unwrap_or(if i < 259 { 6 } else { 1 })).collect(),
        ),
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        ..GgufVocab::default()
    };
    Tokenizer::from_gguf(&vocab).unwrap()
}

const MEGABYTE: usize = 1 << 20;

/// Texts that are split often and texts that are never split, with their own tokens and with byte
/// fallback.
fn texts() -> Vec<(&'static str, String)> {
    let units = [
        "a",
        "ab",
        " ",
        "\n",
        " \n",
        "the quick brown fox ",
        "1",
        "12345 ",
        "é",
        "e\u{301}",
        "日本語",
        "一",
        "🙂",
        "!?",
        "\u{7f}",
        "\u{fffd}",
        "x\u{301}\u{323}",
        "ａ",
        "The Cat",
        "\u{3000}",
    ];
    units.iter().map(|unit| (*unit, unit.repeat(MEGABYTE / unit.len()))).collect()
}

/// A single test, because the allocator counts all threads of the process.
#[test]
fn tokenization_needs_at_most_forty_bytes_per_byte() {
    let tokenizers = [
        ("deepseek-llm", gguf("ggml-vocab-deepseek-llm.gguf")),
        ("deepseek-coder", gguf("ggml-vocab-deepseek-coder.gguf")),
        ("demo", gguf("../../../../models/mla-demo-Q4_K_M.gguf")),
        ("normalizing", normalizing()),
        ("sentence piece", sentence_piece()),
    ];
    let mut wrong = Vec::new();
    let mut most = 0;
    for (name, tokenizer) in &tokenizers {
        // The first search allocates the caches of the patterns.
        tokenizer.encode("warm é 日 12 \n 🙂!", PLAIN).unwrap();
        for (unit, text) in texts() {
            let (ids, peak) = peak_of(|| tokenizer.encode(&text, PLAIN).unwrap());
            assert!(tokenizer.decode(&ids, false).len() >= text.len() / 2, "{name} {unit:?}");
            // Each pattern has up to two caches of 2 MB.
            let per_byte = peak.saturating_sub(CONSTANT) / (text.len() / 10);
            most = most.max(per_byte);
            if per_byte > 400 {
                wrong.push(format!("{name}, {unit:?}: {}.{} bytes for each", per_byte / 10, per_byte % 10));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    println!("at most {}.{} bytes for each byte of text", most / 10, most % 10);
    limits(&tokenizers[0].1);
}

/// Memory that does not depend on the text.
const CONSTANT: usize = 4 << 20;

/// The memory for a rejected text is bounded by the limit, not by the length of the text.
fn limits(tokenizer: &Tokenizer) {
    let text = "the quick brown fox ".repeat(1_500_000);
    let longest = tokenizer.longest_text(4096).unwrap();
    assert!(longest < text.len() && longest >= 4096);
    let (result, peak) = peak_of(|| tokenizer.encode_within(&text, PLAIN, 4096));
    assert!(matches!(result, Err(TextError::TooLong { bytes: 30_000_000, limit: 4096, .. })));
    assert!(peak < 4096, "{peak} bytes before a text is refused by its length");
    // A shorter text is rejected only when its tokens exceed the limit.
    let text = &text[..longest];
    let (result, peak) = peak_of(|| tokenizer.encode_within(text, PLAIN, 4096));
    assert!(matches!(result, Err(TextError::TooLong { bytes, limit: 4096, .. }) if bytes == longest));
    assert!(peak < CONSTANT, "{peak} bytes before a text of {longest} bytes is refused");
    let ids = tokenizer.encode("the quick brown fox", PLAIN).unwrap();
    assert_eq!(tokenizer.encode_within("the quick brown fox", PLAIN, ids.len()).unwrap(), ids);
    assert!(tokenizer.encode_within("the quick brown fox", PLAIN, ids.len() - 1).is_err());
    let with_bos = EncodeOptions { add_special: true, parse_special: false };
    let mut all = vec![tokenizer.bos().unwrap()];
    all.extend(&ids);
    if tokenizer.adds_bos() {
        assert_eq!(tokenizer.encode_within("the quick brown fox", with_bos, all.len()).unwrap(), all);
        assert!(tokenizer.encode_within("the quick brown fox", with_bos, all.len() - 1).is_err());
    }
}
