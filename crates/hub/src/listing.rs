//! The hub's listing of a repository's files.

use crate::digest::Digest;
use serde::{Deserialize, Serialize};

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RepoFile {
    /// The unchecked path in the repository.
    pub(crate) path: String,
    pub(crate) size: u64,
    /// The expected hash, if the hub reports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<Digest>,
}

/// An entry of the hub's tree. Folders and other kinds are skipped.
#[derive(Deserialize)]
pub(crate) struct TreeEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    oid: Option<String>,
    lfs: Option<LfsEntry>,
}

#[derive(Deserialize)]
struct LfsEntry {
    oid: Option<String>,
    size: Option<u64>,
}

impl TreeEntry {
    pub(crate) fn into_file(self) -> Option<RepoFile> {
        if self.kind != "file" {
            return None;
        }
        let sha256 = self.lfs.as_ref().and_then(|lfs| Digest::sha256(lfs.oid.as_deref()?));
        let size = self.lfs.as_ref().and_then(|lfs| lfs.size).unwrap_or(self.size);
        // For a file in LFS, `oid` is the hash of the pointer file.
        let git = || self.lfs.is_none().then(|| Digest::git(self.oid.as_deref()?)).flatten();
        let digest = sha256.or_else(git);
        Some(RepoFile { path: self.path, size, digest })
    }
}
