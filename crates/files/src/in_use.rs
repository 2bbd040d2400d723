//! Model files that this process has open: nothing that it writes may take the place of one.

use std::collections::BTreeMap;
use std::fs::Metadata;
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
pub struct OpenFileGuard(Option<(u64, u64)>);

impl OpenFileGuard {
    /// Counts the file of this metadata as open.
    pub fn new(metadata: &Metadata) -> OpenFileGuard {
        let id = id(metadata);
        if let Some(id) = id {
            *OPEN.lock().unwrap_or_else(PoisonError::into_inner).entry(id).or_insert(0) += 1;
        }
        OpenFileGuard(id)
    }

    /// The file at `path`, or none if it does not exist.
    pub fn at(path: &Path) -> Option<OpenFileGuard> {
        std::fs::metadata(path).ok().map(|metadata| OpenFileGuard::new(&metadata))
    }
}

impl Drop for OpenFileGuard {
    fn drop(&mut self) {
        let Some(id) = self.0 else { return };
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
