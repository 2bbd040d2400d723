//! Products with experts, and weights in several buffers.

use super::{Random, bytes, numbers, words};
use crate::buffers::Buffer;
use crate::commands::Commands;
use crate::device::Device;
use crate::matmul::product::{Matrix, gather, matmul, matmul_by_id, matmul_sorted, sort_by_expert};
use crate::matmul::weight::{BlockScales, Weight, WeightShape};
use crate::testing::device;
use latent_types::TensorType;
use std::sync::Arc;

/// A weight of a format with its elements.
struct Made {
    shape: WeightShape,
    format: TensorType,
    bytes: Vec<u8>,
    elements: Vec<f32>,
}

fn make(format: TensorType, shape: WeightShape) -> Made {
    let WeightShape { inputs, outputs, experts } = shape;
    let elements = Random(3).numbers(inputs * outputs * experts);
    let mut bytes = vec![0; outputs * experts * format.row_bytes(inputs).unwrap()];
    latent_quant::quantize(format, &elements, None, &mut bytes).unwrap();
    let mut elements = vec![0.0; elements.len()];
    latent_quant::decode(format, &bytes, &mut elements).unwrap();
    Made { shape, format, bytes, elements }
}

impl Made {
    /// On the device, in buffers of at most so many bytes.
    fn upload(&self, device: &Arc<Device>, most: u64) -> Weight {
        Weight::upload_in(most, device, "w", (self.format, self.shape), &self.bytes, None).unwrap()
    }

    /// Fails unless a row of results is that of an expert.
    fn check(&self, expert: usize, x: &[f32], y: &[f32]) {
        let WeightShape { inputs, outputs, .. } = self.shape;
        let first = expert * outputs;
        for (o, found) in y.iter().enumerate() {
            let row = &self.elements[(first + o) * inputs..][..inputs];
            let terms = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let (sum, size) = terms.fold((0.0, 0.0f64), |(sum, size), term| (sum + term, size + term.abs()));
            let off = (f64::from(*found) - sum).abs();
            assert!(
                off <= 1e-6 * size.max(1e-3),
                "{} expert {expert} output {o}: {found}, not {sum}",
                self.format
            );
        }
    }
}

fn run(device: &Arc<Device>, y: &Buffer, record: impl FnOnce(&mut Commands)) -> Vec<f32> {
    let mut commands = Commands::new(device);
    record(&mut commands);
    commands.submit(&[]).unwrap();
    numbers(&y.read("y", 0..y.bytes()).unwrap())
}

const FORMATS: [TensorType; 4] = [TensorType::Q4_0, TensorType::Q6_K, TensorType::BF16, TensorType::IQ2_XS];

#[test]
fn each_pair_gets_its_expert() {
    let Some(device) = device() else { return };
    // all experts in one buffer, and two in each of several
    for experts in [7, 2] {
        for format in FORMATS {
            let shape = WeightShape { inputs: 512, outputs: 45, experts: 7 };
            let made = make(format, shape);
            let weight = made.upload(&device, (made.bytes.len() / 7 * experts) as u64);
            let (tokens, slots) = (19, 3);
            let pairs = tokens * slots;
            // expert 5 is never chosen, and 2 by most
            let chosen: Vec<u32> = (0..pairs).map(|i| [2, 0, 6, 2, 1, 3, 4, 2][i * 5 % 8]).collect();
            let x = Random(11).numbers(tokens * shape.inputs);
            let (ids, input) = (
                Buffer::with(&device, "ids", &words(&chosen)).unwrap(),
                Buffer::with(&device, "x", &bytes(&x)).unwrap(),
            );
            let y = Buffer::new(&device, "y", 4 * (pairs * shape.outputs) as u64).unwrap();
            let (rows, results) = (Matrix::new(&input, shape.inputs), Matrix::new(&y, shape.outputs));
            let check = |found: &[f32]| {
                for (pair, y) in found.chunks_exact(shape.outputs).enumerate() {
                    made.check(chosen[pair] as usize, &x[pair / slots * shape.inputs..][..shape.inputs], y);
                }
            };
            check(&run(&device, &y, |commands| {
                matmul_by_id(commands, &weight, (&rows, slots), (&ids, pairs), &results).unwrap();
            }));
            y.write("y", 0, &bytes(&vec![f32::NAN; pairs * shape.outputs])).unwrap();
            check(&run(&device, &y, |commands| {
                let sorted = sort_by_expert(commands, (&ids, pairs), shape.experts).unwrap();
                matmul_sorted(commands, &weight, (&rows, slots), &sorted, &results).unwrap();
            }));
        }
    }
}

/// The same bits from one buffer and from several.
#[test]
fn weights_may_be_in_several_buffers() {
    let Some(device) = device() else { return };
    for format in FORMATS {
        let shape = WeightShape { inputs: 256, outputs: 101, experts: 1 };
        let made = make(format, shape);
        for rows in [1, 3, 21] {
            let x = Random(5).numbers(rows * shape.inputs);
            let results: Vec<Vec<f32>> = [1 << 20, 4096]
                .map(|most| {
                    let weight = made.upload(&device, most);
                    assert_eq!(weight.bytes(), made.bytes.len());
                    // inputs come behind the results of a wider matrix, in rows that are further apart
                    let stride = shape.inputs + 4;
                    let input = Buffer::new(&device, "x", 4 * (rows * stride) as u64).unwrap();
                    for (row, x) in x.chunks_exact(shape.inputs).enumerate() {
                        input.write("x", 4 * (row * stride) as u64, &bytes(x)).unwrap();
                    }
                    let y = Buffer::new(&device, "y", 4 * (3 + rows * shape.outputs) as u64).unwrap();
                    let to = Matrix { first: 3, ..Matrix::new(&y, shape.outputs) };
                    let found = run(&device, &y, |commands| {
                        matmul(commands, &weight, &Matrix::new(&input, stride), &to, rows).unwrap();
                    });
                    assert_eq!(found[..3], [0.0; 3]);
                    found[3..].to_vec()
                })
                .into();
            for (x, y) in x.chunks_exact(shape.inputs).zip(results[0].chunks_exact(shape.outputs)) {
                made.check(0, x, y);
            }
            assert!(results[0].iter().zip(&results[1]).all(|(a, b)| a.to_bits() == b.to_bits()), "{format}");
        }
        let ids = [100u32, 0, 57, 100, 101];
        let found = [1 << 20, 4096].map(|most| {
            let (weight, ids) =
                (made.upload(&device, most), Buffer::with(&device, "ids", &words(&ids)).unwrap());
            let y = Buffer::new(&device, "y", 4 * (5 * shape.inputs) as u64).unwrap();
            run(&device, &y, |commands| {
                gather(commands, &weight, (&ids, 5), &Matrix::new(&y, shape.inputs)).unwrap();
            })
        });
        assert_eq!(found[0], found[1]);
        assert_eq!(found[0][..shape.inputs], made.elements[100 * shape.inputs..][..shape.inputs]);
        // there is no row 101
        assert!(found[0][4 * shape.inputs..].iter().all(|v| *v == 0.0));
    }
}

#[test]
fn experts_have_block_scales_of_their_own() {
    let Some(device) = device() else { return };
    let shape = WeightShape { inputs: 256, outputs: 40, experts: 3 };
    let made = make(TensorType::F8_E4M3, shape);
    let (rows, across) = (16, 128);
    let scales = Random(9).numbers(shape.experts * 3 * 2);
    let block = BlockScales { numbers: &scales, rows, inputs: across };
    let weight = Weight::upload(&device, "w", (made.format, shape), &made.bytes, Some(block)).unwrap();
    let x = Random(2).numbers(2 * shape.inputs);
    let input = Buffer::with(&device, "x", &bytes(&x)).unwrap();
    let ids = Buffer::with(&device, "ids", &words(&[2, 1])).unwrap();
    let y = Buffer::new(&device, "y", 4 * 2 * shape.outputs as u64).unwrap();
    let found = run(&device, &y, |commands| {
        let (x, y) = (Matrix::new(&input, shape.inputs), Matrix::new(&y, shape.outputs));
        matmul_by_id(commands, &weight, (&x, 1), (&ids, 2), &y).unwrap();
    });
    for (pair, expert) in [2, 1].into_iter().enumerate() {
        let scaled: Vec<f32> = (0..shape.experts * shape.outputs * shape.inputs)
            .map(|i| {
                let (row, col) = (i / shape.inputs, i % shape.inputs);
                let (e, row) = (row / shape.outputs, row % shape.outputs);
                made.elements[i] * scales[e * 6 + row / rows * 2 + col / across]
            })
            .collect();
        let scaled = Made { shape, format: made.format, bytes: Vec::new(), elements: scaled };
        scaled.check(
            expert,
            &x[pair * shape.inputs..][..shape.inputs],
            &found[pair * shape.outputs..][..shape.outputs],
        );
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let Some(device) = device() else { return };
    let shape = WeightShape { inputs: 64, outputs: 2, experts: 2 };
    let upload = |format, shape, bytes: &[u8]| Weight::upload(&device, "w", (format, shape), bytes, None);
    let problem = |made: Result<Weight, crate::GpuError>| made.err().unwrap().to_string();
    assert!(problem(upload(TensorType::I32, shape, &[0; 1024])).contains("no shader multiplies I32"));
    assert!(problem(upload(TensorType::Q4_0, shape, &[0; 143])).contains("143 bytes"));
    let weight = upload(TensorType::Q4_0, shape, &[0; 144]).unwrap();
    let buffer = Buffer::new(&device, "x", 4096).unwrap();
    let rows = Matrix::new(&buffer, 64);
    let mut commands = Commands::new(&device);
    let error = matmul(&mut commands, &weight, &rows, &rows, 1).unwrap_err().to_string();
    assert!(error.contains("2 experts"), "{error}");
    assert!(sort_by_expert(&mut commands, (&buffer, 8), 1025).is_err());
    let scales = BlockScales { numbers: &[1.0; 3], rows: 16, inputs: 16 };
    let scaled = Weight::upload(&device, "w", (TensorType::F8_E4M3, shape), &[0; 256], Some(scales));
    assert!(problem(scaled).contains("3 block scales"));
}
