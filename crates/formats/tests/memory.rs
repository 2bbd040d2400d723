//! Memory of opening a file: at most 4 × the bytes of its metadata + 64 MB, whatever the file
//! claims. Writing needs almost none.
//!
//! A separate program with one test, because the allocator counts all threads.
#![allow(clippy::print_stdout, reason = "what was counted")]
#![allow(unsafe_code, reason = "an allocator that counts")]

mod support;

use latent_formats::{Checkpoint, gguf, safetensors};
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use support::*;

struct PeakHeapCounter;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed to the system's allocator; only sums are kept.
unsafe impl GlobalAlloc for PeakHeapCounter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(NOW.fetch_add(layout.size(), SeqCst) + layout.size(), SeqCst);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), SeqCst);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

// `realloc` is the trait's own: allocate, copy, free. It counts old and new together, as the worst
// case of a real one does.

#[global_allocator]
static ALLOCATOR: PeakHeapCounter = PeakHeapCounter;

/// The peak of bytes in use during `f`, less those in use before.
fn peak<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.load(SeqCst);
    PEAK.store(before, SeqCst);
    let result = f();
    (result, PEAK.load(SeqCst) - before)
}

/// Opens the model at `path`, which has `metadata` bytes of metadata, and checks the peak against
/// the limit.
fn check(what: &str, path: &Path, metadata: usize, opens: bool) {
    let (result, peak) = peak(|| Checkpoint::open(path));
    let limit = 4 * metadata + 64_000_000;
    println!(
        "{what}: {metadata} bytes of metadata, peak {peak}, {:.0} % of the limit",
        100.0 * peak as f64 / limit as f64
    );
    assert!(peak <= limit, "{what}: opening took {peak} bytes, the limit is {limit}");
    if let Err(error) = &result {
        assert!(!opens, "{what}: {error}");
    } else {
        assert!(opens, "{what} was opened");
    }
}

fn gguf(what: &str, file: &RawGguf, opens: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let bytes = file.bytes();
    std::fs::write(&path, &bytes).unwrap();
    check(what, &path, bytes.len() - file.data.len(), opens);
}

fn folder(what: &str, files: &[(&str, Vec<u8>)], opens: bool) {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    check(what, dir.path(), files.iter().map(|(_, bytes)| bytes.len()).sum(), opens);
}

#[test]
fn memory_stays_bounded() {
    large_vocabularies_and_false_counts_in_gguf();
    gguf_lists();
    gguf_shards();
    folders_of_many_tensors();
    folders_with_oversized_json();
    writers_stream();
}

fn large_vocabularies_and_false_counts_in_gguf() {
    let tokens: Vec<u8> = (0..250_000).flat_map(|i| string(&format!("token{i}"))).collect();
    let file = RawGguf::valid().with_key("tokenizer.ggml.tokens", ARRAY, &array(STRING, 250_000, &tokens));
    gguf("250 000 tokens", &file, true);
    gguf("an array that lies", &RawGguf::valid().with_key("x", ARRAY, &array(12, 1 << 28, &[])), false);
    gguf("a string that lies", &RawGguf::valid().with_key("x", STRING, &(4u64 << 20).to_le_bytes()), false);
    gguf("tensors that lie", &RawGguf { tensor_count: Some(1 << 16), ..RawGguf::valid() }, false);
    gguf("keys that lie", &RawGguf { key_count: Some(1 << 14), ..RawGguf::valid() }, false);
    // Invalid UTF-8 grows threefold, because U+FFFD has three bytes.
    let broken = [&(4u64 << 20).to_le_bytes()[..], &[0xff; 4 << 20]].concat();
    let file = (0..16).fold(RawGguf::valid(), |file, i| file.with_key(&format!("k{i}"), STRING, &broken));
    gguf("64 MB of invalid UTF-8", &file, true);
}

fn gguf_lists() {
    let mut file = RawGguf::valid();
    file.keys = (0..1 << 14).map(|i| (format!("{i:x}").into_bytes(), 7, vec![1])).collect();
    gguf("the most keys", &file, true);
    let mut file = RawGguf::valid();
    file.tensors = (0..1 << 16).map(|i| tensor(&format!("{i:x}"), &[0, 1, 1, 1], 0, 0)).collect();
    gguf("the most tensors", &file, true);
}

fn gguf_shards() {
    let dir = tempfile::tempdir().unwrap();
    let count = 200u16;
    let mut metadata = 0;
    let name = |number| dir.path().join(format!("m-{:05}-of-{count:05}.gguf", number + 1));
    for number in 0..count {
        let mut file = RawGguf { tensors: Vec::new(), data: Vec::new(), ..RawGguf::valid() };
        file.keys = (0..8000).map(|i| (format!("{i:x}").into_bytes(), 7, vec![1])).collect();
        let file = file.with_key("split.no", 2, &number.to_le_bytes()).with_key(
            "split.count",
            2,
            &count.to_le_bytes(),
        );
        let bytes = file.bytes();
        metadata += bytes.len();
        std::fs::write(name(number), bytes).unwrap();
    }
    check("shards full of keys", &name(7), metadata, true);
}

fn folders_of_many_tensors() {
    let tensors = 1 << 19;
    let entry =
        |i: usize, shape: &str| format!(r#""{i:x}":{{"dtype":"I8","shape":{shape},"data_offsets":[0,0]}}"#);
    let header = |shape: &str| {
        let entries: Vec<String> = (0..tensors).map(|i| entry(i, shape)).collect();
        safetensors(&format!("{{{}}}", entries.join(",")), 0)
    };
    let config = ("config.json", b"{}".to_vec());
    folder("the most tensors", &[config.clone(), ("model.safetensors", header("[0]"))], true);
    let index: Vec<String> = (0..tensors).map(|i| format!(r#""{i:x}":"m.safetensors""#)).collect();
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, index.join(",")).into_bytes();
    let files = [
        config.clone(),
        ("m.safetensors", header("[0,1,1,1,1,1,1,1]")),
        ("model.safetensors.index.json", index),
    ];
    folder("the most tensors, of eight dimensions, with an index", &files, true);
    let described = format!("{{\"a\":{{\"dtype\":\"F32\",\"shape\":[{}1]}}}}", "1,".repeat(10 << 20));
    folder(
        "a shape without end",
        &[config.clone(), ("model.safetensors", safetensors(&described, 0))],
        false,
    );
    let lie = [&(90u64 << 20).to_le_bytes()[..], b"{}"].concat();
    folder("a header that lies", &[config, ("model.safetensors", lie)], false);
}

fn folders_with_oversized_json() {
    let weights = ("model.safetensors", safetensors("{}", 0));
    let numbers = |count: usize| format!("{{\"a\":[{}1]}}", "1,".repeat(count)).into_bytes();
    let objects: Vec<String> = (0..40_000).map(|_| r#"{"a":1}"#.to_owned()).collect();
    let objects = format!(r#"{{"a":[{}]}}"#, objects.join(",")).into_bytes();
    let keys: Vec<String> = (0..60_000).map(|i| format!(r#""{i:x}":1"#)).collect();
    let keys = format!("{{{}}}", keys.join(",")).into_bytes();
    for (what, json, opens) in [
        ("numbers", numbers(130_000), true),
        ("objects", objects, true),
        ("keys", keys, true),
        ("too many numbers", numbers(7 << 20), false),
        ("one long text", format!("{{\"a\":\"{}\"}}", "x".repeat(15 << 20)).into_bytes(), true),
        ("one long text with escapes", format!("{{\"a\":\"{}\"}}", "\\n".repeat(7 << 20)).into_bytes(), true),
    ] {
        let names = ["config.json", "tokenizer_config.json", "generation_config.json"];
        let mut files: Vec<(&str, Vec<u8>)> = names.iter().map(|name| (*name, json.clone())).collect();
        files.push(weights.clone());
        folder(&format!("three JSON files of {what}"), &files, opens);
    }
}

fn writers_stream() {
    let dir = tempfile::tempdir().unwrap();
    let chunk = vec![7u8; 1 << 16];
    let mut writer = gguf::Writer::new();
    writer.tensor("big", latent_types::TensorType::I8, &[1 << 10, 1 << 16]).unwrap();
    let mut file = File::create(dir.path().join("m.gguf")).unwrap();
    let send = |out: &mut dyn Write| (0..1 << 10).try_for_each(|_| out.write_all(&chunk));
    let (written, used) = peak(|| writer.write(&mut file, |_, out| send(out)));
    written.unwrap();
    assert!(used < 1 << 20, "writing 64 MB of GGUF took {used} bytes");
    let mut writer = safetensors::Writer::new();
    writer.tensor("big", latent_types::TensorType::I8, &[1 << 10, 1 << 16]).unwrap();
    let mut file = File::create(dir.path().join("m.safetensors")).unwrap();
    let (written, used) = peak(|| writer.write(&mut file, |_, out| send(out)));
    written.unwrap();
    assert!(used < 1 << 20, "writing 64 MB of safetensors took {used} bytes");
}
