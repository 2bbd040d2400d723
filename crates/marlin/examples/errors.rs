//! Errors of products relative to f64: `cargo run --release -p latent-marlin --example errors`.
//!
//! Multiplies sixteen rows of random inputs by a weight of [4096, 1024] in groups of 32, and prints
//! the normalized mean square error Σ (y − truth)² / Σ truth² of every precision.
#![allow(clippy::print_stdout, reason = "an example")]

use latent_marlin::half::{bf16, f16};
use latent_marlin::{Activations, Input, Kernel, Marlin, Options, Plan, QuantType, Scales, Shape, Weight};

const M: usize = 16;
const SHAPE: Shape = Shape { k: 4096, n: 1024, group: 32 };

/// A linear congruential generator.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// A number between −1 and 1.
    fn number(&mut self) -> f32 {
        self.bits() as f32 / (1u64 << 31) as f32 - 1.0
    }
}

/// x · W in f64, where W is the decoded weight. Decoding is exact, so only products have errors.
fn truth(x: &[f64], decoded: &[f32]) -> Vec<f64> {
    let Shape { k, n, .. } = SHAPE;
    let mut y = vec![0.0; M * n];
    for (x, y) in x.chunks_exact(k).zip(y.chunks_exact_mut(n)) {
        for (x, weights) in x.iter().zip(decoded.chunks_exact(n)) {
            y.iter_mut().zip(weights).for_each(|(y, weight)| *y += x * f64::from(*weight));
        }
    }
    y
}

fn main() -> Result<(), latent_marlin::Error> {
    let Shape { k, n, .. } = SHAPE;
    let random = &mut Random(1);
    let words: Vec<u32> = (0..k / 8 * n).map(|_| random.bits()).collect();
    let scales: Vec<f16> = (0..SHAPE.groups() * n).map(|_| f16::from_f32(random.number())).collect();
    let zeros: Vec<u8> = (0..scales.len()).map(|_| (random.bits() % 16) as u8).collect();
    let x: Vec<f32> = (0..M * k).map(|_| random.number()).collect();
    let rounded: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
    let mut marlin = Marlin::new(1)?;
    for quant in QuantType::ALL {
        let zeros = (quant == QuantType::Int4).then_some(&zeros[..]);
        let weight = Weight::new(quant, SHAPE, &words, Scales::F16(&scales), zeros)?;
        let mut decoded = vec![0.0; k * n];
        marlin.dequantize(&weight, &mut decoded)?;
        let of_f32 = truth(&x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), &decoded);
        let of_bf16 = truth(&rounded.iter().map(|x| x.to_f64()).collect::<Vec<_>>(), &decoded);
        for kernel in [Kernel::Fused, Kernel::Gemm] {
            for (input, activations) in [
                (Input::F32(&x), Activations::AsGiven),
                (Input::Bf16(&rounded), Activations::AsGiven),
                (Input::F32(&x), Activations::Bf16),
                (Input::F32(&x), Activations::Int8),
            ] {
                let options = Options { kernel: Some(kernel), activations, ..Options::default() };
                let mut y = vec![0.0; M * n];
                marlin.multiply_with(&options, &weight, input, M, &mut y)?;
                // Inputs that are given in bf16 are exact: rounding them before is not an error of
                // the product.
                let given_bf16 = matches!(input, Input::Bf16(_));
                let truth = if given_bf16 { &of_bf16 } else { &of_f32 };
                let squares = y.iter().zip(truth).map(|(y, truth)| (f64::from(*y) - truth).powi(2));
                let error = squares.sum::<f64>() / truth.iter().map(|truth| truth * truth).sum::<f64>();
                let plan = Plan::new(&options, SHAPE, M, given_bf16)?;
                let given = if given_bf16 { "bf16" } else { "f32" };
                println!("{:<9} {given:<5} {:<30} NMSE {error:.1e}", quant.name(), plan.chosen().name);
            }
        }
    }
    Ok(())
}
