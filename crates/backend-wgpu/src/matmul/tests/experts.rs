//! Products with weights of several matrices, and with weights in several buffers.

use super::Random;
use crate::buffers::{Buffer, float_bytes, floats, word_bytes};
use crate::commands::Commands;
use crate::device::Device;
use crate::matmul::product::{
    ProductEpilogue, ProductItems, RowAddress, SlotMatrix, WeightSlice, gather, multiply,
    multiply_sorted_into,
};
use crate::matmul::products::ProductContext;
use crate::matmul::rows::{BufferRows, pairs, sort_by_expert};
use crate::matmul::sort::{SortMemory, sort_items};
use crate::matmul::weight::{DeviceWeight, DeviceWeightShape, HostScales};
use crate::testing::device;
use latent_graph::passes::Precision;
use latent_types::TensorType;
use std::sync::Arc;

/// An encoded weight, with its decoded elements.
struct ExpertWeight {
    shape: DeviceWeightShape,
    format: TensorType,
    bytes: Vec<u8>,
    elements: Vec<f32>,
}

fn make(format: TensorType, shape: DeviceWeightShape) -> ExpertWeight {
    let DeviceWeightShape { inputs, outputs, matrices } = shape;
    let elements = Random(3).numbers(inputs * outputs * matrices);
    let mut bytes = vec![0; outputs * matrices * format.row_bytes(inputs).unwrap()];
    latent_quant::quantize(format, &elements, None, &mut bytes).unwrap();
    let mut elements = vec![0.0; elements.len()];
    latent_quant::decode(format, &bytes, &mut elements).unwrap();
    ExpertWeight { shape, format, bytes, elements }
}

impl ExpertWeight {
    /// Uploads the weight in buffers of at most `max_buffer` bytes.
    fn upload(&self, device: &Arc<Device>, max_buffer: u64) -> DeviceWeight {
        let products = ProductContext::new(device, Precision::Exact);
        DeviceWeight::upload_in(max_buffer, &products, "w", (self.format, self.shape), &self.bytes, None)
            .unwrap()
    }

    fn whole(&self) -> WeightSlice {
        WeightSlice { rows: 0..self.shape.outputs, transposed: false }
    }

    /// Panics unless `y` is the product of `x` with a part of one matrix.
    fn check(&self, part: &WeightSlice, matrix: usize, x: &[f32], y: &[f32]) {
        let DeviceWeightShape { inputs, outputs, .. } = self.shape;
        let element =
            |row: usize, col: usize| f64::from(self.elements[(matrix * outputs + row) * inputs + col]);
        for (o, found) in y.iter().enumerate() {
            let (mut sum, mut size) = (0.0, 0.0f64);
            for (i, x) in x.iter().enumerate() {
                let (row, col) = if part.transposed { (i, o) } else { (o, i) };
                let term = element(part.rows.start + row, col) * f64::from(*x);
                sum += term;
                size += term.abs();
            }
            let off = (f64::from(*found) - sum).abs();
            let allowed = 1e-6 * size.max(1e-3);
            assert!(off <= allowed, "{} matrix {matrix} output {o}: {found}, not {sum}", self.format);
        }
    }
}

fn run(device: &Arc<Device>, y: &Buffer, record: impl FnOnce(&mut Commands)) -> Vec<f32> {
    let mut commands = Commands::new(device);
    record(&mut commands);
    commands.submit(&[]).unwrap();
    floats(&y.read("y", 0..y.bytes()).unwrap())
}

const FORMATS: [TensorType; 4] = [TensorType::Q4_0, TensorType::Q6_K, TensorType::BF16, TensorType::IQ2_XS];

/// Rows and heads need more workgroups than one dimension of a call may have.
#[test]
fn many_rows_of_many_heads_take_several_calls() {
    let Some(device) = device() else { return };
    let (rows, heads) = (300, 1024);
    let shape = DeviceWeightShape { inputs: 8, outputs: 1, matrices: heads };
    let made = make(TensorType::F32, shape);
    let weight = made.upload(&device, 1 << 20);
    let x = Random(5).numbers(rows * heads);
    let input = Buffer::with(&device, "x", &float_bytes(&x)).unwrap();
    let y = Buffer::new(&device, "y", 4 * (rows * heads * shape.inputs) as u64).unwrap();
    let part = WeightSlice { transposed: true, ..made.whole() };
    let (from, to) = (RowAddress::rows(&input, heads, 1), RowAddress::rows(&y, heads, shape.inputs));
    let items = ProductItems { rows: 0..rows, slots: heads, x: from, y: to };
    let found = run(&device, &y, |commands| {
        multiply(commands, (&weight, &part), &items, &SlotMatrix::PerSlot(0)).unwrap();
    });
    for (item, y) in found.chunks_exact(shape.inputs).enumerate() {
        made.check(&part, item % heads, &x[item..=item], y);
    }
}

#[test]
fn each_item_gets_its_expert() {
    let Some(device) = device() else { return };
    for format in FORMATS {
        let shape = DeviceWeightShape { inputs: 512, outputs: 45, matrices: 7 };
        let made = make(format, shape);
        let (tokens, slots) = (19, 3);
        let pairs = tokens * slots;
        // Expert 5 is never chosen, and expert 2 by most.
        let chosen: Vec<u32> = (0..pairs).map(|i| [2, 0, 6, 2, 1, 3, 4, 2][i * 5 % 8]).collect();
        let x = Random(11).numbers(tokens * shape.inputs);
        let stored = Buffer::with(&device, "ids", &word_bytes(&[&[9, 9], &chosen[..]].concat())).unwrap();
        let ids = (&stored).into();
        let input = Buffer::with(&device, "x", &float_bytes(&x)).unwrap();
        // All experts in one buffer, and two in each of several; all tokens, and all but the first
        // three.
        for (experts, first) in [(7, 0), (2, 0), (2, 3)] {
            let weight = made.upload(&device, (made.bytes.len() / 7 * experts) as u64);
            let y = Buffer::new(&device, "y", 4 * (pairs * shape.outputs) as u64).unwrap();
            // Every slot of a token reads the same input.
            let mut from = RowAddress::rows(&input, 1, shape.inputs);
            from.address[2] = 0;
            let to = RowAddress::rows(&y, slots, shape.outputs);
            let items = ProductItems { rows: first..tokens, slots, x: from, y: to };
            let check = |found: &[f32]| {
                for (pair, y) in found.chunks_exact(shape.outputs).enumerate() {
                    if pair < first * slots {
                        assert!(y.iter().all(|v| *v == 0.0), "{format}");
                        continue;
                    }
                    let x = &x[pair / slots * shape.inputs..][..shape.inputs];
                    made.check(&made.whole(), chosen[pair] as usize, x, y);
                }
            };
            check(&run(&device, &y, |commands| {
                let by = SlotMatrix::ByIds { ids: (&stored).into(), offset: 2 };
                multiply(commands, (&weight, &made.whole()), &items, &by).unwrap();
            }));
            y.write("y", 0, &float_bytes(&vec![0.0; pairs * shape.outputs])).unwrap();
            check(&run(&device, &y, |commands| {
                let rows = (&items.rows, slots);
                let memory = SortMemory::new(&device, SortMemory::bytes(pairs, 7)).unwrap();
                let sorted = sort_items(commands, &memory, (&ids, 2), rows, shape.matrices).unwrap();
                let keep = (ProductEpilogue::Store, 0.0);
                multiply_sorted_into(commands, (&weight, &made.whole()), &items, &sorted, keep).unwrap();
            }));
        }
    }
}

/// Pairs of tokens and experts that share rows of inputs, and pairs that each have a row.
#[test]
fn pairs_are_slots_of_the_rows_that_they_share() {
    let Some(device) = device() else { return };
    let shape = DeviceWeightShape { inputs: 96, outputs: 30, matrices: 4 };
    let made = make(TensorType::Q5_0, shape);
    let weight = made.upload(&device, 1 << 20);
    let (chosen, part): (Vec<u32>, WeightSlice) = ((0..42).map(|i| i * 3 % 4).collect(), made.whole());
    let ids = Buffer::with(&device, "ids", &word_bytes(&chosen)).unwrap();
    for share in [1, 3] {
        let x = Random(8).numbers(42 / share * 96);
        let input = Buffer::with(&device, "x", &float_bytes(&x)).unwrap();
        for sorts in [false, true] {
            let y = Buffer::new(&device, "y", 4 * 42 * 30).unwrap();
            let (from, to) = (BufferRows::new(&input, 96), BufferRows::new(&y, 30));
            let found = run(&device, &y, |commands| {
                let items = pairs(commands, (&from, share), 42, &to).unwrap();
                if sorts {
                    let memory = SortMemory::new(&device, SortMemory::bytes(42, 4)).unwrap();
                    let sorted = sort_by_expert(commands, &memory, (&(&ids).into(), 0, 42), 4).unwrap();
                    let keep = (ProductEpilogue::Store, 0.0);
                    multiply_sorted_into(commands, (&weight, &part), &items, &sorted, keep).unwrap();
                } else {
                    let matrices = SlotMatrix::ByIds { ids: (&ids).into(), offset: 0 };
                    multiply(commands, (&weight, &part), &items, &matrices).unwrap();
                }
            });
            for (pair, y) in found.chunks_exact(30).enumerate() {
                made.check(&part, chosen[pair] as usize, &x[pair / share * 96..][..96], y);
            }
        }
    }
}

/// W_UK and W_UV of each head, which are parts of the matrices of one weight.
#[test]
fn each_slot_gets_its_matrix() {
    let Some(device) = device() else { return };
    for format in [TensorType::Q8_0, TensorType::F16] {
        let shape = DeviceWeightShape { inputs: 64, outputs: 40, matrices: 5 };
        let made = make(format, shape);
        for part in [
            WeightSlice { rows: 0..24, transposed: true },
            WeightSlice { rows: 24..40, transposed: false },
            WeightSlice { rows: 3..27, transposed: false },
        ] {
            let (wide, high) = if part.transposed { (part.rows.len(), 64) } else { (64, part.rows.len()) };
            for (rows, first, buffers) in [(1, 0, 1), (3, 1, 1), (11, 1, 1), (3, 1, 5), (20, 0, 3)] {
                let slots = 4;
                let weight = made.upload(&device, (made.bytes.len().div_ceil(buffers)) as u64);
                let x = Random(rows as u64).numbers(rows * slots * wide);
                let input = Buffer::with(&device, "x", &float_bytes(&x)).unwrap();
                let y = Buffer::new(&device, "y", 4 * (rows * slots * high) as u64).unwrap();
                let (from, to) = (RowAddress::rows(&input, slots, wide), RowAddress::rows(&y, slots, high));
                let items = ProductItems { rows: 0..rows, slots, x: from, y: to };
                let found = run(&device, &y, |commands| {
                    multiply(commands, (&weight, &part), &items, &SlotMatrix::PerSlot(first)).unwrap();
                });
                for (i, (x, y)) in x.chunks_exact(wide).zip(found.chunks_exact(high)).enumerate() {
                    made.check(&part, first + i % slots, x, y);
                }
            }
        }
    }
}

/// A weight in one buffer and in several gives the same bits.
#[test]
fn weights_may_be_in_several_buffers() {
    let Some(device) = device() else { return };
    for format in FORMATS {
        let shape = DeviceWeightShape { inputs: 256, outputs: 101, matrices: 1 };
        let made = make(format, shape);
        let part = WeightSlice { rows: 5..100, transposed: false };
        for rows in [1, 3, 21] {
            let x = Random(5).numbers(rows * shape.inputs);
            let results = [1 << 20, 4096].map(|most| {
                let weight = made.upload(&device, most);
                // Inputs have a stride of more than their width, and results follow three elements
                // that must not change.
                let stride = shape.inputs + 4;
                let input = Buffer::new(&device, "x", 4 * (rows * stride) as u64).unwrap();
                for (row, x) in x.chunks_exact(shape.inputs).enumerate() {
                    input.write("x", 4 * (row * stride) as u64, &float_bytes(x)).unwrap();
                }
                let y = Buffer::new(&device, "y", 4 * (3 + rows * 95) as u64).unwrap();
                let (from, mut to) = (RowAddress::rows(&input, 1, stride), RowAddress::rows(&y, 1, 95));
                to.address[0] = 3;
                let items = ProductItems { rows: 0..rows, slots: 1, x: from, y: to };
                let found = run(&device, &y, |commands| {
                    multiply(commands, (&weight, &part), &items, &SlotMatrix::One).unwrap();
                });
                assert_eq!(found[..3], [0.0; 3]);
                found[3..].to_vec()
            });
            for (x, y) in x.chunks_exact(shape.inputs).zip(results[0].chunks_exact(95)) {
                made.check(&part, 0, x, y);
            }
            assert!(results[0].iter().zip(&results[1]).all(|(a, b)| a.to_bits() == b.to_bits()), "{format}");
        }
        let ids = Buffer::with(&device, "ids", &word_bytes(&[7, 100, 0, 57, 100, 101])).unwrap();
        let found = [1 << 20, 4096].map(|most| {
            let weight = made.upload(&device, most);
            let y = Buffer::new(&device, "y", 4 * (5 * shape.inputs) as u64).unwrap();
            run(&device, &y, |commands| {
                let to = RowAddress::rows(&y, 1, shape.inputs);
                gather(commands, &weight, (&(&ids).into(), 1), 5, &to).unwrap();
            })
        });
        assert_eq!(found[0], found[1]);
        assert_eq!(found[0][..shape.inputs], made.elements[100 * shape.inputs..][..shape.inputs]);
        // Row 101 does not exist. Its result is zeros.
        assert!(found[0][4 * shape.inputs..].iter().all(|v| *v == 0.0));
    }
}

/// Blocks of scales that begin anew with each expert, and blocks that cover the rows of all
/// experts.
#[test]
fn several_matrices_have_block_scales() {
    let Some(device) = device() else { return };
    let shape = DeviceWeightShape { inputs: 256, outputs: 40, matrices: 3 };
    let made = make(TensorType::F8_E4M3, shape);
    for (per_matrix, down) in [(true, 9), (false, 8)] {
        let (rows, across) = (16, 128);
        let scales = Random(9).numbers(down * 2);
        let block = HostScales { numbers: &scales, rows, inputs: across, per_matrix };
        let weight =
            DeviceWeight::upload(&device, "w", (made.format, shape), &made.bytes, Some(block)).unwrap();
        let scaled = |i: usize| {
            let (row, col) = (i / shape.inputs, i % shape.inputs);
            let line = if per_matrix { row / 40 * 3 + row % 40 / rows } else { row / rows };
            made.elements[i] * scales[line * 2 + col / across]
        };
        let elements = (0..made.elements.len()).map(scaled).collect();
        let scaled = ExpertWeight { shape, format: made.format, bytes: Vec::new(), elements };
        let part = WeightSlice { rows: 7..40, transposed: false };
        let x = Random(2).numbers(2 * shape.inputs);
        let input = Buffer::with(&device, "x", &float_bytes(&x)).unwrap();
        let y = Buffer::new(&device, "y", 4 * 2 * 33).unwrap();
        let (from, to) = (RowAddress::rows(&input, 2, shape.inputs), RowAddress::rows(&y, 2, 33));
        let items = ProductItems { rows: 0..1, slots: 2, x: from, y: to };
        let found = run(&device, &y, |commands| {
            multiply(commands, (&weight, &part), &items, &SlotMatrix::PerSlot(1)).unwrap();
        });
        for slot in 0..2 {
            scaled.check(
                &part,
                1 + slot,
                &x[slot * shape.inputs..][..shape.inputs],
                &found[slot * 33..][..33],
            );
        }
    }
}

#[test]
fn operands_of_a_wrong_size_are_errors() {
    let Some(device) = device() else { return };
    let shape = DeviceWeightShape { inputs: 64, outputs: 2, matrices: 2 };
    let upload =
        |format, shape, bytes: &[u8]| DeviceWeight::upload(&device, "w", (format, shape), bytes, None);
    let problem = |made: Result<DeviceWeight, crate::GpuError>| made.err().unwrap().to_string();
    assert!(problem(upload(TensorType::I32, shape, &[0; 1024])).contains("no shader supports I32"));
    assert!(problem(upload(TensorType::Q4_0, shape, &[0; 143])).contains("143 bytes"));
    let weight = upload(TensorType::Q4_0, shape, &[0; 144]).unwrap();
    let (x, y) = (Buffer::new(&device, "x", 4096).unwrap(), Buffer::new(&device, "y", 4096).unwrap());
    let items =
        ProductItems { rows: 0..1, slots: 2, x: RowAddress::rows(&x, 2, 64), y: RowAddress::rows(&y, 2, 2) };
    let mut commands = Commands::new(&device);
    let mut refused = |part: WeightSlice, matrices: SlotMatrix| {
        multiply(&mut commands, (&weight, &part), &items, &matrices).unwrap_err().to_string()
    };
    let part = WeightSlice { rows: 0..2, transposed: false };
    assert!(refused(part.clone(), SlotMatrix::PerSlot(1)).contains("matrices 1..3 of 2"));
    assert!(refused(WeightSlice { rows: 0..3, ..part.clone() }, SlotMatrix::One).contains("rows 0..3 of 2"));
    let ids = SlotMatrix::ByIds { ids: (&x).into(), offset: 0 };
    assert!(refused(WeightSlice { transposed: true, ..part }, ids).contains("transposed"));
    let memory = SortMemory::new(&device, SortMemory::bytes(8, 4)).unwrap();
    let mut sort = |rows, experts| {
        sort_items(&mut commands, &memory, (&(&x).into(), 0), (&(0..rows), 1), experts).is_err()
    };
    assert!(
        sort(8, 1025) && sort(9, 4) && !sort(8, 4),
        "more experts, and more pairs than there is memory for"
    );
    let scales = HostScales { numbers: &[1.0; 3], rows: 16, inputs: 16, per_matrix: true };
    let scaled = DeviceWeight::upload(&device, "w", (TensorType::F8_E4M3, shape), &[0; 256], Some(scales));
    assert!(problem(scaled).contains("3 block scales"));
}
