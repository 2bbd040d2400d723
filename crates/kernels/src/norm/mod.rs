//! RMSNorm and LayerNorm.

mod layer_norm;

pub use layer_norm::layer_norm;

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
}
