//! Quantization of random models to four bits.

use latent_types::TensorType;

/// How a model is quantized to four bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FourBitRecipe {
    /// Which program's layout.
    pub layout: FourBitLayout,
    /// Whether all zero points are the middle.
    pub symmetric: bool,
    /// Inputs per group; none for whole rows.
    pub group: Option<usize>,
    /// Whether the inputs of a group stand apart from each other (act-order).
    pub ordered: bool,
    /// Type of the scales: F16, BF16 or F32.
    pub scales: TensorType,
    /// Parts of names of weights that are left as they are, besides the embedding, `lm_head` and routers.
    pub ignored: &'static [&'static str],
}

/// The layouts of 4-bit weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FourBitLayout {
    /// GPTQ, zero points less one.
    Gptq,
    /// GPTQ in its second version, zero points as they are.
    GptqV2,
    /// AWQ for its GEMM kernel.
    Awq,
    /// compressed-tensors' `pack-quantized`.
    PackQuantized,
    /// compressed-tensors' `nvfp4-pack-quantized`.
    Nvfp4,
    /// compressed-tensors' `mxfp4-pack-quantized`.
    Mxfp4,
    /// NVFP4 of NVIDIA's ModelOpt.
    ModelOpt,
    /// FP8 with one scale for each of these parts of a matrix.
    Fp8(Fp8Scale),
    /// The same in E5M2, as Transformers writes it.
    E5m2(Fp8Scale),
}

/// What has one scale in an FP8 folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8Scale {
    /// A matrix: compressed-tensors with static scales of inputs.
    Tensor,
    /// An output: compressed-tensors with dynamic scales of inputs.
    Channel,
    /// A block of 128 × 128: compressed-tensors.
    Block,
}

impl FourBitRecipe {
    /// Symmetric or not, groups of 32 inputs in order, f16 scales.
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
