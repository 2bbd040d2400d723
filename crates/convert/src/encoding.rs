//! Which type each tensor of a GGUF file has, and how numbers become bytes of it.

use crate::error::ConvertError;
use latent_quant::QuantError;
use latent_types::TensorType;

/// Chooses types and encodes numbers. Vectors, biases and routers are not asked about: they stay in F32, as llama.cpp expects.
pub trait Encoding: Sync {
    /// The type of a tensor, by its name in the GGUF file and its shape (outermost dimension first). It must divide the innermost dimension.
    fn tensor_type(&self, name: &str, shape: &[usize]) -> TensorType;

    /// Encodes consecutive rows of a tensor, of which the first is row `first` of all its matrices one after another.
    ///
    /// # Errors
    /// Numbers that cannot be encoded.
    fn encode(
        &self,
        name: &str,
        ty: TensorType,
        first: usize,
        rows: &[f32],
        out: &mut [u8],
    ) -> Result<(), QuantError>;

    /// `general.file_type`: llama.cpp's number for the mix of types.
    fn file_type(&self) -> u32;
}

/// One type for all matrices; F16 for those whose rows it does not divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uniform {
    ty: TensorType,
    file_type: u32,
}

/// Types with the number that llama.cpp has for files of them; of K-quants that of the mix which is nearest.
const FILE_TYPES: [(TensorType, u32); 16] = [
    (TensorType::F32, 0),
    (TensorType::F16, 1),
    (TensorType::BF16, 32),
    (TensorType::Q8_0, 7),
    (TensorType::Q4_0, 2),
    (TensorType::Q4_1, 3),
    (TensorType::Q5_0, 8),
    (TensorType::Q5_1, 9),
    (TensorType::Q2_K, 10),
    (TensorType::Q3_K, 11),
    (TensorType::Q4_K, 14),
    (TensorType::Q5_K, 16),
    (TensorType::Q6_K, 18),
    (TensorType::IQ4_NL, 25),
    (TensorType::IQ4_XS, 30),
    (TensorType::MXFP4, 38),
];

impl Uniform {
    /// All matrices in `ty`.
    ///
    /// # Errors
    /// [`ConvertError::Type`] for a type that is not offered.
    pub fn new(ty: TensorType) -> Result<Uniform, ConvertError> {
        let found = FILE_TYPES.iter().find(|(known, _)| *known == ty);
        let known = || FILE_TYPES.map(|(known, _)| known.name()).join(", ");
        let (ty, file_type) = *found.ok_or_else(|| ConvertError::Type { ty, known: known() })?;
        Ok(Uniform { ty, file_type })
    }
}

impl Encoding for Uniform {
    fn tensor_type(&self, _: &str, shape: &[usize]) -> TensorType {
        let divides = shape.last().is_some_and(|width| width.is_multiple_of(self.ty.block_len()));
        if divides { self.ty } else { TensorType::F16 }
    }

    fn encode(
        &self,
        _: &str,
        ty: TensorType,
        _: usize,
        rows: &[f32],
        out: &mut [u8],
    ) -> Result<(), QuantError> {
        latent_quant::encode(ty, rows, out)
    }

    fn file_type(&self) -> u32 {
        self.file_type
    }
}

/// Whether a tensor of a GGUF file stays in F32, whatever type its matrices have.
pub(crate) fn stays_f32(name: &str, shape: &[usize]) -> bool {
    shape.len() < 2
        || !name.ends_with(".weight")
        || name.contains(".ffn_gate_inp.")
        || name.contains(".indexer.proj.")
}
