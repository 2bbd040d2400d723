//! Products of many rows by the tiles of AMX, and attention by these or by vectors that multiply bf16.
//!
//! A processor multiplies tiles of sixteen rows of 32 inputs with tiles of 32 inputs of sixteen outputs, and adds 256 sums of f32 to a third: 8192
//! multiply-adds an instruction. Weights come from their packed form ([`latent_quant::tiles`]) through a *strip*: some inputs of some
//! outputs, as bf16 in the order that tiles want, small enough to stay in a core's second-level cache while all rows are multiplied with it.
//!
//! * `detect`: whether there are tiles, and the system's permission to use them.
//! * `dot`: the instructions: tiles, with their configuration, and vectors, which know the products of attention.
//! * `dequant_block`: weights as bf16, from every format of tiles.
//! * `gemm`: the order in which strips, rows and inputs are taken.
//! * `layout`: other factors in the order of tiles.
//! * `softmax`: weights from scores.
//! * `mla_prefill`: attention over expanded keys and values, and the expansion of keys.
//! * `mla_decode`: attention in latent space.
//!
//! **Why bf16.** Rounding weights and inputs to bf16 costs less than 8-bit inputs cost already: 0.2 % of a result (root of the mean square over
//! 2048 random terms), where inputs of 8 bits with a scale for each 32 give 0.5 % and weights and inputs of 8 bits with a scale for each 256, as tiles
//! of bytes would need them, give 0.9 % (`tests`). It is one path for every format, and a result is one chain of additions, whatever the sizes
//! of strips.
//!
//! **The order of a sum** is that of its inputs, 32 a step: sums that leave the tiles between strips come back as they were. So the bits
//! depend on operands alone, neither on rows nor on where a share of outputs ends.

mod dequant_block;
mod detect;
mod dot;
mod gemm;
mod layout;
mod mla_decode;
mod mla_prefill;
mod softmax;
#[cfg(test)]
mod tests;

pub(crate) use detect::found;
pub use detect::{assume_amx, assumed};
pub(crate) use dot::{bf16_peak, integer_peak};
pub(crate) use gemm::{Buffers, multiply};
pub(crate) use layout::pack_values;

use crate::KernelFn;
use dot::{AmxTiles, Avx512Bf16};
use latent_types::{CacheType, OpKind};

/// Attention on tiles: operation, fewest rows of a step, the cache's type where there is one only, kernel.
pub(crate) fn amx_attention() -> [(OpKind, usize, Option<CacheType>, KernelFn); 3] {
    [
        (OpKind::AttendExpanded, MIN_ROWS, None, KernelFn::PrefillAttnBf16(mla_prefill::attend::<AmxTiles>)),
        (OpKind::ExpandKeys, MIN_ROWS, None, KernelFn::ExpandKeysBf16(mla_prefill::expand_keys::<AmxTiles>)),
        // numbers of f16 would lose three bits, and every processor with tiles multiplies f16 in vectors
        (
            OpKind::AttendLatent,
            1,
            Some(CacheType::Bf16),
            KernelFn::AttendLatent(mla_decode::attend::<AmxTiles>),
        ),
    ]
}

/// Whether attention multiplies bf16 in vectors here: where there is arithmetic on f16, that is as fast and rounds less.
pub(crate) fn has_bf16_vectors() -> bool {
    crate::isa::Avx512Bf16::detect().is_some() && !crate::features().avx512_fp16
}

/// Attention by vectors: operation, the cache's type, kernel. A cache of f32 asks for more than bf16.
pub(crate) fn vector_attention() -> impl Iterator<Item = (OpKind, CacheType, KernelFn)> {
    [CacheType::F16, CacheType::Bf16, CacheType::Int8].into_iter().flat_map(|cache| {
        [
            (OpKind::AttendExpanded, cache, KernelFn::PrefillAttnBf16(mla_prefill::attend::<Avx512Bf16>)),
            (OpKind::ExpandKeys, cache, KernelFn::ExpandKeysBf16(mla_prefill::expand_keys::<Avx512Bf16>)),
            (OpKind::AttendLatent, cache, KernelFn::AttendLatent(mla_decode::attend::<Avx512Bf16>)),
        ]
    })
}

/// Fewest rows of a call that tiles are for: with fewer, unpacking a strip costs more than products with 8-bit inputs cost in all.
pub(crate) const MIN_ROWS: usize = 16;
