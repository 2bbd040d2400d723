//! Replaces the stored tensors of 4-bit and FP8 weights in a checkpoint's list of tensors.

use crate::builder::by_name;
use crate::checkpoint::Checkpoint;
use crate::derived::DerivedSource;
use crate::error::FourBitError;
use crate::four_bit::{FourBitSettings, FourBitWeight, HeaderTensor, VirtualTensor, find, replace};
use crate::fp8::{Fp8Scales, WidenedE5m2};
use crate::tensor::{TensorInfo, TensorLocation};
use latent_types::TensorType;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// Replaces the tensors of each 4-bit weight by one tensor.
pub(super) fn join(
    checkpoint: &mut Checkpoint,
    settings: Option<&FourBitSettings>,
) -> Result<(), FourBitError> {
    let tensors = &checkpoint.tensors;
    let heads: Vec<HeaderTensor<'_>> = tensors
        .iter()
        .map(|info| HeaderTensor { name: &info.name, ty: info.ty, shape: &info.shape })
        .collect();
    let all = find(&heads, settings, &|i| Some(checkpoint.stored(&tensors[i])))?;
    if all.is_empty() {
        return Ok(());
    }
    let one = |i: usize| tensors[i].clone();
    let four_bit = all.iter().map(|found| FourBitWeight {
        form: found.form,
        ty: found.ty,
        shape: found.shape,
        quants: one(found.quants),
        scales: one(found.scales),
        zeros: found.zeros.map(one),
        order: found.order.map(one),
        global: found.global.map(one),
        stated_shape: found.stated_shape.map(one),
        unused: found.unused.map(one),
        shift: OnceLock::new(),
    });
    let four_bit: Vec<FourBitWeight> = four_bit.collect();
    let shown = |shown: VirtualTensor<'_>| TensorInfo {
        name: shown.name,
        ty: shown.ty,
        shape: shown.shape.to_vec(),
        bytes: shown.bytes,
        tile_rows: None,
        place: if shown.factor {
            TensorLocation::Factor(shown.index)
        } else {
            TensorLocation::FourBit(shown.index)
        },
    };
    let joined = replace(tensors, &all, &|info: &TensorInfo| info.ty, &shown);
    checkpoint.by_name = by_name(&joined);
    checkpoint.tensors = joined;
    checkpoint.four_bit = Arc::new(four_bit);
    Ok(())
}

/// Gives the scales of FP8 weights one name, and replaces E5M2 tensors by F16 ones.
pub(super) fn join_fp8(checkpoint: &mut Checkpoint, scales: &[Fp8Scales]) {
    let scales: HashMap<&str, &Fp8Scales> =
        scales.iter().map(|scales| (scales.stored.as_str(), scales)).collect();
    let mut derived = checkpoint.derived.to_vec();
    for info in &mut checkpoint.tensors {
        if let Some(scales) = scales.get(info.name.as_str()) {
            info.name = scales.shown.clone();
            info.shape = scales.shape.clone();
        } else if info.ty == TensorType::F8_E5M2 {
            let place = TensorLocation::Derived(derived.len());
            let shown = TensorInfo {
                ty: TensorType::F16,
                bytes: info.bytes.saturating_mul(2),
                place,
                ..info.clone()
            };
            derived.push(DerivedSource { from: std::mem::replace(info, shown), rows: Arc::new(WidenedE5m2) });
        }
    }
    // E5M2 tensors without scales were rejected before, so without scales nothing has changed.
    if !scales.is_empty() {
        checkpoint.derived = Arc::new(derived);
        checkpoint.by_name = by_name(&checkpoint.tensors);
    }
}
