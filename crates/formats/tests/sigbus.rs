//! If a mapped file shrinks, a program with the handler ends with a message that names the file.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "what the parent reads")]
#![allow(unsafe_code, reason = "a map of the test's own")]

mod support;

use latent_formats::{Checkpoint, OutputFile, install_sigbus_handler};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use support::*;

const WHICH: &str = "LATENT_TEST_SIGBUS";

/// Runs the test `child` of this program in another process, with `WHICH` set to `which`.
fn child_says(which: &str) -> Output {
    let program = std::env::current_exe().unwrap();
    Command::new(program).args(["child", "--exact", "--nocapture"]).env(WHICH, which).output().unwrap()
}

/// The work of the child processes. The parent does nothing here.
#[test]
fn child() {
    match std::env::var(WHICH).as_deref() {
        Ok("model") => {
            install_sigbus_handler();
            read_a_file_that_shrinks();
        }
        Ok("foreign") => {
            install_sigbus_handler();
            read_a_foreign_file_that_shrinks();
        }
        Ok("library") => read_a_file_that_shrinks(),
        _ => {}
    }
}

fn large_model(folder: &std::path::Path) -> std::path::PathBuf {
    let path = folder.join("shrinks.gguf");
    let mut file = RawGguf::valid();
    file.tensors = vec![tensor("big", &[1 << 16], 0, 0)];
    file.data = vec![1; 4 << 16];
    std::fs::write(&path, file.bytes()).unwrap();
    path
}

fn shrink(path: &std::path::Path) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
}

fn read_a_file_that_shrinks() {
    let folder = tempfile::tempdir().unwrap();
    let path = large_model(folder.path());
    let checkpoint = Checkpoint::open(&path).unwrap();
    let _other = Checkpoint::open(&large_model(tempfile::tempdir().unwrap().path())).unwrap();
    let data = checkpoint.tensor("big").unwrap().data;
    assert_eq!(data[data.len() - 1], 1);
    shrink(&path);
    eprintln!("expected: {}", path.display());
    let written = tempfile::tempdir().unwrap().keep();
    let _unfinished = OutputFile::create(&written.join("file")).unwrap();
    assert_eq!(std::fs::read_dir(&written).unwrap().count(), 1);
    eprintln!("written into: {}", written.display());
    // The process will end without running destructors.
    drop(folder);
    // Reads the page that no longer exists.
    std::hint::black_box(std::hint::black_box(data)[data.len() - 1]);
    unreachable!("the page was still there");
}

/// Reads a foreign map, which is created after a map of the library was dropped, so that it is
/// likely at the same address.
fn read_a_foreign_file_that_shrinks() {
    let folder = tempfile::tempdir().unwrap();
    let path = large_model(folder.path());
    drop(Checkpoint::open(&path).unwrap());
    let file = std::fs::File::open(&path).unwrap();
    // SAFETY: the map is read only; that its end vanishes is what this process is for.
    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    let _open = Checkpoint::open(&large_model(tempfile::tempdir().unwrap().path())).unwrap();
    shrink(&path);
    drop(folder);
    std::hint::black_box(std::hint::black_box(&map)[map.len() - 1]);
    unreachable!("the page was still there");
}

#[test]
fn the_message_names_the_file() {
    let output = child_says("model");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let after = |words: &str| {
        let rest = text.split(words).nth(1).expect("the child says its path");
        rest.lines().next().unwrap()
    };
    let path = after("expected: ");
    let message = format!("error: {path}: the file has shrunk or its storage failed");
    assert!(text.contains(&message), "{text:?} lacks {message:?}");
    // The unfinished file was removed, so its folder is empty and can be removed.
    std::fs::remove_dir(after("written into: ")).unwrap();
}

#[test]
fn a_fault_in_a_foreign_map_goes_to_the_previous_handler() {
    let output = child_says("foreign");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(7), "{text}");
    assert!(!text.contains("has shrunk"), "{text}");
}

/// Without the handler, a program that uses the library has the system's behaviour.
#[test]
fn a_library_installs_no_handler_by_default() {
    let output = child_says("library");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(7), "{text}");
    assert!(!text.contains("has shrunk"), "{text}");
    let rest = text.split("written into: ").nth(1).expect("the child says its path");
    // The killed child could not remove its folder.
    std::fs::remove_dir_all(rest.lines().next().unwrap()).unwrap();
}
