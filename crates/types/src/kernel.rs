//! Kernel contracts: what a kernel takes and promises, in the words in which plans select kernels.

use crate::{TensorType, Tier};
use std::fmt;
use std::str::FromStr;

/// How a kernel reads its input rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ActivationType {
    /// As they are.
    F32,
    /// Rounded to bf16, nearest even.
    Bf16,
    /// Quantized to int8 in blocks of 32 elements: 32 quants, an f32 scale (largest magnitude / 127), and the sum of each 16 quants.
    /// Attention over an `int8` KV cache: blocks of 128 elements of a query, for dot products with the cached quants; the rest in f32.
    A8,
    /// Rounded to f16, with accumulators of at most 64 terms in f16: attention on processors with f16 arithmetic. Over an `int8` KV
    /// cache, operands of its quants are quantized as for `A8`.
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

/// The element type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CacheType {
    /// 32-bit float.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// Latents quantized to 8 bits with one scale per row, the rope part in half precision. For rows of latents only.
    Int8,
}

impl CacheType {
    /// All of them.
    pub const ALL: [CacheType; 4] = [CacheType::F32, CacheType::F16, CacheType::Bf16, CacheType::Int8];

    /// Bytes per float element; of `int8`, of the rope part.
    pub fn float_bytes(self) -> usize {
        match self {
            CacheType::F32 => 4,
            CacheType::F16 | CacheType::Bf16 | CacheType::Int8 => 2,
        }
    }

    /// Whether it can store any row; `int8` stores rows of latents only.
    pub fn is_float(self) -> bool {
        self != CacheType::Int8
    }

    /// The word that names it on the command line.
    pub fn name(self) -> &'static str {
        match self {
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
            CacheType::Bf16 => "bf16",
            CacheType::Int8 => "int8",
        }
    }
}

/// A row of the KV cache: `content` elements, then `rope` rotated ones, contiguous in memory.
///
/// Of [`CacheType::Int8`]: `content` bytes, `rope` f16 elements, and an f32 scale of the bytes: element = scale · (byte − 128). All
/// little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheRow {
    /// The element type.
    pub ty: CacheType,
    /// Elements without position.
    pub content: usize,
    /// Rotated elements.
    pub rope: usize,
}

impl CacheRow {
    /// Elements.
    pub fn width(&self) -> usize {
        self.content + self.rope
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        match self.ty {
            CacheType::Int8 => self.content + self.rope * self.ty.float_bytes() + size_of::<f32>(),
            CacheType::F32 | CacheType::F16 | CacheType::Bf16 => self.width() * self.ty.float_bytes(),
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
        found.ok_or_else(|| format!("unknown cache type {word:?}: expected f32, f16, bf16 or int8"))
    }
}

/// The operations that kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OpKind {
    /// A row of the embedding.
    Embed,
    /// x / √(mean x² + eps) · w.
    RmsNorm,
    /// x·Wᵀ, GEMV or GEMM: a dot product with each weight row.
    Linear,
    /// x·W: the same weight, transposed.
    LinearT,
    /// Rotation of pairs by position.
    Rope,
    /// Stores a row in the KV cache.
    LatentStore,
    /// Attention in latent space.
    AttendLatent,
    /// The same with separate content and rope scores.
    AttendSeparate,
    /// Attention over expanded keys and values.
    AttendExpanded,
    /// Expands keys of all heads from latents.
    ExpandKeys,
    /// From router logits to ids and weights of the top-k experts.
    Route,
    /// silu(gate) · up.
    SiluMul,
    /// max(x, 0)².
    Relu2,
    /// Sums.
    Add,
    /// Products with a factor.
    Scale,
}

impl OpKind {
    /// All of them.
    pub const ALL: [OpKind; 15] = [
        OpKind::Embed,
        OpKind::RmsNorm,
        OpKind::Linear,
        OpKind::LinearT,
        OpKind::Rope,
        OpKind::LatentStore,
        OpKind::AttendLatent,
        OpKind::AttendSeparate,
        OpKind::AttendExpanded,
        OpKind::ExpandKeys,
        OpKind::Route,
        OpKind::SiluMul,
        OpKind::Relu2,
        OpKind::Add,
        OpKind::Scale,
    ];

    /// The word for it, as the plan writes it.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Embed => "embed",
            OpKind::RmsNorm => "rms_norm",
            OpKind::Linear => "linear",
            OpKind::LinearT => "linear_t",
            OpKind::Rope => "rope",
            OpKind::LatentStore => "latent_store",
            OpKind::AttendLatent => "attend_latent",
            OpKind::AttendSeparate => "attend_split",
            OpKind::AttendExpanded => "attend_expanded",
            OpKind::ExpandKeys => "expand_keys",
            OpKind::Route => "route",
            OpKind::SiluMul => "silu_mul",
            OpKind::Relu2 => "relu2",
            OpKind::Add => "add",
            OpKind::Scale => "scale",
        }
    }
}

/// How weights are laid out in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightLayout {
    /// Row after row, as in the file.
    Rows,
    /// Sixteen rows interleaved, as `latent_quant::tiles` packs them.
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

/// What one kernel takes, computes and needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelContract {
    /// The operation.
    pub op: OpKind,
    /// The weight format that it reads; none where it reads none, or any that can be dequantized.
    pub weight: Option<TensorType>,
    /// Their layout.
    pub layout: WeightLayout,
    /// How it reads its input.
    pub activation: ActivationType,
    /// The type of the KV cache that it reads or writes; none where it does not, or takes any.
    pub cache: Option<CacheType>,
    /// Minimum number of input rows. Above 1 when the kernel has a setup cost that only large batches amortize.
    pub min_rows: usize,
    /// The ISA level that it needs.
    pub tier: Tier,
    /// Its name, unique in the table: `avx512_q4_k_a8`.
    pub name: &'static str,
}
