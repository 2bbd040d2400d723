//! Packing: layout, rounding, and the sign of zero points.

use crate::truth::Random;
use latent_marlin::half::f16;
use latent_marlin::{Marlin, Packed, QuantType, Shape, pack_fp4, pack_u4, pack_u4_sym};

const SHAPE: Shape = Shape { k: 32, n: 3, group: 16 };

fn decoded(packed: &Packed) -> Vec<f32> {
    let mut out = vec![0.0; packed.shape.k * packed.shape.n];
    Marlin::new(1).unwrap().dequantize(&packed.weight().unwrap(), &mut out).unwrap();
    out
}

#[test]
fn eight_codes_along_k_fill_a_word_from_its_lowest_bits() {
    // Column 1 has the E2M1 values in order; the others are 0.
    let values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let mut dense = vec![0.0; 8 * 3];
    for (k, value) in values.into_iter().enumerate() {
        dense[k * 3 + 1] = value;
    }
    let packed = pack_fp4(&dense, Shape { k: 8, n: 3, group: 8 }).unwrap();
    assert_eq!(packed.words, [0, 0x7654_3210, 0]);
    assert_eq!(packed.scales, [f16::ZERO, f16::ONE, f16::ZERO]);
}

#[test]
fn a_zero_point_is_subtracted_from_the_code() {
    // −3 to 12 in steps of 1: scale 1, zero point 3, so that code 0 is −3.
    let dense: Vec<f32> = (0..16).map(|i| i as f32 - 3.0).collect();
    let packed = pack_u4(&dense, Shape { k: 16, n: 1, group: 16 }).unwrap();
    assert_eq!((packed.scales[0], packed.zeros[0]), (f16::ONE, 3));
    assert_eq!(packed.words, [0x7654_3210, 0xfedc_ba98]);
    assert_eq!(decoded(&packed), dense);
    // Symmetric: the code 8 is 0, the code 0 is −8 · scale.
    let packed =
        pack_u4_sym(&[7.0, 1.0, 0.0, -1.0, -7.0, 2.0, 3.0, 4.0], Shape { k: 8, n: 1, group: 8 }).unwrap();
    assert_eq!(packed.words, [0xcba1_789f]);
    let lowest = Packed { words: vec![0], ..packed };
    assert_eq!(decoded(&lowest), [-8.0; 8]);
}

#[test]
fn packed_weights_are_the_nearest_and_pack_to_themselves() {
    let dense = Random(11).numbers(SHAPE.k * SHAPE.n);
    for pack in [pack_fp4, pack_u4, pack_u4_sym] {
        let packed = pack(&dense, SHAPE).unwrap();
        let near = decoded(&packed);
        let weight = packed.weight().unwrap();
        assert_eq!(weight.shape(), SHAPE);
        for (at, (dense, near)) in dense.iter().zip(&near).enumerate() {
            let (k, col) = (at / SHAPE.n, at % SHAPE.n);
            let group = k / SHAPE.group * SHAPE.n + col;
            let scale = packed.scales[group].to_f32();
            let zero = if packed.quant == QuantType::Int4 { f32::from(packed.zeros[group]) } else { 8.0 };
            let values = (0..16).map(|code: u8| match packed.quant {
                QuantType::Fp4 => {
                    let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code % 8)];
                    scale * if code < 8 { size } else { -size }
                }
                _ => scale * (f32::from(code) - zero),
            });
            let best = values.map(|value| (value - dense).abs()).fold(f32::INFINITY, f32::min);
            assert!((near - dense).abs() <= best + 1e-6, "{:?} at {at}: {near} for {dense}", packed.quant);
        }
        let again = pack(&near, SHAPE).unwrap();
        assert_eq!(decoded(&again).len(), near.len());
    }
}

#[test]
fn groups_of_zeros_and_of_one_sign_are_packed() {
    for pack in [pack_fp4, pack_u4, pack_u4_sym] {
        let zeros = pack(&[0.0; 96], SHAPE).unwrap();
        assert_eq!(decoded(&zeros), [0.0; 96]);
        for sign in [1.0, -1.0] {
            // The range is 6, 15 or 7 steps, so that each type represents its largest weight
            // exactly.
            let dense: Vec<f32> = (0..96).map(|i| sign * [0.0, 210.0][i % 2]).collect();
            assert_eq!(decoded(&pack(&dense, SHAPE).unwrap()), dense);
        }
    }
}
