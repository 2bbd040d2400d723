//! Residency of a model's files in the page cache, and eviction of pages that loading brought in.
//!
//! Packed weights are in separate memory, so their pages of the file need not stay: a model would
//! take twice its size. Pages that were resident before loading are kept. They may belong to
//! another process that runs the model, or to a user who has just downloaded it.
#![allow(unsafe_code, reason = "system calls over memory maps")]

use crate::checkpoint::Checkpoint;
use crate::map::FileBytes;
use crate::tensor::{TensorInfo, TensorLocation};
use std::ops::Range;

/// A record of the pages of a checkpoint's files that were resident at one moment.
pub struct ResidentPages {
    files: Vec<Pages>,
}

/// A bit for each page of one file. All pages count as resident if residency is unknown, and in a
/// file that is built into the program.
enum Pages {
    All,
    Known { bits: Vec<u64>, page: usize },
}

impl Pages {
    fn of(bytes: &FileBytes) -> Pages {
        bytes.resident_bits().map_or(Pages::All, |(bits, page)| Pages::Known { bits, page })
    }

    /// Ranges of whole pages that contain a part of `bytes` and were not resident.
    fn absent(&self, bytes: Range<usize>) -> Vec<Range<usize>> {
        let Pages::Known { bits, page } = self else { return Vec::new() };
        let set = |i: usize| bits.get(i / 64).is_some_and(|word| word >> (i % 64) & 1 == 1);
        let mut ranges: Vec<Range<usize>> = Vec::new();
        if bytes.is_empty() {
            return ranges;
        }
        for i in bytes.start / page..bytes.end.div_ceil(*page) {
            if set(i) {
                continue;
            }
            // Adjacent pages are joined, for one system call per range.
            match ranges.last_mut() {
                Some(last) if last.end == i * page => last.end += page,
                _ => ranges.push(i * page..(i + 1) * page),
            }
        }
        ranges
    }
}

impl Checkpoint {
    /// A record without resident pages, with which [`release`](Self::release) evicts every page.
    pub fn nothing_resident(&self) -> ResidentPages {
        let none = |bytes: &FileBytes| match Pages::of(bytes) {
            Pages::Known { bits, page } => Pages::Known { bits: vec![0; bits.len()], page },
            Pages::All => Pages::All,
        };
        ResidentPages { files: self.files.iter().map(|bytes| none(bytes)).collect() }
    }

    /// The pages of the files that are resident now.
    pub fn resident_pages(&self) -> ResidentPages {
        ResidentPages { files: self.files.iter().map(|bytes| Pages::of(bytes)).collect() }
    }

    /// Whether `before` contains every page of a part of a tensor.
    pub fn was_resident(&self, name: &str, part: Range<usize>, before: &ResidentPages) -> bool {
        self.places(name, &part)
            .iter()
            .all(|(file, bytes)| before.files[*file].absent(bytes.clone()).is_empty())
    }

    /// Removes the pages of a part of a tensor, except those in `before`, from this process and
    /// from the page cache. Pages that another process maps, and pages at both ends with other
    /// bytes, are kept. A part that is interleaved with others is kept until the whole tensor is
    /// released.
    pub fn release(&self, name: &str, part: Range<usize>, before: &ResidentPages) {
        if !self.lies_together(name, &part) {
            return;
        }
        for (file, bytes) in self.places(name, &part) {
            // Unmap first: the system does not evict pages that a process maps.
            self.files[file].drop_pages(bytes.start, bytes.len());
            for absent in before.files[file].absent(bytes.clone()) {
                self.files[file].evict(absent.start.max(bytes.start)..absent.end.min(bytes.end));
            }
        }
    }

    /// Removes the pages of a part of a tensor from this process (`MADV_DONTNEED`), if they will
    /// not be read again soon.
    pub fn drop_pages(&self, name: &str, part: Range<usize>) {
        for (file, bytes) in self.places(name, &part) {
            self.files[file].drop_pages(bytes.start, bytes.len());
        }
    }

    /// Starts reading a part of a tensor's bytes into memory (`MADV_WILLNEED`).
    pub fn prefetch(&self, name: &str, part: Range<usize>) {
        for (file, bytes) in self.places(name, &part) {
            self.files[file].prefetch(bytes.start, bytes.len());
        }
    }

    /// Waits until a part of a tensor is in memory and mapped, so that its first read does not
    /// fault (`MADV_POPULATE_READ`). Returns immediately on systems without that call.
    pub fn populate(&self, name: &str, part: Range<usize>) {
        for (file, bytes) in self.places(name, &part) {
            self.files[file].populate(bytes.start, bytes.len());
        }
    }

    /// The files of a part of a tensor, clamped to its end, with byte ranges. For a 4-bit weight,
    /// the corresponding part of each of its tensors.
    fn places(&self, name: &str, part: &Range<usize>) -> Vec<(usize, Range<usize>)> {
        self.info(name).map_or_else(Vec::new, |info| self.places_of(info, part.clone()))
    }

    fn places_of(&self, info: &TensorInfo, part: Range<usize>) -> Vec<(usize, Range<usize>)> {
        let end = part.end.min(info.bytes);
        let start = part.start.min(end);
        let within = |stored: &TensorInfo| {
            let TensorLocation::File { file, start: first } = stored.place else { return None };
            // u128, because a product of two sizes of terabytes exceeds u64.
            let scaled = |at: usize| (at as u128 * stored.bytes as u128 / info.bytes.max(1) as u128) as usize;
            Some((file, first + scaled(start)..first + scaled(end)))
        };
        match info.place {
            TensorLocation::File { .. } => within(info).into_iter().collect(),
            TensorLocation::FourBit(index) => self.four_bit[index].tensors().filter_map(within).collect(),
            // A factor is read with its weight.
            TensorLocation::Factor(_) | TensorLocation::Absent => Vec::new(),
            // Any part may need all of the source.
            TensorLocation::Derived(index) => self.places_of(&self.derived[index].from, 0..usize::MAX),
            // The range from the part's first row to its last one, including rows between.
            TensorLocation::Cut(index) => {
                let cut = &self.cuts[index];
                let row_bytes = cut.whole.bytes.checked_div(cut.whole.rows()).unwrap_or(0);
                let last = info.rows().saturating_sub(1);
                let hull = cut.row(0) * row_bytes..(cut.row(last) + 1) * row_bytes;
                let scaled = |at: usize| {
                    hull.start + (at as u128 * hull.len() as u128 / info.bytes.max(1) as u128) as usize
                };
                self.places_of(&cut.whole, scaled(start)..scaled(end))
            }
        }
    }

    /// Whether the pages of a part of a tensor contain nothing else that is still needed.
    fn lies_together(&self, name: &str, part: &Range<usize>) -> bool {
        let Some(info) = self.info(name) else { return false };
        let whole = part.start == 0 && part.end >= info.bytes;
        match info.place {
            TensorLocation::FourBit(index) => whole || self.four_bit[index].has_rows(),
            TensorLocation::Cut(_) => whole,
            // Another derived tensor may read the same pages.
            TensorLocation::Derived(_) => false,
            TensorLocation::File { .. } | TensorLocation::Factor(_) | TensorLocation::Absent => true,
        }
    }

    /// Evicts all unmapped pages that are not in `before`, such as headers and read-ahead.
    pub fn release_rest(&self, before: &ResidentPages) {
        for (bytes, pages) in self.files.iter().zip(&before.files) {
            pages.absent(0..bytes.get().len()).into_iter().for_each(|absent| bytes.evict(absent));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Pages;

    #[test]
    fn adjacent_absent_pages_are_one_range() {
        let pages = Pages::Known { bits: vec![0b0110, 1 << 63], page: 10 };
        assert_eq!(pages.absent(0..40), [0..10, 30..40]);
        assert_eq!(pages.absent(5..6), std::slice::from_ref(&(0..10)));
        assert_eq!(pages.absent(10..30), []);
        assert_eq!(pages.absent(1260..1290), [1260..1270, 1280..1290]);
        assert_eq!(pages.absent(7..7), []);
        assert_eq!(Pages::All.absent(0..1 << 40), []);
    }
}
