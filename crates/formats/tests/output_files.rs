//! What is written, and where nothing is: targets, permissions, failures, several writers.
#![cfg(unix)]
#![allow(missing_docs, reason = "tests")]

use latent_formats::{Checkpoint, CompleteFile, OutputError, OutputFile, OutputFolder, output_file};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

fn refused(target: &Path, word: &str) {
    for found in [output_file::write(target, b"new"), OutputFile::check(target)] {
        let message = found.unwrap_err().to_string();
        assert!(message.contains(word) && message.contains(&*target.to_string_lossy()), "{message}");
    }
}

#[test]
fn a_file_appears_whole_with_the_permissions_of_a_plain_create() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, plain) = (folder.path().join("ours"), folder.path().join("plain"));
    std::fs::write(&plain, b"").unwrap();
    let mut file = OutputFile::create(&ours).unwrap();
    file.write_all(b"whole").unwrap();
    assert!(!ours.exists(), "not before it is whole");
    assert_eq!(file.finish().unwrap(), 5);
    assert_eq!(std::fs::read(&ours).unwrap(), b"whole");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(&ours), mode(&plain));
    // an older file keeps its own
    std::fs::set_permissions(&ours, std::fs::Permissions::from_mode(0o640)).unwrap();
    output_file::write(&ours, b"again").unwrap();
    assert_eq!((mode(&ours), std::fs::read(&ours).unwrap()), (0o640, b"again".to_vec()));
    assert_eq!(names(folder.path()), ["ours", "plain"]);
}

#[test]
fn what_lies_beside_the_target_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let part = folder.path().join("fox.part");
    std::fs::write(&part, b"precious").unwrap();
    output_file::write(&folder.path().join("fox.kv"), b"new").unwrap();
    std::fs::create_dir(folder.path().join("bar.kv")).unwrap();
    output_file::write(&folder.path().join("bar.kv"), b"new").unwrap_err();
    assert_eq!(std::fs::read(&part).unwrap(), b"precious");
    assert_eq!(names(folder.path()), ["bar.kv", "fox.kv", "fox.part"]);
}

#[test]
fn links_devices_pipes_sockets_and_folders_are_refused_and_stay_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("victim"), b"precious").unwrap();
    symlink(at("victim"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    std::fs::create_dir(at("inner")).unwrap();
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    let before = names(folder.path());
    refused(&at("link"), "symbolic link to");
    refused(&at("dangling"), "symbolic link to");
    refused(&at("inner"), "a folder");
    refused(&at("pipe"), "a pipe");
    refused(&at("socket"), "a socket");
    refused(Path::new("/dev/null"), "a device");
    refused(Path::new("-"), "./-");
    refused(&at("no/such/folder.kv"), "No such file");
    assert_eq!(std::fs::read(at("victim")).unwrap(), b"precious");
    assert!(std::fs::symlink_metadata(at("link")).unwrap().is_symlink());
    assert!(std::fs::symlink_metadata(at("pipe")).unwrap().file_type().is_fifo());
    assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    assert_eq!(names(folder.path()), before);
    // folders may be links, as everywhere
    symlink(at("inner"), at("inner-link")).unwrap();
    output_file::write(&at("inner-link").join("file"), b"new").unwrap();
    assert_eq!(std::fs::read(at("inner/file")).unwrap(), b"new");
}

#[test]
fn a_file_that_may_not_be_written_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept");
    std::fs::write(&path, b"kept").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
    if std::fs::OpenOptions::new().write(true).open(&path).is_ok() {
        return; // the superuser writes everything
    }
    refused(&path, "Permission denied");
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
}

/// A GGUF file that opens.
fn model(path: &Path) -> PathBuf {
    let mut bytes = Vec::new();
    let mut writer = latent_formats::gguf::Writer::new();
    writer.key("general.architecture", latent_formats::gguf::WriterValue::String("deepseek2".into()));
    writer.tensor("w", latent_types::TensorType::F32, &[8]).unwrap();
    writer.write(&mut bytes, |_, out| out.write_all(&[0; 32])).unwrap();
    std::fs::write(path, bytes).unwrap();
    path.to_owned()
}

#[test]
fn the_files_of_an_open_model_are_refused_under_any_name_until_it_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder.path().join("model.gguf"));
    let other = folder.path().join("hard-link");
    std::fs::hard_link(&path, &other).unwrap();
    let before = std::fs::read(&path).unwrap();
    let open = Checkpoint::open(&path).unwrap();
    refused(&path, "the model itself");
    refused(&other, "the model itself");
    refused(
        &folder.path().join("../").join(folder.path().file_name().unwrap()).join("model.gguf"),
        "the model itself",
    );
    drop(open);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    output_file::write(&path, b"new").unwrap();
    // a folder: weights, config.json and what else belongs to it; also without weights
    let hf = folder.path().join("hf");
    std::fs::create_dir(&hf).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::write(hf.join(name), "{}").unwrap();
    }
    let mut bytes = Vec::new();
    let mut writer = latent_formats::safetensors::Writer::new();
    writer.tensor("w", latent_types::TensorType::F32, &[8]).unwrap();
    writer.write(&mut bytes, |_, out| out.write_all(&[0; 32])).unwrap();
    std::fs::write(hf.join("model.safetensors"), &bytes).unwrap();
    for cut in [bytes.len(), bytes.len() - 8] {
        std::fs::write(hf.join("model.safetensors"), &bytes[..cut]).unwrap();
        let _open = latent_formats::Outline::open(&hf).unwrap();
        names(&hf).iter().for_each(|name| refused(&hf.join(name), "the model itself"));
    }
    let _config = latent_formats::Outline::open(&hf.join("config.json")).unwrap();
    refused(&hf.join("config.json"), "the model itself");
}

#[test]
fn nothing_is_left_of_files_and_folders_that_are_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    drop(OutputFile::create(&at("a")).unwrap());
    let complete = OutputFile::create(&at("a")).unwrap().complete().unwrap();
    drop(complete);
    drop(OutputFolder::create(&at("x/y/z")).unwrap());
    assert!(names(folder.path()).is_empty());
    // a set of which one cannot get its name leaves no new file, and older ones as they were or new, but whole
    std::fs::write(at("old"), b"old").unwrap();
    let set: Vec<CompleteFile> = ["new", "old", "late"]
        .iter()
        .map(|name| {
            let mut file = OutputFile::create(&at(name)).unwrap();
            file.write_all(b"set").unwrap();
            file.complete().unwrap()
        })
        .collect();
    std::fs::create_dir(at("late")).unwrap();
    assert!(matches!(CompleteFile::publish_all(set), Err(OutputError::Refused { .. })));
    assert_eq!(names(folder.path()), ["late", "old"]);
    // folders that were there stay, and so do those that somebody else has put a file into
    let made = OutputFolder::create(&at("x/y")).unwrap();
    std::fs::write(at("x/theirs"), b"").unwrap();
    drop(made);
    assert_eq!(names(&at("x")), ["theirs"]);
    OutputFolder::create(&at("x/y")).unwrap().keep();
    assert_eq!(names(&at("x")), ["theirs", "y"]);
}

#[test]
fn writers_at_once_leave_one_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::thread::scope(|scope| {
        for writer in 0..8u8 {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..20 {
                    let mut file = OutputFile::create(path).unwrap();
                    for _ in 0..64 {
                        file.write_all(&[writer; 1000]).unwrap();
                    }
                    file.finish().unwrap();
                    let found = std::fs::read(path).unwrap();
                    assert!(found.len() == 64_000 && found.iter().all(|b| *b == found[0]));
                }
            });
        }
    });
    assert_eq!(names(folder.path()), ["file"]);
}
