//! Products of many rows by the tiles of AMX, and attention by these or by vectors that multiply bf16.
//!
//! A processor multiplies tiles of sixteen rows of 32 inputs with tiles of 32 inputs of sixteen outputs, and adds 256 sums of f32 to a third: 8192
//! multiply-adds an instruction. Weights come from their packed form ([`latent_quant::tiles`]) through a *strip*: some inputs of some
//! outputs, as bf16 in the order that tiles want, small enough to stay in a core's second-level cache while all rows are multiplied with it.
//!
//! * `detect`: whether there are tiles, and the system's permission to use them.
//! * `unit`: the instructions: tiles, with their configuration, and vectors, which know the products of attention.
//! * `strip`: weights as bf16, from every format of tiles.
//! * `product`: the order in which strips, rows and inputs are taken.
//! * `panels`: other factors in the order of tiles.
//! * `softmax`: weights from scores.
//! * `expanded`: attention over expanded keys and values, and the expansion of keys.
//! * `latent`: attention in latent space.
//!
//! **Why bf16.** Rounding weights and inputs to bf16 costs less than 8-bit inputs cost already: 0.2 % of a result (root of the mean square over
//! 2048 random terms), where inputs of 8 bits with a scale for each 32 give 0.5 % and weights and inputs of 8 bits with a scale for each 256, as tiles
//! of bytes would need them, give 0.9 % (`tests`). It is one path for every format, and a result is one chain of additions, whatever the sizes
//! of strips.
//!
//! **The order of a sum** is that of its inputs, 32 a step: sums that leave the tiles between strips come back as they were. So the bits
//! depend on operands alone, neither on rows nor on where a share of outputs ends.

mod detect;
mod expanded;
mod latent;
mod panels;
mod product;
mod softmax;
mod strip;
#[cfg(test)]
mod tests;
mod unit;

pub(crate) use detect::found;
pub use detect::{assume_amx, assumed};
pub(crate) use panels::lay_values;
pub(crate) use product::{Buffers, multiply};
pub(crate) use unit::{bf16_peak, integer_peak};

use crate::KernelFn;
use latent_types::{CacheType, OpKind};
use unit::{Tiles, Vectors};

/// Attention on tiles: operation, fewest rows of a step, the cache's type where there is one only, kernel.
pub(crate) fn tile_attention() -> [(OpKind, usize, Option<CacheType>, KernelFn); 3] {
    [
        (OpKind::AttendExpanded, LEAST_ROWS, None, KernelFn::AttendBrains(expanded::attend::<Tiles>)),
        (OpKind::ExpandKeys, LEAST_ROWS, None, KernelFn::ExpandBrains(expanded::expand_keys::<Tiles>)),
        // numbers of f16 would lose three bits, and every processor with tiles multiplies f16 in vectors
        (OpKind::AttendLatent, 1, Some(CacheType::Bf16), KernelFn::AttendLatent(latent::attend::<Tiles>)),
    ]
}

/// Whether attention multiplies bf16 in vectors here: where there is arithmetic on f16, that is as fast and rounds less.
pub(crate) fn multiplies_in_vectors() -> bool {
    let found = crate::features();
    found.avx512 && found.avx512_bf16 && !found.avx512_fp16
}

/// Attention by vectors: operation, the cache's type, kernel. A cache of f32 asks for more than bf16.
pub(crate) fn vector_attention() -> impl Iterator<Item = (OpKind, CacheType, KernelFn)> {
    [CacheType::F16, CacheType::Bf16, CacheType::Int8].into_iter().flat_map(|cache| {
        [
            (OpKind::AttendExpanded, cache, KernelFn::AttendBrains(expanded::attend::<Vectors>)),
            (OpKind::ExpandKeys, cache, KernelFn::ExpandBrains(expanded::expand_keys::<Vectors>)),
            (OpKind::AttendLatent, cache, KernelFn::AttendLatent(latent::attend::<Vectors>)),
        ]
    })
}

/// Fewest rows of a call that tiles are for: with fewer, unpacking a strip costs more than products with 8-bit inputs cost in all.
pub(crate) const LEAST_ROWS: usize = 16;
