//! The system's page cache: which pages of a model's files it holds, and giving back those that a reader brought in.
//!
//! Weights that are packed into memory of their own need not stay in the page cache besides. But pages that were there before belong to whoever
//! brought them in: another process that runs the model, or the user who has just downloaded it.
#![allow(unsafe_code, reason = "system calls over memory maps")]

use crate::checkpoint::Checkpoint;
use crate::map::Bytes;
use std::ops::Range;

/// The pages of a checkpoint's files that were in memory at one moment.
pub struct ResidentPages {
    files: Vec<Pages>,
}

/// A bit for each page of one file; everything counts as resident where the system does not say, and in a file that is built into the program.
enum Pages {
    All,
    Known { bits: Vec<u64>, page: usize },
}

impl Pages {
    fn of(bytes: &Bytes) -> Pages {
        bytes.resident_bits().map_or(Pages::All, |(bits, page)| Pages::Known { bits, page })
    }

    /// The ranges of bytes in whole pages, within those that hold `bytes`, which were not resident.
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
            match ranges.last_mut() {
                Some(last) if last.end == i * page => last.end += page,
                _ => ranges.push(i * page..(i + 1) * page),
            }
        }
        ranges
    }
}

impl Checkpoint {
    /// As if none of its pages were in memory, so that [`release`](Self::release) gives back all of them.
    pub fn nothing_resident(&self) -> ResidentPages {
        let none = |bytes: &Bytes| match Pages::of(bytes) {
            Pages::Known { bits, page } => Pages::Known { bits: vec![0; bits.len()], page },
            Pages::All => Pages::All,
        };
        ResidentPages { files: self.files.iter().map(none).collect() }
    }

    /// The pages of its files that are in memory now.
    pub fn resident_pages(&self) -> ResidentPages {
        ResidentPages { files: self.files.iter().map(Pages::of).collect() }
    }

    /// Whether `before` has every page of a part of a tensor.
    pub fn was_resident(&self, name: &str, part: Range<usize>, before: &ResidentPages) -> bool {
        let Some((file, bytes)) = self.range(name, part) else { return true };
        before.files[file].absent(bytes).is_empty()
    }

    /// Gives back the pages of a part of a tensor that `before` has not, from this process and from the page cache. Pages that another process maps
    /// stay, and the pages at both ends as far as they hold other bytes.
    pub fn release(&self, name: &str, part: Range<usize>, before: &ResidentPages) {
        if let Some((file, bytes)) = self.range(name, part) {
            self.files[file].drop_pages(bytes.start, bytes.len());
            for absent in before.files[file].absent(bytes.clone()) {
                self.files[file].evict(absent.start.max(bytes.start)..absent.end.min(bytes.end));
            }
        }
    }

    /// Gives back all pages that `before` has not and that nobody maps: what was read beside the tensors that were released.
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
    fn absent_pages_are_joined_and_hold_the_bytes_asked_for() {
        let pages = Pages::Known { bits: vec![0b0110, 1 << 63], page: 10 };
        assert_eq!(pages.absent(0..40), [0..10, 30..40]);
        assert_eq!(pages.absent(5..6), std::slice::from_ref(&(0..10)));
        assert_eq!(pages.absent(10..30), []);
        assert_eq!(pages.absent(1260..1290), [1260..1270, 1280..1290]);
        assert_eq!(pages.absent(7..7), []);
        assert_eq!(Pages::All.absent(0..1 << 40), []);
    }
}
