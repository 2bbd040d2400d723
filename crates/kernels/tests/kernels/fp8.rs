//! Every FP8 code in every kernel that reads FP8 tiles.

use latent_kernels::{
    BlockScales, KernelFn, MatmulArgs, MatmulFn, MatmulScratch, MatrixView, MatrixViewMut, QuantizedInput,
    WeightMatrix,
};
use latent_quant::f8_e4m3::value;
use latent_quant::tiles::{ROWS, TileLayout};
use latent_types::{TensorType, WeightLayout};

/// Elements per weight row: not a multiple of a vector's codes.
const COLS: usize = 131;

fn tiles(codes: &[u8], cols: usize) -> Vec<u8> {
    let layout = TileLayout::new(TensorType::F8_E4M3, cols).unwrap();
    let mut tiles = vec![0; layout.matrix_bytes(codes.len() / cols)];
    for (rows, tile) in codes.chunks(ROWS * cols).zip(tiles.chunks_exact_mut(layout.tile_bytes())) {
        layout.pack(rows, tile);
    }
    tiles
}

/// The kernels that this machine can run, for x · Wᵀ or for x · W.
fn kernels(across: bool) -> impl Iterator<Item = (&'static str, MatmulFn)> {
    let table = latent_kernels::table().iter();
    let best = latent_kernels::features().tier();
    table.filter_map(move |(contract, kernel)| match kernel {
        _ if contract.weight != Some(TensorType::F8_E4M3) || contract.layout != WeightLayout::Tiles => None,
        _ if contract.tier > best => None,
        KernelFn::Matmul(kernel) if !across => Some((contract.name, *kernel)),
        KernelFn::MatmulT(kernel) if across => Some((contract.name, *kernel)),
        _ => None,
    })
}

/// All 256 outputs of a weight.
fn multiply(
    kernel: MatmulFn,
    weight: &WeightMatrix<'_>,
    input: &QuantizedInput<'_>,
    y: &mut MatrixViewMut<'_>,
) {
    kernel(MatmulArgs { weight, input, row_ids: None, outputs: 0..256, y }, &mut MatmulScratch::default());
}

fn same(found: f32, truth: f32) -> bool {
    found == truth || (found.is_nan() && truth.is_nan())
}

#[test]
fn each_code_has_its_value_at_every_position_of_a_row() {
    let names: Vec<&str> = kernels(false).map(|(name, _)| name).collect();
    assert!(names.contains(&"portable_f8_e4m3_tiles_f32"), "{names:?}");
    for place in [0, 1, 2, 3, 127, 128, COLS - 1] {
        // Row c has code c at the position, and ones elsewhere.
        let mut codes = vec![0x38; 256 * COLS];
        (0..256).for_each(|c| codes[c * COLS + place] = c as u8);
        let bytes = tiles(&codes, COLS);
        let weight = WeightMatrix::from_tiles(TensorType::F8_E4M3, &bytes, 256, COLS).unwrap();
        for rows in [1, 3, 9] {
            let mut x = vec![0.0; rows * COLS];
            x.iter_mut().skip(place).step_by(COLS).for_each(|x| *x = 1.0);
            for (name, kernel) in kernels(false) {
                let mut y = vec![0.5; rows * 256];
                let acts = QuantizedInput::F32(MatrixView::new(&x, rows, COLS, COLS));
                let mut out = MatrixViewMut::new(&mut y, rows, 256, 256);
                multiply(kernel, &weight, &acts, &mut out);
                for (i, found) in y.iter().enumerate() {
                    let truth = value(i as u8);
                    assert!(same(*found, truth), "{name}, {rows} rows, place {place}: {found} of {truth}");
                }
            }
        }
    }
}

#[test]
fn each_code_has_its_value_in_transposed_products() {
    // One row with all codes, in a tile with other rows. Then the same without NaN codes, which
    // takes another path.
    for nan in [true, false] {
        let mut codes = vec![0x38; ROWS * 256];
        let numbers = (0..=255u8).map(|c| if value(c).is_nan() && !nan { 0 } else { c });
        numbers.enumerate().for_each(|(i, code)| codes[3 * 256 + i] = code);
        let bytes = tiles(&codes, 256);
        let weight = WeightMatrix::from_tiles(TensorType::F8_E4M3, &bytes, ROWS, 256).unwrap();
        let mut x = [0.0; ROWS];
        x[3] = 1.0;
        for (name, kernel) in kernels(true) {
            let mut y = [0.5; 256];
            let acts = QuantizedInput::F32(MatrixView::new(&x, 1, ROWS, ROWS));
            let mut out = MatrixViewMut::new(&mut y, 1, 256, 256);
            multiply(kernel, &weight, &acts, &mut out);
            for (found, code) in y.iter().zip(&codes[3 * 256..]) {
                assert!(same(*found, value(*code)), "{name}: {found} of {}", value(*code));
            }
        }
    }
}

/// Small numbers whose products and sums are exact in f32, in any order.
const EXACT: [u8; 8] = [0x00, 0x38, 0xb8, 0x40, 0xc0, 0x30, 0xb0, 0x44];

#[test]
fn a_scale_per_row_multiplies_its_row() {
    for (rows, cols) in [(1, 1), (3, 5), (15, 131), (16, 128), (17, 300), (40, 257), (64, 64)] {
        let codes: Vec<u8> = (0..rows * cols).map(|i| EXACT[(i * 7 + i / cols) % 8]).collect();
        let bytes = tiles(&codes, cols);
        let mut numbers: Vec<f32> = (0..rows).map(|row| 0.5 + row as f32).collect();
        numbers.resize(rows.next_multiple_of(ROWS), f32::NAN);
        let scales = BlockScales { numbers: &numbers, rows: 1, cols };
        let plain = WeightMatrix::from_tiles(TensorType::F8_E4M3, &bytes, rows, cols).unwrap();
        let short = BlockScales { numbers: &numbers[..rows - 1], ..scales };
        assert!(plain.with_scales(short).is_err(), "{rows} × {cols}");
        let weight = plain.with_scales(scales).unwrap();
        let element = |row: usize, col: usize| value(codes[row * cols + col]) * numbers[row];
        for count in [1, 2, 9] {
            let number = |i: usize| ((i * 5) % 7) as f32 - 3.0;
            let x: Vec<f32> = (0..count * cols).map(number).collect();
            for (name, kernel) in kernels(false) {
                // All outputs, and ranges that begin and end inside tiles.
                for outputs in [0..rows, rows / 3..rows - rows / 4] {
                    let width = outputs.len();
                    let mut y = vec![0.5; count * width];
                    let input = QuantizedInput::F32(MatrixView::new(&x, count, cols, cols));
                    let mut out = MatrixViewMut::new(&mut y, count, width, width);
                    let (weight, input) = (&weight, &input);
                    let args =
                        MatmulArgs { weight, input, row_ids: None, outputs: outputs.clone(), y: &mut out };
                    kernel(args, &mut MatmulScratch::default());
                    for (i, found) in y.iter().enumerate() {
                        let (r, o) = (i / width, outputs.start + i % width);
                        let truth: f32 = (0..cols).map(|k| element(o, k) * x[r * cols + k]).sum();
                        assert_eq!(*found, truth, "{name} {rows} × {cols}, row {r}, output {o}");
                    }
                }
            }
            let x: Vec<f32> = (0..count * rows).map(number).collect();
            for (name, kernel) in kernels(true) {
                let mut y = vec![0.5; count * cols];
                let input = QuantizedInput::F32(MatrixView::new(&x, count, rows, rows));
                let mut out = MatrixViewMut::new(&mut y, count, cols, cols);
                let (weight, input) = (&weight, &input);
                let args = MatmulArgs { weight, input, row_ids: None, outputs: 0..cols, y: &mut out };
                kernel(args, &mut MatmulScratch::default());
                for (i, found) in y.iter().enumerate() {
                    let (r, o) = (i / cols, i % cols);
                    let truth: f32 = (0..rows).map(|k| element(k, o) * x[r * rows + k]).sum();
                    assert_eq!(*found, truth, "{name} {rows} × {cols} across, row {r}, output {o}");
                }
            }
        }
    }
}
