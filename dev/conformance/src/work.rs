//! Minimum cost of a call: bytes and operations.

use latent_types::{ActivationType, Arithmetic, WeightLayout};

/// Arithmetic of attention with inputs of this type.
pub(crate) fn arithmetic_of(activation: ActivationType) -> Arithmetic {
    match activation {
        ActivationType::F16 => Arithmetic::F16,
        ActivationType::Bf16 => Arithmetic::Bf16,
        ActivationType::F32 | ActivationType::A8 => Arithmetic::F32,
    }
}

/// Minimum cost of one call.
#[derive(Clone, Copy, Debug)]
pub struct CallCost {
    /// Bytes of weights or cached rows that are read. For row-wise operations, all bytes read and
    /// written.
    pub bytes: f64,
    /// Number of multiplications and additions.
    pub flops: f64,
    /// Type of the arithmetic.
    pub arithmetic: Arithmetic,
    /// Whether the bytes come from memory. Row-wise operations find theirs in the CPU cache.
    pub from_memory: bool,
}

/// Name of a layout.
pub(crate) fn layout(layout: WeightLayout) -> &'static str {
    match layout {
        WeightLayout::Rows => "rows",
        WeightLayout::Tiles => "tiles",
    }
}
