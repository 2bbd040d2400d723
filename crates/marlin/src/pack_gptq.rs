//! Packing by GPTQ: codes along K are chosen one after another. The Hessian of the inputs tells how
//! later codes can compensate for the errors of earlier ones.

use crate::error::{Error, exactly};
use crate::pack::Packed;
use crate::weight::{QuantType, Shape};
use half::f16;
use latent_quant::gptq::{GptqOptions, HessianFactor, LevelGroup, StoredLevels, round_levels};

/// Packs a dense weight `[K, N]` by GPTQ, which keeps the outputs close to those of the dense
/// weight for inputs like those of the Hessian. `hessian` is the lower triangle of Xᵀ·X `[K, K]`,
/// row by row, as [`add_inputs`] sums it. Scales are the f16 numbers with the lowest error.
///
/// # Errors
/// As for [`pack_fp4`](crate::pack_fp4). Also if the Hessian has another size, has values that are
/// not finite, or does not become positive definite by damping.
pub fn pack_gptq(
    quant: QuantType,
    dense: &[f32],
    shape: Shape,
    hessian: &[f32],
    options: GptqOptions,
) -> Result<Packed, Error> {
    let Shape { k, n, group } = shape.check()?;
    exactly("the weight", (k, n), dense.len())?;
    if let Some(at) = dense.iter().position(|weight| !weight.is_finite()) {
        return Err(Error::NotFinite { row: at / n, col: at % n, value: dense[at] });
    }
    // All columns have the same inputs, so the Hessian is factored once.
    let factor = HessianFactor::new(hessian, k, group, options);
    let factor = factor.map_err(|problem| Error::Hessian { k, problem })?;
    let kind = match quant {
        QuantType::Fp4 => StoredLevels::E2m1,
        QuantType::Int4 => StoredLevels::ZeroPoint,
        QuantType::Int4Sym => StoredLevels::Symmetric,
    };
    let groups = shape.groups();
    let mut words = vec![0u32; k / 8 * n];
    let mut scales = vec![f16::ZERO; groups * n];
    let mut zeros = vec![0; if quant == QuantType::Int4 { groups * n } else { 0 }];
    let (mut codes, mut found) = (vec![0; k], vec![LevelGroup::default(); groups]);
    for col in 0..n {
        let column: Vec<f32> = dense.iter().skip(col).step_by(n).copied().collect();
        round_levels(&factor, &column, kind, &mut codes, &mut found);
        for (row, code) in codes.iter().enumerate() {
            words[row / 8 * n + col] |= u32::from(*code) << (4 * (row % 8));
        }
        for (group, of_group) in found.iter().enumerate() {
            if !of_group.scale.is_finite() {
                return Err(Error::ScaleRange { group, col, scale: of_group.scale.to_f32() });
            }
            scales[group * n + col] = of_group.scale;
            // Only types with zero points have a place for it.
            if let Some(zero) = zeros.get_mut(group * n + col) {
                *zero = of_group.zero;
            }
        }
    }
    Ok(Packed { quant, shape, words, scales, zeros })
}

/// Adds Xᵀ·X of inputs X `[rows, K]` to a Hessian: its lower triangle, K · (K + 1) / 2 values,
/// which are zeros before the first inputs.
///
/// # Errors
/// If the Hessian or the inputs have another size.
pub fn add_inputs(hessian: &mut [f32], inputs: &[f32], k: usize) -> Result<(), Error> {
    let overflow = || Error::Overflow { what: "a Hessian", rows: k, cols: k };
    let values = latent_quant::gptq::triangle_len(k).ok_or_else(overflow)?;
    exactly("the lower triangle", (1, values), hessian.len())?;
    exactly("the inputs", (inputs.len() / k.max(1), k), inputs.len())?;
    for x in inputs.chunks_exact(k.max(1)) {
        let mut at = 0;
        for (i, value) in x.iter().enumerate() {
            hessian[at..=at + i].iter_mut().zip(x).for_each(|(sum, other)| *sum += value * other);
            at += i + 1;
        }
    }
    Ok(())
}
