//! Errors of the entries for 4-bit weights, and f16 inputs. The table of cases tests results of f32
//! inputs.

use super::Random;
use crate::buffers::{Buffer, float_bytes, floats};
use crate::commands::Commands;
use crate::matmul::rows::BufferRows;
use crate::matmul::w4::{
    GroupScales, W4CodeKind, W4Inputs, W4Operand, W4Weight, W4WeightShape, fused, gemm, reduce, striped,
};
use crate::testing::{device, device_with, plain_device};
use crate::variants::KernelVariant;
use latent_kernels::half::f16;

#[test]
fn operands_of_a_wrong_size_are_errors() {
    let Some(device) = device() else { return };
    let shape = W4WeightShape { k: 16, n: 3, group: 8 };
    let scales = GroupScales::E8m0(&[127; 6]);
    let operand = W4Operand { shape, words: &[0; 6], scales, codes: W4CodeKind::Fp4, zeros: &[] };
    let problem =
        |operand: W4Operand<'_>| W4Weight::upload(&device, "w", &operand).err().unwrap().to_string();
    assert!(problem(W4Operand { words: &[0; 5], ..operand }).contains("5 words"));
    assert!(problem(W4Operand { codes: W4CodeKind::Int4, ..operand }).contains("0 zero points"));
    assert!(
        problem(W4Operand { shape: W4WeightShape { group: 0, ..shape }, ..operand }).contains("groups of 0")
    );
    let weight = W4Weight::upload(&device, "w", &operand).unwrap();
    let buffer = Buffer::new(&device, "x", 4096).unwrap();
    let mut commands = Commands::new(&device);
    let (odd, rows) = (BufferRows { first: 1, ..BufferRows::new(&buffer, 16) }, BufferRows::new(&buffer, 16));
    assert!(
        fused(&mut commands, &weight, &odd, &rows, 1).unwrap_err().to_string().contains("multiples of 4")
    );
    assert!(striped(&mut commands, &weight, (&rows, 1), (&buffer, 0), &rows).is_err());
    assert!(reduce(&mut commands, (&buffer, 1000), (4, 4), &rows).is_err());
}

/// If inputs are f16 numbers, every entry gives the same bits whether they are stored as f16 or as
/// f32: the shaders differ only in how they load inputs.
#[test]
fn f16_inputs_have_the_bits_of_the_same_numbers_in_f32() {
    let Some(device) = plain_device() else { return };
    // Groups of whole words, and groups that end inside a word.
    for (codes, group) in [(W4CodeKind::Fp4, 32), (W4CodeKind::Int4, 12), (W4CodeKind::Int4Sym, 96)] {
        let shape = W4WeightShape { k: 96, n: 51, group };
        let mut random = Random(9);
        let words: Vec<u32> = (0..12 * 51).map(|_| random.next() | random.next() << 1).collect();
        let groups = 96 / group * 51;
        let scales: Vec<u16> = (0..groups).map(|i| f16::from_f32(0.01 * (i % 37) as f32).to_bits()).collect();
        let zeros = vec![7; if codes == W4CodeKind::Int4 { groups } else { 0 }];
        let scales = GroupScales::F16(&scales);
        let operand = W4Operand { shape, words: &words, scales, codes, zeros: &zeros };
        let weight = W4Weight::upload(&device, "w", &operand).unwrap();
        for rows in [1, 5, 21] {
            let halves: Vec<f16> = random.numbers(rows * 96).into_iter().map(f16::from_f32).collect();
            let wide: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();
            let wide = Buffer::with(&device, "x", &float_bytes(&wide)).unwrap();
            let narrow: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
            let narrow = Buffer::with(&device, "x", &narrow).unwrap();
            assert!(narrow.bytes() * 2 <= wide.bytes() + 16);
            let results = [(&wide, false), (&narrow, true)].map(|(x, f16)| {
                let rows_of = BufferRows::new(x, 96);
                let x = W4Inputs { rows: &rows_of, f16 };
                let y = [(); 3].map(|()| Buffer::new(&device, "y", 4 * (rows * 51) as u64).unwrap());
                let partials = Buffer::new(&device, "partial sums", 4 * (3 * rows * 51) as u64).unwrap();
                let to = y.each_ref().map(|y| BufferRows::new(y, 51));
                let mut commands = Commands::new(&device);
                fused(&mut commands, &weight, x, &to[0], rows).unwrap();
                gemm(&mut commands, &weight, x, &to[1], rows).unwrap();
                striped(&mut commands, &weight, (x, rows), (&partials, 3), &to[2]).unwrap();
                commands.submit(&[]).unwrap();
                y.map(|y| floats(&y.read("y", 0..4 * (rows * 51) as u64).unwrap()))
            });
            for (entry, (a, b)) in results[0].iter().zip(&results[1]).enumerate() {
                assert!(a.iter().any(|v| *v != 0.0));
                let same = a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "entry {entry}, {codes:?}, {rows} rows");
            }
        }
    }
}

/// f16 inputs as cooperative matrices: weights are rounded to f16, sums are f32. Slices end with
/// words that do not fill a step of the shader.
#[test]
fn f16_inputs_are_multiplied_as_cooperative_matrices() {
    let (Some(plain), Some(device)) = (plain_device(), device_with(KernelVariant::MatricesF16)) else {
        return;
    };
    for (codes, group) in [(W4CodeKind::Fp4, 8), (W4CodeKind::Int4Sym, 40)] {
        let shape = W4WeightShape { k: 40, n: 83, group };
        let mut random = Random(5);
        let words: Vec<u32> = (0..5 * 83).map(|_| random.next() | random.next() << 1).collect();
        let scales: Vec<u16> =
            (0..40 / group * 83).map(|i| f16::from_f32(1e-4 * (1 + i % 37) as f32).to_bits()).collect();
        let operand =
            W4Operand { shape, words: &words, scales: GroupScales::F16(&scales), codes, zeros: &[] };
        for rows in [1, 5, 16, 37] {
            let x: Vec<u8> =
                random.numbers(rows * 40).into_iter().flat_map(|x| f16::from_f32(x).to_le_bytes()).collect();
            let [expected, found] = [&plain, &device].map(|device| {
                let weight = W4Weight::upload(device, "w", &operand).unwrap();
                let x = Buffer::with(device, "x", &x).unwrap();
                let rows_of = BufferRows::new(&x, 40);
                let x = W4Inputs { rows: &rows_of, f16: true };
                let y = [(); 2].map(|()| Buffer::new(device, "y", 4 * (rows * 83) as u64).unwrap());
                let partials = Buffer::new(device, "partial sums", 4 * (3 * rows * 83) as u64).unwrap();
                let mut commands = Commands::new(device);
                gemm(&mut commands, &weight, x, &BufferRows::new(&y[0], 83), rows).unwrap();
                striped(&mut commands, &weight, (x, rows), (&partials, 3), &BufferRows::new(&y[1], 83))
                    .unwrap();
                commands.submit(&[]).unwrap();
                y.map(|y| floats(&y.read("y", 0..4 * (rows * 83) as u64).unwrap())).concat()
            });
            let largest = expected.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            let off = expected.iter().zip(&found).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            // A decoded weight has up to 12 bits, one more than f16, so that rounding changes some
            // results.
            assert!(largest > 0.0 && off <= 1e-3 * largest, "{codes:?} {rows} rows: {off} of {largest}");
            assert!(off > 0.0, "weights are not rounded");
        }
    }
    let pipelines = device.pipelines.lock().unwrap();
    assert!(pipelines.keys().any(|text| text.contains("coopMultiplyAdd")));
}
