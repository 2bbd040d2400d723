//! Types of weights: one type for all matrices, or a mix like those of llama.cpp's quantizer.

use crate::error::TestingError;
use latent_types::TensorType;
use std::str::FromStr;

/// Types of the weights of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomWeightTypes {
    /// The type of most matrices.
    pub base: TensorType,
    /// The type of down projections and of the output head.
    pub down: TensorType,
}

impl From<TensorType> for RandomWeightTypes {
    fn from(ty: TensorType) -> RandomWeightTypes {
        RandomWeightTypes { base: ty, down: ty }
    }
}

impl FromStr for RandomWeightTypes {
    type Err = TestingError;

    fn from_str(word: &str) -> Result<RandomWeightTypes, TestingError> {
        let upper = word.to_ascii_uppercase();
        let kind = match upper.as_str() {
            "Q4_K_M" => RandomWeightTypes { base: TensorType::Q4_K, down: TensorType::Q6_K },
            "Q4_0_M" => RandomWeightTypes { base: TensorType::Q4_0, down: TensorType::Q4_0 },
            _ => TensorType::from_name(&upper).map_err(|_| TestingError::unknown_kind(word))?.into(),
        };
        if latent_quant::can_encode(kind.base) { Ok(kind) } else { Err(TestingError::unknown_kind(word)) }
    }
}

/// The type to use for rows of `cols` elements if `ty` was requested. Rows that are not a multiple
/// of `ty`'s blocks get a type with smaller blocks, similar to the fallback of llama.cpp's
/// quantizer.
pub(crate) fn fitting(ty: TensorType, cols: usize) -> TensorType {
    if cols.is_multiple_of(ty.block_len()) {
        return ty;
    }
    let smaller = match ty {
        TensorType::Q4_K => TensorType::Q5_0,
        TensorType::Q5_K => TensorType::Q5_1,
        TensorType::Q6_K | TensorType::Q8_K => TensorType::Q8_0,
        TensorType::Q2_K | TensorType::Q3_K => TensorType::Q4_0,
        TensorType::IQ4_XS => TensorType::IQ4_NL,
        _ => TensorType::F16,
    };
    if cols.is_multiple_of(smaller.block_len()) && latent_quant::can_encode(smaller) {
        smaller
    } else {
        TensorType::F16
    }
}
