//! Products of rows with weights.
//!
//! There are two families. With f32 and bf16 inputs, a weight row is decoded once and multiplied with every input row (`body`). With
//! 8-bit inputs, weights lie in tiles and their codes are multiplied as integers (`tiles`). The bodies are written once and
//! compiled for each tier, over fixed strands or lanes, so that all tiers compute the same bits.

mod body;
mod tiers;
mod tiles;

pub(crate) use tiers::kernels;
pub(crate) use tiles::formats;

use crate::{Acts, RowsMut, WeightMatrix};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// `y[i][o − outs.start] = Σ_k w[o][k] · x[index(i)][k]`; without an index, of row `i` itself.
pub type MatmulFn =
    fn(&WeightMatrix<'_>, &Acts<'_>, Option<&[u32]>, Range<usize>, &mut RowsMut<'_>, &mut Scratch);

/// Memory for decoded weight rows, grown once.
#[derive(Default)]
pub struct Scratch {
    pub(crate) numbers: Vec<f32>,
    pub(crate) bytes: Vec<u8>,
    /// Of products by the tile unit.
    #[cfg(target_arch = "x86_64")]
    pub(crate) tiles: crate::amx::Buffers,
}

/// Whether AVX2 products may use AVX-VNNI.
static AVX_VNNI: AtomicBool = AtomicBool::new(true);

/// Whether AVX2 products may use AVX-VNNI where the processor has it, as they do unless told otherwise. For the whole process; both
/// forms give the same bits, so that it never changes a result: it is for tests and measurements of the other form.
pub fn allow_avx_vnni(allowed: bool) {
    AVX_VNNI.store(allowed, Ordering::Relaxed);
}

#[cfg(target_arch = "x86_64")]
fn without_vnni() -> bool {
    !AVX_VNNI.load(Ordering::Relaxed)
}
