//! Variants of the kernels, forced one by one: products of odd sizes against sums in f64, and the bits of those that promise them.

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

/// Formats that differ in how quants and scales are stored: no blocks, odd blocks, minimums, odd blocks with their scale at the end, a table.
const FORMATS: [TensorType; 5] =
    [TensorType::F16, TensorType::Q4_0, TensorType::Q4_K, TensorType::Q6_K, TensorType::MXFP4];

/// Rows of inputs, and outputs: GEMV, and tiles of a GEMM that are full and that are not.
const SIZES: [(usize, usize); 4] = [(1, 45), (7, 66), (9, 3), (70, 130)];

/// Matrices of a weight, with their elements.
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

/// How inputs and weights are seen by a variant, and how much its sums may be off, as a part of the sum of all terms' sizes.
fn seen(variant: Option<KernelVariant>, format: TensorType, x: &[f32]) -> (Vec<f32>, f64) {
    let floats = (x.to_vec(), 1e-6);
    let Some(layout) = crate::matmul::layout::layout(format) else { return floats };
    match variant {
        // both factors are rounded by at most 2^-11
        Some(KernelVariant::F16Tiles | KernelVariant::MatricesF16) if format.is_quantized() => {
            (x.to_vec(), 1e-3)
        }
        Some(KernelVariant::Integers) if layout.has_integers() => {
            let mut blocks = vec![Q8Block::ZERO; x.len() / 32];
            quantize_q8(x, &mut blocks);
            let values = blocks.iter().flat_map(|b| b.quants.map(|quant| f32::from(quant) * b.scale));
            // a device may round a division, and with it a quant between two others, otherwise
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
        let (x, allowed) = seen(variant, self.format, x);
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

/// Rows times all outputs, twice with the same bits.
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

/// Products of plain rows on a device with a variant, or without any.
fn products(device: &Arc<Device>, variant: Option<KernelVariant>) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    for format in FORMATS {
        for (rows, outputs) in SIZES.into_iter().filter(|(rows, _)| multiplies(variant, *rows)) {
            // enough octets for 64 lanes each, and few
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
    // a place for each size of each format
    let expected = products(&plain, None);
    for variant in KernelVariant::ALL {
        let Some(device) = device_with(variant) else { continue };
        let found = products(&device, Some(variant));
        let same = |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
        let of_variant = |place: &usize| multiplies(Some(variant), SIZES[place % SIZES.len()].0);
        let expected = (0..expected.len()).filter(of_variant).map(|place| &expected[place]);
        let all_same = found.iter().zip(expected).all(same);
        // other bits than without it show that it is used
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

/// An index beyond its array is bounded where shaders check, so that results would be others.
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
            // all rows, and those from the third on
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

/// Every format whose inputs are quantized decodes its integers in a way of its own.
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

/// Scales, and quants unless they are between two; blocks of zeros, and those that have no scale.
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
    // rows 1 and 2 of two slots each
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

/// Products that follow one another quantize their common inputs once; a call between them, another list, and other rows make it necessary again.
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
    // the first row becomes the second
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

/// The kernel quantizes them where one row is multiplied and subgroups exchange numbers: the same bits, and a call less.
#[test]
fn one_row_is_quantized_by_its_product() {
    let (Some(apart), Some(together)) = (device_with(KernelVariant::Integers), integer_subgroup_device())
    else {
        return;
    };
    let formats = LAYOUTS.iter().filter(|layout| layout.has_integers()).map(|layout| layout.ty);
    for (number, format) in formats.enumerate() {
        // sixteen lanes and 64, whose turns are the same for all lanes and are not
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
                // slots with matrices of their own, and that name them
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
            // the second product finds what the first has quantized
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

/// Words of what is bound.
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

/// A weight is repacked in several pieces, and begins with any row.
#[test]
fn repacked_weights_have_the_same_bits_in_parts_and_pieces() {
    let (Some(plain), Some(planes)) = (plain_device(), device_with(KernelVariant::Planes)) else { return };
    // three pieces of blocks; heads with parts of their matrices
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
