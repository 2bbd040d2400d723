//! Packs weights into tiles with all workers: into memory while loading, or piece by piece for a
//! packed file.
#![allow(unsafe_code, reason = "workers write disjoint tiles of one buffer")]

use crate::source_pages::RELEASE;
use crate::weight_arena::{ArenaRange, WeightArena};
use latent_backend::BackendError;
use latent_formats::TensorRows;
use latent_quant::tiles::{ROWS, TileLayout};
use latent_threads::ThreadPool;
use latent_types::TensorType;
use std::ops::Range;

/// Tiles whose rows are read in one call.
const TILES_PER_READ: usize = 16;

/// The matrices of one weight as rows, and the layout of the tiles that are packed from them.
#[derive(Clone, Copy)]
pub struct TileMatrices<'a, 'm> {
    layout: TileLayout,
    row_bytes: usize,
    /// Rows of a matrix.
    outputs: usize,
    count: usize,
    /// One tensor per matrix, or one tensor that holds all matrices.
    tensors: &'a [TensorRows<'m>],
}

impl<'a, 'm> TileMatrices<'a, 'm> {
    /// `count` matrices of `outputs` rows of `inputs` elements. None if the format has no tile
    /// layout.
    pub fn new(
        ty: TensorType,
        outputs: usize,
        inputs: usize,
        count: usize,
        tensors: &'a [TensorRows<'m>],
    ) -> Option<TileMatrices<'a, 'm>> {
        let layout = TileLayout::new(ty, inputs)?;
        Some(TileMatrices { layout, row_bytes: ty.row_bytes(inputs)?, outputs, count, tensors })
    }

    pub fn tile_bytes(&self) -> usize {
        self.layout.tile_bytes()
    }

    /// Tiles of one matrix.
    fn tiles(&self) -> usize {
        self.outputs.div_ceil(ROWS)
    }

    pub fn all_tiles(&self) -> usize {
        self.count * self.tiles()
    }

    /// The byte range of these rows in their matrix. The last tile's rows may end behind it.
    fn source(&self, rows: Range<usize>) -> Range<usize> {
        let end = rows.end.min(self.outputs);
        rows.start.min(end) * self.row_bytes..end * self.row_bytes
    }

    /// Packs tiles of the matrix `m` into `out`, from the tile `first` on. Their rows are read in
    /// one call: rows that are computed while they are read cost less per row in larger calls.
    fn pack(&self, m: usize, first: usize, out: &mut [u8], scratch: &mut Vec<u8>) {
        let tile_bytes = self.tile_bytes();
        let first = first * ROWS;
        let end = (first + out.len() / tile_bytes * ROWS).min(self.outputs);
        let rows = match self.tensors {
            [all] => all.read(m * self.outputs + first..m * self.outputs + end, scratch),
            tensors => tensors[m].read(first..end, scratch),
        };
        for (rows, tile) in rows.chunks(ROWS * self.row_bytes).zip(out.chunks_exact_mut(tile_bytes)) {
            self.layout.pack(rows, tile);
        }
    }

    /// Packs tiles into `out` until it is full. `first` is the index of the first tile, counted
    /// through all matrices.
    pub fn pack_some(&self, first: usize, out: &mut [u8], thread_pool: &mut ThreadPool) {
        let bytes = self.tile_bytes();
        let count = out.len() / bytes;
        let target = TileBuffer(out.as_mut_ptr());
        thread_pool.run(&|worker| {
            let mut scratch = Vec::new();
            let share = worker.share(count, 1);
            let mut i = share.start;
            while i < share.end {
                let (m, tile) = ((first + i) / self.tiles(), (first + i) % self.tiles());
                // A read must not cross into the next matrix, which may be another tensor.
                let run = TILES_PER_READ.min(self.tiles() - tile).min(share.end - i);
                // SAFETY: `count` whole tiles fit into `out`, which is borrowed for the call;
                // shares of tiles are disjoint.
                self.pack(m, tile, unsafe { target.tiles(i, run, bytes) }, &mut scratch);
                i += run;
            }
        });
    }
}

/// The buffer that the workers write.
#[derive(Clone, Copy)]
struct TileBuffer(*mut u8);

// SAFETY: an address, used only through `tiles`, whose callers promise that no two threads use one
// tile.
unsafe impl Send for TileBuffer {}
// SAFETY: as for Send.
unsafe impl Sync for TileBuffer {}

impl TileBuffer {
    /// `count` tiles from the one at `index` on.
    ///
    /// # Safety
    /// The tiles are inside the buffer and are not used elsewhere while the result lives.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that the tiles are its own")]
    unsafe fn tiles(&self, index: usize, count: usize, bytes: usize) -> &mut [u8] {
        // SAFETY: in bounds and exclusive by the caller's promise; any byte is initialized.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(index * bytes), count * bytes) }
    }
}

/// The matrices of one weight in tiles, one after the other.
pub struct PackedMatrices {
    place: ArenaRange,
    matrix_bytes: usize,
}

impl PackedMatrices {
    /// Packs all matrices into the next free part of `memory`. Workers call `packed` with the index
    /// of a matrix and a range of its bytes that has been packed.
    pub fn new(
        matrices: &TileMatrices<'_, '_>,
        memory: &mut WeightArena,
        thread_pool: &mut ThreadPool,
        packed: &(dyn Fn(usize, Range<usize>) + Sync),
    ) -> Result<PackedMatrices, BackendError> {
        let (tiles, bytes) = (matrices.tiles(), matrices.tile_bytes());
        let matrix_bytes = tiles * bytes;
        let place = memory.take(matrices.count, matrix_bytes)?;
        // SAFETY: the place was just taken, and `bytes` is called only after packing.
        let target = TileBuffer(unsafe { place.start() });
        thread_pool.run(&|worker| {
            // The shares are those of the steps, so that on NUMA machines a tile is on the node of
            // the worker that reads it: the first write to a page decides its node.
            let share = worker.share(tiles * ROWS, ROWS);
            let mut scratch = Vec::new();
            for m in 0..matrices.count {
                let mut from = share.start;
                for row in share.clone().step_by(TILES_PER_READ * ROWS) {
                    let (first, next) = (row / ROWS, (row + TILES_PER_READ * ROWS).min(share.end));
                    let run = next.div_ceil(ROWS) - first;
                    // SAFETY: the place has all tiles of all matrices; shares of rows are disjoint
                    // whole tiles.
                    let out = unsafe { target.tiles(m * tiles + first, run, bytes) };
                    matrices.pack(m, first, out, &mut scratch);
                    if next >= share.end || (next - from) * matrices.row_bytes >= RELEASE {
                        packed(m, matrices.source(from..next));
                        from = next;
                    }
                }
            }
        });
        Ok(PackedMatrices { place, matrix_bytes })
    }

    /// Bytes of the matrix at `index`.
    pub fn matrix(&self, index: usize) -> &[u8] {
        &self.place.bytes()[index * self.matrix_bytes..(index + 1) * self.matrix_bytes]
    }
}
