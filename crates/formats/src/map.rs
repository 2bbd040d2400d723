//! Memory maps of model files.
#![allow(unsafe_code, reason = "memory maps")]

use crate::error::FormatError;
use crate::in_use::InUse;
use crate::input_file::{self, InputError};
use crate::sigbus;
use memmap2::Mmap;
use std::path::Path;

/// The bytes of a whole file: mapped, or built into the program.
pub(crate) enum Bytes {
    Map(Mmap, #[expect(dead_code, reason = "held until the map goes")] InUse),
    Static(&'static [u8]),
}

impl Bytes {
    /// Maps a regular file.
    pub(crate) fn map(path: &Path) -> Result<Bytes, FormatError> {
        let io = |error| FormatError::Io { path: path.to_owned(), error };
        let (file, metadata) = input_file::open(path).map_err(|error| match error {
            InputError::Io { path, error } => FormatError::Io { path, error },
            _ => {
                let what =
                    "it is neither a file nor a folder; give the path of a .gguf file or a model folder";
                FormatError::NotAModel { path: path.to_owned(), what: what.into() }
            }
        })?;
        if metadata.len() == 0 {
            let what = "the file is empty; download it again".into();
            return Err(FormatError::NotAModel { path: path.to_owned(), what });
        }
        // SAFETY: the map is read only. Should another process shrink the file, reading a vanished page raises SIGBUS, which
        // ends the process; changed contents can only change values, since all ranges were checked and are kept apart.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        sigbus::watch(path, map.as_ptr() as usize, map.len());
        Ok(Bytes::Map(map, InUse::new(&metadata)))
    }

    pub(crate) fn get(&self) -> &[u8] {
        match self {
            Bytes::Map(map, _) => map,
            Bytes::Static(bytes) => bytes,
        }
    }

    /// Drops the pages of these bytes from memory.
    pub(crate) fn drop_pages(&self, start: usize, len: usize) {
        #[cfg(unix)]
        if let Bytes::Map(map, _) = self {
            // SAFETY: a private read-only file mapping: dropped pages are read from the file again.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
        }
        #[cfg(not(unix))]
        let _ = (start, len);
    }

    /// Starts reading these bytes into memory.
    pub(crate) fn prefetch(&self, start: usize, len: usize) {
        #[cfg(unix)]
        if let Bytes::Map(map, _) = self {
            // a hint: a reader waits for the bytes in any case
            let _ = map.advise_range(memmap2::Advice::WillNeed, start, len);
        }
        #[cfg(not(unix))]
        let _ = (start, len);
    }

    /// Waits until these bytes are in memory, and enters their pages into the process's tables.
    pub(crate) fn populate(&self, start: usize, len: usize) {
        #[cfg(target_os = "linux")]
        if let Bytes::Map(map, _) = self {
            // since Linux 5.14; before, they are entered when they are first read
            let _ = map.advise_range(memmap2::Advice::PopulateRead, start, len);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (start, len);
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Bytes::Map(map, _) = self {
            sigbus::forget(map.as_ptr() as usize);
        }
    }
}
