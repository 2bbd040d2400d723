//! What a kernel promises: the words with which binding asks and kernels answer.

use crate::{TensorType, Tier};
use std::fmt;
use std::str::FromStr;

/// How a matrix product reads its input rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ActivationType {
    /// As they are.
    F32,
    /// Rounded to bf16, nearest even.
    Bf16,
    /// Blocks of 32 numbers: 32 codes of 8 bits, an f32 scale (largest magnitude / 127), and the sums of each 16 codes. Attention over
    /// an `int8` cache: the same of 128 numbers of a query, for the products with codes; all else in f32.
    A8,
    /// Rounded to f16, with sums of at most 64 terms in f16: attention, where the processor multiplies f16. Over an `int8` cache, what meets
    /// its codes is rounded as for `A8`.
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

/// How the cache stores numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CacheType {
    /// 32-bit float.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// Latents as 8-bit codes with a scale a row, the rope part in half precision. For rows of latents only.
    Int8,
}

impl CacheType {
    /// All of them.
    pub const ALL: [CacheType; 4] = [CacheType::F32, CacheType::F16, CacheType::Bf16, CacheType::Int8];

    /// Bytes of a number that is no code: of `int8` in the rope part.
    pub fn float_bytes(self) -> usize {
        match self {
            CacheType::F32 => 4,
            CacheType::F16 | CacheType::Bf16 | CacheType::Int8 => 2,
        }
    }

    /// Whether it stores rows of any numbers, and not of latents alone.
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

/// A row of the cache: `content` numbers, then `rope` rotated ones.
///
/// In memory they lie one after the other. Of [`CacheType::Int8`]: `content` bytes, `rope` halves, and an f32, the scale of the
/// bytes: number = scale · (byte − 128). All in little-endian order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheRow {
    /// How numbers are stored.
    pub ty: CacheType,
    /// Numbers without position.
    pub content: usize,
    /// Rotated numbers.
    pub rope: usize,
}

impl CacheRow {
    /// Numbers.
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
    /// x·Wᵀ: a dot product with each weight row.
    Linear,
    /// x·W: the same weight read along the other direction.
    LinearT,
    /// Rotation of pairs by position.
    Rope,
    /// A row into the cache.
    LatentStore,
    /// Attention in latent space.
    AttendLatent,
    /// The same with content and rope scores apart.
    AttendSeparate,
    /// Attention over expanded keys and values.
    AttendExpanded,
    /// Keys of all heads from latents.
    ExpandKeys,
    /// From router logits to experts and weights.
    Route,
    /// silu(gate) · up.
    SiluMul,
    /// max(x, 0)².
    Relu2,
    /// Sums.
    Add,
    /// Products with a number.
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

/// How weights lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightLayout {
    /// Row after row, as in the file.
    Rows,
    /// Sixteen rows side by side, as `latent_quant::tiles` packs them.
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

/// What one kernel does, and on which machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelContract {
    /// The operation.
    pub op: OpKind,
    /// The format of the weights that it reads; none where it reads none, or any decodable one.
    pub weight: Option<TensorType>,
    /// How they lie.
    pub layout: WeightLayout,
    /// How it reads its input.
    pub activation: ActivationType,
    /// The type of the cache that it reads or writes.
    pub cache: Option<CacheType>,
    /// Minimum number of input rows. Above 1 when the kernel has a setup cost that only large batches amortize.
    pub min_rows: usize,
    /// The instructions that it needs.
    pub tier: Tier,
    /// Its name, unique in the table: `avx512_q4_k_a8`.
    pub name: &'static str,
}
