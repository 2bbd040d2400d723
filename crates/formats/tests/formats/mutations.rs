//! Mutated files: fields of a valid header changed to the values at which loaders break, bits
//! flipped, ends cut off. Whatever the result, it is an error or a checkpoint whose every tensor
//! and value can be read; nothing panics.
#![allow(clippy::print_stdout, reason = "what was counted")]

use crate::support::*;
use latent_formats::gguf::{Header, Value};
use latent_formats::pack::Directory;
use latent_formats::{Checkpoint, safetensors};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::Cell;

/// Number of files per run. All tests together mutate more than 30 000.
const GGUF_FILES: u32 = 16_000;
const SAFETENSORS_FILES: u32 = 8_000;
const INDEX_FILES: u32 = 500;
const PACKED_FILES: u32 = 8_000;

/// Numbers at which sizes wrap, signs change, or limits are reached.
fn hostile() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..70,
        Just(u64::MAX),
        any::<u64>(),
        (0u32..64, -2i64..3).prop_map(|(bit, off)| (1u64 << bit).wrapping_add_signed(off)),
    ]
}

/// A change of a field of a GGUF file.
#[derive(Clone, Debug)]
enum HeaderMutation {
    Version(u32),
    TensorCount(u64),
    KeyCount(u64),
    KeyType(usize, u32),
    KeyBytes(usize, usize, u64),
    KeyName(usize, Vec<u8>),
    CopyKey(usize),
    Alignment(u32),
    TensorName(usize, Vec<u8>),
    TensorType(usize, u32),
    Dimensions(usize, u32),
    Size(usize, usize, u64),
    Offset(usize, u64),
    CopyTensor(usize),
    Data(usize),
}

fn change() -> impl Strategy<Value = HeaderMutation> {
    use HeaderMutation::*;
    let at = 0..8usize;
    let name = prop::collection::vec(any::<u8>(), 0..5);
    prop_oneof![
        any::<u32>().prop_map(Version),
        hostile().prop_map(TensorCount),
        hostile().prop_map(KeyCount),
        (at.clone(), 0..15u32).prop_map(|(i, ty)| KeyType(i, ty)),
        (at.clone(), 0..24usize, hostile()).prop_map(|(i, at, n)| KeyBytes(i, at, n)),
        (at.clone(), name.clone()).prop_map(|(i, name)| KeyName(i, name)),
        at.clone().prop_map(CopyKey),
        hostile().prop_map(|n| Alignment(n as u32)),
        (at.clone(), name).prop_map(|(i, name)| TensorName(i, name)),
        (at.clone(), prop_oneof![0..45u32, any::<u32>()]).prop_map(|(i, ty)| TensorType(i, ty)),
        (at.clone(), 0..7u32).prop_map(|(i, n)| Dimensions(i, n)),
        (at.clone(), 0..4usize, hostile()).prop_map(|(i, at, n)| Size(i, at, n)),
        (at.clone(), hostile()).prop_map(|(i, n)| Offset(i, n)),
        at.prop_map(CopyTensor),
        (0..100usize).prop_map(Data),
    ]
}

/// A file with a value of every type.
fn rich() -> RawGguf {
    let strings = [string("ab"), string(""), string("c")].concat();
    let mut file = RawGguf::valid()
        .with_key("tokenizer.ggml.tokens", ARRAY, &array(STRING, 3, &strings))
        .with_key("list", ARRAY, &array(I32, 3, &[7; 12]))
        .with_key("split.count", 2, &[1, 0])
        .with_key("flag", 7, &[1])
        .with_key("f", F32, &1.5f32.to_le_bytes())
        .with_key("wide", 12, &2.5f64.to_le_bytes());
    file.tensors.push(tensor("q", &[32, 2], 8, 64));
    file.data.extend([1; 68]);
    file
}

fn apply(file: &mut RawGguf, change: HeaderMutation) {
    use HeaderMutation::*;
    let (keys, tensors) = (file.keys.len(), file.tensors.len());
    match change {
        Version(n) => file.version = n,
        TensorCount(n) => file.tensor_count = Some(n),
        KeyCount(n) => file.key_count = Some(n),
        KeyType(i, ty) => file.keys[i % keys].1 = ty,
        KeyBytes(i, at, n) => {
            let value = &mut file.keys[i % keys].2;
            let at = at % (value.len() + 1);
            let len = (value.len() - at).min(8);
            value[at..at + len].copy_from_slice(&n.to_le_bytes()[..len]);
        }
        KeyName(i, name) => file.keys[i % keys].0 = name,
        CopyKey(i) => file.keys.push(file.keys[i % keys].clone()),
        Alignment(n) => file.keys.push((b"general.alignment".to_vec(), U32, n.to_le_bytes().to_vec())),
        TensorName(i, name) => file.tensors[i % tensors].name = name,
        TensorType(i, ty) => file.tensors[i % tensors].ty = ty,
        Dimensions(i, n) => file.tensors[i % tensors].dimensions = Some(n),
        Size(i, at, n) => {
            let sizes = &mut file.tensors[i % tensors].sizes;
            let at = at % sizes.len();
            sizes[at] = n;
        }
        Offset(i, n) => file.tensors[i % tensors].offset = n,
        CopyTensor(i) => file.tensors.push(file.tensors[i % tensors].clone()),
        Data(len) => file.data.truncate(len),
    }
}

/// Changes of bytes: flipped bits, then truncation.
fn damage() -> impl Strategy<Value = (Vec<(prop::sample::Index, u8)>, Option<prop::sample::Index>)> {
    let flips = prop_oneof![
        3 => Just(Vec::new()),
        1 => prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ];
    (flips, prop_oneof![4 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)])
}

fn damaged(
    mut bytes: Vec<u8>,
    flips: &[(prop::sample::Index, u8)],
    cut: Option<prop::sample::Index>,
) -> Vec<u8> {
    for (at, bits) in flips {
        let at = at.index(bytes.len());
        bytes[at] ^= bits;
    }
    if let Some(cut) = cut {
        bytes.truncate(cut.index(bytes.len()));
    }
    bytes
}

/// Reads all values and tensors of a header.
fn read_all(header: &Header, len: usize) {
    for tensor in &header.tensors {
        assert!(tensor.start + tensor.bytes <= len as u64 && tensor.start >= header.data_start);
    }
    let metadata = &header.metadata;
    for (key, value) in metadata.entries() {
        let _ =
            (metadata.u64(key), metadata.f64(key), metadata.bool(key), metadata.str(key), value.describe());
        let strings = metadata.strings(key).ok().flatten().map(|list| list.len());
        let numbers = metadata.numbers(key).ok().flatten().map(|list| list.len());
        if let Value::Array(array) = value {
            assert_eq!(strings.or(numbers), Some(array.count), "{key}");
        }
    }
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}

#[test]
fn gguf() {
    let (read, refused) = (Cell::new(0), Cell::new(0));
    let strategy = (prop::collection::vec(change(), 0..4), damage());
    let checked = runner(GGUF_FILES).run(&strategy, |(changes, (flips, cut))| {
        let mut file = rich();
        changes.into_iter().for_each(|change| apply(&mut file, change));
        let bytes = damaged(file.bytes(), &flips, cut);
        match Header::parse(&bytes, bytes.len() as u64) {
            Ok(header) => {
                read_all(&header, bytes.len());
                read.set(read.get() + 1);
            }
            Err(error) => {
                prop_assert!(!error.to_string().is_empty());
                refused.set(refused.get() + 1);
            }
        }
        // The same bytes as the start of a longer file.
        let _ = Header::parse(&bytes, u64::MAX);
        Ok(())
    });
    checked.unwrap();
    assert_both(read.get(), refused.get(), GGUF_FILES);
}

/// Packed files with a correct prelude for the changed body, so that lengths and checksum do not
/// reject them first.
#[test]
fn packed_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.latent");
    let (read, refused) = (Cell::new(0), Cell::new(0));
    let strategy = (prop::collection::vec(change(), 0..3), damage());
    let checked = runner(PACKED_FILES).run(&strategy, |(changes, (flips, cut))| {
        let mut file = packed_body();
        changes.into_iter().for_each(|change| apply(&mut file, change));
        let bytes = packed(&damaged(file.bytes(), &flips, cut));
        match Directory::parse(&bytes) {
            Ok(directory) => {
                for tensor in &directory.tensors {
                    prop_assert!(tensor.start >= directory.data_start);
                    prop_assert!(tensor.start + tensor.bytes <= bytes.len() as u64);
                    prop_assert!(tensor.start.is_multiple_of(4096));
                }
                read.set(read.get() + 1);
                std::fs::write(&path, &bytes).unwrap();
                match Checkpoint::open(&path) {
                    Ok(checkpoint) => {
                        for tensor in checkpoint.tensors() {
                            let data = checkpoint.tensor(&tensor.name).unwrap().data;
                            prop_assert_eq!(data.len(), tensor.bytes);
                        }
                    }
                    Err(error) => prop_assert!(error.to_string().contains("model.latent")),
                }
            }
            Err(error) => {
                prop_assert!(!error.to_string().is_empty());
                refused.set(refused.get() + 1);
            }
        }
        Ok(())
    });
    checked.unwrap();
    assert_both(read.get(), refused.get(), PACKED_FILES);
}

/// The same files with the original prelude.
#[test]
fn damaged_packed_files_are_refused() {
    let whole = packed(&packed_body().bytes());
    assert!(Directory::parse(&whole).is_ok());
    let header = 4096 + 4096;
    let checked = runner(2000).run(&damage(), |(flips, cut)| {
        let bytes = damaged(whole.clone(), &flips, cut);
        // The padding of the prelude and the weights have no checksum.
        if bytes.len() == whole.len()
            && (bytes[..40] == whole[..40] && bytes[4096..header] == whole[4096..header])
        {
            return Ok(());
        }
        prop_assert!(Directory::parse(&bytes).is_err());
        Ok(())
    });
    checked.unwrap();
}

/// Both outcomes must be common. Otherwise the mutations test little.
fn assert_both(read: u32, refused: u32, files: u32) {
    println!("{files} files: {read} read, {refused} refused");
    assert!(
        read + refused == files && read > files / 20 && refused > files / 4,
        "{read} read, {refused} refused"
    );
}

/// The text of a safetensors header with one token replaced.
fn header_text() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        6 => Just(None),
        1 => hostile().prop_map(|n| Some(n.to_string())),
        1 => prop::sample::select(vec!["-1", "1.5", "1e300", "null", "\"4\"", "[]", "{}", "18446744073709551616"])
            .prop_map(|text| Some(text.to_owned())),
    ];
    let word = prop_oneof![
        8 => Just(None),
        1 => prop::sample::select(vec!["F8_E4M3", "F8_E5M2", "BOOL", "I64", "F64", "U16", "", "f32", "Q4_0"]).prop_map(Some),
    ];
    let name = prop_oneof![8 => Just("b"), 1 => Just("a"), 1 => Just("__metadata__"), 1 => Just("\\ud800"), 1 => Just("\\n")];
    (prop::collection::vec(number, 6), word, name).prop_map(|(numbers, word, name)| {
        let n = |i: usize, usual: &str| numbers[i].clone().unwrap_or_else(|| usual.to_owned());
        format!(
            r#"{{"__metadata__":{{"format":"pt"}},"a":{{"dtype":"{}","shape":[{},{}],"data_offsets":[{},16]}},"{name}":{{"dtype":"BF16","shape":[{}],"data_offsets":[{},{}]}}}}"#,
            word.unwrap_or("F32"),
            n(0, "2"),
            n(1, "2"),
            n(2, "0"),
            n(3, "4"),
            n(4, "16"),
            n(5, "24"),
        )
    })
}

#[test]
fn safetensors_headers() {
    let (read, refused) = (Cell::new(0), Cell::new(0));
    let checked = runner(SAFETENSORS_FILES).run(&(header_text(), damage()), |(text, (flips, cut))| {
        let bytes = damaged(safetensors(&text, 24), &flips, cut);
        match safetensors::list(&bytes) {
            Ok(tensors) => {
                let held: usize = tensors.iter().map(|(.., range)| bytes[range.clone()].len()).sum();
                prop_assert!(held <= bytes.len());
                read.set(read.get() + 1);
            }
            Err(error) => {
                prop_assert!(!error.to_string().is_empty());
                refused.set(refused.get() + 1);
            }
        }
        let _ = safetensors::Header::parse(&bytes, u64::MAX);
        Ok(())
    });
    checked.unwrap();
    assert_both(read.get(), refused.get(), SAFETENSORS_FILES);
}

/// Folders in which one file is damaged: config.json, tokenizer_config.json, index or weights.
#[test]
fn folders() {
    let (read, refused) = (Cell::new(0), Cell::new(0));
    let index = r#"{"metadata":{"total_size":16},"weight_map":{"a":"w.safetensors"}}"#;
    let weights = safetensors(r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#, 16);
    let files: [(&str, &[u8]); 4] = [
        ("config.json", br#"{"model_type":"deepseek_v3","rope_scaling":{"factor":40.0,"type":"yarn"}}"#),
        ("tokenizer_config.json", br#"{"chat_template":[{"name":"default","template":"x"}]}"#),
        ("model.safetensors.index.json", index.as_bytes()),
        ("w.safetensors", &weights),
    ];
    let folder = tempfile::tempdir().unwrap();
    let strategy = (0..files.len(), damage());
    let checked = runner(INDEX_FILES).run(&strategy, |(which, (flips, cut))| {
        for (i, (name, bytes)) in files.iter().enumerate() {
            let bytes = if i == which { damaged(bytes.to_vec(), &flips, cut) } else { bytes.to_vec() };
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        match Checkpoint::open(folder.path()) {
            Ok(checkpoint) => {
                for tensor in checkpoint.tensors() {
                    prop_assert_eq!(checkpoint.tensor(&tensor.name).unwrap().data.len(), tensor.bytes);
                }
                read.set(read.get() + 1);
            }
            Err(error) => {
                prop_assert!(error.to_string().contains(&folder.path().display().to_string()), "{}", error);
                refused.set(refused.get() + 1);
            }
        }
        Ok(())
    });
    checked.unwrap();
    assert!(read.get() > 0 && refused.get() > 0);
}
