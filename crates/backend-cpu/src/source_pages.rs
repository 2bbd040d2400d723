//! The pages of the file that weights are packed from: read ahead where they are not in memory, and given back
//! when their bytes have been packed.
//!
//! Without that, a model that takes half of the memory would fill the other half with pages of its file.

use crate::read_ahead::{ReadAhead, ReadPiece, ReadWindow, pieces};
use latent_formats::{Checkpoint, ResidentPages};
use std::ops::Range;
use std::sync::Arc;

/// Bytes between two releases of pages: large enough that the system calls cost nothing.
pub(crate) const RELEASE: usize = 8 << 20;

/// Bytes that may be in memory twice, as pages and packed: this part of all, within these limits.
const WINDOW_SHARE: u64 = 20;
const WINDOW: Range<u64> = 64 << 20..1 << 30;

/// The file's pages while weights are packed.
pub(crate) struct SourcePages {
    checkpoint: Arc<Checkpoint>,
    /// The pages that were in memory before packing. None if nothing is packed, which saves the
    /// query.
    before: Option<ResidentPages>,
    /// Whether what was read stays in the page cache.
    keep: bool,
    pace: Arc<ReadWindow>,
    _read_ahead: Option<ReadAhead>,
}

impl SourcePages {
    /// For these tensors, packed in this order.
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

    /// The pages that stay, where others are given back.
    fn staying(&self) -> Option<&ResidentPages> {
        self.before.as_ref().filter(|_| !self.keep)
    }

    /// A part of a tensor has been packed.
    pub(crate) fn packed(&self, tensor: &str, part: Range<usize>) {
        let bytes = part.len() as u64;
        if let Some(staying) = self.staying() {
            self.checkpoint.release(tensor, part, staying);
        }
        self.pace.used(bytes);
    }

    /// A tensor has been packed as a whole, part by part: what lies at the seams goes too.
    pub(crate) fn done(&self, tensor: &str) {
        match self.staying() {
            Some(staying) => self.checkpoint.release(tensor, 0..usize::MAX, staying),
            None => self.checkpoint.drop_pages(tensor, 0..usize::MAX),
        }
    }

    /// All weights have been packed.
    pub(crate) fn finish(self) {
        if let Some(staying) = self.staying() {
            self.checkpoint.release_rest(staying);
        }
    }
}
