//! Replaces the tensors of each 4-bit weight in a list by one tensor.

use super::find::{FourBitEntry, factor_name};
use latent_types::TensorType;

/// A tensor that is not stored in a file.
pub(crate) struct VirtualTensor<'a> {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    pub(crate) shape: &'a [usize],
    pub(crate) bytes: usize,
    /// Number of the weight.
    pub(crate) index: usize,
    /// Whether it is the weight's factor.
    pub(crate) factor: bool,
}

/// The list of tensors with each weight and its factor at the position of its quants. It is
/// generic, because checkpoints and outlines must list the same tensors.
pub(crate) fn replace<T: Clone>(
    tensors: &[T],
    all: &[FourBitEntry],
    ty: &dyn Fn(&T) -> TensorType,
    shown: &dyn Fn(VirtualTensor<'_>) -> T,
) -> Vec<T> {
    let mut weight_at = vec![None; tensors.len()];
    let mut part = vec![false; tensors.len()];
    for (index, found) in all.iter().enumerate() {
        weight_at[found.quants] = Some(index);
        found.tensors().for_each(|i| part[i] = true);
    }
    let mut joined = Vec::with_capacity(tensors.len());
    for (i, tensor) in tensors.iter().enumerate() {
        let Some(index) = weight_at[i] else {
            if !part[i] {
                joined.push(tensor.clone());
            }
            continue;
        };
        let found = &all[index];
        let bytes = found.ty.row_bytes(found.shape[1]).unwrap_or(0) * found.shape[0];
        let (name, factor) = (found.name.clone(), factor_name(&found.name));
        joined.push(shown(VirtualTensor {
            name,
            ty: found.ty,
            shape: &found.shape,
            bytes,
            index,
            factor: false,
        }));
        if found.has_factor(ty(&tensors[found.scales])) {
            let (ty, shape) = (TensorType::F32, &[1][..]);
            joined.push(shown(VirtualTensor { name: factor, ty, shape, bytes: 4, index, factor: true }));
        }
    }
    joined
}
