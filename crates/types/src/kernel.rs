//! Kernel contracts: what a kernel takes and promises, in the words that kernel selection matches on.

use crate::{TensorType, Tier};
use std::fmt;
use std::str::FromStr;

/// How a kernel reads its input rows: the activation type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ActivationType {
    /// Unchanged.
    F32,
    /// Rounded to bf16, to nearest even.
    Bf16,
    /// Blocks of 32 elements: 32 8-bit quants, an f32 scale (largest magnitude / 127), and the sum of each 16 quants. Attention over
    /// an `int8` cache: blocks of 128 elements of a query, for the products with quants; everything else in f32.
    A8,
    /// Rounded to f16, with f16 accumulators over at most 64 terms: attention on CPUs with AVX512-FP16. Over an `int8` cache, the operands
    /// of its quants are quantized as for `A8`.
    F16,
}

impl ActivationType {
    /// The word for it.
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
    /// Latents as 8-bit quants with one scale per row, the rope part in f16. For rows of latents only.
    Int8,
    /// Likewise, with an f16 scale per 32 elements.
    Q8_0,
    /// Likewise, with 4-bit quants and an f16 scale per 32 elements.
    Q4_0,
    /// Latents as F8_E4M3 with one scale per row, the rope part in f16. For rows of latents only.
    Fp8,
}

impl CacheType {
    /// All types. Files of a cache name a type by its place here: new ones come last.
    pub const ALL: [CacheType; 7] = [
        CacheType::F32,
        CacheType::F16,
        CacheType::Bf16,
        CacheType::Int8,
        CacheType::Q8_0,
        CacheType::Q4_0,
        CacheType::Fp8,
    ];

    /// Bytes per float element; of a quantized type, of the rope part.
    #[inline]
    pub fn float_bytes(self) -> usize {
        if self == CacheType::F32 { 4 } else { 2 }
    }

    /// Whether it can store any rows, not only latents.
    #[inline]
    pub fn is_float(self) -> bool {
        self.block().is_none()
    }

    /// Elements of the content that are stored together, with their bytes; none of a type that stores floats.
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

    /// The word that names it on the command line.
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

/// Elements that share a scale of [`CacheType::Q8_0`] and [`CacheType::Q4_0`]. The last block of a row may have fewer.
pub const CACHE_BLOCK: usize = 32;

/// A row of the KV cache: `content` elements, then `rope` rotated ones.
///
/// They are contiguous in memory. Quantized types: the content, `rope` f16 elements, and with
/// [`has_row_scale`](CacheType::has_row_scale) an f32. All little-endian.
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

// inlined into kernels, in whose loops a call would spill every vector register
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
            Some((elements, bytes)) => self.content.div_ceil(elements) * bytes,
        }
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

/// Makes [`OpKind`] of its list: variant, and the word for it.
macro_rules! op_kinds {
    ($(#[doc = $doc:literal] $kind:ident = $word:literal,)*) => {
        /// The operations that kernels are written for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum OpKind {
            $(#[doc = $doc] $kind,)*
        }

        impl OpKind {
            pub const ALL: &'static [OpKind] = &[$(OpKind::$kind,)*];

            /// The word for it, as the plan writes it.
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
    /// The same with separate scores of content and rope.
    AttendSeparate = "attend_separate",
    /// Attention over expanded keys and values.
    AttendExpanded = "attend_expanded",
    /// Expands keys of all heads from latents.
    ExpandKeys = "expand_keys",
    /// From router logits to expert ids and weights.
    Route = "route",
    /// silu(gate) · up.
    SiluMul = "silu_mul",
    /// sigmoid(gate) · x.
    SigmoidMul = "sigmoid_mul",
    /// Short causal convolutions with SiLU.
    ShortConv = "short_conv",
    /// Heads of unit length.
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
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            WeightLayout::Rows => "rows",
            WeightLayout::Tiles => "tiles",
        }
    }
}

/// A kernel's contract: what it takes and what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelContract {
    pub op: OpKind,
    /// Weight format; none for kernels without weights or for any decodable format.
    pub weight: Option<TensorType>,
    pub layout: WeightLayout,
    pub activation: ActivationType,
    /// Element type of the KV cache that it reads or writes.
    pub cache: Option<CacheType>,
    /// Minimum number of input rows. Above 1 when the kernel has a setup cost that only large batches amortize.
    pub min_rows: usize,
    /// The ISA level that it needs.
    pub tier: Tier,
    /// Its name, unique in the table: `avx512_q4_k_a8`.
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
