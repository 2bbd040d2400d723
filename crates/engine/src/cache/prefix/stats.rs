//! Statistics of the prefix cache.

use latent_formats::{OutputError, OutputFile, output_file};
use std::path::PathBuf;

/// Statistics of the prefix cache in memory. Totals are counted from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PrefixStats {
    /// Cached blocks, including those that running jobs use.
    pub blocks: usize,
    /// Prompts that were looked up.
    pub lookups: u64,
    /// Prompts with a cached prefix.
    pub hits: u64,
    /// Prompt tokens that were reused from the cache.
    pub tokens_saved: u64,
    /// Tokens of all prompts that were looked up.
    pub tokens_asked: u64,
    /// Evicted blocks.
    pub evicted: u64,
}

/// Statistics of the prefix cache on disk. Totals are counted from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DiskStats {
    /// Number of known files.
    pub files: usize,
    /// Total size of the files, in bytes.
    pub bytes: u64,
    /// Blocks read back.
    pub blocks_read: u64,
    /// Prompt tokens that did not have to run because of blocks from the disk.
    pub tokens_saved: u64,
    /// Written blocks.
    pub blocks_written: u64,
    /// Blocks that were not written, because the disk was too slow or full, or they were evicted
    /// from memory first.
    pub blocks_dropped: u64,
    /// Files that were damaged, unreadable or could not be written.
    pub errors: u64,
    /// Files that were removed to make room for newer ones.
    pub removed: u64,
}

/// Options of the prefix cache on disk. Several processes may share a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCache {
    /// The folder, which is created if it is missing.
    pub path: PathBuf,
    /// Maximum total size of the files, in bytes. The least recently used files are removed.
    pub max_bytes: u64,
}

impl DiskCache {
    /// Creates the folder, and checks that files can be written there. Call it when a program
    /// starts: later errors are logged and fail no request.
    ///
    /// # Errors
    /// The error of the system, with the path.
    pub fn check(&self) -> Result<(), OutputError> {
        let io = |error| OutputError::Io { path: self.path.clone(), error };
        output_file::make_private_folder(&self.path).map_err(io)?;
        OutputFile::check(&self.path.join("new.kv"))
    }
}
