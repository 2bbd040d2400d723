//! bf16 arithmetic: AMX tiles and AVX512-BF16 dot products, and the MLA attention kernels on them. GEMM on AMX is `matmul::amx`.
//!
//! An AMX instruction multiplies a tile of sixteen rows × 32 inputs with a tile of 32 inputs × sixteen outputs and adds to 256 f32 accumulators: 8192
//! multiply-adds.
//!
//! * `detect`: whether CPU and operating system offer AMX.
//! * `dot`: the instructions of both ISAs, as the operations that attention needs.
//! * `layout`: packing of operands for AMX tiles.
//! * `softmax`: online softmax of a block of scores.
//! * `mla_prefill`: attention over expanded keys and values, and the expansion of keys.
//! * `mla_decode`: attention in latent space.

mod detect;
mod dot;
mod layout;
mod mla_decode;
mod mla_prefill;
mod softmax;

pub(crate) use detect::found;
pub use detect::{assume_amx, assumed};
pub(crate) use dot::{AmxTiles, K_STEP, NR, TILE_BYTES, TILE_ROWS};
pub(crate) use dot::{bf16_peak, integer_peak};
pub(crate) use layout::pack_values;

use crate::KernelFn;
use dot::{Avx512Bf16, Bf16Dot};
use latent_types::{CacheType, OpKind};

/// Attention on AMX: operation, minimum batch, the KV cache type if the kernel takes only one, kernel.
pub(crate) fn amx_attention() -> [(OpKind, usize, Option<CacheType>, KernelFn); 3] {
    [
        (OpKind::AttendExpanded, MIN_ROWS, None, KernelFn::PrefillAttnBf16(mla_prefill::attend::<AmxTiles>)),
        (OpKind::ExpandKeys, MIN_ROWS, None, KernelFn::ExpandKeysBf16(mla_prefill::expand_keys::<AmxTiles>)),
        // bf16 only: rounding an f16 cache would lose three bits, and every CPU with AMX has f16 arithmetic for it
        (
            OpKind::AttendLatent,
            1,
            Some(CacheType::Bf16),
            KernelFn::AttendLatent(mla_decode::attend::<AmxTiles>),
        ),
    ]
}

/// The AMX tiles of this thread, for GEMM.
///
/// # Panics
/// When the CPU lacks AMX.
pub(crate) fn amx_tiles() -> AmxTiles {
    AmxTiles::new()
}

/// Whether attention uses AVX512-BF16. Not where the CPU has f16 arithmetic, which is as fast and rounds less.
pub(crate) fn has_bf16_vectors() -> bool {
    crate::isa::Avx512Bf16::detect().is_some() && !crate::features().avx512_fp16
}

/// Attention on AVX512-BF16: operation, KV cache type, kernel. Not for an f32 cache, whose precision bf16 would lose.
pub(crate) fn vector_attention() -> impl Iterator<Item = (OpKind, CacheType, KernelFn)> {
    [CacheType::F16, CacheType::Bf16, CacheType::Int8].into_iter().flat_map(|cache| {
        [
            (OpKind::AttendExpanded, cache, KernelFn::PrefillAttnBf16(mla_prefill::attend::<Avx512Bf16>)),
            (OpKind::ExpandKeys, cache, KernelFn::ExpandKeysBf16(mla_prefill::expand_keys::<Avx512Bf16>)),
            (OpKind::AttendLatent, cache, KernelFn::AttendLatent(mla_decode::attend::<Avx512Bf16>)),
        ]
    })
}

/// Minimum batch for AMX. Below it, dequantizing a block of weights costs more than the whole product with int8 inputs.
pub(crate) const MIN_ROWS: usize = 16;
