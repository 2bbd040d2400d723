//! Memory maps of model files.
#![allow(unsafe_code, reason = "memory maps")]

use crate::error::FormatError;
use crate::sigbus;
use crate::sniff::EMPTY;
use latent_files::OpenFileGuard;
use latent_files::{InputError, input_file};
use memmap2::Mmap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

/// The bytes of a file: mapped, read by the caller, or built into the program.
pub(crate) enum FileBytes {
    Map(MappedFile),
    Owned(Vec<u8>),
    Static(&'static [u8]),
}

pub(crate) struct MappedFile {
    // Fields are dropped in order, and the guard must be dropped before the file is closed: a
    // removed file that is closed may lend its inode to a new file, which would then count as in
    // use.
    #[expect(dead_code, reason = "held as long as the map")]
    in_use: OpenFileGuard,
    map: Mmap,
    /// Open for `posix_fadvise`, which evicts pages.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "page caches are Linux's alone"))]
    file: File,
}

impl FileBytes {
    /// Maps a regular file.
    pub(crate) fn map(path: &Path) -> Result<FileBytes, FormatError> {
        let io = |error| FormatError::Io { path: path.to_owned(), error };
        let (file, metadata) = input_file::open(path).map_err(|error| match error {
            InputError::Io { path, error } => FormatError::Io { path, error },
            _ => {
                let what =
                    "it is neither a file nor a folder; pass the path of a .gguf file or a model folder";
                FormatError::NotAModel { path: path.to_owned(), what: what.into() }
            }
        })?;
        if metadata.len() == 0 {
            return Err(FormatError::NotAModel { path: path.to_owned(), what: EMPTY.into() });
        }
        // SAFETY: the map is read only. Should another process shrink the file, reading a vanished
        // page raises SIGBUS, which ends the process; changed contents can only change values,
        // since all ranges were checked and are kept apart.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        sigbus::watch(path, map.as_ptr() as usize, map.len());
        Ok(FileBytes::Map(MappedFile { map, file, in_use: OpenFileGuard::new(&metadata) }))
    }

    pub(crate) fn get(&self) -> &[u8] {
        match self {
            FileBytes::Map(mapped) => &mapped.map,
            FileBytes::Owned(bytes) => bytes,
            FileBytes::Static(bytes) => bytes,
        }
    }

    /// Removes the pages of a range from this process (`MADV_DONTNEED`).
    pub(crate) fn drop_pages(&self, start: usize, len: usize) {
        #[cfg(unix)]
        if let FileBytes::Map(MappedFile { map, .. }) = self {
            // SAFETY: a private read-only file mapping: dropped pages are read from the file again.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
        }
        #[cfg(not(unix))]
        let _ = (start, len);
    }

    /// Starts reading a range into memory (`MADV_WILLNEED`).
    pub(crate) fn prefetch(&self, start: usize, len: usize) {
        #[cfg(unix)]
        if let FileBytes::Map(MappedFile { map, .. }) = self {
            // An error is ignored: a reader faults the pages in anyway.
            let _ = map.advise_range(memmap2::Advice::WillNeed, start, len);
        }
        #[cfg(not(unix))]
        let _ = (start, len);
    }

    /// Waits until a range is in memory and in the process's page tables (`MADV_POPULATE_READ`).
    pub(crate) fn populate(&self, start: usize, len: usize) {
        #[cfg(target_os = "linux")]
        if let FileBytes::Map(MappedFile { map, .. }) = self {
            // An error is ignored: before Linux 5.14, pages are mapped when they are first read.
            let _ = map.advise_range(memmap2::Advice::PopulateRead, start, len);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (start, len);
    }
}

/// Bytes per call of `mincore`, which needs a byte of memory per page.
#[cfg(target_os = "linux")]
const RESIDENCY_STEP: usize = 1 << 30;

#[cfg(target_os = "linux")]
impl FileBytes {
    /// A bit per page for residency in the page cache, and the page size. `None` if unknown. Since
    /// Linux 5.2, all pages of a file that the user may not write seem to be resident.
    pub(crate) fn resident_bits(&self) -> Option<(Vec<u64>, usize)> {
        let FileBytes::Map(MappedFile { map, .. }) = self else { return None };
        // SAFETY: a question without memory.
        let page =
            usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok().filter(|page| *page > 0)?;
        let pages = map.len().div_ceil(page);
        let mut bits = vec![0u64; pages.div_ceil(64)];
        let mut states = vec![0u8; RESIDENCY_STEP.div_ceil(page).min(pages)];
        for start in (0..map.len()).step_by(RESIDENCY_STEP) {
            let len = RESIDENCY_STEP.min(map.len() - start);
            // SAFETY: the range is inside the map, and `states` has a byte for each of its pages.
            let result =
                unsafe { libc::mincore(map.as_ptr().add(start).cast_mut().cast(), len, states.as_mut_ptr()) };
            if result != 0 {
                return None;
            }
            for (i, state) in states[..len.div_ceil(page)].iter().enumerate() {
                let place = start / page + i;
                bits[place / 64] |= u64::from(state & 1) << (place % 64);
            }
        }
        Some((bits, page))
    }

    /// Evicts the whole pages of a range from the page cache, unless a process maps or writes them.
    pub(crate) fn evict(&self, range: Range<usize>) {
        use std::os::fd::AsRawFd;
        let FileBytes::Map(MappedFile { file, map, .. }) = self else { return };
        // A length of 0 means up to the end of the file. Only then the last, partial page is
        // evicted.
        let end = if range.end >= map.len() { 0 } else { range.end - range.start };
        let (Ok(start), Ok(len)) = (range.start.try_into(), end.try_into()) else { return };
        // The result is ignored: eviction is only a hint.
        // SAFETY: advice about an open file.
        let _ = unsafe { libc::posix_fadvise(file.as_raw_fd(), start, len, libc::POSIX_FADV_DONTNEED) };
    }
}

#[cfg(not(target_os = "linux"))]
impl FileBytes {
    pub(crate) fn resident_bits(&self) -> Option<(Vec<u64>, usize)> {
        None
    }

    pub(crate) fn evict(&self, _: Range<usize>) {}
}

impl Drop for FileBytes {
    fn drop(&mut self) {
        if let FileBytes::Map(MappedFile { map, .. }) = self {
            sigbus::forget(map.as_ptr() as usize);
        }
    }
}
