//! The program under test.
#![allow(dead_code, reason = "each test file uses a part of it")]

use assert_cmd::Command;
use std::path::{Path, PathBuf};

#[path = "../../../../hub/tests/support/mod.rs"]
pub mod hub;
pub mod lookup_model;
#[cfg(feature = "mpi")]
pub mod mpirun;
pub mod server;
#[cfg(unix)]
pub mod signals;

/// The path of `latent`. Prepares this process for starting it: see [`signals::prepare`].
pub fn program() -> PathBuf {
    #[cfg(unix)]
    signals::prepare();
    assert_cmd::cargo::cargo_bin("latent")
}

/// `latent` with these arguments, without a model from the environment, for at most 100 seconds.
pub fn latent(args: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(args).env_remove("LATENT_MODEL").timeout(std::time::Duration::from_secs(100));
    command
}

/// The demo model's file.
pub fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/mla-demo-Q4_K_M.gguf")
}

/// The demo model as a file of its own with further metadata, and with another chat template where
/// one is given. The file is in the folder.
pub fn demo_with(template: Option<&str>, numbers: &[(&str, f32)]) -> (tempfile::TempDir, String) {
    const KEY: &[u8] = b"tokenizer.chat_template";
    let mut bytes = std::fs::read(demo()).unwrap();
    let mut added = Vec::new();
    let mut count = 0;
    let string = |out: &mut Vec<u8>, text: &[u8]| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text);
    };
    for (key, number) in numbers {
        string(&mut added, key.as_bytes());
        added.extend(6u32.to_le_bytes());
        added.extend(number.to_le_bytes());
        count += 1;
    }
    if let Some(template) = template {
        // The old one under a name that is not read.
        let at = bytes.windows(KEY.len()).position(|window| window == KEY).unwrap();
        bytes[at + KEY.len() - 1] = b'_';
        string(&mut added, KEY);
        added.extend(8u32.to_le_bytes());
        string(&mut added, template.as_bytes());
        count += 1;
    }
    // a multiple of the alignment leaves the tensors where the header says that they are
    let frame = 8 + 3 + 4 + 8;
    let fill = (32 - (added.len() + frame) % 32) % 32;
    string(&mut added, b"pad");
    added.extend(8u32.to_le_bytes());
    string(&mut added, &vec![b' '; fill]);
    let keys = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) + count + 1;
    bytes[16..24].copy_from_slice(&keys.to_le_bytes());
    bytes.splice(24..24, added);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    let path = path.display().to_string();
    (folder, path)
}
