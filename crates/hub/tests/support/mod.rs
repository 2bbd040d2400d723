//! A small hub on loopback that speaks the parts of Hugging Face's interface that a pull needs
//! (revisions, listings in pages, redirects to another host, ranges, checksums), and that
//! misbehaves where a test says so.
#![allow(dead_code, unused_imports, missing_docs, reason = "each test file uses a part of it")]

mod server;

pub use server::{Hub, Misdeed};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};

/// The default commit of repositories.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A file of the test hub.
#[derive(Clone)]
pub struct HubFile {
    pub path: String,
    pub bytes: Vec<u8>,
    /// Whether git contains only a pointer to it (LFS).
    pub lfs: bool,
    /// A wrong size in the listing.
    pub size: Option<u64>,
}

/// A file stored in LFS.
pub fn large(path: &str, bytes: impl Into<Vec<u8>>) -> HubFile {
    HubFile { path: path.into(), bytes: bytes.into(), lfs: true, size: None }
}

/// A file stored in git.
pub fn small(path: &str, bytes: impl Into<Vec<u8>>) -> HubFile {
    HubFile { lfs: false, ..large(path, bytes) }
}

/// Pseudorandom bytes, so that bytes at a wrong position are detected.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

/// The hash of a file in git.
pub fn git_oid(bytes: &[u8]) -> String {
    let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    context.update(format!("blob {}\0", bytes.len()).as_bytes());
    context.update(bytes);
    hex(context.finish().as_ref())
}
