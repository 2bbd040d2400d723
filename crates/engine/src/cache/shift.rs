//! Context shift: forgets a stretch of old rows and moves the later ones down, rotating only their rope part.

use super::{CacheFull, CachePool, PAGE_ROWS, Sequence};
use graph::ir::{Stream, StreamKind};
use kernels::{RopePairs, RopeTable};
use std::ops::Range;

/// What a shift needs to know of the model.
pub struct ShiftShape<'a> {
    /// Rotation angles.
    pub rope: &'a RopeTable,
    /// How numbers pair up.
    pub pairs: RopePairs,
    /// Width of the rope part.
    pub rope_dims: usize,
    /// Width of a head's part without position (expanded streams).
    pub nope: usize,
    /// Width of a head's value (expanded streams).
    pub v: usize,
}

impl CachePool {
    /// Forgets `forgotten` rows of `sequence`; the rows after them move down by as many positions. Latents have no position, so that
    /// only the rope part of each moved row is rotated, in place. Rows are rounded once more to the cache's type.
    ///
    /// # Errors
    /// [`CacheFull`] when shared pages must be copied and no page is free; the sequence is as it was.
    ///
    /// # Panics
    /// When `forgotten` is not within the cached rows.
    pub fn shift(
        &mut self,
        sequence: &mut Sequence,
        forgotten: Range<usize>,
        shape: &ShiftShape<'_>,
    ) -> Result<(), CacheFull> {
        assert!(
            forgotten.start <= forgotten.end && forgotten.end <= sequence.len(),
            "shift outside the sequence"
        );
        let distance = forgotten.len();
        let len = sequence.len() - distance;
        let pages = forgotten.start / PAGE_ROWS..len.div_ceil(PAGE_ROWS);
        let shared = pages.clone().filter(|&i| self.users[sequence.pages()[i] as usize] > 1).count();
        if shared > self.free.len() {
            return Err(CacheFull { rows: 0, cached: sequence.len(), capacity: self.capacity() });
        }
        for index in pages {
            self.own_page(sequence, index);
        }
        let mut numbers = Vec::new();
        for stream in 0..self.streams.len() {
            for to in forgotten.start..len {
                self.move_row(stream, sequence, to + distance, to, shape, &mut numbers);
            }
        }
        self.truncate(sequence, len);
        Ok(())
    }

    fn move_row(
        &mut self,
        stream: usize,
        sequence: &Sequence,
        from: usize,
        to: usize,
        shape: &ShiftShape<'_>,
        numbers: &mut Vec<f32>,
    ) {
        let place = |row: usize| sequence.pages()[row / PAGE_ROWS] as usize * PAGE_ROWS + row % PAGE_ROWS;
        let (kind, memory) = &mut self.streams[stream];
        numbers.resize(kind.width, 0.0);
        kernels::load_row(self.ty, memory.row(place(from)), numbers);
        let distance = to as i64 - from as i64;
        for part in rope_parts(kind, shape) {
            shape.rope.shift(&mut numbers[part], distance, shape.pairs);
        }
        // the parts without position keep their very bits: only the rope parts are written anew
        let bytes = memory.row(place(from)).to_vec();
        let row = memory.row_mut(place(to));
        row.copy_from_slice(&bytes);
        let number = self.ty.bytes();
        for part in rope_parts(kind, shape) {
            kernels::store_row(
                self.ty,
                &numbers[part.clone()],
                &mut row[part.start * number..part.end * number],
            );
        }
    }
}

/// Where the rope parts of a stream's row lie.
fn rope_parts(stream: &Stream, shape: &ShiftShape<'_>) -> Vec<Range<usize>> {
    match stream.kind {
        StreamKind::Latent => std::iter::once(stream.width - shape.rope_dims..stream.width).collect(),
        StreamKind::Expanded => {
            let head = shape.nope + shape.rope_dims + shape.v;
            let part = |h: usize| h * head + shape.nope..h * head + shape.nope + shape.rope_dims;
            (0..stream.width / head).map(part).collect()
        }
    }
}
