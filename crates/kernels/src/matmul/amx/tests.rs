//! The rounding error of bf16 against that of int8, in plain arithmetic.

use crate::to_bf16;
use latent_types::TensorType;

/// Terms per dot product.
const INPUTS: usize = 2048;

/// Dot products.
const PRODUCTS: usize = 300;

/// Approximately normal random values: sums of twelve uniform ones.
struct NormalRandom(u64);

impl NormalRandom {
    fn next(&mut self) -> f32 {
        let mut sum = -6.0;
        for _ in 0..12 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            sum += (self.0 >> 40) as f32 / (1 << 24) as f32;
        }
        sum
    }

    fn row(&mut self) -> Vec<f32> {
        (0..INPUTS).map(|_| self.next()).collect()
    }
}

fn bf16(x: &[f32]) -> Vec<f32> {
    let mut bits = vec![0; x.len()];
    to_bf16(x, &mut bits);
    bits.into_iter().map(crate::widen::bf16).collect()
}

/// int8 quants with a scale per `block` elements.
fn bytes(x: &[f32], block: usize) -> Vec<f32> {
    let of = |x: &[f32]| {
        let scale = x.iter().fold(0.0f32, |a, v| a.max(v.abs())) / 127.0;
        x.iter().map(|v| (v / scale).round_ties_even() * scale).collect::<Vec<f32>>()
    };
    x.chunks(block).flat_map(of).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Root mean square error of dot products of rounded weights and inputs, relative to the root mean
/// square of the exact ones.
fn error(ty: TensorType, round: impl Fn(&[f32], &[f32]) -> f64) -> f64 {
    let normal = &mut NormalRandom(7);
    let (mut error, mut size) = (0.0, 0.0);
    for _ in 0..PRODUCTS {
        let mut file = vec![0; ty.row_bytes(INPUTS).unwrap()];
        latent_quant::encode(ty, &normal.row(), &mut file).unwrap();
        let mut weights = vec![0.0; INPUTS];
        latent_quant::decode(ty, &file, &mut weights).unwrap();
        let inputs = normal.row();
        let truth = dot(&weights, &inputs);
        error += (round(&weights, &inputs) - truth).powi(2);
        size += truth.powi(2);
    }
    (error / size).sqrt()
}

#[test]
fn bf16_errs_less_than_8_bits() {
    for ty in [TensorType::Q4_0, TensorType::Q4_K, TensorType::Q6_K, TensorType::Q8_0] {
        let bf16_error = error(ty, |w, x| dot(&bf16(w), &bf16(x)));
        let vnni = error(ty, |w, x| dot(w, &bytes(x, 32)));
        let requantised = error(ty, |w, x| dot(&bytes(w, 256), &bytes(x, 256)));
        println!(
            "{ty}: bf16 {bf16_error:.2e}, 8-bit inputs {vnni:.2e}, 8 bits with a scale for 256 {requantised:.2e}"
        );
        assert!(
            bf16_error < 3e-3 && bf16_error < vnni && vnni < requantised,
            "{ty} {bf16_error} {vnni} {requantised}"
        );
    }
}
