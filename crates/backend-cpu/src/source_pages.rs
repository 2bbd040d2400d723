//! The page cache's copy of a file while weights are packed from it. Pages that are not in memory
//! are read ahead, and are released when their bytes have been packed.
//!
//! Otherwise a model that takes half of the memory would fill the other half with pages of its
//! file.

use crate::read_ahead::{ReadAhead, ReadPiece, ReadWindow, pieces};
use latent_formats::{Checkpoint, ResidentPages};
use std::ops::Range;
use std::sync::Arc;

/// Bytes between two releases of pages: large enough that the system calls cost next to nothing.
pub(crate) const RELEASE: usize = 8 << 20;

/// The read-ahead window, as a divisor of the bytes to pack: pages in the window are in memory in
/// addition to the packed weights.
const WINDOW_SHARE: u64 = 20;

/// Limits of the read-ahead window in bytes.
const WINDOW: Range<u64> = 64 << 20..1 << 30;

/// The file's pages while weights are packed.
pub(crate) struct SourcePages {
    checkpoint: Arc<Checkpoint>,
    /// The pages that were in memory before packing. They stay, since another process may use them.
    /// None if nothing is packed, which saves the query.
    before: Option<ResidentPages>,
    /// Whether pages that were read stay in the page cache.
    keep: bool,
    pace: Arc<ReadWindow>,
    _read_ahead: Option<ReadAhead>,
}

impl SourcePages {
    /// Starts to read ahead `tensors`, which are packed in this order.
    pub(crate) fn new(checkpoint: &Arc<Checkpoint>, tensors: &[String], keep: bool) -> SourcePages {
        let before = (!tensors.is_empty()).then(|| checkpoint.resident_pages());
        let mut pieces = pieces(checkpoint, tensors);
        let bytes = pieces.last().map_or(0, |piece| piece.before + piece.part.len() as u64);
        let pace = Arc::new(ReadWindow::new((bytes / WINDOW_SHARE).clamp(WINDOW.start, WINDOW.end)));
        let resident =
            |before, piece: &ReadPiece| checkpoint.was_resident(&piece.tensor, piece.part.clone(), before);
        pieces.retain(|piece| before.as_ref().is_some_and(|before| !resident(before, piece)));
        let read_ahead = ReadAhead::start(checkpoint, pieces, Some(Arc::clone(&pace)));
        SourcePages { checkpoint: Arc::clone(checkpoint), before, keep, pace, _read_ahead: read_ahead }
    }

    pub(crate) fn checkpoint(&self) -> &Arc<Checkpoint> {
        &self.checkpoint
    }

    /// The pages that stay if all others are released. None if no page is released.
    fn staying(&self) -> Option<&ResidentPages> {
        self.before.as_ref().filter(|_| !self.keep)
    }

    /// Called when a part of a tensor has been packed, by any worker.
    pub(crate) fn packed(&self, tensor: &str, part: Range<usize>) {
        let bytes = part.len() as u64;
        if let Some(staying) = self.staying() {
            self.checkpoint.release(tensor, part, staying);
        }
        self.pace.used(bytes);
    }

    /// Called when all parts of a tensor have been packed.
    pub(crate) fn done(&self, tensor: &str) {
        match self.staying() {
            // Again for the whole tensor: a page at a seam belongs to two parts, so `packed` kept
            // it.
            Some(staying) => self.checkpoint.release(tensor, 0..usize::MAX, staying),
            None => self.checkpoint.drop_pages(tensor, 0..usize::MAX),
        }
    }

    /// Called when all weights have been packed.
    pub(crate) fn finish(self) {
        if let Some(staying) = self.staying() {
            self.checkpoint.release_rest(staying);
        }
    }
}
