//! Lossless choice of tensor types.

use crate::error::ConvertError;
use crate::rows::OldFile;
use crate::tensors::{NewTensor, NewTensorContents};
use latent_formats::Checkpoint;
use latent_graph::circuit::TensorOrigin;
use latent_types::TensorType;

/// Maximum number of elements of a tensor that is checked. Vectors and routers have fewer.
const MAX_ELEMENTS: usize = 1 << 24;

/// The most common type of the numbers in a model's matrices. FP8 and quantized matrices count as
/// BF16. It is the default type of a conversion.
pub fn matrix_type(checkpoint: &Checkpoint) -> TensorType {
    let types = [TensorType::BF16, TensorType::F16, TensorType::F32];
    let plain = |ty| if types.contains(&ty) { ty } else { TensorType::BF16 };
    let elements = |ty| -> usize {
        let matrices =
            checkpoint.tensors().iter().filter(|tensor| tensor.shape.len() > 1 && plain(tensor.ty) == ty);
        matrices.map(|tensor| tensor.shape.iter().product::<usize>()).sum()
    };
    // `max_by_key` returns the last maximum: F32 wins a tie, which loses nothing.
    types.into_iter().max_by_key(|ty| elements(*ty)).unwrap_or(TensorType::BF16)
}

/// Type of a tensor that GGUF stores in F32 regardless of the type of its matrices: `ty` if every
/// number is exactly representable in it, otherwise F32.
pub(crate) fn narrowed(
    checkpoint: &Checkpoint,
    old: &OldFile<'_>,
    tensor: &NewTensor,
    ty: TensorType,
) -> Result<TensorType, ConvertError> {
    let NewTensorContents::Tensors(TensorOrigin::Stacked(parts)) = &tensor.from else { return Ok(tensor.ty) };
    let wide = |name: &str| checkpoint.tensor(name).is_some_and(|tensor| tensor.info.ty == TensorType::F32);
    let (cols, rows) = tensor.rows();
    if cols * rows > MAX_ELEMENTS || !parts.iter().all(|part| wide(&part.tensor)) {
        return Ok(tensor.ty);
    }
    let mut numbers = vec![0.0; cols * rows];
    old.rows(tensor)?.read(0, &mut numbers);
    let mut bytes = vec![0; ty.row_bytes(numbers.len()).unwrap_or(0)];
    let mut back = vec![0.0; numbers.len()];
    let same = latent_quant::encode(ty, &numbers, &mut bytes).is_ok()
        && latent_quant::decode(ty, &bytes, &mut back).is_ok()
        // By bits: -0.0 == 0.0 and NaN != NaN would decide wrongly.
        && numbers.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits());
    Ok(if same { ty } else { tensor.ty })
}
