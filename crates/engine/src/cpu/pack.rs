//! Weights packed into tiles by the whole team, each thread the tiles whose outputs it will compute.
#![allow(unsafe_code, reason = "the threads of the team write disjoint tiles of one memory")]

use crate::error::EngineError;
use crate::team::Team;
use base::TensorType;
use memmap2::MmapMut;
use quant::tiles::{ROWS, TileLayout};

/// Memory of at least as many bytes asks for large pages.
const LARGE: usize = 4 << 20;

/// Matrices of one weight in tiles, one after the other.
pub struct Packed {
    map: MmapMut,
    matrix_bytes: usize,
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
    /// Packs `matrices` matrices of `outputs` rows of `inputs` numbers; `matrix` gives the rows of each. None where the format has no tiles.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn new<'m>(
        ty: TensorType,
        outputs: usize,
        inputs: usize,
        matrices: usize,
        matrix: &(dyn Fn(usize) -> &'m [u8] + Sync),
        team: &mut Team,
    ) -> Result<Option<Packed>, EngineError> {
        let Some(layout) = TileLayout::new(ty, inputs) else { return Ok(None) };
        let matrix_bytes = layout.matrix_bytes(outputs);
        let what = "reserving memory for the weights";
        let mut map = MmapMut::map_anon((matrices * matrix_bytes).max(1))
            .map_err(|error| EngineError::System { what, error })?;
        #[cfg(target_os = "linux")]
        if map.len() >= LARGE {
            // a wish; the system may have no large pages
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        let target = Target(map.as_mut_ptr());
        let (tiles, bytes) = (outputs.div_ceil(ROWS), layout.tile_bytes());
        let row_bytes = ty.row_bytes(inputs).unwrap_or(0);
        team.run(&|member| {
            // the same shares as in the steps, so that on NUMA machines a tile lies at the thread that reads it
            for m in 0..matrices {
                let rows = matrix(m);
                for tile in member.share(tiles * ROWS, ROWS).step_by(ROWS) {
                    let end = (tile + ROWS).min(outputs);
                    // SAFETY: inside the memory; shares do not overlap.
                    let out = unsafe { target.tile(m * tiles + tile / ROWS, bytes) };
                    layout.pack(&rows[tile * row_bytes..end * row_bytes], out);
                }
            }
        });
        Ok(Some(Packed { map, matrix_bytes }))
    }

    /// Bytes of the matrix at `index`.
    pub fn matrix(&self, index: usize) -> &[u8] {
        &self.map[index * self.matrix_bytes..(index + 1) * self.matrix_bytes]
    }
}
