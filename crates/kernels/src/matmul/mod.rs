//! Products of rows with weights.
//!
//! There are three families. Weights in rows are decoded one by one, each multiplied with every input row (`body`). Quantised weights in tiles
//! are multiplied as integers with 8-bit inputs (`quantized`), 16-bit and FP8 ones as f32 with f32 inputs (`float`). The bodies are written once and
//! compiled for each tier, over fixed strands or lanes, so that all tiers compute the same bits; in the last family all tiers that multiply and
//! add in one operation do.

mod body;
mod compiled;
mod float;
mod quantized;
mod tiers;

pub(crate) use body::grow;
pub(crate) use quantized::{formats, operands};
pub(crate) use tiers::kernels;

use crate::{QuantizedInput, RowsMut, WeightMatrix};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Operands of a matmul: `y[i][o − outputs.start] = Σ_k weight[o][k] · input[row_ids[i]][k]`.
pub struct MatmulArgs<'a, 'y> {
    /// Output features × input features.
    pub weight: &'a WeightMatrix<'a>,
    /// Input rows, in the activation type that the kernel's contract names.
    pub input: &'a QuantizedInput<'a>,
    /// The input row that each row of `y` reads; without it, row `i` reads input row `i`.
    pub row_ids: Option<&'a [u32]>,
    /// Which output features to compute: one per column of `y`.
    pub outputs: Range<usize>,
    /// Where results go. Every element is overwritten.
    pub y: &'a mut RowsMut<'y>,
}

/// A matmul kernel. Panics when shapes do not fit, or when the CPU lacks the instructions of its ISA.
pub type MatmulFn = fn(MatmulArgs<'_, '_>, &mut Scratch);

/// Memory for decoded weight rows and unpacked tiles, grown once.
#[derive(Default)]
pub struct Scratch {
    pub(crate) numbers: Vec<f32>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) lines: Vec<Line>,
    /// Of products by the tile unit.
    #[cfg(target_arch = "x86_64")]
    pub(crate) tiles: crate::bf16::Buffers,
}

/// A line of a cache.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub(crate) struct Line(pub [f32; 16]);

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
