//! Packing of dense weights: round to nearest, with a scale per group and column.
//!
//! Scales are computed in f32 and rounded to f16. Weights are divided by the rounded scale, because
//! that is the scale by which decoding multiplies. Ties go to even: to the even code of FP4, to the
//! even integer of INT4. A scale that is too small for f16 becomes 0, and so do the weights of its
//! group.

use crate::error::{Error, exactly};
use crate::weight::{QuantType, Scales, Shape, Weight};
use half::f16;

/// A packed weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed {
    /// The type of its codes.
    pub quant: QuantType,
    /// Its shape.
    pub shape: Shape,
    /// Words `[K/8, N]` of eight codes along K, the first in the lowest bits.
    pub words: Vec<u32>,
    /// Group scales `[K/group, N]`.
    pub scales: Vec<f16>,
    /// Zero points `[K/group, N]` of [`QuantType::Int4`]; empty for other types.
    pub zeros: Vec<u8>,
}

impl Packed {
    /// Borrows it as a weight for products.
    ///
    /// # Errors
    /// If fields were changed so that they do not fit together.
    pub fn weight(&self) -> Result<Weight<'_>, Error> {
        let zeros = (self.quant == QuantType::Int4).then_some(&self.zeros[..]);
        Weight::new(self.quant, self.shape, &self.words, Scales::F16(&self.scales), zeros)
    }
}

/// Packs a dense weight `[K, N]` to E2M1: scale = largest magnitude of the group / 6.
///
/// # Errors
/// If K is not a multiple of 8 and of the group, `dense` does not have K · N elements, a weight is
/// not finite, or a scale is beyond f16.
pub fn pack_fp4(dense: &[f32], shape: Shape) -> Result<Packed, Error> {
    pack(QuantType::Fp4, dense, shape)
}

/// Packs a dense weight `[K, N]` to unsigned integers with zero points: scale = (largest −
/// smallest) / 15, where the largest is at least 0 and the smallest at most 0; zero point =
/// −smallest / scale; value = (code − zero point) · scale.
///
/// # Errors
/// As for [`pack_fp4`].
pub fn pack_u4(dense: &[f32], shape: Shape) -> Result<Packed, Error> {
    pack(QuantType::Int4, dense, shape)
}

/// Packs a dense weight `[K, N]` to unsigned integers with the zero point 8: scale = largest
/// magnitude of the group / 7, value = (code − 8) · scale.
///
/// # Errors
/// As for [`pack_fp4`].
pub fn pack_u4_sym(dense: &[f32], shape: Shape) -> Result<Packed, Error> {
    pack(QuantType::Int4Sym, dense, shape)
}

fn pack(quant: QuantType, dense: &[f32], shape: Shape) -> Result<Packed, Error> {
    let Shape { k, n, group } = shape.check()?;
    exactly("the weight", (k, n), dense.len())?;
    if let Some(at) = dense.iter().position(|weight| !weight.is_finite()) {
        return Err(Error::NotFinite { row: at / n, col: at % n, value: dense[at] });
    }
    let mut words = vec![0u32; k / 8 * n];
    let (mut scales, mut zeros) = (Vec::with_capacity(shape.groups() * n), Vec::new());
    // `chunks_exact` refuses chunks of 0 elements, and N may be 0.
    for (g, rows) in dense.chunks_exact((group * n).max(1)).enumerate() {
        for col in 0..n {
            let column = || rows.iter().skip(col).step_by(n).copied();
            // With 0 in the range, the zero point is a code, and a weight of 0 stays 0.
            let low = column().fold(0.0f32, f32::min);
            let high = column().fold(0.0f32, f32::max);
            let wanted = match quant {
                QuantType::Fp4 => high.max(-low) / 6.0,
                QuantType::Int4Sym => high.max(-low) / 7.0,
                // Each is divided first: the difference of two finite numbers may overflow.
                QuantType::Int4 => (high / 15.0) - (low / 15.0),
            };
            let scale = f16::from_f32(wanted);
            if !scale.is_finite() {
                return Err(Error::ScaleRange { group: g, col, scale: wanted });
            }
            // Codes are chosen for the rounded scale, because decoding multiplies by that.
            let by = scale.to_f32();
            let zero = match quant {
                // The scale may have been rounded down, so that the quotient exceeds 15 a little.
                QuantType::Int4 => nearest_integer(-low, by).clamp(0.0, 15.0),
                _ => 8.0,
            };
            for (i, weight) in column().enumerate() {
                let code = match quant {
                    QuantType::Fp4 => nearest_fp4(weight, by),
                    _ => (nearest_integer(weight, by) + zero).clamp(0.0, 15.0) as u32,
                };
                let row = g * group + i;
                words[row / 8 * n + col] |= code << (4 * (row % 8));
            }
            scales.push(scale);
            if quant == QuantType::Int4 {
                zeros.push(zero as u8);
            }
        }
    }
    Ok(Packed { quant, shape, words, scales, zeros })
}

/// The nearest integer to weight / scale, ties to even; 0 for a scale of 0.
fn nearest_integer(weight: f32, scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { (weight / scale).round_ties_even() }
}

/// The code of the E2M1 value nearest to weight / scale, ties to the even code. Never the code of
/// −0.
fn nearest_fp4(weight: f32, scale: f32) -> u32 {
    if scale == 0.0 {
        return 0;
    }
    let size = (weight / scale).abs();
    // Midpoints between neighbouring values, and whether the lower one has the even code.
    const MIDDLES: [(f32, bool); 7] =
        [(0.25, true), (0.75, false), (1.25, true), (1.75, false), (2.5, true), (3.5, false), (5.0, true)];
    let above = |&(middle, even): &(f32, bool)| size > middle || (size == middle && !even);
    let code = MIDDLES.iter().filter(|middle| above(middle)).count() as u32;
    if weight < 0.0 && code > 0 { code + 8 } else { code }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_even_code() {
        let codes = [0.0, 0.25, 0.3, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, 9.0, -0.2, -0.25, -0.75, -6.0];
        let found = codes.map(|v| nearest_fp4(v, 1.0));
        assert_eq!(found, [0, 0, 1, 2, 2, 4, 4, 6, 6, 7, 7, 0, 0, 10, 15]);
        assert_eq!([0.5, 1.5, 2.5, -0.5, -1.5].map(|v| nearest_integer(v, 1.0)), [0.0, 2.0, 2.0, 0.0, -2.0]);
    }
}
