//! Registry of the model files that this process has open. Output must not replace one of them.

use crate::input_file;
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

// By device and inode, because paths do not identify files: links, `..` and mounts give other
// names.
/// The number of guards of each open file.
static OPEN: Mutex<BTreeMap<(u64, u64), usize>> = Mutex::new(BTreeMap::new());

/// The identity of a file, independent of its name; `None` if the system provides none.
fn id(metadata: &Metadata) -> Option<(u64, u64)> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        Some((metadata.dev(), metadata.ino()))
    }
    #[cfg(not(unix))]
    {
        let _ = metadata;
        None
    }
}

/// Marks a file as open during its lifetime.
#[derive(Debug)]
pub struct OpenFileGuard {
    id: Option<(u64, u64)>,
    // While the file is open, the system cannot give the inode of a removed file to a new one.
    // Fields are dropped after `Drop::drop`, so the file is closed after it no longer counts as
    // open.
    _file: Option<File>,
}

impl OpenFileGuard {
    /// Marks the file of this metadata as open. The caller must keep the file open for longer than
    /// the guard.
    pub fn new(metadata: &Metadata) -> OpenFileGuard {
        OpenFileGuard::with(metadata, None)
    }

    fn with(metadata: &Metadata, file: Option<File>) -> OpenFileGuard {
        let id = id(metadata);
        if let Some(id) = id {
            *OPEN.lock().unwrap_or_else(PoisonError::into_inner).entry(id).or_insert(0) += 1;
        }
        OpenFileGuard { id, _file: file }
    }

    /// Marks the file at `path` as open; `None` if it does not exist.
    pub fn at(path: &Path) -> Option<OpenFileGuard> {
        match input_file::open(path) {
            Ok((file, metadata)) => Some(OpenFileGuard::with(&metadata, Some(file))),
            Err(_) => std::fs::metadata(path).ok().map(|metadata| OpenFileGuard::new(&metadata)),
        }
    }
}

impl Drop for OpenFileGuard {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                open.remove(&id);
            }
        }
    }
}

/// Whether a file of this process's models has this metadata.
pub(crate) fn is_open(metadata: &Metadata) -> bool {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    id(metadata).is_some_and(|id| open.contains_key(&id))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_removed_file_does_not_lend_its_identity_to_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        for _ in 0..32 {
            std::fs::write(&path, "{}").unwrap();
            let guard = OpenFileGuard::at(&path);
            assert!(is_open(&std::fs::metadata(&path).unwrap()));
            std::fs::remove_file(&path).unwrap();
            // File systems reuse a free inode immediately.
            std::fs::write(&path, "new").unwrap();
            assert!(!is_open(&std::fs::metadata(&path).unwrap()));
            drop(guard);
            std::fs::remove_file(&path).unwrap();
        }
    }
}
