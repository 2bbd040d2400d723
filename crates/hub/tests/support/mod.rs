//! A small hub on loopback that speaks the parts of Hugging Face's interface that a pull needs (revisions, listings in pages, redirects to
//! another host, ranges, checksums), and that misbehaves where a test says so.
#![allow(dead_code, unused_imports, missing_docs, reason = "each test file uses a part of it")]

mod server;

pub use server::{Hub, Misdeed};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};

/// The commit of every repository that says nothing else.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A file of the hub.
#[derive(Clone)]
pub struct HubFile {
    pub path: String,
    pub bytes: Vec<u8>,
    /// Whether git holds only a pointer to it.
    pub lfs: bool,
    /// The size that the listing states, where it lies.
    pub size: Option<u64>,
}

/// A file in LFS.
pub fn large(path: &str, bytes: impl Into<Vec<u8>>) -> HubFile {
    HubFile { path: path.into(), bytes: bytes.into(), lfs: true, size: None }
}

/// A file that git holds.
pub fn small(path: &str, bytes: impl Into<Vec<u8>>) -> HubFile {
    HubFile { lfs: false, ..large(path, bytes) }
}

/// Bytes that no two places of which are alike.
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

/// The name that git gives to a file.
pub fn git_oid(bytes: &[u8]) -> String {
    let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    context.update(format!("blob {}\0", bytes.len()).as_bytes());
    context.update(bytes);
    hex(context.finish().as_ref())
}
