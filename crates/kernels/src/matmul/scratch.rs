//! Scratch memory that matmul kernels reuse between calls.

/// Memory for dequantized weights and partial sums. It grows to the largest size of a call and
/// never shrinks, so that steps do not allocate.
#[derive(Default)]
pub struct MatmulScratch {
    pub(super) floats: Vec<f32>,
    pub(super) bytes: Vec<u8>,
    pub(super) lines: Vec<CacheLine>,
    #[cfg(target_arch = "x86_64")]
    pub(super) amx: AmxBuffers,
}

/// Memory of AMX GEMM.
#[cfg(target_arch = "x86_64")]
#[derive(Default)]
pub(super) struct AmxBuffers {
    /// The dequantized block.
    pub(super) weights: Vec<CacheLine>,
    /// Copies of input rows that cannot be read in place.
    pub(super) inputs: Vec<CacheLine>,
    /// Accumulators between blocks: 32 rows × 32 outputs each.
    pub(super) sums: Vec<CacheLine>,
}

/// A cache line, so that vectors in scratch memory never straddle two.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub(crate) struct CacheLine(pub [f32; 16]);

/// The first `len` elements of a buffer, which grows if it is shorter.
pub(super) fn grow<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}
