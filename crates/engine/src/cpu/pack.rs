//! Weights packed into tiles by the whole team: in memory while loading, or piece by piece for a packed file.
#![allow(unsafe_code, reason = "the threads of the team write disjoint tiles of one memory")]

use crate::error::EngineError;
use crate::team::Team;
use base::TensorType;
use memmap2::MmapMut;
use quant::tiles::{ROWS, TileLayout};

/// Memory of at least as many bytes asks for large pages.
const LARGE: usize = 4 << 20;

/// Least bytes that a node should have of each matrix for large pages, of which those at its borders lie in one node whole.
#[cfg(target_os = "linux")]
const LARGE_OF_NODE: usize = 8 << 20;

/// Large pages are quicker to read, but the rows of small matrices (experts) that belong to different nodes would share them.
#[cfg(target_os = "linux")]
fn advice(nodes: usize, matrices: usize, matrix_bytes: usize) -> memmap2::Advice {
    if nodes > 1 && matrices > 1 && matrix_bytes / nodes < LARGE_OF_NODE {
        memmap2::Advice::NoHugePage
    } else {
        memmap2::Advice::HugePage
    }
}

/// Matrices of one weight in tiles, one after the other.
pub struct Packed {
    map: MmapMut,
    matrix_bytes: usize,
}

/// Matrices of one weight as rows, and the tiles that they become: those of the first matrix, then those of the second, and so on.
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
    /// `count` matrices of `outputs` rows of `inputs` numbers; `matrix` gives the rows of each. None where the format has no tiles.
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
    pub fn pack_some(&self, first: usize, out: &mut [u8], team: &mut Team) {
        let bytes = self.tile_bytes();
        let count = out.len() / bytes;
        let target = Target(out.as_mut_ptr());
        team.run(&|member| {
            for i in member.share(count, 1) {
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

impl Packed {
    /// Packs all matrices.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn new(matrices: &Matrices<'_, '_>, team: &mut Team) -> Result<Packed, EngineError> {
        let matrix_bytes = matrices.tiles() * matrices.tile_bytes();
        let what = "reserving memory for the weights";
        let mut map = MmapMut::map_anon((matrices.count * matrix_bytes).max(1))
            .map_err(|error| EngineError::System { what, error })?;
        #[cfg(target_os = "linux")]
        if map.len() >= LARGE {
            // a wish; the system may have no large pages
            let _ = map.advise(advice(team.placement().nodes().len(), matrices.count, matrix_bytes));
        }
        let target = Target(map.as_mut_ptr());
        let (tiles, bytes) = (matrices.tiles(), matrices.tile_bytes());
        team.run(&|member| {
            // the same shares as in the steps, so that on NUMA machines a tile lies at the thread that reads it
            for m in 0..matrices.count {
                for row in member.share(tiles * ROWS, ROWS).step_by(ROWS) {
                    let index = m * tiles + row / ROWS;
                    // SAFETY: inside the memory; shares do not overlap.
                    matrices.pack(index, unsafe { target.tile(index, bytes) });
                }
            }
        });
        Ok(Packed { map, matrix_bytes })
    }

    /// Bytes of the matrix at `index`.
    pub fn matrix(&self, index: usize) -> &[u8] {
        &self.map[index * self.matrix_bytes..(index + 1) * self.matrix_bytes]
    }
}
