//! Kernel contracts: the inputs and requirements of kernels, by which kernels are selected.

use crate::{TensorType, Tier};
use std::fmt;
use std::str::FromStr;

/// The type to which a kernel converts its input rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ActivationType {
    /// Unchanged.
    F32,
    /// Rounded to bf16, to nearest even.
    Bf16,
    /// Blocks of 32 elements: 32 8-bit quants, an f32 scale (largest magnitude / 127), and the sums
    /// of each 16 quants. In attention over an `int8` cache, blocks of 128 elements of a query for
    /// products with quants; other values stay f32.
    A8,
    /// Rounded to f16, with f16 accumulators over at most 64 terms, for attention on CPUs with
    /// AVX512-FP16. Over an `int8` cache, the operands of its quants are quantized as for `A8`.
    F16,
}

impl ActivationType {
    pub fn name(self) -> &'static str {
        match self {
            ActivationType::F32 => "f32",
            ActivationType::Bf16 => "bf16",
            ActivationType::A8 => "a8",
            ActivationType::F16 => "f16",
        }
    }
}

/// Element type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, reason = "the field writes the formats' names this way")]
pub enum CacheType {
    /// 32-bit float.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16: the upper half of an f32.
    Bf16,
    /// Latents as 8-bit quants with one scale per row, the rope part in f16. For rows of latents
    /// only.
    Int8,
    /// Likewise, with an f16 scale per 32 elements.
    Q8_0,
    /// Likewise, with 4-bit quants and an f16 scale per 32 elements.
    Q4_0,
    /// Latents as F8_E4M3 with one scale per row, the rope part in f16. For rows of latents only.
    Fp8,
}

impl CacheType {
    // Saved caches store the index of a type in this list, so new types must be appended.
    pub const ALL: [CacheType; 7] = [
        CacheType::F32,
        CacheType::F16,
        CacheType::Bf16,
        CacheType::Int8,
        CacheType::Q8_0,
        CacheType::Q4_0,
        CacheType::Fp8,
    ];

    /// Bytes per float element. For a quantized type, those of the rope part.
    #[inline]
    pub fn float_bytes(self) -> usize {
        if self == CacheType::F32 { 4 } else { 2 }
    }

    /// Whether it can store any rows, instead of latents only.
    #[inline]
    pub fn is_float(self) -> bool {
        self.block().is_none()
    }

    /// Elements and bytes of a block of the content; `None` for types that store floats.
    #[inline]
    pub const fn block(self) -> Option<(usize, usize)> {
        match self {
            CacheType::F32 | CacheType::F16 | CacheType::Bf16 => None,
            CacheType::Int8 | CacheType::Fp8 => Some((1, 1)),
            CacheType::Q8_0 => Some((CACHE_BLOCK, 2 + CACHE_BLOCK)),
            CacheType::Q4_0 => Some((CACHE_BLOCK, 2 + CACHE_BLOCK / 2)),
        }
    }

    /// Whether a row ends with an f32, the scale of its content.
    #[inline]
    pub fn has_row_scale(self) -> bool {
        matches!(self, CacheType::Int8 | CacheType::Fp8)
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
            CacheType::Bf16 => "bf16",
            CacheType::Int8 => "int8",
            CacheType::Q8_0 => "q8_0",
            CacheType::Q4_0 => "q4_0",
            CacheType::Fp8 => "fp8",
        }
    }
}

/// Elements that share a scale of [`CacheType::Q8_0`] and [`CacheType::Q4_0`]. The last block of a
/// row may have fewer.
pub const CACHE_BLOCK: usize = 32;

/// A row of the KV cache: `content` elements, then `rope` rotated ones.
///
/// A row is contiguous in memory and little-endian. Quantized types have the content, `rope` f16
/// elements, and with [`has_row_scale`](CacheType::has_row_scale) an f32.
///
/// | type | content |
/// |---|---|
/// | int8 | a byte per element: row scale · (byte − 128) |
/// | fp8 | a code of F8_E4M3 per element: row scale · code |
/// | q8_0 | blocks of 32: an f16 scale, then signed bytes |
/// | q4_0 | blocks of 32: an f16 scale, then 16 bytes: element i in the lower half of byte i, i + 16 in the upper one: scale · (half − 8) |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheRow {
    /// Element type.
    pub ty: CacheType,
    /// Elements without position (the latent).
    pub content: usize,
    /// Rotated elements.
    pub rope: usize,
}

// Inlined into kernels of other crates. In builds without link-time optimization, a call in their
// loops spilled all vector registers, and decode attention over an int8 cache took 1.7 times as
// long.
impl CacheRow {
    /// Elements per row.
    #[inline]
    pub fn width(&self) -> usize {
        self.content + self.rope
    }

    #[inline]
    pub fn bytes(&self) -> usize {
        let scale = if self.ty.has_row_scale() { size_of::<f32>() } else { 0 };
        self.content_bytes() + self.rope * self.ty.float_bytes() + scale
    }

    /// Bytes of the elements without position, which come first.
    #[inline]
    pub fn content_bytes(&self) -> usize {
        match self.ty.block() {
            None => self.content * self.ty.float_bytes(),
            // A partial last block has the size of a whole one, so that kernels read blocks of one
            // size.
            Some((elements, bytes)) => self.content.div_ceil(elements) * bytes,
        }
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not `write_str`, which would ignore the width of table columns.
        f.pad(self.name())
    }
}

impl FromStr for CacheType {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|ty| ty.name().eq_ignore_ascii_case(word));
        found.ok_or_else(|| {
            format!("unknown cache type {word:?}: expected f32, f16, bf16, int8, q8_0, q4_0 or fp8")
        })
    }
}

// A macro, so that `ALL` and `name` contain every operation.
/// Defines [`OpKind`] from a list of variants and names.
macro_rules! op_kinds {
    ($(#[doc = $doc:literal] $kind:ident = $word:literal,)*) => {
        /// The operations that kernels are written for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum OpKind {
            $(#[doc = $doc] $kind,)*
        }

        impl OpKind {
            pub const ALL: &'static [OpKind] = &[$(OpKind::$kind,)*];

            /// The name in plans.
            pub fn name(self) -> &'static str {
                match self {
                    $(OpKind::$kind => $word,)*
                }
            }
        }
    };
}

op_kinds! {
    /// Embedding lookup.
    Embed = "embed",
    /// x / √(mean x² + eps) · w.
    RmsNorm = "rms_norm",
    /// x·Wᵀ, GEMV or GEMM: a dot product with each weight row.
    Linear = "linear",
    /// x·W: the same weight, transposed.
    LinearT = "linear_t",
    /// Rotation of pairs by position.
    Rope = "rope",
    /// Stores a row into the KV cache.
    LatentStore = "latent_store",
    /// Attention in latent space.
    AttendLatent = "attend_latent",
    /// Attention in latent space with separate scores of content and rope.
    AttendSeparate = "attend_separate",
    /// Attention over expanded keys and values.
    AttendExpanded = "attend_expanded",
    /// Expands keys of all heads from latents.
    ExpandKeys = "expand_keys",
    /// Expert ids and weights from router logits.
    Route = "route",
    /// silu(gate) · up.
    SiluMul = "silu_mul",
    /// sigmoid(gate) · x.
    SigmoidMul = "sigmoid_mul",
    /// Short causal convolutions with SiLU.
    ShortConv = "short_conv",
    /// Normalizes heads to unit length.
    L2Norm = "l2_norm",
    /// The log decay without a bound.
    SoftplusDecay = "softplus_decay",
    /// The log decay with a bound.
    BoundedDecay = "bounded_decay",
    /// The recurrence of the delta rule.
    DeltaRule = "delta_rule",
    /// RMSNorm of each head with an output gate.
    GatedNorm = "gated_norm",
    /// SiLU of each element.
    Silu = "silu",
    /// max(x, 0)².
    Relu2 = "relu2",
    /// x + y.
    Add = "add",
    /// s · x.
    Scale = "scale",
}

/// Memory layout of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightLayout {
    /// Row-major, as in the file.
    Rows,
    /// Sixteen interleaved rows, as packed by `latent_quant::tiles`.
    Tiles,
}

impl WeightLayout {
    pub fn name(self) -> &'static str {
        match self {
            WeightLayout::Rows => "rows",
            WeightLayout::Tiles => "tiles",
        }
    }
}

/// The inputs and requirements of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelContract {
    pub op: OpKind,
    /// Weight format; `None` for kernels without weights, or for any decodable format.
    pub weight: Option<TensorType>,
    pub layout: WeightLayout,
    pub activation: ActivationType,
    /// Element type of the KV cache that it reads or writes.
    pub cache: Option<CacheType>,
    /// Minimum number of input rows. Above 1 if only large batches amortize the kernel's setup.
    pub min_rows: usize,
    /// The required ISA tier.
    pub tier: Tier,
    /// A unique name, such as `avx512_q4_k_a8`.
    pub name: &'static str,
}

#[cfg(test)]
mod cache_tests {
    use super::*;

    #[test]
    fn rows_have_the_bytes_of_their_blocks() {
        let bytes = |ty, content, rope| CacheRow { ty, content, rope }.bytes();
        for (ty, whole, odd) in [
            (CacheType::F32, 2304, 172),
            (CacheType::F16, 1152, 86),
            (CacheType::Int8, 644, 57),
            (CacheType::Fp8, 644, 57),
            (CacheType::Q8_0, 672, 88),
            (CacheType::Q4_0, 416, 56),
        ] {
            assert_eq!((bytes(ty, 512, 64), bytes(ty, 33, 10)), (whole, odd), "{ty}");
            assert_eq!(ty.name().parse(), Ok(ty));
        }
        assert!("q5_0".parse::<CacheType>().unwrap_err().contains("q4_0"));
    }
}
