//! Statistics of the prefix cache.

use latent_formats::{OutputError, OutputFile, output_file};
use std::path::PathBuf;

/// The prefix cache in memory. Sums are counted from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PrefixStats {
    /// Blocks that it holds, those that running jobs use too counted.
    pub blocks: usize,
    /// Prompts that were looked up.
    pub lookups: u64,
    /// Of these, prompts that began with something cached.
    pub hits: u64,
    /// Tokens of these prompts that did not have to run.
    pub tokens_saved: u64,
    /// Tokens of all prompts that were looked up.
    pub tokens_asked: u64,
    /// Blocks that were given up for others.
    pub evicted: u64,
}

/// The prefix cache on disk. Sums are counted from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DiskStats {
    /// Files that it knows of.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks that were read back.
    pub blocks_read: u64,
    /// Tokens of prompts that did not have to run for it.
    pub tokens_saved: u64,
    /// Blocks that were written.
    pub blocks_written: u64,
    /// Blocks that were not written, since the disk was too slow or full, or they were needed before.
    pub blocks_dropped: u64,
    /// Files that were damaged or unreadable, and files that could not be written.
    pub errors: u64,
    /// Files that were removed for newer ones.
    pub removed: u64,
}

/// Where prefixes are kept on disk. Several processes may share a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCache {
    /// A folder; made where it is missing.
    pub path: PathBuf,
    /// Most bytes of its files. The least recently used ones are removed.
    pub max_bytes: u64,
}

impl DiskCache {
    /// Makes the folder, and looks whether files can stand there: for a program that is starting. Later errors are logged and concern no
    /// request.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn check(&self) -> Result<(), OutputError> {
        let io = |error| OutputError::Io { path: self.path.clone(), error };
        output_file::make_private_folder(&self.path).map_err(io)?;
        OutputFile::check(&self.path.join("new.kv"))
    }
}
