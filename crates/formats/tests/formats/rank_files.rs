//! Models of which one of several ranks has only some files.

use crate::support::*;
use latent_formats::gguf::{Writer, WriterValue};
use latent_formats::safetensors::Writer as Safetensors;
use latent_formats::{Checkpoint, FileIdentity, FormatError, TensorPart};
use latent_types::TensorType;
use std::path::{Path, PathBuf};

/// Three shards with one tensor each. All elements are `number`.
fn shards(folder: &Path, number: u8) -> Vec<PathBuf> {
    let write = |shard: u16| {
        let mut writer = Writer::new();
        writer.key("split.no", WriterValue::U16(shard));
        writer.key("split.count", WriterValue::U16(3));
        writer.key("split.tensors.count", WriterValue::I32(3));
        writer.tensor(format!("t{shard}"), TensorType::F32, &[64]).unwrap();
        let mut bytes = Vec::new();
        writer.write(&mut bytes, |_, out| out.write_all(&[number; 256])).unwrap();
        let path = folder.join(format!("m-{:05}-of-00003.gguf", shard + 1));
        std::fs::write(&path, bytes).unwrap();
        path
    };
    (0..3).map(write).collect()
}

/// A folder in which the tensors of one module are in two files.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (file, tensors) in
        [("m-1.safetensors", ["a.weight", "b.weight"]), ("m-2.safetensors", ["b.bias", "c"])]
    {
        let mut writer = Safetensors::new();
        tensors.into_iter().for_each(|name| {
            writer.tensor(name, TensorType::F32, &[4]).unwrap();
        });
        let mut bytes = Vec::new();
        writer.write(&mut bytes, |i, out| out.write_all(&[i as u8; 16])).unwrap();
        std::fs::write(at(file), bytes).unwrap();
    }
    std::fs::write(at("config.json"), "{}").unwrap();
    let index = r#"{"weight_map":{"a.weight":"m-1.safetensors","b.weight":"m-1.safetensors","b.bias":"m-2.safetensors","c":"m-2.safetensors"}}"#;
    std::fs::write(at("model.safetensors.index.json"), index).unwrap();
    folder
}

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint.tensors().iter().map(|info| info.name.as_str()).collect()
}

fn all(tensor: &str) -> TensorPart {
    TensorPart::all(tensor, [1, 1, 64])
}

#[test]
fn reading_tensors_of_missing_shards_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let paths = shards(folder.path(), 1);
    let whole = Checkpoint::open(&paths[0]).unwrap();
    std::fs::remove_file(&paths[1]).unwrap();
    says(Checkpoint::open(&paths[0]), &["shard 2 of 3 is missing"]);
    for path in [&paths[0], &paths[2]] {
        let part = Checkpoint::open_for_rank(path).unwrap();
        assert_eq!(
            (names(&part), part.absent_files()),
            (vec!["t0", "t2"], &["m-00002-of-00003.gguf".to_owned()][..])
        );
        assert!(!part.is_whole() && part.check_whole().is_err() && whole.check_whole().is_ok());
        assert_eq!(part.set_identity(), whole.set_identity());
        // Files that both have are identical.
        let others: Vec<FileIdentity> = whole.file_identities();
        assert_eq!(part.file_identities(), [others[0].clone(), others[2].clone()]);
        // Completed by the files of other ranks.
        let completed = part.with_tensors_of(&whole.tensors_by_file(), 7);
        assert_eq!((names(&completed), completed.fingerprint()), (vec!["t0", "t2", "t1"], 7));
        assert_eq!(completed.files_of_nobody(), (&[][..], Some(0)));
        let info = completed.info("t1").unwrap();
        assert_eq!((info.ty, &info.shape[..], info.is_stored()), (TensorType::F32, &[64][..], false));
        assert!(completed.tensor("t1").is_none() && completed.parts(&[all("t0")]).is_ok());
        for problem in [completed.parts(&[all("t0"), all("t1")]).err(), completed.rows("t1").err()] {
            let Some(FormatError::Absent { files, tensor, .. }) = problem else { panic!("{problem:?}") };
            assert_eq!((&files[..], tensor.as_str()), (&["m-00002-of-00003.gguf".to_owned()][..], "t1"));
        }
        // No other rank has the missing file either.
        let alone = part.with_tensors_of(&part.tensors_by_file(), 7);
        assert_eq!(alone.files_of_nobody(), (&["m-00002-of-00003.gguf".to_owned()][..], Some(1)));
    }
    std::fs::remove_file(&paths[0]).unwrap();
    says(
        Checkpoint::open_for_rank(&paths[2]),
        &["shard 1 of 3 is missing", "every rank needs the first shard"],
    );
}

#[test]
fn other_weights_have_another_identity() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let open = |folder: &Path, number| Checkpoint::open(&shards(folder, number)[0]).unwrap();
    let (one, other) = (open(one.path(), 1), open(other.path(), 2));
    assert_eq!(one.fingerprint(), other.fingerprint());
    for (a, b) in one.file_identities().iter().zip(&other.file_identities()) {
        assert_eq!((&a.name, a.bytes, a.identity.header), (&b.name, b.bytes, b.identity.header));
        assert_ne!(a.identity.sample, b.identity.sample);
    }
}

#[test]
fn tensors_of_an_incomplete_module_are_dropped() {
    let folder = folder();
    let whole = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(whole.files_of("b.weight"), ["m-1.safetensors"]);
    std::fs::remove_file(folder.path().join("m-2.safetensors")).unwrap();
    says(Checkpoint::open(folder.path()), &["m-2.safetensors", "the download is incomplete"]);
    let part = Checkpoint::open_for_rank(folder.path()).unwrap();
    assert_eq!((names(&part), part.files_of_nobody().1), (vec!["a.weight"], None));
    let needed = part.needs("b.weight").unwrap().to_string();
    assert!(
        needed.contains("tensor b.weight of m-2.safetensors, which is missing on this host; copy it"),
        "{needed}"
    );
    assert!(part.needs("a.weight").is_none() && part.needs("d").is_none());
    let completed = part.with_tensors_of(&whole.tensors_by_file(), 7);
    assert_eq!(names(&completed), ["a.weight", "b.weight", "b.bias", "c"]);
    let parts = ["a.weight", "b.weight", "c"].map(|name| TensorPart::all(name, [1, 1, 4]));
    let problem = completed.parts(&parts).err().unwrap().to_string();
    assert!(problem.contains("tensor b.weight and 1 others of m-2.safetensors"), "{problem}");
    // config.json, the index and at least one of its files are required.
    std::fs::remove_file(folder.path().join("m-1.safetensors")).unwrap();
    says(Checkpoint::open_for_rank(folder.path()), &["m-1.safetensors", "not in the folder"]);
}
