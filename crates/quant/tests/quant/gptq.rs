//! GPTQ: output errors, independence of rows, and invalid arguments.

use latent_quant::gptq::{
    GptqError, GptqOptions, HessianFactor, LevelGroup, StoredLevels, gptq_types, group_len, quantize_rows,
    round_levels,
};
use latent_quant::{QuantError, decode, quantize};
use latent_types::TensorType;

const COLUMNS: usize = 512;

fn number(seed: u32) -> f32 {
    let mixed = seed.wrapping_mul(2_654_435_761).rotate_left(13).wrapping_mul(0x9e37_79b1);
    (mixed >> 8) as f32 / 8_388_608.0 - 1.0
}

/// Inputs that are mixtures of fewer directions than columns, with noise and columns of unequal
/// magnitude.
fn inputs(rows: usize) -> Vec<Vec<f32>> {
    const DIRECTIONS: usize = 48;
    let row = |r: usize| {
        let parts: Vec<f32> = (0..DIRECTIONS).map(|d| number((r * 977 + d * 31 + 5) as u32)).collect();
        let column = |c: usize| {
            let sum: f32 = (0..DIRECTIONS).map(|d| parts[d] * number((d * 5003 + c * 7 + 11) as u32)).sum();
            (sum + 0.5 * number((r * 61 + c * 3 + 2) as u32)) * (1.0 + (c % 9) as f32 * 0.2)
        };
        (0..COLUMNS).map(column).collect()
    };
    (0..rows).map(row).collect()
}

fn triangle(inputs: &[Vec<f32>]) -> Vec<f32> {
    let product = |i: usize, j: usize| -> f32 { inputs.iter().map(|x| x[i] * x[j]).sum() };
    (0..COLUMNS).flat_map(|i| (0..=i).map(move |j| (i, j))).map(|(i, j)| product(i, j)).collect()
}

fn weights(rows: usize) -> Vec<f32> {
    (0..rows * COLUMNS).map(|i| number(i as u32 + 77) * number(i as u32 * 3 + 1).abs()).collect()
}

/// Σ over inputs of the squared error of the output.
fn output_error(inputs: &[Vec<f32>], weights: &[f32], back: &[f32]) -> f64 {
    let mut sum = 0.0;
    for (w, q) in weights.chunks_exact(COLUMNS).zip(back.chunks_exact(COLUMNS)) {
        for x in inputs {
            let off: f64 = x.iter().zip(w.iter().zip(q)).map(|(x, (w, q))| f64::from(x * (w - q))).sum();
            sum += off * off;
        }
    }
    sum
}

fn rounded(ty: TensorType, triangle: &[f32], weights: &[f32], options: GptqOptions) -> (Vec<u8>, Vec<f32>) {
    let factor = HessianFactor::new(triangle, COLUMNS, group_len(ty).unwrap(), options).unwrap();
    let mut bytes = vec![0; ty.row_bytes(COLUMNS).unwrap() * weights.len() / COLUMNS];
    quantize_rows(ty, &factor, weights, &mut bytes).unwrap();
    let mut back = vec![0.0; weights.len()];
    decode(ty, &bytes, &mut back).unwrap();
    (bytes, back)
}

/// Measured on inputs that are not in the Hessian.
#[test]
fn output_errors_are_lower_than_with_the_search() {
    let (seen, unseen) = (inputs(700), inputs(900).split_off(700));
    let (triangle, weights) = (triangle(&seen), weights(6));
    let diagonal = |c: usize| triangle[c * (c + 1) / 2 + c];
    let importance: Vec<f32> = (0..weights.len()).map(|i| diagonal(i % COLUMNS)).collect();
    for ty in gptq_types() {
        let mut bytes = vec![0; ty.row_bytes(COLUMNS).unwrap() * 6];
        quantize(ty, &weights, Some(&importance), &mut bytes).unwrap();
        let mut back = vec![0.0; weights.len()];
        decode(ty, &bytes, &mut back).unwrap();
        let searched = output_error(&unseen, &weights, &back);
        for act_order in [false, true] {
            let options = GptqOptions { act_order, ..GptqOptions::default() };
            let back = rounded(ty, &triangle, &weights, options).1;
            let found = output_error(&unseen, &weights, &back) / searched;
            println!("{ty} act_order {act_order}: {found:.3}");
            assert!(found < 0.5, "{ty} act_order {act_order}: {found} of the search's error");
        }
    }
}

#[test]
fn rows_are_independent_of_their_batch() {
    let (triangle, weights) = (triangle(&inputs(300)), weights(70));
    for ty in gptq_types() {
        let options = GptqOptions { act_order: true, ..GptqOptions::default() };
        let (all, _) = rounded(ty, &triangle, &weights, options);
        let row = ty.row_bytes(COLUMNS).unwrap();
        for at in [0, 31, 32, 69] {
            let alone = rounded(ty, &triangle, &weights[at * COLUMNS..(at + 1) * COLUMNS], options).0;
            assert!(all[at * row..(at + 1) * row] == alone, "{ty} row {at}");
        }
    }
}

/// If no column has an error, there is nothing to compensate.
#[test]
fn representable_weights_are_unchanged() {
    let (triangle, weights) = (triangle(&inputs(300)), weights(3));
    for ty in [TensorType::Q4_0, TensorType::MXFP4, TensorType::NVFP4] {
        let mut bytes = vec![0; ty.row_bytes(COLUMNS).unwrap() * 3];
        quantize(ty, &weights, None, &mut bytes).unwrap();
        let mut stored = vec![0.0; weights.len()];
        decode(ty, &bytes, &mut stored).unwrap();
        let back = rounded(ty, &triangle, &stored, GptqOptions::default()).1;
        assert!(stored == back, "{ty}");
    }
}

#[test]
fn a_zero_hessian_rounds_to_nearest() {
    let (triangle, weights) = (vec![0.0; COLUMNS * (COLUMNS + 1) / 2], weights(2));
    for ty in gptq_types() {
        let back = rounded(ty, &triangle, &weights, GptqOptions::default()).1;
        let (off, all) = weights
            .iter()
            .zip(&back)
            .fold((0.0, 0.0), |(off, all), (w, q)| (off + (w - q) * (w - q), all + w * w));
        assert!(off < 0.02 * all, "{ty}: {}", off / all);
    }
}

#[test]
fn invalid_arguments_are_refused_and_special_values_do_not_panic() {
    let triangle = triangle(&inputs(40));
    let options = GptqOptions::default();
    let factor = HessianFactor::new(&triangle, COLUMNS, 32, options).unwrap();
    let mut out = vec![0; TensorType::Q4_0.row_bytes(COLUMNS).unwrap()];
    let row = weights(1);
    let refused = |ty, rows: &[f32], out: &mut [u8]| quantize_rows(ty, &factor, rows, out).unwrap_err();
    assert_eq!(refused(TensorType::Q6_K, &row, &mut out), QuantError::NotEncodable(TensorType::Q6_K));
    // Its groups have 16 columns, not 32.
    assert_eq!(refused(TensorType::NVFP4, &row, &mut out), QuantError::NotEncodable(TensorType::NVFP4));
    let length = QuantError::Length { ty: TensorType::Q4_0, bytes: out.len(), numbers: COLUMNS - 1 };
    assert_eq!(refused(TensorType::Q4_0, &row[1..], &mut out), length);
    for value in [f32::NAN, f32::INFINITY, f32::MIN_POSITIVE, 0.0, -1e38] {
        for ty in gptq_types() {
            let factor = HessianFactor::new(&triangle, COLUMNS, group_len(ty).unwrap(), options).unwrap();
            let mut out = vec![0; ty.row_bytes(COLUMNS).unwrap()];
            quantize_rows(ty, &factor, &[value; COLUMNS], &mut out).unwrap();
        }
        for kind in [StoredLevels::E2m1, StoredLevels::Symmetric, StoredLevels::ZeroPoint] {
            let mut groups = vec![LevelGroup::default(); COLUMNS / 32];
            round_levels(&factor, &[value; COLUMNS], kind, &mut [0; COLUMNS], &mut groups);
        }
    }
    let mut bad = triangle;
    bad[7] = f32::INFINITY;
    let error = HessianFactor::new(&bad, COLUMNS, 32, options).unwrap_err();
    assert_eq!(error, GptqError::NotFinite { row: 3, column: 1 });
    assert!(error.to_string().contains("NaN or infinite"), "{error}");
}
