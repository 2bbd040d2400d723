//! Attention in latent space: a row's cached rows cut into pieces, merged in order.

use super::batch::Segment;
use super::compile::Slot;
use super::local::{Local, grown};
use super::run::Thread;
use crate::cache::PAGE_ROWS;
use graph::ir::Lane;
use kernels::{AttendFn, CacheView, Partials, RowsMut};
use std::ops::Range;

/// A row's cached rows are cut into at most this many pieces.
const MAX_PIECES: usize = 32;

/// Heads that attend together, reading each latent row once.
const GROUP: usize = 16;

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

/// Numbers that the partial results of one group and one piece take.
fn partial_len(heads: usize, latent: usize) -> usize {
    heads * (latent + 2)
}

/// Numbers of shared memory in which all partial results of few rows are kept, at most.
pub fn shared_partials(heads: usize, latent: usize, threads: usize) -> usize {
    4 * threads.max(heads.div_ceil(GROUP)) * MAX_PIECES * partial_len(GROUP.min(heads), latent)
}

/// Views of the partial results of one piece.
fn partials(memory: &mut [f32], heads: usize, latent: usize) -> Partials<'_> {
    let (max, rest) = memory.split_at_mut(heads);
    let (sum, o) = rest.split_at_mut(heads);
    Partials { max, sum, o: RowsMut::new(o, heads, latent, latent) }
}

impl Thread<'_> {
    /// A segment's cache rows of one stream.
    pub(super) fn cache_view<'s>(&'s self, segment: &'s Segment, stream: usize) -> CacheView<'s> {
        let (stream, memory) = &self.pool.streams()[stream];
        CacheView {
            ty: self.pool.cache_type(),
            bytes: memory.bytes(),
            page_rows: PAGE_ROWS,
            row_bytes: memory.row_bytes(),
            width: stream.width,
            table: &segment.pages,
        }
    }

    /// Factor on the scores of a query at `position`.
    pub(super) fn score_scale(&self, position: usize) -> f32 {
        let a = &self.model.contract.attention;
        (a.softmax_scale * a.temperature.map_or(1.0, |t| t.factor(position))) as f32
    }

    /// Attention of every row in the lane. With few rows, threads share the pieces of each and merge after a barrier; with many, or where
    /// each has one piece only, a thread does all pieces of its rows and heads. The sums are the same.
    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    pub(super) fn attend_latent(
        &self,
        query: &Slot,
        out: &Slot,
        stream: usize,
        kernel: AttendFn,
        lane: Lane,
        local: &mut Local,
    ) {
        let groups = out.heads.div_ceil(GROUP);
        let rows: usize = self.batch.in_lane(lane).map(|segment| segment.rows.len()).sum();
        let slot = MAX_PIECES * partial_len(GROUP.min(out.heads), out.width);
        let pieces = |(_, row): (&Segment, usize)| piece_count(self.batch.positions[row] + 1);
        let spread = rows * groups < 4 * self.member.count && self.rows_in(lane).any(|row| pieces(row) > 1);
        if spread && rows * groups * slot <= self.shared.partials_len {
            self.attend_spread(query, out, stream, kernel, lane, slot, &mut local.attention);
            self.member.barrier();
            self.merge_spread(out, lane, slot);
            return;
        }
        // a head's sums do not depend on those beside it
        let share = (rows * out.heads).div_ceil(self.member.count).next_multiple_of(LEAST_GROUP);
        let mut task = 0;
        for (segment, row) in self.rows_in(lane) {
            let cache = self.cache_view(segment, stream);
            for work in self.work(row, out.heads, share.min(GROUP)) {
                if task % self.member.count == self.member.index {
                    let len = partial_len(work.heads.len(), out.width);
                    let Local { partials, attention, .. } = &mut *local;
                    let memory = grown(partials, piece_count(work.length) * len);
                    for (index, memory) in memory.chunks_exact_mut(len).enumerate() {
                        self.attend_piece(&work, index, query, &cache, kernel, out.width, memory, attention);
                    }
                    self.merge(&work, memory, out);
                }
                task += 1;
            }
        }
    }

    /// The pieces of all rows, shared out among threads: neighbours to one thread, since a kernel asks for what follows its piece. All
    /// groups of heads of a piece go to one thread, which reads its rows from memory once; fewer pieces than threads are shared out by
    /// groups too.
    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    fn attend_spread(
        &self,
        query: &Slot,
        out: &Slot,
        stream: usize,
        kernel: AttendFn,
        lane: Lane,
        slot: usize,
        scratch: &mut Vec<f32>,
    ) {
        let groups = out.heads.div_ceil(GROUP);
        let tasks = |row: usize| piece_count(self.batch.positions[row] + 1) * groups;
        let own = self.member.share(self.rows_in(lane).map(|(_, row)| tasks(row)).sum(), 1);
        let mut first = 0;
        for (number, (segment, row)) in self.rows_in(lane).enumerate() {
            let cache = self.cache_view(segment, stream);
            let pieces = tasks(row) / groups;
            for index in 0..pieces {
                for (group, work) in self.work(row, out.heads, GROUP).enumerate() {
                    let task = first + index * groups + if pieces >= self.member.count { 0 } else { group };
                    if own.contains(&task) {
                        let at = (number * groups + group) * slot;
                        let len = partial_len(work.heads.len(), out.width);
                        let memory = self.partial_memory(at + index * len, len);
                        self.attend_piece(&work, index, query, &cache, kernel, out.width, memory, scratch);
                    }
                }
            }
            first += pieces * groups;
        }
    }

    /// The rows of a lane, in order, with their segments.
    fn rows_in(&self, lane: Lane) -> impl Iterator<Item = (&Segment, usize)> {
        self.batch.in_lane(lane).flat_map(|segment| segment.rows.clone().map(move |row| (segment, row)))
    }

    /// The heads of one row in groups.
    fn work(&self, row: usize, heads: usize, group: usize) -> impl Iterator<Item = Work> + use<> {
        let length = self.batch.positions[row] + 1;
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
        let mut part = partials(memory, work.heads.len(), latent);
        let rows = piece(work.length, index);
        kernel(q, cache, rows, self.score_scale(self.batch.positions[work.row]), latent, &mut part, scratch);
    }

    /// Merges the pieces of one row and group, in order, into the result.
    fn merge(&self, work: &Work, memory: &mut [f32], out: &Slot) {
        let len = partial_len(work.heads.len(), out.width);
        let mut result = self.write_heads(out, work.row, work.heads.clone());
        kernels::merge_partials(
            memory,
            piece_count(work.length),
            len,
            work.heads.len(),
            out.width,
            &mut result,
        );
    }

    fn merge_spread(&self, out: &Slot, lane: Lane, slot: usize) {
        let all = self.rows_in(lane).flat_map(|(_, row)| self.work(row, out.heads, GROUP));
        for (task, work) in all.enumerate() {
            if task % self.member.count == self.member.index {
                let len = partial_len(work.heads.len(), out.width) * piece_count(work.length);
                self.merge(&work, self.partial_memory(task * slot, len), out);
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
