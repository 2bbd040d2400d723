//! Context shift: forgets a stretch of old rows and moves the later ones down, rotating only their rope part.

use super::{BlockPool, CacheFull, PAGE_ROWS, Sequence};
use latent_graph::ir::{KvLayer, KvLayerKind};
use latent_kernels::{RopePairs, RopeTable};
use std::ops::Range;
use std::sync::Arc;

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

impl BlockPool {
    /// Forgets `forgotten` rows of `sequence`; the rows after them move down by as many positions. Latents have no position, so that
    /// only the rope part of each moved row is rotated, in place. Rows are rounded once more to the cache's type.
    ///
    /// # Errors
    /// [`CacheFull`] when shared pages must be copied and no page is free; the sequence is as it was.
    ///
    /// # Panics
    /// When `forgotten` is not within the cached rows, or the sequence belongs to another pool.
    pub(crate) fn shift(
        &mut self,
        sequence: &mut Sequence,
        forgotten: Range<usize>,
        shape: &ShiftShape<'_>,
    ) -> Result<(), CacheFull> {
        assert!(self.owns(sequence), "a sequence of another cache");
        assert!(
            forgotten.start <= forgotten.end && forgotten.end <= sequence.len(),
            "shift outside the sequence"
        );
        let distance = forgotten.len();
        let len = sequence.len() - distance;
        let pages = forgotten.start / PAGE_ROWS..len.div_ceil(PAGE_ROWS);
        let allocator = Arc::clone(&self.allocator);
        let mut state = allocator.pages();
        let shared = pages.clone().filter(|&i| state.users(sequence.pages()[i]) > 1).count();
        if shared > state.free() {
            return Err(self.full(sequence, 0));
        }
        for index in pages {
            self.own_page(&mut state, sequence, index);
        }
        drop(state);
        let mut numbers = Vec::new();
        for kv_layer in 0..self.kv_layers.len() {
            for to in forgotten.start..len {
                self.move_row(kv_layer, sequence, to + distance, to, shape, &mut numbers);
            }
        }
        sequence.truncate(len);
        Ok(())
    }

    fn move_row(
        &mut self,
        kv_layer: usize,
        sequence: &Sequence,
        from: usize,
        to: usize,
        shape: &ShiftShape<'_>,
        numbers: &mut Vec<f32>,
    ) {
        let place = |row: usize| sequence.pages()[row / PAGE_ROWS] as usize * PAGE_ROWS + row % PAGE_ROWS;
        let (kind, memory) = &mut self.kv_layers[kv_layer];
        numbers.resize(kind.width, 0.0);
        let row = kind.row(self.ty);
        latent_kernels::load_row(row, memory.row(place(from)), numbers);
        let distance = to as i64 - from as i64;
        for part in rope_parts(kind, shape) {
            shape.rope.shift(&mut numbers[part], distance, shape.pairs);
        }
        // the parts without position keep their very bits: only the rope parts are written anew
        let bytes = memory.row(place(from)).to_vec();
        let moved = memory.row_mut(place(to));
        moved.copy_from_slice(&bytes);
        for part in rope_parts(kind, shape) {
            latent_kernels::store_part(row, part.start, &numbers[part], moved);
        }
    }
}

/// Where the rope parts of a stream's row lie.
fn rope_parts(kv_layer: &KvLayer, shape: &ShiftShape<'_>) -> Vec<Range<usize>> {
    match kv_layer.kind {
        KvLayerKind::Latent => std::iter::once(kv_layer.width - shape.rope_dims..kv_layer.width).collect(),
        KvLayerKind::Expanded => {
            let head = shape.nope + shape.rope_dims + shape.v;
            let part = |h: usize| h * head + shape.nope..h * head + shape.nope + shape.rope_dims;
            (0..kv_layer.width / head).map(part).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latent_types::CacheType;

    /// Four numbers, and a pair before it is rotated.
    const ROW: [f32; 6] = [0.5, -3.0, 1.25, 0.0, 0.75, 0.25];

    #[test]
    fn codes_and_their_scale_keep_their_bits_and_the_rope_part_turns_back() {
        let kv_layer = KvLayer { kind: KvLayerKind::Latent, layer: 0, width: ROW.len(), rope: 2 };
        let row = kv_layer.row(CacheType::Int8);
        let mut pool = BlockPool::new(std::slice::from_ref(&kv_layer), CacheType::Int8, 128).unwrap();
        let rope = RopeTable::new(vec![0.25], 1.0);
        let shape = ShiftShape { rope: &rope, pairs: RopePairs::NeoX, rope_dims: 2, nope: 0, v: 0 };
        let mut sequence = Sequence::default();
        pool.reserve(&mut sequence, 80).unwrap();
        for position in 0..80 {
            let mut numbers = ROW;
            numbers[0] += position as f32;
            rope.shift(&mut numbers[4..], position as i64, RopePairs::NeoX);
            let place = sequence.pages()[position / PAGE_ROWS] as usize * PAGE_ROWS + position % PAGE_ROWS;
            latent_kernels::store_row(row, &numbers, pool.kv_layers[0].1.row_mut(place));
        }
        sequence.advance(80);
        let bytes = |pool: &BlockPool, sequence: &Sequence, position: usize| {
            let place = sequence.pages()[position / PAGE_ROWS] as usize * PAGE_ROWS + position % PAGE_ROWS;
            pool.kv_layers[0].1.row(place).to_vec()
        };
        let before: Vec<_> = (0..80).map(|position| bytes(&pool, &sequence, position)).collect();
        pool.shift(&mut sequence, 3..13, &shape).unwrap();
        for position in 3..70 {
            let (old, new) = (&before[position + 10], bytes(&pool, &sequence, position));
            assert_eq!((&old[..4], &old[8..]), (&new[..4], &new[8..]), "row {position}");
            let mut found = [0.0; 6];
            latent_kernels::load_row(row, &new, &mut found);
            rope.shift(&mut found[4..], -(position as i64), RopePairs::NeoX);
            assert!(
                (found[4] - ROW[4]).abs() + (found[5] - ROW[5]).abs() < 2e-3,
                "row {position}: {found:?}"
            );
        }
    }
}
