//! Valid GGUF files: built by hand and by the writer, complete, in shards, and header only.

use crate::support::*;
use latent_formats::gguf::{GgufError, Header, Metadata, Value, Writer, WriterValue};
use latent_formats::{Checkpoint, CheckpointSource};
use latent_types::TensorType;
use std::path::Path;

fn write(writer: &Writer) -> Vec<u8> {
    let mut file = Vec::new();
    writer.write(&mut file, |_, _| panic!("no tensors")).unwrap();
    file
}

fn metadata(checkpoint: &Checkpoint) -> &Metadata {
    match checkpoint.source() {
        CheckpointSource::Gguf(source) => &source.metadata,
        CheckpointSource::HuggingFace(_) => panic!("it is GGUF"),
    }
}

#[test]
fn every_type_of_value_is_read_back() {
    let mut writer = Writer::new();
    let values = [
        ("u8", WriterValue::U8(u8::MAX), Value::Unsigned(u8::MAX.into())),
        ("i8", WriterValue::I8(i8::MIN), Value::Signed(i8::MIN.into())),
        ("u16", WriterValue::U16(u16::MAX), Value::Unsigned(u16::MAX.into())),
        ("i16", WriterValue::I16(i16::MIN), Value::Signed(i16::MIN.into())),
        ("u32", WriterValue::U32(u32::MAX), Value::Unsigned(u32::MAX.into())),
        ("i32", WriterValue::I32(i32::MIN), Value::Signed(i32::MIN.into())),
        ("u64", WriterValue::U64(u64::MAX), Value::Unsigned(u64::MAX)),
        ("i64", WriterValue::I64(i64::MIN), Value::Signed(i64::MIN)),
        ("f32", WriterValue::F32(-0.1), Value::Float(f64::from(-0.1f32))),
        ("f64", WriterValue::F64(0.1), Value::Float(0.1)),
        ("true", WriterValue::Bool(true), Value::Bool(true)),
        ("text", WriterValue::String("wörld".into()), Value::String("wörld".into())),
    ];
    for (key, value, _) in &values {
        writer.key(*key, value.clone());
    }
    let checkpoint = open(write(&writer)).unwrap();
    for (key, _, expected) in &values {
        assert_eq!(metadata(&checkpoint).get(key), Some(expected), "{key}");
    }
    let keys: Vec<&str> = metadata(&checkpoint).entries().iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, values.iter().map(|(key, ..)| *key).collect::<Vec<_>>(), "keys keep the file's order");
}

#[test]
fn every_type_of_array_is_read_back() {
    let lists = [
        ("u8", WriterValue::U8s(vec![0, 255]), vec![0.0, 255.0]),
        ("i8", WriterValue::I8s(vec![-128, 127]), vec![-128.0, 127.0]),
        ("u16", WriterValue::U16s(vec![1, 65535]), vec![1.0, 65535.0]),
        ("i16", WriterValue::I16s(vec![-32768, 5]), vec![-32768.0, 5.0]),
        ("u32", WriterValue::U32s(vec![u32::MAX]), vec![f64::from(u32::MAX)]),
        ("i32", WriterValue::I32s(vec![i32::MIN]), vec![f64::from(i32::MIN)]),
        ("u64", WriterValue::U64s(vec![1 << 53]), vec![9_007_199_254_740_992.0]),
        ("i64", WriterValue::I64s(vec![-(1 << 53)]), vec![-9_007_199_254_740_992.0]),
        ("f32", WriterValue::F32s(vec![0.5, -1.0, 3.25]), vec![0.5, -1.0, 3.25]),
        ("f64", WriterValue::F64s(vec![0.1]), vec![0.1]),
        ("bool", WriterValue::Bools(vec![true, false]), vec![1.0, 0.0]),
        ("none", WriterValue::F64s(vec![]), vec![]),
    ];
    let mut writer = Writer::new();
    for (key, value, _) in &lists {
        writer.key(*key, value.clone());
    }
    let texts: [&[u8]; 4] = [b"", b"a", &[0xff, 0x00], "ö".as_bytes()];
    writer.key("texts", WriterValue::Strings(texts.iter().map(|t| t.to_vec()).collect()));
    let checkpoint = open(write(&writer)).unwrap();
    for (key, _, expected) in lists {
        assert_eq!(metadata(&checkpoint).numbers(key).unwrap(), Some(expected), "{key}");
    }
    assert_eq!(metadata(&checkpoint).strings("texts").unwrap().unwrap(), texts, "invalid UTF-8 is kept");
}

#[test]
fn every_type_of_tensor_has_its_true_size() {
    let mut writer = Writer::new();
    let types: Vec<TensorType> = TensorType::all().filter(|ty| ty.ggml_id().is_some()).collect();
    for ty in &types {
        writer.tensor(ty.name(), *ty, &[3, 2, 512]).unwrap();
    }
    let mut file = Vec::new();
    let bytes = |ty: TensorType| 6 * 512 / ty.block_len() * ty.block_bytes();
    writer.write(&mut file, |i, out| out.write_all(&vec![i as u8 + 1; bytes(types[i])])).unwrap();
    let checkpoint = open(file).unwrap();
    assert_eq!(checkpoint.tensors().len(), types.len());
    for (i, ty) in types.iter().enumerate() {
        let tensor = checkpoint.tensor(ty.name()).unwrap();
        assert_eq!((tensor.info.ty, tensor.info.shape.as_slice()), (*ty, [3, 2, 512].as_slice()));
        assert_eq!(tensor.data, vec![i as u8 + 1; bytes(*ty)], "{ty}");
        assert_eq!(&checkpoint.tensors()[i], tensor.info, "tensors keep the file's order");
    }
    assert!(checkpoint.tensor("absent").is_none());
}

#[test]
fn version_2_and_a_vocabulary_alone() {
    let file =
        RawGguf { version: 2, tensors: Vec::new(), data: Vec::new(), alignment: 1, ..RawGguf::valid() };
    let checkpoint = open(file.bytes()).unwrap();
    let CheckpointSource::Gguf(source) = checkpoint.source() else { panic!("it is GGUF") };
    assert_eq!((source.version, source.alignment, source.shards), (2, 32, 1));
    assert!(checkpoint.tensors().is_empty());
    assert_eq!(source.metadata.u64("deepseek2.block_count").unwrap(), Some(2));
}

#[test]
fn alignments_from_1_to_4096_come_back() {
    for alignment in [1u32, 8, 32, 64, 4096] {
        let mut writer = Writer::new();
        writer.key("general.alignment", WriterValue::U32(alignment));
        writer.tensor("x", TensorType::I8, &[3]).unwrap().tensor("y", TensorType::I8, &[2]).unwrap();
        let mut file = Vec::new();
        writer.write(&mut file, |i, out| out.write_all([&[1u8, 2, 3][..], &[4, 5]][i])).unwrap();
        let checkpoint = open(file).unwrap();
        assert_eq!(checkpoint.tensor("x").unwrap().data, [1, 2, 3], "{alignment}");
        assert_eq!(checkpoint.tensor("y").unwrap().data, [4, 5], "{alignment}");
    }
}

#[test]
fn a_truncated_header_reports_the_bytes_it_needs() {
    let file = RawGguf::valid().bytes();
    let whole = Header::parse(&file, file.len() as u64).unwrap();
    let mut have = 0;
    let mut rounds = 0;
    let header = loop {
        match Header::parse(&file[..have], file.len() as u64) {
            Ok(header) => break header,
            Err(GgufError::NeedMore { need, .. }) => {
                assert!(need as usize > have && need as usize <= file.len());
                have = need as usize;
                rounds += 1;
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert!(rounds > 5 && have as u64 <= whole.data_start, "the data were not needed");
    assert_eq!(header.tensors, whole.tensors);
    // If the length of a download is known, the positions of tensors are checked too.
    let cut = Header::parse(&file[..have], file.len() as u64 - 1);
    assert!(matches!(cut, Err(GgufError::PastEnd { .. })));
}

#[test]
fn fingerprints_follow_metadata_and_shapes_but_not_weights() {
    let print = |file: &RawGguf| open(file.bytes()).unwrap().fingerprint();
    let base = RawGguf::valid();
    let mut weights = base.clone();
    weights.data[5] ^= 1;
    assert_eq!(print(&base), print(&weights));
    let mut shape = base.clone();
    shape.tensors[1].sizes = vec![2, 4];
    let mut name = base.clone();
    name.tensors[1].name = b"c".to_vec();
    let mut key = base.clone();
    key.keys[1].2[0] = 3;
    let mut len = base.clone();
    len.data.push(0);
    for other in [shape, name, key, len] {
        assert_ne!(print(&base), print(&other));
    }
}

// ---- The writer rejects what the reader would reject

#[test]
fn the_writer_rejects_invalid_tensors_and_keys() {
    let mut out = Vec::new();
    let message = |writer: &Writer| writer.write(&mut Vec::new(), |_, _| Ok(())).unwrap_err().to_string();
    let mut twice = Writer::new();
    twice.key("k", WriterValue::U8(1)).key("k", WriterValue::U8(1));
    assert!(message(&twice).contains("k occurs twice"));
    let mut same = Writer::new();
    same.tensor("t", TensorType::I8, &[1]).unwrap().tensor("t", TensorType::I8, &[1]).unwrap();
    assert!(message(&same).contains("tensor t occurs twice"));
    let mut alignment = Writer::new();
    alignment.key("general.alignment", WriterValue::U32(24));
    assert!(message(&alignment).contains("general.alignment"));
    let mut deep = Writer::new();
    deep.tensor("t", TensorType::I8, &[1; 5]).unwrap();
    assert!(message(&deep).contains("4 dimensions"));
    let mut short = Writer::new();
    short.tensor("t", TensorType::F32, &[2]).unwrap();
    let error = short.write(&mut out, |_, out| out.write_all(&[0; 7])).unwrap_err();
    assert!(error.to_string().contains("tensor t: wrote 7 bytes, expected 8"));
    let mut writer = Writer::new();
    assert!(writer.tensor("t", TensorType::F8_E4M3, &[2]).is_err(), "GGUF has no FP8");
    assert!(writer.tensor("t", TensorType::Q4_K, &[2, 100]).is_err(), "no whole blocks");
    assert!(writer.tensor("t", TensorType::F64, &[usize::MAX, 2]).is_err(), "overflow");
    let mut huge = Writer::new();
    for name in ["a", "b", "c"] {
        huge.tensor(name, TensorType::I8, &[i64::MAX as usize]).unwrap();
    }
    assert!(message(&huge).contains("overflows at tensor"));
}

// ---- Shards

/// Writes shard `number` of `count`, which contains one tensor named `t` and its number.
fn shard(folder: &Path, number: usize, count: usize, change: impl FnOnce(&mut RawGguf)) {
    let mut file = RawGguf::valid();
    let short = |n: usize| (n as u16).to_le_bytes().to_vec();
    file.keys.push((b"split.no".to_vec(), 2, short(number)));
    file.keys.push((b"split.count".to_vec(), 2, short(count)));
    if number == 0 {
        file.keys.push((b"split.tensors.count".to_vec(), I32, (count as i32).to_le_bytes().to_vec()));
    }
    file.tensors = vec![tensor(&format!("t{number}"), &[16], 0, 0)];
    file.data = vec![number as u8; 64];
    change(&mut file);
    std::fs::write(shard_name(folder, number, count), file.bytes()).unwrap();
}

fn shard_name(folder: &Path, number: usize, count: usize) -> std::path::PathBuf {
    folder.join(format!("m-{:05}-of-{count:05}.gguf", number + 1))
}

#[test]
fn a_set_opens_from_any_of_its_shards() {
    let folder = tempfile::tempdir().unwrap();
    (0..3).for_each(|number| shard(folder.path(), number, 3, |_| {}));
    let mut prints = Vec::new();
    for from in 0..3 {
        let checkpoint = Checkpoint::open(&shard_name(folder.path(), from, 3)).unwrap();
        let CheckpointSource::Gguf(source) = checkpoint.source() else { panic!("it is GGUF") };
        assert_eq!((source.shards, checkpoint.path()), (3, shard_name(folder.path(), 0, 3).as_path()));
        for number in 0..3u8 {
            assert_eq!(checkpoint.tensor(&format!("t{number}")).unwrap().data, [number; 64]);
            checkpoint.drop_pages(&format!("t{number}"), 0..usize::MAX);
            assert_eq!(checkpoint.tensor(&format!("t{number}")).unwrap().data, [number; 64], "read again");
        }
        prints.push(checkpoint.fingerprint());
    }
    assert!(prints.iter().all(|print| *print == prints[0]));
}

#[test]
fn concatenated_shards_are_recognized() {
    let folder = tempfile::tempdir().unwrap();
    (0..2).for_each(|number| shard(folder.path(), number, 2, |_| {}));
    let bytes = |number| std::fs::read(shard_name(folder.path(), number, 2)).unwrap();
    let joined = [bytes(0), bytes(1)].concat();
    for name in ["joined.gguf", "m-00001-of-00002.gguf"] {
        let path = folder.path().join(name);
        std::fs::write(&path, &joined).unwrap();
        let at = format!("another GGUF file begins at byte {}", joined.len() - bytes(1).len());
        says(Checkpoint::open(&path), &[name, &at, "concatenated into one file", "path of the first"]);
    }
}

#[test]
fn inconsistent_shard_sets_are_rejected() {
    let case = |second: &dyn Fn(&mut RawGguf), parts: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        shard(folder.path(), 0, 2, |_| {});
        shard(folder.path(), 1, 2, second);
        for from in 0..2 {
            says(Checkpoint::open(&shard_name(folder.path(), from, 2)), parts);
        }
    };
    case(
        &|f| f.tensors[0].name = b"t0".to_vec(),
        &["m-00001-of-00002.gguf", "tensor t0 is in m-00001-of-00002.gguf and in m-00002-of-00002.gguf"],
    );
    case(&|f| f.tensors.clear(), &["split.tensors.count is 2, but its files hold 1 tensors"]);
    case(&|f| f.data.clear(), &["m-00002-of-00002.gguf", "tensor t1", "past the end"]);
    let folder = tempfile::tempdir().unwrap();
    shard(folder.path(), 0, 2, |_| {});
    let first = shard_name(folder.path(), 0, 2);
    says(Checkpoint::open(&first), &["shard 2 of 2 is missing", "m-00002-of-00002.gguf"]);
    // The second is a copy of the first.
    std::fs::copy(&first, shard_name(folder.path(), 1, 2)).unwrap();
    says(Checkpoint::open(&first), &["m-00002-of-00002.gguf", "do not match shard 2 of 2"]);
    let renamed = folder.path().join("renamed.gguf");
    std::fs::copy(&first, &renamed).unwrap();
    says(Checkpoint::open(&renamed), &["renamed.gguf", "one of 2 shards", "-00001-of-00002.gguf"]);
}

#[test]
fn wrong_shard_numbers_are_rejected() {
    let lie = |number: &[u8], count: &[u8], parts: &[&str]| {
        let file = RawGguf::valid().with_key("split.no", 2, number).with_key("split.count", 2, count);
        refused(file.bytes(), parts);
    };
    lie(&[5, 0], &[5, 0], &["split.no 5", "split.count 5", "are invalid"]);
    lie(&[0, 0], &[0xff, 0xff], &["split.count 65535", "at most 4096 files"]);
    lie(&[0, 0], &[2, 0], &["shard 1 of 2", "must be one file"]);
    let file = RawGguf::valid().with_key("split.count", 2, &[2, 0]);
    refused(file.bytes(), &["split.count is 2, but split.no is missing"]);
    let file = RawGguf::valid().with_key("split.count", STRING, &string("two"));
    refused(file.bytes(), &["split.count is \"two\"", "expected a non-negative integer"]);
}

#[test]
fn names_in_the_header_never_determine_a_path() {
    // The paths of a set depend only on the given path, not on names of keys or tensors.
    let folder = tempfile::tempdir().unwrap();
    shard(folder.path(), 0, 2, |f| f.keys[0].2 = string("../../etc/passwd"));
    shard(folder.path(), 1, 2, |f| f.tensors[0].name = b"../../../escape".to_vec());
    let checkpoint = Checkpoint::open(&shard_name(folder.path(), 0, 2)).unwrap();
    assert_eq!(checkpoint.tensor("../../../escape").unwrap().data.len(), 64);
}

#[test]
fn a_file_that_the_caller_has_read() {
    let bytes = write(Writer::new().key("general.name", WriterValue::String("small".into())));
    let checkpoint = Checkpoint::from_bytes("picked.gguf", bytes).unwrap();
    assert_eq!(metadata(&checkpoint).str("general.name").unwrap(), Some("small"));
    assert_eq!(checkpoint.display_name(), "picked.gguf");
    let refused =
        |bytes: &[u8]| Checkpoint::from_bytes("picked.gguf", bytes.to_vec()).err().unwrap().to_string();
    let page = refused(b"<!doctype html><p>moved");
    assert!(page.contains("picked.gguf") && page.contains("it is a web page"), "{page}");
    assert!(refused(b"").contains("the file is empty"));
}
