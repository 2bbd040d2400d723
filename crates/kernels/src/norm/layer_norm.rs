//! LayerNorm.

use crate::tiers::tiers;

tiers! {
/// out = (x − mean x) / √(var x + eps) · weight + bias. Sums are in f64, in the order of the
/// elements.
// The variance needs a second pass: mean x² − (mean x)² cancels if the mean is large compared with
// the deviation.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f64, out: &mut [f32]) {
    let count = x.len().max(1) as f64;
    let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
    let variance = x.iter().map(|v| (f64::from(*v) - mean) * (f64::from(*v) - mean)).sum::<f64>() / count;
    let factor = 1.0 / (variance + eps).sqrt();
    for (((out, x), w), b) in out.iter_mut().zip(x).zip(weight).zip(bias) {
        *out = ((f64::from(*x) - mean) * factor) as f32 * w + b;
    }
}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_centred_and_brought_to_unit_variance() {
        let x = [1.0, 2.0, 3.0, 6.0];
        let mut out = [0.0; 4];
        layer_norm(&x, &[2.0; 4], &[0.5; 4], 0.0, &mut out);
        let deviation = (14.0f64 / 4.0).sqrt();
        for (x, out) in x.iter().zip(out) {
            let truth = (f64::from(*x) - 3.0) / deviation * 2.0 + 0.5;
            assert!((f64::from(out) - truth).abs() < 1e-6, "{out}, not {truth}");
        }
    }
}
