//! The decoded weights of every format equal those of `latent-quant`: bit for bit, unless a format
//! adds a minimum to a product.

use super::Random;
use crate::buffers::{Buffer, floats, word_bytes};
use crate::commands::Commands;
use crate::device::Device;
use crate::matmul::layout::{BlockLayout, LAYOUTS};
use crate::matmul::product::{RowAddress, gather};
use crate::matmul::weight::{DeviceWeight, DeviceWeightShape};
use crate::testing::device;
use std::sync::Arc;

/// Decodes some rows on the device.
fn decoded(device: &Arc<Device>, layout: &BlockLayout, bytes: &[u8], rows: usize, cols: usize) -> Vec<f32> {
    let shape = DeviceWeightShape { inputs: cols, outputs: rows, matrices: 1 };
    let weight = DeviceWeight::upload(device, "w", (layout.ty, shape), bytes, None).unwrap();
    let ids: Vec<u32> = (0..rows as u32).collect();
    let ids = Buffer::with(device, "ids", &word_bytes(&ids)).unwrap();
    let out = Buffer::new(device, "out", 4 * (rows * cols) as u64).unwrap();
    let mut commands = Commands::new(device);
    gather(&mut commands, &weight, (&(&ids).into(), 0), rows, &RowAddress::rows(&out, 1, cols)).unwrap();
    commands.submit(&[]).unwrap();
    floats(&out.read("out", 0..4 * (rows * cols) as u64).unwrap())
}

fn check(layout: &BlockLayout, found: &[f32], bytes: &[u8]) {
    let mut truth = vec![0.0; found.len()];
    latent_quant::decode(layout.ty, bytes, &mut truth).unwrap();
    // A device may fuse the product and the sum, and round once instead of twice. The difference is
    // relative to the terms, which can be larger than the weight.
    let largest = truth.iter().filter(|v| v.is_finite()).fold(0.0f32, |m, v| m.max(v.abs()));
    for (i, (found, truth)) in found.iter().zip(&truth).enumerate() {
        let same = found.to_bits() == truth.to_bits() || found == truth || (found.is_nan() && truth.is_nan());
        let near = layout.adds() && (found - truth).abs() <= largest * f32::EPSILON;
        assert!(same || near, "{} element {i}: {found:e}, not {truth:e}", layout.ty);
    }
}

#[test]
fn random_blocks_have_the_values_of_the_reference() {
    let Some(device) = device() else { return };
    for (number, layout) in LAYOUTS.iter().enumerate() {
        let (rows, cols) = (5, 3 * layout.block_len());
        let random = &mut Random(number as u64 + 1);
        let bytes = random.blocks(rows * layout.ty.row_bytes(cols).unwrap());
        check(layout, &decoded(&device, layout, &bytes, rows, cols), &bytes);
    }
}

/// Encodes weights that are so small that f16 scales are subnormal.
#[test]
fn small_weights_keep_their_subnormal_scales() {
    let Some(device) = device() else { return };
    for layout in LAYOUTS.iter().filter(|layout| layout.ty.is_quantized()) {
        let (rows, cols) = (2, 2 * layout.block_len());
        let weights: Vec<f32> = Random(7).numbers(rows * cols).iter().map(|v| v * 1e-3).collect();
        let mut bytes = vec![0; rows * layout.ty.row_bytes(cols).unwrap()];
        latent_quant::quantize(layout.ty, &weights, None, &mut bytes).unwrap();
        let found = decoded(&device, layout, &bytes, rows, cols);
        check(layout, &found, &bytes);
        assert!(found.iter().any(|v| *v != 0.0), "{}", layout.ty);
    }
}

/// All codes of formats whose elements or scales are small floats.
#[test]
fn every_code_of_small_floats_is_decoded() {
    use latent_types::TensorType;
    let Some(device) = device() else { return };
    let row = |ty| LAYOUTS.iter().find(|layout| layout.ty == ty).unwrap();
    let codes: Vec<u8> = (0..=255).collect();
    let layout = row(TensorType::F8_E4M3);
    check(layout, &decoded(&device, layout, &codes, 1, 256), &codes);
    // Exponents from 2 on: below, half the scale is subnormal in f32, and devices may replace it by
    // zero.
    let layout = row(TensorType::MXFP4);
    let blocks: Vec<u8> = (2..=255).flat_map(|e| std::iter::once(e).chain((0..16).map(|i| i * 17))).collect();
    check(layout, &decoded(&device, layout, &blocks, 1, 254 * 32), &blocks);
    let layout = row(TensorType::NVFP4);
    let blocks: Vec<u8> =
        (0..64).flat_map(|n| (0..4).map(move |g| n * 4 + g).chain((0..32).map(|i| i * 7))).collect();
    check(layout, &decoded(&device, layout, &blocks, 1, 64 * 64), &blocks);
    let layout = row(TensorType::F16);
    let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    check(layout, &decoded(&device, layout, &halves, 1, 65536), &halves);
}

/// Plain formats have rows of any length, so that rows may begin at any byte.
#[test]
fn rows_may_end_inside_an_octet() {
    let Some(device) = device() else { return };
    for layout in LAYOUTS.iter().filter(|layout| layout.has_tails()) {
        for cols in [1, 7, 9, 67] {
            let bytes = Random(cols as u64).blocks(9 * layout.ty.row_bytes(cols).unwrap());
            check(layout, &decoded(&device, layout, &bytes, 9, cols), &bytes);
        }
    }
}
