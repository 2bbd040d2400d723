//! How random models are quantized to 4 bits or FP8.

use latent_types::TensorType;

/// How a model is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FourBitRecipe {
    /// The program whose layout is written.
    pub layout: FourBitLayout,
    /// Whether all zero points are 8, the middle of the range.
    pub symmetric: bool,
    /// Inputs per group; none for one group per row.
    pub group: Option<usize>,
    /// Whether the inputs of a group are scattered over the row (act-order).
    pub ordered: bool,
    /// Type of the scales: F16, BF16 or F32.
    pub scales: TensorType,
    /// Weights whose names contain one of these are not quantized, in addition to the embedding,
    /// `lm_head` and routers.
    pub ignored: &'static [&'static str],
}

/// The layouts of 4-bit and FP8 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FourBitLayout {
    /// GPTQ's first version, which stores zero points minus one.
    Gptq,
    /// GPTQ's second version, which stores zero points unchanged.
    GptqV2,
    /// AWQ's `gemm` layout.
    Awq,
    /// compressed-tensors' `pack-quantized`.
    PackQuantized,
    /// compressed-tensors' `nvfp4-pack-quantized`.
    Nvfp4,
    /// compressed-tensors' `mxfp4-pack-quantized`.
    Mxfp4,
    /// NVFP4 of NVIDIA's ModelOpt.
    ModelOpt,
    /// E4M3 with scales of this granularity.
    Fp8(Fp8Scale),
    /// E5M2 with scales of this granularity, as Transformers writes it.
    E5m2(Fp8Scale),
}

/// The part of a matrix that shares one FP8 scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8Scale {
    /// The whole matrix: compressed-tensors with static activation scales.
    Tensor,
    /// One output: compressed-tensors with dynamic activation scales.
    Channel,
    /// A block of 128 × 128 weights: compressed-tensors.
    Block,
}

impl FourBitRecipe {
    /// A recipe with groups of 32 consecutive inputs and f16 scales.
    pub fn new(layout: FourBitLayout, symmetric: bool) -> FourBitRecipe {
        FourBitRecipe {
            layout,
            symmetric,
            group: Some(32),
            ordered: false,
            scales: TensorType::F16,
            ignored: &[],
        }
    }

    pub(super) fn takes(&self, name: &str, shape: &[usize]) -> bool {
        let plain = ["embed", "lm_head", "mlp.gate.weight", "eh_proj", "shared_head"];
        shape.len() == 2 && !plain.iter().chain(self.ignored).any(|part| name.contains(part))
    }
}

/// A tensor in memory.
pub(super) struct TensorData {
    pub(super) name: String,
    pub(super) ty: TensorType,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Vec<u8>,
}
