//! Model files that this process has open: nothing that it writes may take the place of one.

use crate::input_file;
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// How often each file is open, by device and inode.
static OPEN: Mutex<BTreeMap<(u64, u64), usize>> = Mutex::new(BTreeMap::new());

/// The identity of a file, independent of its name; none if the system does not provide one.
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

/// A file that counts as open while this lives.
#[derive(Debug)]
pub struct OpenFileGuard {
    id: Option<(u64, u64)>,
    /// Keeps the file's inode from being given to a new file after the file is removed. Dropped after the file no longer counts as open.
    _file: Option<File>,
}

impl OpenFileGuard {
    /// Counts the file of this metadata as open. The caller keeps it open for longer than the guard.
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

    /// The file at `path`, or none if it does not exist.
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

/// Whether the file belongs to a model that is open.
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
            // file systems reuse the inode at once, if nothing holds it
            std::fs::write(&path, "new").unwrap();
            assert!(!is_open(&std::fs::metadata(&path).unwrap()));
            drop(guard);
            std::fs::remove_file(&path).unwrap();
        }
    }
}
