//! Output files: targets, permissions, failures, several writers.
#![cfg(unix)]
#![allow(missing_docs, reason = "tests")]

use latent_files::{CompleteFile, OutputError, OutputFile, OutputFolder, output_file};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
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
fn a_new_file_has_default_permissions_and_is_complete() {
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
    // An existing file keeps its permissions.
    std::fs::set_permissions(&ours, std::fs::Permissions::from_mode(0o640)).unwrap();
    output_file::write(&ours, b"again").unwrap();
    assert_eq!((mode(&ours), std::fs::read(&ours).unwrap()), (0o640, b"again".to_vec()));
    assert_eq!(names(folder.path()), ["ours", "plain"]);
}

#[test]
fn a_private_file_replaces_a_public_one_with_private_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("private");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
    output_file::write_private(&path, b"new").unwrap();
    assert_eq!(mode(&path), 0o600);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let mut file = OutputFile::create_private(&path).unwrap();
    file.write_all(b"again").unwrap();
    let temporary = names(folder.path()).into_iter().find(|name| name.ends_with(".part")).unwrap();
    assert_eq!(mode(&folder.path().join(temporary)), 0o600);
    file.finish().unwrap();
    assert_eq!((mode(&path), std::fs::read(&path).unwrap()), (0o600, b"again".to_vec()));
    output_file::make_private_folder(&folder.path().join("a/b")).unwrap();
    assert_eq!((mode(&folder.path().join("a")), mode(&folder.path().join("a/b"))), (0o700, 0o700));
    let temporary = output_file::temporary_folder(folder.path()).unwrap();
    assert_eq!(mode(temporary.path()), 0o700);
}

#[test]
fn a_file_is_opened_in_place_only_if_it_is_plain_and_has_one_name() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("victim"), b"precious").unwrap();
    symlink(at("victim"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    std::fs::hard_link(at("victim"), at("second name")).unwrap();
    std::fs::create_dir(at("inner")).unwrap();
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    let before = names(folder.path());
    for (name, word) in [
        ("link", "symbolic link"),
        ("dangling", "symbolic link"),
        ("second name", "several hard links"),
        ("inner", "a folder"),
        ("pipe", "a pipe"),
    ] {
        let message = output_file::create_in_place(&at(name)).unwrap_err().to_string();
        assert!(message.contains(word) && message.contains(name), "{message}");
    }
    assert_eq!((names(folder.path()), std::fs::read(at("victim")).unwrap()), (before, b"precious".to_vec()));
    assert!(matches!(output_file::open_in_place(&at("new")), Err(OutputError::Io { .. })));
    output_file::create_in_place(&at("new")).unwrap().write_all(b"kept").unwrap();
    output_file::open_in_place(&at("new")).unwrap();
    assert_eq!(std::fs::read(at("new")).unwrap(), b"kept");
}

#[test]
fn other_files_in_the_folder_are_not_changed() {
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
fn links_devices_pipes_sockets_and_folders_are_rejected_and_unchanged() {
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
    // Parent folders may be links.
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

#[test]
fn dropped_files_and_folders_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    drop(OutputFile::create(&at("a")).unwrap());
    let complete = OutputFile::create(&at("a")).unwrap().complete().unwrap();
    drop(complete);
    drop(OutputFolder::create(&at("x/y/z")).unwrap());
    assert!(names(folder.path()).is_empty());
    // If one file of a set cannot be renamed, no new file remains. Older files are old or new, but
    // complete.
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
    // Existing folders stay, and so do folders with files of other processes.
    let made = OutputFolder::create(&at("x/y")).unwrap();
    std::fs::write(at("x/theirs"), b"").unwrap();
    drop(made);
    assert_eq!(names(&at("x")), ["theirs"]);
    OutputFolder::create(&at("x/y")).unwrap().keep();
    assert_eq!(names(&at("x")), ["theirs", "y"]);
}

#[test]
fn concurrent_writers_leave_one_complete_file() {
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
