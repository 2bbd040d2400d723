//! Packed files: written files are read back, and malformed ones are rejected with a message that
//! says what to do.

use crate::support::*;
use latent_formats::gguf::{Writer, WriterValue};
use latent_formats::pack::{Directory, PackWriter, TiledTensor};
use latent_formats::{Checkpoint, CheckpointSource};
use latent_types::TensorType;
use std::path::{Path, PathBuf};

fn written(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// A GGUF file of two tensors. The numbers of the second begin with `first`.
fn source(folder: &Path, name: &str, first: u8) -> PathBuf {
    let mut writer = Writer::new();
    writer.key("general.architecture", WriterValue::String("deepseek2".into()));
    writer.key("list", WriterValue::Strings(vec![b"a".to_vec(), vec![0xff]]));
    writer.tensor("norm", TensorType::F32, &[4]).unwrap();
    writer.tensor("w", TensorType::Q4_0, &[20, 64]).unwrap();
    let mut file = Vec::new();
    let bytes = |i: usize| if i == 0 { vec![3; 16] } else { vec![first; 20 * 36] };
    writer.write(&mut file, |i, out| out.write_all(&bytes(i))).unwrap();
    written(folder, name, &file)
}

fn pack(model: &Checkpoint) -> Vec<u8> {
    let tiles = [None, Some(TiledTensor { rows: 20, bytes: 32 * 36 })];
    let writer = PackWriter::new(model, &tiles).unwrap();
    let mut file = Vec::new();
    let bytes = |i: usize| if i == 0 { vec![3; 16] } else { vec![5; 32 * 36] };
    writer.write(&mut file, |i, out| out.write_all(&bytes(i))).unwrap();
    assert_eq!(file.len() as u64, writer.file_bytes());
    file
}

#[test]
fn an_unknown_layout_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let model = Checkpoint::open(&source(folder.path(), "model.gguf", 1)).unwrap();
    let file = pack(&model);
    // The body alone, because the prelude has a checksum of it.
    let at = file.windows(7).position(|bytes| bytes == b"tiles16").unwrap();
    for (name, expected) in [(b"tiles32", "tiles32"), (b"gpu4x64", "gpu4x64")] {
        let mut other = file[4096..].to_vec();
        other[at - 4096..at - 4096 + 7].copy_from_slice(name);
        let problem = Directory::parse_body(&other).err().unwrap().to_string();
        assert!(problem.contains(expected) && problem.contains("latent pack"), "{problem}");
    }
    assert!(Directory::parse_body(&file[4096..]).is_ok());
}

#[test]
fn a_packed_file_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let model = Checkpoint::open(&source(folder.path(), "model.gguf", 1)).unwrap();
    let path = written(folder.path(), "model.latent", &pack(&model));
    let packed = Checkpoint::open(&path).unwrap();
    let (CheckpointSource::Gguf(then), CheckpointSource::Gguf(now)) = (model.source(), packed.source())
    else {
        panic!("GGUF")
    };
    assert_eq!(now.metadata.entries(), then.metadata.entries());
    assert_eq!(now.metadata.strings("list").unwrap(), then.metadata.strings("list").unwrap());
    let norm = packed.tensor("norm").unwrap();
    assert_eq!((norm.info.tile_rows, norm.data), (None, &[3; 16][..]));
    let w = packed.tensor("w").unwrap();
    assert_eq!(
        (w.info.ty, w.info.shape.as_slice(), w.info.tile_rows),
        (TensorType::Q4_0, &[20, 64][..], Some(20))
    );
    assert_eq!((w.data, w.data.as_ptr() as usize % 4096), (&[5; 32 * 36][..], 0));
    assert_eq!(packed.identity(), model.identity());
    assert_eq!(packed.packed_from().unwrap().name, "model.gguf");
    says(PackWriter::new(&packed, &[None, None]).map(|_| ()), &["model.latent", "already a packed file"]);
}

#[test]
fn other_and_changed_sources_have_other_identities() {
    let folder = tempfile::tempdir().unwrap();
    let identity =
        |name: &str, first| Checkpoint::open(&source(folder.path(), name, first)).unwrap().identity();
    let first = identity("a.gguf", 1);
    assert_eq!(first, identity("b.gguf", 1));
    let other = identity("c.gguf", 2);
    assert!(first.header == other.header && first.sample != other.sample);
    std::fs::write(folder.path().join("d.gguf"), RawGguf::valid().bytes()).unwrap();
    assert_ne!(Checkpoint::open(&folder.path().join("d.gguf")).unwrap().identity().header, first.header);
}

#[test]
fn malformed_packed_files_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |bytes: &[u8], words: &[&str]| {
        let path = written(folder.path(), "model.latent", bytes);
        says(Checkpoint::open(&path), &[&["model.latent"], words].concat());
    };
    let whole = packed(&packed_body().bytes());
    assert!(Directory::parse(&whole).is_ok());
    let with = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        bytes
    };
    refused(&with(8, 1), &["version 1", "latent pack"]);
    refused(&[&whole[..8], &[0, 0, 0, 1], &whole[12..]].concat(), &["big-endian"]);
    refused(&whole[..whole.len() - 1], &["12863 bytes", "12864", "truncated"]);
    refused(&whole[..20], &["20 bytes", "truncated"]);
    refused(&with(4096 + 60, 1), &["header is damaged", "checksum"]);
    let body = |change: &dyn Fn(&mut RawGguf)| {
        let mut raw = packed_body();
        change(&mut raw);
        packed(&raw.bytes())
    };
    let key = |raw: &mut RawGguf, name: &str, value: Vec<u8>| {
        raw.keys.iter_mut().find(|(key, ..)| key == name.as_bytes()).unwrap().2 = value;
    };
    let words = |words: &[u64]| words.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    refused(&body(&|raw| raw.tensors[1].ty = 0), &["its header is malformed", "tensor b", "past the end"]);
    refused(&body(&|raw| raw.tensors[1].sizes[0] = 600), &["tensor b", "past the end"]);
    refused(&body(&|raw| raw.tensors[1].offset = 0), &["overlap"]);
    refused(
        &body(&|raw| raw.tensors[0].sizes[0] = 31),
        &["tensor a", "[2, 4] of F32 takes 32 bytes, not 31"],
    );
    refused(&body(&|raw| raw.tensors[1].sizes[0] = 575), &["tensor b", "575 bytes"]);
    refused(&body(&|raw| drop(raw.keys.remove(4))), &["latent.source.header_hash", "missing"]);
    refused(&body(&|raw| drop(raw.keys.remove(6))), &["neither GGUF metadata nor config.json"]);
    refused(
        &body(&|raw| key(raw, "latent.tensor.tile_rows", array(U64, 2, &words(&[0, 5])))),
        &["tensor b", "matrices of 5 rows"],
    );
    refused(
        &body(&|raw| key(raw, "latent.tensor.tile_rows", array(U64, 1, &words(&[0])))),
        &["latent.tensor.tile_rows", "1 elements for 2 tensors"],
    );
    refused(
        &body(&|raw| key(raw, "latent.tensor.shapes", array(U64, 4, &words(&[2, 4, 2, 16])))),
        &["tensor b", "type or shape is missing"],
    );
    refused(
        &body(&|raw| key(raw, "latent.tensor.shapes", array(U64, 6, &words(&[2, 4, 2, 16, 32, 1])))),
        &["latent.tensor.shapes", "longer"],
    );
    refused(
        &body(&|raw| key(raw, "latent.tensor.dimensions", array(U8, 2, &[9, 3]))),
        &["tensor a", "9 dimensions"],
    );
    let names = [string("F32"), string("Q9")].concat();
    refused(&body(&|raw| key(raw, "latent.tensor.types", array(STRING, 2, &names))), &["tensor b", "Q9"]);
}
