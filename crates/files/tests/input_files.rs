//! Input files other than models: only regular files up to a given size.
#![allow(missing_docs, reason = "tests")]

use latent_files::{InputError, input_file};

#[test]
fn plain_files_are_read_up_to_their_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, "grüße").unwrap();
    assert_eq!(input_file::read_text(&path, 7).unwrap(), "grüße");
    assert!(matches!(input_file::read(&path, 6), Err(InputError::TooLarge { bytes: 7, limit: 6, .. })));
    std::fs::write(&path, [0xff]).unwrap();
    assert!(matches!(input_file::read_text(&path, 7), Err(InputError::NotText { .. })));
    let missing = input_file::read(&folder.path().join("none"), 7).unwrap_err();
    assert!(matches!(missing, InputError::Io { .. }));
    assert!(matches!(input_file::read(folder.path(), 7), Err(InputError::NotAFile { what: "a folder", .. })));
    // The file's metadata say 0 bytes, but reading returns more.
    #[cfg(target_os = "linux")]
    assert!(matches!(
        input_file::read("/proc/self/status".as_ref(), 16),
        Err(InputError::TooLarge { bytes: 17, .. })
    ));
}

#[cfg(unix)]
#[test]
fn pipes_devices_and_sockets_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", at("link")).unwrap();
    for (path, word) in [
        (at("pipe"), "a pipe"),
        (at("socket"), "a socket"),
        (at("link"), "a device"),
        ("/dev/zero".into(), "a device"),
    ] {
        let message = input_file::read(&path, 1 << 40).unwrap_err().to_string();
        assert!(message.contains(word) && message.contains("expected a regular file"), "{message}");
    }
}
