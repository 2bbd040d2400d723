//! Forces the variants of kernels one by one. Compares products of odd sizes with sums in f64, and
//! the bits of variants that promise the same bits.

use super::Random;
use crate::buffers::{Buffer, float_bytes, floats, word_bytes};
use crate::commands::{Commands, ShaderBinding, grid};
use crate::device::Device;
use crate::matmul::layout::LAYOUTS;
use crate::matmul::product::{
    ProductEpilogue, ProductItems, RowAddress, SlotMatrix, WeightSlice, multiply, multiply_sorted_into,
};
use crate::matmul::products::ProductContext;
use crate::matmul::sort::{SortMemory, sort_items};
use crate::matmul::weight::{DeviceWeight, DeviceWeightShape};
use crate::shader::Shader;
use crate::testing::{checking_device, device_with, integer_subgroup_device, plain_device};
use crate::variants::KernelVariant;
use latent_graph::passes::Precision;
use latent_kernels::{Q8Block, quantize_q8};
use latent_types::TensorType;
use std::sync::Arc;

/// Formats that differ in how quants and scales are stored: no blocks, odd blocks, minimums, odd
/// blocks with their scale at the end, a table.
const FORMATS: [TensorType; 5] =
    [TensorType::F16, TensorType::Q4_0, TensorType::Q4_K, TensorType::Q6_K, TensorType::MXFP4];

/// Rows of inputs, and outputs: for GEMV, and for GEMM with full and with partial tiles.
const SIZES: [(usize, usize); 4] = [(1, 45), (7, 66), (9, 3), (70, 130)];

/// An encoded weight of several matrices, with its decoded elements.
struct TestMatrices {
    format: TensorType,
    shape: DeviceWeightShape,
    bytes: Vec<u8>,
    elements: Vec<f32>,
}

fn make(format: TensorType, (inputs, outputs, matrices): (usize, usize, usize)) -> TestMatrices {
    let elements = Random(inputs as u64).numbers(inputs * outputs * matrices);
    let mut bytes = vec![0; outputs * matrices * format.row_bytes(inputs).unwrap()];
    latent_quant::quantize(format, &elements, None, &mut bytes).unwrap();
    let mut elements = vec![0.0; elements.len()];
    latent_quant::decode(format, &bytes, &mut elements).unwrap();
    TestMatrices { format, shape: DeviceWeightShape { inputs, outputs, matrices }, bytes, elements }
}

/// The inputs as a variant rounds them, and the largest error of its sums, relative to the sum of
/// the magnitudes of all terms.
fn rounded_inputs(variant: Option<KernelVariant>, format: TensorType, x: &[f32]) -> (Vec<f32>, f64) {
    let floats = (x.to_vec(), 1e-6);
    let Some(layout) = crate::matmul::layout::layout(format) else { return floats };
    match variant {
        // Both factors are rounded by at most 2⁻¹¹.
        Some(KernelVariant::F16Tiles | KernelVariant::MatricesF16) if format.is_quantized() => {
            (x.to_vec(), 1e-3)
        }
        Some(KernelVariant::Integers) if layout.has_integers() => {
            let mut blocks = vec![Q8Block::ZERO; x.len() / 32];
            quantize_q8(x, &mut blocks);
            let values = blocks.iter().flat_map(|b| b.quants.map(|quant| f32::from(quant) * b.scale));
            // A device may round a division differently than the CPU, and then a quant that is near
            // the middle between two integers too.
            (values.collect(), 1e-5)
        }
        _ => floats,
    }
}

impl TestMatrices {
    fn upload(&self, device: &Arc<Device>) -> DeviceWeight {
        let products = ProductContext::new(device, Precision::Exact);
        DeviceWeight::upload_for(&products, "w", (self.format, self.shape), &self.bytes, None).unwrap()
    }

    fn check(&self, variant: Option<KernelVariant>, matrix: usize, x: &[f32], y: &[f32]) {
        let DeviceWeightShape { inputs, outputs, .. } = self.shape;
        let (x, allowed) = rounded_inputs(variant, self.format, x);
        for (o, found) in y.iter().enumerate() {
            let weights = &self.elements[(matrix * outputs + o) * inputs..][..inputs];
            let (mut sum, mut size) = (0.0, 0.0f64);
            for (w, x) in weights.iter().zip(&x) {
                sum += f64::from(*w) * f64::from(*x);
                size += (f64::from(*w) * f64::from(*x)).abs();
            }
            let off = (f64::from(*found) - sum).abs();
            let named = variant.map_or_else(String::new, |variant| variant.to_string());
            assert!(off <= allowed * size, "{named} {} output {o}: {found}, not {sum} ± {size}", self.format);
        }
    }
}

/// Multiplies rows by a whole weight, twice, and checks that both results have the same bits.
fn product(
    device: &Arc<Device>,
    weight: &DeviceWeight,
    x: &[f32],
    (rows, outputs): (usize, usize),
) -> Vec<f32> {
    let input = Buffer::with(device, "x", &float_bytes(x)).unwrap();
    let y = Buffer::new(device, "y", 4 * (rows * outputs) as u64).unwrap();
    let items = ProductItems {
        rows: 0..rows,
        slots: 1,
        x: RowAddress::rows(&input, 1, x.len() / rows),
        y: RowAddress::rows(&y, 1, outputs),
    };
    let part = WeightSlice { rows: 0..outputs, transposed: false };
    let [first, second] = [(); 2].map(|()| {
        let mut commands = Commands::new(device);
        multiply(&mut commands, (weight, &part), &items, &SlotMatrix::One).unwrap();
        commands.submit(&[]).unwrap();
        floats(&y.read("y", 0..4 * (rows * outputs) as u64).unwrap())
    });
    assert!(first.iter().zip(&second).all(|(a, b)| a.to_bits() == b.to_bits()), "two runs differ");
    first
}

/// Products of each format and size on a device, which are checked against sums in f64.
fn products(device: &Arc<Device>, variant: Option<KernelVariant>) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    for format in FORMATS {
        for (rows, outputs) in SIZES.into_iter().filter(|(rows, _)| multiplies(variant, *rows)) {
            // With one row, more octets than 64 lanes, so that lanes take several turns; else few.
            let inputs = if rows == 1 { 1280 } else { 256 };
            let made = make(format, (inputs, outputs, 1));
            let x = Random(rows as u64).numbers(rows * inputs);
            let found = product(device, &made.upload(device), &x, (rows, outputs));
            for (x, y) in x.chunks_exact(inputs).zip(found.chunks_exact(outputs)) {
                made.check(variant, 0, x, y);
            }
            all.push(found);
        }
    }
    all
}

/// Whether a variant changes products of `rows` rows.
fn multiplies(variant: Option<KernelVariant>, rows: usize) -> bool {
    match variant {
        Some(KernelVariant::Subgroups) => rows <= 8,
        Some(KernelVariant::F16Tiles | KernelVariant::MatricesF16 | KernelVariant::MatricesF32) => rows > 8,
        _ => true,
    }
}

#[test]
fn every_variant_multiplies() {
    let Some(plain) = plain_device() else { return };
    // One result for each size of each format.
    let expected = products(&plain, None);
    for variant in KernelVariant::ALL {
        let Some(device) = device_with(variant) else { continue };
        let found = products(&device, Some(variant));
        let same = |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
        let of_variant = |place: &usize| multiplies(Some(variant), SIZES[place % SIZES.len()].0);
        let expected = (0..expected.len()).filter(of_variant).map(|place| &expected[place]);
        let all_same = found.iter().zip(expected).all(same);
        // A variant that rounds must change bits: if it does not, it was not used.
        let keeps_bits = matches!(variant, KernelVariant::Planes | KernelVariant::Subgroups);
        assert_eq!(all_same, keeps_bits, "{variant}");
        let pipelines = device.pipelines.lock().unwrap();
        let uses = |word: &str| pipelines.keys().any(|text| text.contains(word));
        let used = match variant {
            KernelVariant::Planes => uses("p.d_first + block"),
            KernelVariant::Subgroups => uses("subgroupShuffleXor"),
            KernelVariant::Integers => uses("dot4I8Packed"),
            KernelVariant::F16Tiles => uses("enable f16"),
            KernelVariant::MatricesF16 | KernelVariant::MatricesF32 => uses("coopMultiplyAdd"),
        };
        assert!(used, "{variant}");
    }
}

/// Shaders with checks limit an index to its array. If a shader without checks used one beyond it,
/// results would differ.
#[test]
fn shaders_without_checks_have_the_same_bits() {
    let all = KernelVariant::ALL.map(Some).into_iter().chain([None]);
    for variant in all {
        let Some(trusted) = variant.map_or_else(plain_device, device_with) else { continue };
        let Some(checking) = checking_device(trusted.variants) else { return };
        let [a, b] = [&trusted, &checking].map(|device| products(device, variant));
        let bits = |all: &[Vec<f32>]| all.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(&a) == bits(&b), "{variant:?}");
    }
}

#[test]
fn every_variant_multiplies_with_experts() {
    for variant in KernelVariant::ALL {
        let Some(device) = device_with(variant) else { continue };
        for format in [TensorType::Q4_0, TensorType::Q6_K] {
            let made = make(format, (512, 45, 5));
            let (weight, tokens, slots) = (made.upload(&device), 23, 3);
            let chosen: Vec<u32> = (0..tokens * slots).map(|i| [2, 0, 4, 2, 1, 2][i * 5 % 6]).collect();
            let x = Random(11).numbers(tokens * 512);
            let ids = Buffer::with(&device, "ids", &word_bytes(&chosen)).unwrap();
            let input = Buffer::with(&device, "x", &float_bytes(&x)).unwrap();
            let y = Buffer::new(&device, "y", 4 * (chosen.len() * 45) as u64).unwrap();
            let mut from = RowAddress::rows(&input, 1, 512);
            from.address[2] = 0;
            // All rows, and all but the first three.
            for first in [0, 3] {
                let items = ProductItems {
                    rows: first..tokens,
                    slots,
                    x: from.clone(),
                    y: RowAddress::rows(&y, slots, 45),
                };
                let part = WeightSlice { rows: 0..45, transposed: false };
                for sorts in [false, true] {
                    y.write("y", 0, &float_bytes(&vec![0.0; chosen.len() * 45])).unwrap();
                    let mut commands = Commands::new(&device);
                    if sorts {
                        let rows = (&items.rows, slots);
                        let memory = SortMemory::new(&device, SortMemory::bytes(chosen.len(), 5)).unwrap();
                        let sorted =
                            sort_items(&mut commands, &memory, (&(&ids).into(), 0), rows, 5).unwrap();
                        let keep = (ProductEpilogue::Store, 0.0);
                        multiply_sorted_into(&mut commands, (&weight, &part), &items, &sorted, keep).unwrap();
                    } else {
                        let by = SlotMatrix::ByIds { ids: (&ids).into(), offset: 0 };
                        multiply(&mut commands, (&weight, &part), &items, &by).unwrap();
                    }
                    commands.submit(&[]).unwrap();
                    let found = floats(&y.read("y", 0..y.bytes()).unwrap());
                    for pair in first * slots..chosen.len() {
                        let x = &x[pair / slots * 512..][..512];
                        made.check(Some(variant), chosen[pair] as usize, x, &found[pair * 45..][..45]);
                    }
                }
            }
        }
    }
}

/// Every format whose inputs are quantized has code of its own to decode integers.
#[test]
fn integers_of_every_format_are_multiplied() {
    let Some(device) = device_with(KernelVariant::Integers) else { return };
    let mut formats = 0;
    for layout in LAYOUTS.iter().filter(|layout| layout.has_integers() && !FORMATS.contains(&layout.ty)) {
        let made = make(layout.ty, (512, 5, 1));
        let x = Random(1).numbers(512);
        made.check(
            Some(KernelVariant::Integers),
            0,
            &x,
            &product(&device, &made.upload(&device), &x, (1, 5)),
        );
        formats += 1;
    }
    assert!(formats >= 8, "{formats}");
}

/// Scales and quants equal those of the CPU, except quants near the middle between two integers.
/// Also for blocks of zeros, and for blocks with infinite numbers or NaN, which have no scale.
#[test]
fn inputs_are_quantized_as_on_the_cpu() {
    let Some(device) = device_with(KernelVariant::Integers) else { return };
    let mut x = Random(2).numbers(6 * 64);
    x[64..96].fill(0.0);
    x[130] = f32::NAN;
    x[170] = f32::NEG_INFINITY;
    x[192..224].iter_mut().for_each(|x| *x *= 1e-20);
    x[224..256].iter_mut().for_each(|x| *x *= 1e30);
    let input = Buffer::with(&device, "x", &float_bytes(&x)).unwrap();
    let products = ProductContext::new(&device, Precision::Exact);
    // Rows 1 and 2, with two slots each.
    let place = RowAddress::rows(&input, 2, 64);
    let items = ProductItems { rows: 1..3, slots: 2, x: place.clone(), y: place };
    let mut commands = Commands::new(&device);
    let quantized = products.quantize(&mut commands, &items, 64).unwrap().unwrap();
    let found = Buffer::new(&device, "blocks", 4 * 9 * 8).unwrap();
    commands.submit(&[]).unwrap();
    let found = read_blocks(&device, &quantized.items.x.binding, &found);
    assert_eq!(quantized.items.x.address, [0u32.wrapping_sub(4), 4, 2]);
    let mut blocks = [Q8Block::ZERO; 8];
    quantize_q8(&x[128..], &mut blocks);
    for (number, (block, found)) in blocks.iter().zip(found.chunks_exact(9)).enumerate() {
        let scale = f32::from_bits(found[8]);
        let near = (scale - block.scale).abs() <= 2.0 * f32::EPSILON * block.scale;
        assert!(near || (scale.is_nan() && block.scale.is_nan()), "block {number}: {scale}");
        for (i, quant) in block.quants.iter().enumerate() {
            let found = (found[i / 4] >> (i % 4 * 8)) as i8;
            let exact = f64::from(x[128 + number * 32 + i]) / f64::from(block.scale);
            let between = (exact - exact.floor() - 0.5).abs() < 1e-4;
            assert!(found == *quant || between, "block {number} element {i}: {found}, not {quant}");
        }
    }
}

/// Consecutive products quantize their common inputs once. Another call between them, another list
/// of commands, or other rows make it necessary again.
#[test]
fn common_inputs_are_quantized_once() {
    let Some(device) = device_with(KernelVariant::Integers) else { return };
    let products = ProductContext::new(&device, Precision::Exact);
    let made = make(TensorType::Q8_0, (64, 9, 1));
    let weights = [(); 2].map(|()| {
        DeviceWeight::upload_for(&products, "w", (made.format, made.shape), &made.bytes, None).unwrap()
    });
    let x = Random(3).numbers(4 * 64);
    let input = Buffer::with(&device, "x", &float_bytes(&x)).unwrap();
    let y = [(); 2].map(|()| Buffer::new(&device, "y", 4 * 4 * 9).unwrap());
    let part = WeightSlice { rows: 0..9, transposed: false };
    let multiply_rows = |commands: &mut Commands, which: usize, rows: usize| {
        let (x, y) = (RowAddress::rows(&input, 1, 64), RowAddress::rows(&y[which], 1, 9));
        let items = ProductItems { rows: 0..rows, slots: 1, x, y };
        let before = commands.len();
        multiply(commands, (&weights[which], &part), &items, &SlotMatrix::One).unwrap();
        commands.len() - before
    };
    let mut commands = Commands::new(&device);
    assert_eq!([0, 1].map(|which| multiply_rows(&mut commands, which, 3)), [2, 1]);
    assert_eq!(multiply_rows(&mut commands, 0, 4), 2, "other rows");
    // The first row is overwritten by the second.
    let second = Buffer::with(&device, "the second row", &float_bytes(&x[64..128])).unwrap();
    commands.copy(&second, 0..256, &input, 0);
    assert_eq!([0, 1].map(|which| multiply_rows(&mut commands, which, 4)), [2, 1]);
    commands.submit(&[]).unwrap();
    assert_eq!(multiply_rows(&mut Commands::new(&device), 1, 4), 2, "another list");
    for y in &y {
        let found = floats(&y.read("y", 0..4 * 4 * 9).unwrap());
        assert_eq!(found[..9], found[9..18]);
        made.check(Some(KernelVariant::Integers), 0, &x[64..128], &found[..9]);
        made.check(Some(KernelVariant::Integers), 0, &x[192..], &found[27..]);
    }
}

/// If one row is multiplied and subgroups exchange numbers, the kernel itself quantizes its inputs.
/// This gives the same bits and saves a call.
#[test]
fn one_row_is_quantized_by_its_product() {
    let (Some(apart), Some(together)) = (device_with(KernelVariant::Integers), integer_subgroup_device())
    else {
        return;
    };
    let formats = LAYOUTS.iter().filter(|layout| layout.has_integers()).map(|layout| layout.ty);
    for (number, format) in formats.enumerate() {
        // For 16 and 64 lanes, sizes with the same number of turns for all lanes, and others.
        let mut sizes = vec![256, 768, 1024, 1280, 16 * 512, 17 * 512];
        if format.block_len() == 32 {
            sizes.extend([32, 96, 544, 1056]);
        }
        for inputs in sizes {
            let made = make(format, (inputs, 5, 2));
            let mut x = Random(number as u64).numbers(2 * inputs);
            x[inputs..inputs + 32].fill(0.0);
            if inputs == 768 {
                (x[40], x[100]) = (f32::INFINITY, f32::NAN);
            }
            let [expected, found] = [&apart, &together].map(|device| {
                let weight = made.upload(device);
                let input = Buffer::with(device, "x", &float_bytes(&x)).unwrap();
                let y = Buffer::new(device, "y", 4 * 4 * 5).unwrap();
                // A matrix for each slot, and matrices that are named by ids.
                let ids = Buffer::with(device, "ids", &word_bytes(&[1, 0])).unwrap();
                let by_ids = SlotMatrix::ByIds { ids: (&ids).into(), offset: 0 };
                let mut commands = Commands::new(device);
                for (number, matrices) in [SlotMatrix::PerSlot(0), by_ids].iter().enumerate() {
                    let mut to = RowAddress::rows(&y, 2, 5);
                    to.address[0] = 10 * number as u32;
                    let x = RowAddress::rows(&input, 2, inputs);
                    let items = ProductItems { rows: 0..1, slots: 2, x, y: to };
                    let part = WeightSlice { rows: 0..5, transposed: false };
                    multiply(&mut commands, (&weight, &part), &items, matrices).unwrap();
                }
                let calls = commands.len();
                commands.submit(&[]).unwrap();
                (calls, floats(&y.read("y", 0..4 * 4 * 5).unwrap()))
            });
            // Without subgroups there is one more call, which quantizes the inputs of both
            // products.
            assert_eq!((expected.0, found.0), (3, 2), "{format}");
            let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
            let same = expected
                .1
                .iter()
                .zip(&found.1)
                .all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()));
            assert!(same, "{format}, {inputs} inputs: {:?} {:?}", bits(&expected.1), bits(&found.1));
            assert!(found.1.iter().any(|y| *y != 0.0), "{format}, {inputs} inputs");
        }
    }
}

/// Reads the words of a binding.
fn read_blocks(device: &Arc<Device>, from: &ShaderBinding, to: &Buffer) -> Vec<u32> {
    const COPY: &str = "
@group(0) @binding(0) var<uniform> words: vec4<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) { if id.x < words.x { y[id.x] = x[id.x]; } }";
    let pipeline = device.pipeline(&Shader::new("copy words", COPY)).unwrap();
    let mut commands = Commands::new(device);
    let words = (to.bytes() / 4) as u32;
    commands.call(&pipeline, [from.clone(), to.into()], &[words], grid(words as usize, 64));
    commands.submit(&[]).unwrap();
    let bytes = to.read("words", 0..to.bytes()).unwrap();
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Weights that are repacked in several pieces, with parts that begin at any row.
#[test]
fn repacked_weights_have_the_same_bits_in_parts_and_pieces() {
    let (Some(plain), Some(planes)) = (plain_device(), device_with(KernelVariant::Planes)) else { return };
    // A weight of three pieces of blocks, and one with a matrix for each head.
    for (format, shape) in [(TensorType::Q8_0, (96, 12_000, 1)), (TensorType::Q4_0, (64, 40, 5))] {
        let made = make(format, shape);
        let (inputs, outputs, matrices) = shape;
        let x = Random(4).numbers(3 * matrices * inputs.max(24));
        for part in [
            WeightSlice { rows: 5..outputs, transposed: false },
            WeightSlice { rows: 3..27, transposed: true },
        ] {
            let (wide, high) =
                if part.transposed { (part.rows.len(), inputs) } else { (inputs, part.rows.len()) };
            let [a, b] = [&plain, &planes].map(|device| {
                let (weight, input) =
                    (made.upload(device), Buffer::with(device, "x", &float_bytes(&x)).unwrap());
                let y = Buffer::new(device, "y", 4 * (3 * matrices * high) as u64).unwrap();
                let (x, to) =
                    (RowAddress::rows(&input, matrices, wide), RowAddress::rows(&y, matrices, high));
                let items = ProductItems { rows: 0..3, slots: matrices, x, y: to };
                let mut commands = Commands::new(device);
                multiply(&mut commands, (&weight, &part), &items, &SlotMatrix::PerSlot(0)).unwrap();
                commands.submit(&[]).unwrap();
                floats(&y.read("y", 0..y.bytes()).unwrap())
            });
            assert!(a.iter().any(|v| *v != 0.0));
            assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()), "{format} {part:?}");
        }
    }
}
