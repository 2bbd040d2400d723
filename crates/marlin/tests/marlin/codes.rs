//! All sixteen codes with extreme scales.

use crate::truth::{OwnedScales, OwnedWeight, Random};
use latent_marlin::half::f16;
use latent_marlin::{Input, Kernel, Marlin, Options, QuantType, Shape};
use latent_types::Tier;

/// A weight whose column c has the code c % 16 for all inputs. `scales` has one scale per column.
fn all_codes(quant: QuantType, scales: OwnedScales, kinds: usize, k: usize) -> OwnedWeight {
    let n = 16 * kinds;
    let words = (0..k / 8 * n).map(|i| (i % n % 16) as u32 * 0x1111_1111).collect();
    let zeros = if quant == QuantType::Int4 { (0..n).map(|c| (c % 17) as u8).collect() } else { Vec::new() };
    OwnedWeight { quant, shape: Shape { k, n, group: k }, words, scales, zeros }
}

/// Repeats each scale sixteen times: once for every code.
fn spread<T: Copy>(scales: &[T]) -> Vec<T> {
    scales.iter().flat_map(|scale| [*scale; 16]).collect()
}

fn extremes() -> Vec<(OwnedScales, usize)> {
    let halves = [0x0000, 0x8000, 0x0001, 0x03ff, 0x0400, 0x3c00, 0xbc00, 0x7bff, 0x7c00, 0xfc00, 0x7e00];
    let halves: Vec<f16> = halves.into_iter().map(f16::from_bits).collect();
    let exponents = [0u8, 1, 2, 127, 253, 254, 255];
    let bytes = [0x00u8, 0x80, 0x01, 0x07, 0x08, 0x38, 0xb8, 0x7e, 0x7f, 0xff];
    let mut all = vec![
        (OwnedScales::F16(spread(&halves)), halves.len()),
        (OwnedScales::E8m0(spread(&exponents)), exponents.len()),
    ];
    for tensor in [1.0, 0.25, 0.0, f32::INFINITY, f32::NAN] {
        all.push((OwnedScales::E4m3(spread(&bytes), tensor), bytes.len()));
    }
    all
}

fn same(found: f32, truth: f64) -> bool {
    f64::from(found) == truth || (found.is_nan() && truth.is_nan()) || found == truth as f32
}

#[test]
fn every_code_times_every_extreme_of_a_scale_is_decoded_exactly() {
    let mut marlin = Marlin::new(2).unwrap();
    for quant in QuantType::ALL {
        for (scales, kinds) in extremes() {
            let weight = all_codes(quant, scales, kinds, 8);
            let n = weight.shape.n;
            let (mut floats, mut halves) = (vec![0.0; 8 * n], vec![f16::ZERO; 8 * n]);
            marlin.dequantize(&weight.view(), &mut floats).unwrap();
            marlin.dequantize_f16(&weight.view(), &mut halves).unwrap();
            for k in 0..8 {
                for col in 0..n {
                    let (value, scale) = weight.value(k, col);
                    let (truth, at) = (value * scale, k * n + col);
                    let what = format!("{quant:?} code {} scale {scale:e}", weight.code(k, col));
                    assert!(same(floats[at], truth), "{what}: {} for {truth}", floats[at]);
                    let rounded = f16::from_f64(truth);
                    let half = halves[at];
                    assert!(
                        half == rounded || half.is_nan() && rounded.is_nan(),
                        "{what}: {half} for {truth}"
                    );
                }
            }
        }
    }
}

/// The 16 columns of each scale are one block. The scale must not affect neighbouring columns.
#[test]
fn products_with_extreme_scales_are_right_and_stay_in_their_columns() {
    let mut marlin = Marlin::new(2).unwrap();
    for m in [1, 3, 20] {
        let x = Random(9).numbers(m * 64).iter().map(|v| v.abs() + 0.5).collect::<Vec<_>>();
        for quant in QuantType::ALL {
            for (scales, kinds) in extremes() {
                let weight = all_codes(quant, scales, kinds, 64);
                let n = weight.shape.n;
                for tier in [Tier::Portable, Tier::Avx2, Tier::Avx512] {
                    if tier > latent_kernels::features().tier() {
                        continue;
                    }
                    for kernel in Kernel::ALL {
                        let (kernel, tier) = (Some(kernel), Some(tier));
                        let options = Options { kernel, tier, slices: None, ..Options::default() };
                        let mut y = vec![0.0; m * n];
                        marlin.multiply_with(&options, &weight.view(), Input::F32(&x), m, &mut y).unwrap();
                        for (at, y) in y.iter().enumerate() {
                            let (value, scale) = weight.value(0, at % n);
                            let sum: f64 = x[at / n * 64..][..64].iter().map(|x| f64::from(*x)).sum();
                            let (truth, size) = (sum * value * scale, sum * 32.0 * scale.abs());
                            let error = (f64::from(*y) - truth).abs();
                            // If a scale is infinite or NaN, a result need not equal that of
                            // decoded weights: kernels multiply the scale by the sum of a group,
                            // not by each weight, and 0 · infinity is NaN.
                            let right = match scale.is_finite() {
                                true => {
                                    error <= 2e-5 * size + 1e-44
                                        || truth.abs() > f64::from(f32::MAX) && y.is_infinite()
                                }
                                false => !y.is_finite(),
                            };
                            assert!(
                                right,
                                "{quant:?} {kernel:?} {tier:?} value {value} scale {scale:e}: {y:e} for {truth:e}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn inputs_that_are_not_finite_reach_their_row_alone() {
    let mut marlin = Marlin::new(1).unwrap();
    let weight =
        OwnedWeight::random(QuantType::Fp4, "f16", Shape { k: 64, n: 32, group: 32 }, &mut Random(7));
    for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let mut x = Random(8).numbers(9 * 64);
        x[4 * 64 + 5] = bad;
        for kernel in Kernel::ALL {
            let mut y = vec![0.0; 9 * 32];
            let options = Options { kernel: Some(kernel), ..Options::default() };
            marlin.multiply_with(&options, &weight.view(), Input::F32(&x), 9, &mut y).unwrap();
            for (row, y) in y.chunks_exact(32).enumerate() {
                assert!(y.iter().all(|y| y.is_finite() == (row != 4)), "{kernel:?} {bad} row {row}: {y:?}");
            }
        }
    }
}
