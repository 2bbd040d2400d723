//! Table of unfinished files, for exits without destructors: a second Ctrl-C, and the handler of
//! SIGBUS, which must not allocate or take locks.

use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// Maximum number of names. Further files are removed only by their destructors.
const MAX_NAMES: usize = 64;

/// Maximum bytes of a name with a trailing zero (PATH_MAX on Linux).
const NAME_BYTES: usize = 4096;

/// An entry of the table. Its name is valid while `len` is above zero.
struct NameEntry {
    taken: AtomicUsize,
    len: AtomicUsize,
    name: [AtomicU8; NAME_BYTES],
}

static NAMES: [NameEntry; MAX_NAMES] = [const {
    NameEntry {
        taken: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        name: [const { AtomicU8::new(0) }; NAME_BYTES],
    }
}; MAX_NAMES];

impl NameEntry {
    /// The name with a trailing zero byte; `None` if the entry is free.
    fn name(&self) -> Option<&[AtomicU8]> {
        let len = self.len.load(Ordering::SeqCst);
        (len > 0).then(|| &self.name[..=len])
    }
}

/// The names of unfinished files, each with a trailing zero. It neither allocates nor locks, for
/// signal handlers.
pub fn unfinished_names() -> impl Iterator<Item = &'static [AtomicU8]> {
    NAMES.iter().filter_map(NameEntry::name)
}

/// Keeps a name in the table during its lifetime.
#[derive(Debug)]
pub(crate) struct UnfinishedName(Option<usize>);

impl UnfinishedName {
    /// Adds a file, or a folder for files. The path should be absolute.
    pub(crate) fn new(path: &Path) -> UnfinishedName {
        let bytes = path.as_os_str().as_encoded_bytes();
        if bytes.is_empty() || bytes.len() >= NAME_BYTES || bytes.contains(&0) {
            return UnfinishedName(None);
        }
        let claim =
            |p: &NameEntry| p.taken.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let found = NAMES.iter().position(claim);
        if let Some(entry) = found.map(|i| &NAMES[i]) {
            for (to, from) in entry.name.iter().zip(bytes.iter().chain(&[0])) {
                to.store(*from, Ordering::Relaxed);
            }
            // Last: a handler that sees the length sees all bytes of the name.
            entry.len.store(bytes.len(), Ordering::SeqCst);
        }
        UnfinishedName(found)
    }
}

impl Drop for UnfinishedName {
    fn drop(&mut self) {
        if let Some(entry) = self.0.map(|i| &NAMES[i]) {
            // Invalid before it is free, so that a new owner cannot overwrite a valid name.
            entry.len.store(0, Ordering::SeqCst);
            entry.taken.store(0, Ordering::SeqCst);
        }
    }
}

/// Removes all unfinished files, and the folders created for them, before a program exits without
/// destructors.
pub fn remove_unfinished() {
    let paths: Vec<_> = unfinished_names().filter_map(path_of).collect();
    // Errors are ignored, because the program exits anyway.
    paths.iter().for_each(|path| drop(std::fs::remove_file(path)));
    paths.iter().rev().for_each(|path| drop(std::fs::remove_dir(path)));
}

fn path_of(name: &[AtomicU8]) -> Option<std::path::PathBuf> {
    let bytes: Vec<u8> = name[..name.len() - 1].iter().map(|b| b.load(Ordering::Relaxed)).collect();
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStringExt;
        Some(std::ffi::OsString::from_vec(bytes).into())
    }
    #[cfg(not(unix))]
    String::from_utf8(bytes).ok().map(Into::into)
}
