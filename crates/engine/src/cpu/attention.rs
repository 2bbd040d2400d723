//! Attention in latent space: a row's cached rows cut into pieces, merged in order.

use super::batch::SeqSpan;
use super::compile::Slot;
use super::run::Thread;
use super::scratch::{WorkerScratch, resize_scratch};
use crate::cache::PAGE_ROWS;
use latent_graph::ir::AttentionPath;
use latent_kernels::{AttendArgs, AttendFn, CacheView, PartialSoftmax, RowsMut, partial_softmax_len};
use std::ops::Range;

/// A row's cached rows are cut into at most this many pieces.
const MAX_PIECES: usize = 32;

/// Heads that a thread takes where several share a piece: so many read a cached row once at little more than its cost.
const GROUP: usize = 16;

/// Heads whose pieces a thread keeps at most, where it does all pieces of its heads.
const MOST_HEADS: usize = 32;

/// Heads that attend together where there is little to share out: a multiple of this.
const LEAST_GROUP: usize = 4;

/// Cached rows of a piece, unless there would be more than [`MAX_PIECES`]; fewer where there would be less than [`PIECES`].
const PIECE: usize = 4 * PAGE_ROWS;

/// Pieces that are enough, if they would be smaller than [`PIECE`].
const PIECES: usize = 8;

/// The piece of `length` cached rows at `index`. Borders depend on the length alone, so that the order of sums does too.
fn piece(length: usize, index: usize) -> Range<usize> {
    let size = piece_size(length);
    (index * size).min(length)..((index + 1) * size).min(length)
}

fn piece_size(length: usize) -> usize {
    let pages = |pieces| length.div_ceil(pieces).next_multiple_of(PAGE_ROWS);
    pages(PIECES).clamp(PAGE_ROWS, PIECE).max(pages(MAX_PIECES))
}

fn piece_count(length: usize) -> usize {
    length.div_ceil(piece_size(length))
}

/// Numbers of shared memory for the partial results of so many heads of a row, of all its pieces.
fn slot_len(heads: usize, latent: usize) -> usize {
    MAX_PIECES * partial_softmax_len(heads, latent)
}

/// Numbers of shared memory in which all partial results of few rows are kept, at most.
pub fn shared_partials(heads: usize, latent: usize, threads: usize) -> usize {
    4 * threads.max(heads.div_ceil(GROUP)) * slot_len(GROUP.min(heads), latent)
}

/// Where in shared memory the partial results of heads from `head` on begin, for a row before which the lane has `before`.
fn slot_start(out: &Slot, before: usize, head: usize) -> usize {
    before * slot_len(out.heads, out.width) + slot_len(head, out.width)
}

impl Thread<'_> {
    /// A span's cache rows of one stream.
    pub(super) fn cache_view<'s>(&'s self, span: &'s SeqSpan, kv_layer: usize) -> CacheView<'s> {
        let (kv_layer, memory) = &self.pool.kv_layers()[kv_layer];
        let row = kv_layer.row(self.pool.cache_type());
        CacheView::new(row, memory.bytes(), PAGE_ROWS, &span.pages).expect("pages of the pool")
    }

    /// Factor on the scores of a query at `position`.
    pub(super) fn score_scale(&self, position: usize) -> f32 {
        let a = &self.model.config.attention;
        (a.softmax_scale * a.temperature.map_or(1.0, |t| t.factor(position))) as f32
    }

    /// Attention of every row in the lane. With few rows, threads share the pieces of each, which who reads the results [merges](Self::merge_head); with many,
    /// or where each has one piece only, a thread does all pieces of its rows and heads. The sums are the same.
    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    pub(super) fn attend_latent(
        &self,
        query: &Slot,
        out: &Slot,
        kv_layer: usize,
        kernel: AttendFn,
        path: AttentionPath,
        local: &mut WorkerScratch,
    ) {
        if self.in_pieces(out, path) {
            self.attend_spread(query, out, kv_layer, kernel, path, &mut local.attention);
            if self.recording.is_some() {
                self.worker.barrier();
                self.merge_all(out, path);
            }
            return;
        }
        // a head's sums do not depend on those beside it
        let rows = self.rows_of(path);
        let share = (rows * out.heads).div_ceil(self.worker.count).next_multiple_of(LEAST_GROUP);
        let mut task = 0;
        for (span, row) in self.rows_in(path) {
            let cache = self.cache_view(span, kv_layer);
            for work in self.work(row, out.heads, share.min(MOST_HEADS)) {
                if task % self.worker.count == self.worker.index {
                    let len = partial_softmax_len(work.heads.len(), out.width);
                    let WorkerScratch { partials, attention, .. } = &mut *local;
                    let memory = resize_scratch(partials, piece_count(work.length) * len);
                    for (index, memory) in memory.chunks_exact_mut(len).enumerate() {
                        self.attend_piece(&work, index, query, &cache, kernel, out.width, memory, attention);
                    }
                    let mut result = self.write_heads(out, work.row, work.heads.clone());
                    self.merge(&work, memory, work.heads.clone(), out.width, &mut result);
                }
                task += 1;
            }
        }
    }

    /// Whether threads share the pieces of the lane's rows: few rows, with several pieces and room for their results.
    fn in_pieces(&self, out: &Slot, path: AttentionPath) -> bool {
        let rows = self.rows_of(path);
        let several = |(_, row): (&SeqSpan, usize)| piece_count(self.seen(row)) > 1;
        let few = rows * out.heads.div_ceil(GROUP) < 4 * self.worker.count;
        let spread = few && self.rows_in(path).any(several);
        spread && rows * slot_len(out.heads, out.width) <= self.shared.partial_softmax_len
    }

    /// Whether attention leaves the pieces of the lane's rows to who reads `out`. A trace wants to see the results themselves.
    pub(super) fn leaves_pieces(&self, out: &Slot, path: AttentionPath) -> bool {
        self.recording.is_none() && self.in_pieces(out, path)
    }

    /// The pieces of all rows, shared out among threads by cached rows: neighbours to one thread, since a kernel asks for what follows its piece. All
    /// heads of a piece go to one thread, which takes its rows from memory once; fewer pieces than threads are shared out by groups of heads
    /// too.
    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    fn attend_spread(
        &self,
        query: &Slot,
        out: &Slot,
        kv_layer: usize,
        kernel: AttendFn,
        path: AttentionPath,
        scratch: &mut Vec<f32>,
    ) {
        let own = self.worker.share(self.rows_in(path).map(|(_, row)| self.seen(row) * out.heads).sum(), 1);
        let mut before = 0;
        for (number, (span, row)) in self.rows_in(path).enumerate() {
            let cache = self.cache_view(span, kv_layer);
            let seen = self.seen(row);
            for index in 0..piece_count(seen) {
                let rows = piece(seen, index);
                for work in self.work(row, out.heads, self.together(seen, out.heads)) {
                    // whoever has the middle of a task among its cached rows, counted for each head, does it
                    let heads = work.heads.start + work.heads.end;
                    if own.contains(&(before + rows.start * out.heads + rows.len() * heads / 2)) {
                        let len = partial_softmax_len(work.heads.len(), out.width);
                        let at = slot_start(out, number, work.heads.start) + index * len;
                        let memory = self.partial_memory(at, len);
                        self.attend_piece(&work, index, query, &cache, kernel, out.width, memory, scratch);
                    }
                }
            }
            before += seen * out.heads;
        }
    }

    /// How many of its heads go to a thread together, of a row whose pieces are shared out.
    fn together(&self, seen: usize, heads: usize) -> usize {
        if piece_count(seen) >= self.worker.count { heads } else { GROUP }
    }

    /// Cached rows that a row sees, itself among them.
    fn seen(&self, row: usize) -> usize {
        self.batch.positions[row] + 1
    }

    /// How many rows a lane has.
    fn rows_of(&self, path: AttentionPath) -> usize {
        self.batch.in_lane(path).map(|span| span.rows.len()).sum()
    }

    /// The rows of a lane, in order, with their spans.
    fn rows_in(&self, path: AttentionPath) -> impl Iterator<Item = (&SeqSpan, usize)> {
        self.batch.in_lane(path).flat_map(|span| span.rows.clone().map(move |row| (span, row)))
    }

    /// The heads of one row in groups.
    fn work(&self, row: usize, heads: usize, group: usize) -> impl Iterator<Item = Work> + use<> {
        let length = self.seen(row);
        (0..heads).step_by(group).map(move |first| Work {
            row,
            length,
            heads: first..(first + group).min(heads),
        })
    }

    #[allow(clippy::too_many_arguments, reason = "one piece of one row")]
    fn attend_piece(
        &self,
        work: &Work,
        index: usize,
        query: &Slot,
        cache: &CacheView<'_>,
        kernel: AttendFn,
        latent: usize,
        memory: &mut [f32],
        scratch: &mut Vec<f32>,
    ) {
        let q = self.read_heads(query, work.row, work.heads.clone());
        let mut part = PartialSoftmax::in_memory(memory, work.heads.len(), latent);
        let rows = piece(work.length, index);
        let scale = self.score_scale(self.batch.positions[work.row]);
        kernel(&AttendArgs { q, cache, rows, scale, latent }, &mut part, scratch);
    }

    /// Merges the pieces of a row, in order, of some of the heads.
    fn merge(&self, work: &Work, memory: &[f32], heads: Range<usize>, width: usize, out: &mut RowsMut<'_>) {
        let (all, first) = (work.heads.len(), work.heads.start);
        let wanted = heads.start - first..heads.end - first;
        latent_kernels::combine_splits(memory, piece_count(work.length), all, width, wanted, out);
    }

    /// Merges what [`attend_spread`](Self::attend_spread) left of a head, for `rows`, before which the lane has so many.
    pub(super) fn merge_head(
        &self,
        slot: &Slot,
        head: usize,
        before: usize,
        rows: Range<usize>,
        out: &mut [f32],
    ) {
        for (i, (row, out)) in rows.zip(out.chunks_exact_mut(slot.width)).enumerate() {
            let length = self.seen(row);
            let together = self.together(length, slot.heads);
            let first = head / together * together;
            let work = Work { row, length, heads: first..(first + together).min(slot.heads) };
            let len = piece_count(length) * partial_softmax_len(work.heads.len(), slot.width);
            let memory = self.partials(slot_start(slot, before + i, first), len);
            let mut out = RowsMut::new(out, 1, slot.width, slot.width);
            self.merge(&work, memory, head..head + 1, slot.width, &mut out);
        }
    }

    /// The same of all heads and rows of a lane, to where they belong.
    fn merge_all(&self, out: &Slot, path: AttentionPath) {
        for head in self.worker.share(out.heads, 1) {
            for (number, (_, row)) in self.rows_in(path).enumerate() {
                self.merge_head(out, head, number, row..row + 1, self.head_mut(out, row, head));
            }
        }
    }
}

/// One row, the cached rows that it sees, and the heads of one group.
struct Work {
    row: usize,
    length: usize,
    heads: Range<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_length_once_and_are_at_most_32() {
        for length in [1, 63, 64, 127, 128, 129, 4096, 4097, 163_840] {
            let count = piece_count(length);
            assert!((1..=MAX_PIECES).contains(&count));
            let mut end = 0;
            for index in 0..count {
                let piece = piece(length, index);
                assert!(piece.start == end && !piece.is_empty() && piece.start.is_multiple_of(PAGE_ROWS));
                end = piece.end;
            }
            assert_eq!(end, length);
        }
    }
}
