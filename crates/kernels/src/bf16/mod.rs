//! bf16 dot products with f32 accumulators, by AMX tiles or AVX512-BF16 vectors.
//!
//! `matmul::amx` has the GEMM on AMX, `attention::{mla_decode, mla_prefill}::bf16` MLA attention in
//! bf16.
//!
//! An AMX instruction multiplies a tile of sixteen rows × 32 inputs by a tile of 32 inputs ×
//! sixteen outputs and adds to 256 f32 accumulators: 8192 multiply-adds.
//!
//! * `dot`: the instructions of both ISAs, in the shapes of GEMM and attention.
//! * `layout`: packs f32 operands into the panels of [`bf16_layout`](crate::bf16_layout).

pub(crate) mod dot;
pub(crate) mod layout;

pub(crate) use dot::{bf16_peak, integer_peak};

/// Whether attention uses AVX512-BF16: only on CPUs without AVX512-FP16.
// f16 rounds less. On the Xeon, which has both, `vdpbf16ps` is also slower than f32: 40 and 88 G
// multiply-adds per second and core.
// measured: docs/notes/amx-and-bf16.md "AVX512-BF16 on Zen 5"
pub(crate) fn has_bf16_vectors() -> bool {
    crate::isa::Avx512Bf16::detect().is_some() && !crate::features::features().avx512_fp16
}

/// Minimum batch size for AMX. Below it, dequantizing a block of weights costs more than the whole
/// product with int8 inputs.
pub(crate) const MIN_ROWS: usize = 16;
