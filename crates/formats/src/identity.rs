//! Identity of a model, which a packed file stores for its source.

/// The version of packed files that is written and read. Older files are packed again from their
/// source.
pub const VERSION: u32 = 2;

/// The source of a packed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackSource {
    /// Version of the packed file.
    pub version: u32,
    /// Name of the source's file or folder, without the path.
    pub name: String,
    pub files: u64,
    /// Identifies the source.
    pub identity: Identity,
}

/// Identifies a model by hashes of its headers and of samples of its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// See [`Checkpoint::fingerprint`](crate::Checkpoint::fingerprint).
    pub header: u64,
    /// A hash of samples of the weights.
    pub sample: u64,
}

/// FNV-1a, continued from `hash`. It detects differences and damage, not attacks.
pub fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Offset basis of FNV-1a.
pub const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;
