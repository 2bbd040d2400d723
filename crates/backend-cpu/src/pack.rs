//! Weights packed into tiles by the whole thread pool: in memory while loading, or piece by piece for a
//! packed file.
#![allow(unsafe_code, reason = "the threads of the team write disjoint tiles of one memory")]

use crate::weight_arena::{Place, WeightArena};
use latent_backend::BackendError;
use latent_quant::tiles::{ROWS, TileLayout};
use latent_threads::ThreadPool;
use latent_types::TensorType;

/// Matrices of one weight as rows, and the tiles that they become: those of the first matrix, then those of
/// the second, and so on.
#[derive(Clone, Copy)]
pub struct Matrices<'a, 'm> {
    layout: TileLayout,
    /// Bytes of a row.
    row_bytes: usize,
    /// Rows of a matrix.
    outputs: usize,
    /// How many they are.
    count: usize,
    /// The rows of each.
    matrix: &'a (dyn Fn(usize) -> &'m [u8] + Sync),
}

impl<'a, 'm> Matrices<'a, 'm> {
    /// `count` matrices of `outputs` rows of `inputs` numbers; `matrix` gives the rows of each. None where
    /// the format has no tiles.
    pub fn new(
        ty: TensorType,
        outputs: usize,
        inputs: usize,
        count: usize,
        matrix: &'a (dyn Fn(usize) -> &'m [u8] + Sync),
    ) -> Option<Matrices<'a, 'm>> {
        let layout = TileLayout::new(ty, inputs)?;
        Some(Matrices { layout, row_bytes: ty.row_bytes(inputs)?, outputs, count, matrix })
    }

    /// Bytes of a tile.
    pub fn tile_bytes(&self) -> usize {
        self.layout.tile_bytes()
    }

    /// Tiles of one matrix.
    fn tiles(&self) -> usize {
        self.outputs.div_ceil(ROWS)
    }

    /// Tiles of all matrices.
    pub fn all_tiles(&self) -> usize {
        self.count * self.tiles()
    }

    /// Packs the tile at `index` of all.
    fn pack(&self, index: usize, tile: &mut [u8]) {
        let (m, first) = (index / self.tiles(), index % self.tiles() * ROWS);
        let end = (first + ROWS).min(self.outputs);
        self.layout.pack(&(self.matrix)(m)[first * self.row_bytes..end * self.row_bytes], tile);
    }

    /// Packs tiles from `first` on, counted through all matrices, until `out` is full.
    pub fn pack_some(&self, first: usize, out: &mut [u8], thread_pool: &mut ThreadPool) {
        let bytes = self.tile_bytes();
        let count = out.len() / bytes;
        let target = Target(out.as_mut_ptr());
        thread_pool.run(&|worker| {
            for i in worker.share(count, 1) {
                // SAFETY: inside `out`; shares do not overlap.
                self.pack(first + i, unsafe { target.tile(i, bytes) });
            }
        });
    }
}

/// Where the threads write.
#[derive(Clone, Copy)]
struct Target(*mut u8);

// SAFETY: a plain address; each thread writes tiles of its own.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    /// The tile at `index`.
    ///
    /// # Safety
    /// The tile lies in the memory, and no other thread touches it.
    #[allow(clippy::mut_from_ref, reason = "tiles are handed to threads one owner each")]
    unsafe fn tile(&self, index: usize, bytes: usize) -> &mut [u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(index * bytes), bytes) }
    }
}

/// Matrices of one weight in tiles, one after the other.
pub struct Packed {
    place: Place,
    matrix_bytes: usize,
}

impl Packed {
    /// Packs all matrices into the next free part of `memory`.
    ///
    /// # Errors
    /// When the memory is full: an error of Latent.
    pub fn new(
        matrices: &Matrices<'_, '_>,
        memory: &mut WeightArena,
        thread_pool: &mut ThreadPool,
    ) -> Result<Packed, BackendError> {
        let (tiles, bytes) = (matrices.tiles(), matrices.tile_bytes());
        let matrix_bytes = tiles * bytes;
        let place = memory.take(matrices.count, matrix_bytes)?;
        // SAFETY: nobody else has the place yet.
        let target = Target(unsafe { place.start() });
        thread_pool.run(&|worker| {
            // the same shares as in the steps, so that on NUMA machines a tile lies at the thread that reads
            // it
            for m in 0..matrices.count {
                for row in worker.share(tiles * ROWS, ROWS).step_by(ROWS) {
                    let index = m * tiles + row / ROWS;
                    // SAFETY: inside the place; shares do not overlap.
                    matrices.pack(index, unsafe { target.tile(index, bytes) });
                }
            }
        });
        Ok(Packed { place, matrix_bytes })
    }

    /// Bytes of the matrix at `index`.
    pub fn matrix(&self, index: usize) -> &[u8] {
        &self.place.bytes()[index * self.matrix_bytes..(index + 1) * self.matrix_bytes]
    }
}
