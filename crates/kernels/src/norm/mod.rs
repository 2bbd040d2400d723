//! RMSNorm and LayerNorm.

use crate::tiers::tiers;

tiers! {
/// out = x / √(mean x² + eps) · weight.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    // Eight accumulators written out, since the compiler does not reorder float sums: on every ISA
    // they give the same bits and fill whole vectors. f64 holds the square of any f32 without
    // overflow, so that rows of large outliers have a finite mean.
    let mut acc = [0.0f64; 8];
    let chunks = x.chunks_exact(8);
    for (lane, v) in acc.iter_mut().zip(chunks.remainder()) {
        *lane += f64::from(*v) * f64::from(*v);
    }
    for chunk in chunks {
        for (lane, v) in acc.iter_mut().zip(chunk) {
            *lane += f64::from(*v) * f64::from(*v);
        }
    }
    let mean = acc.iter().sum::<f64>() / x.len().max(1) as f64;
    let factor = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
    for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
        *out = x * factor * w;
    }
}
}

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
    fn a_row_is_brought_to_unit_mean_square() {
        for n in [1, 7, 8, 9, 100] {
            let x: Vec<f32> = (0..n).map(|i| i as f32 - 3.5).collect();
            let mut out = vec![0.0; n];
            rms_norm(&x, &vec![2.0; n], 0.0, &mut out);
            let mean: f64 = out.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n as f64;
            assert!((mean - 4.0).abs() < 1e-5, "{n}: {mean}");
        }
    }

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
