//! FP8 weights of model folders. Their scales get the name `….weight_scale_inv`, and E5M2 becomes
//! F16.
//!
//! | scales in the file | written by | shown as |
//! |---|---|---|
//! | `weight_scale_inv`, one per block or one per matrix | DeepSeek, Transformers | as they are |
//! | `weight_scale`, one per matrix, output or block | compressed-tensors, fbgemm, ModelOpt | `weight_scale_inv` |
//! | `qscale_weight`, one per matrix | Mistral's own files | `weight_scale_inv` |
//!
//! An E5M2 number is the upper half of an f16, so widening is exact.

use crate::derived::{DerivedRows, RowSource};
use crate::four_bit::{HeaderTensor, TensorLookup, factor_name};
use crate::scales::{SCALE_TYPES, ScaleGrid};
use latent_types::TensorType;
use std::ops::Range;

/// The scales of an FP8 weight.
pub(crate) struct Fp8Scales {
    /// Their name in the file.
    pub(crate) stored: String,
    /// Their name in the checkpoint.
    pub(crate) shown: String,
    /// Their shape in the checkpoint.
    pub(crate) shape: Vec<usize>,
}

pub(crate) fn is_fp8(ty: TensorType) -> bool {
    matches!(ty, TensorType::F8_E4M3 | TensorType::F8_E5M2)
}

/// Possible names of the scales of `weight`. The first is the name in the checkpoint.
pub(crate) fn scale_names(weight: &str) -> [String; 2] {
    [factor_name(weight), format!("{weight}_scale")]
}

/// Finds the scales of an FP8 tensor. A matrix has one scale, one per row, or one per `block`.
pub(crate) fn scales_of(
    tensor: &HeaderTensor<'_>,
    block: (usize, usize),
    find: &TensorLookup<'_>,
) -> Result<Fp8Scales, String> {
    let HeaderTensor { name, shape, .. } = *tensor;
    let matrices = match *shape {
        [rows, cols] => [1, rows, cols],
        [matrices, rows, cols] => [matrices, rows, cols],
        _ => {
            return Err(format!("FP8 tensor {name} has shape {shape:?}; only matrices can have scales"));
        }
    };
    let [shown, other] = scale_names(name);
    let found = match (find(&shown), find(&other)) {
        (Some(_), Some(_)) => return Err(format!("FP8 tensor {name} has both {shown} and {other}")),
        (None, None) => return Err(format!("FP8 tensor {name} lacks its scales {shown}")),
        (found, other) => found.or(other),
    };
    let Some(scales) = found else { return Err(format!("FP8 tensor {name} lacks its scales {shown}")) };
    if !SCALE_TYPES.contains(&scales.ty) {
        return Err(format!("the scales {} are {}, expected F32, BF16 or F16", scales.name, scales.ty));
    }
    match ScaleGrid::of(scales.shape, matrices, block) {
        Some(grid) => Ok(Fp8Scales { stored: scales.name.to_owned(), shown, shape: grid.shape(matrices) }),
        None => {
            let expected = ScaleGrid::Blocks { rows: block.0, cols: block.1 }.shape(matrices);
            Err(format!(
                "{} has shape {:?}, expected {expected:?} for {name} of {shape:?}, one scale, or one scale \
                 per row",
                scales.name, scales.shape
            ))
        }
    }
}

/// Derives F16 rows from E5M2 rows.
pub(crate) struct WidenedE5m2;

impl DerivedRows for WidenedE5m2 {
    fn read(&self, source: &dyn RowSource, rows: Range<usize>, out: &mut Vec<u8>) {
        let mut scratch = Vec::new();
        // Little-endian: the upper byte of an f16 is second.
        out.extend(source.source_rows(rows, &mut scratch).iter().flat_map(|code| [0, *code]));
    }
}
