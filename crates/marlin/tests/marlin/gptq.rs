//! Packing by the Hessian of inputs: outputs are closer than those of rounding to the nearest code,
//! and Hessians of a wrong size or with wrong values are refused.

use crate::truth::Random;
use latent_marlin::{
    Error, GptqError, GptqOptions, Input, Marlin, Packed, QuantType, Shape, add_inputs, pack_fp4, pack_gptq,
    pack_u4, pack_u4_sym,
};

const ROWS: usize = 400;

/// Inputs that are mixtures of few directions, with noise: correlated, as those of a model are.
/// GPTQ gains nothing for inputs that are independent of each other.
fn inputs(k: usize, seed: u64) -> Vec<f32> {
    let directions = Random(3).numbers(12 * k);
    let (parts, noise) = (Random(seed).numbers(ROWS * 12), Random(seed + 1).numbers(ROWS * k));
    let value = |r: usize, c: usize| -> f32 {
        let sum: f32 = (0..12).map(|d| parts[r * 12 + d] * directions[d * k + c]).sum();
        sum + 0.3 * noise[r * k + c]
    };
    (0..ROWS * k).map(|at| value(at / k, at % k)).collect()
}

fn outputs(packed: &Packed, x: &[f32]) -> Vec<f32> {
    let mut y = vec![0.0; ROWS * packed.shape.n];
    Marlin::new(1).unwrap().multiply(&packed.weight().unwrap(), Input::F32(x), ROWS, &mut y).unwrap();
    y
}

#[test]
fn outputs_are_nearer_than_those_of_the_nearest_codes() {
    for (k, n, group) in [(128, 5, 32), (96, 3, 96), (64, 4, 8)] {
        let shape = Shape { k, n, group };
        let dense = Random(7).numbers(k * n);
        let (seen, unseen) = (inputs(k, 20), inputs(k, 40));
        let mut hessian = vec![0.0; k * (k + 1) / 2];
        add_inputs(&mut hessian, &seen[..ROWS / 2 * k], k).unwrap();
        add_inputs(&mut hessian, &seen[ROWS / 2 * k..], k).unwrap();
        let exact: Vec<f64> = (0..ROWS * n)
            .map(|at| {
                let (r, c) = (at / n, at % n);
                (0..k).map(|i| f64::from(unseen[r * k + i]) * f64::from(dense[i * n + c])).sum()
            })
            .collect();
        let error = |packed: &Packed| -> f64 {
            let y = outputs(packed, &unseen);
            y.iter().zip(&exact).map(|(y, e)| (f64::from(*y) - e).powi(2)).sum()
        };
        type Pack = fn(&[f32], Shape) -> Result<Packed, Error>;
        let nearest: [(QuantType, Pack); 3] =
            [(QuantType::Fp4, pack_fp4), (QuantType::Int4, pack_u4), (QuantType::Int4Sym, pack_u4_sym)];
        for (quant, pack) in nearest {
            let near = error(&pack(&dense, shape).unwrap());
            for act_order in [false, true] {
                let options = GptqOptions { act_order, ..GptqOptions::default() };
                let packed = pack_gptq(quant, &dense, shape, &hessian, options).unwrap();
                assert_eq!((packed.quant, packed.shape), (quant, shape));
                let found = error(&packed) / near;
                assert!(found < 0.6, "{} {k}×{n} groups of {group} {act_order}: {found}", quant.name());
            }
        }
    }
}

#[test]
fn hessians_that_do_not_fit_are_refused() {
    let shape = Shape { k: 16, n: 2, group: 8 };
    let (dense, options) = (Random(5).numbers(32), GptqOptions::default());
    let refused = |dense: &[f32], hessian: &[f32]| {
        pack_gptq(QuantType::Fp4, dense, shape, hessian, options).unwrap_err()
    };
    let error = refused(&dense, &[1.0; 16]);
    assert!(matches!(error, Error::Hessian { k: 16, problem: GptqError::Length { .. } }), "{error}");
    assert!(error.to_string().contains("136 values (a lower triangle), but has 16"), "{error}");
    let mut hessian = vec![0.0; 136];
    add_inputs(&mut hessian, &Random(8).numbers(16 * 20), 16).unwrap();
    hessian[5] = f32::NAN;
    let error = refused(&dense, &hessian);
    let at = GptqError::NotFinite { row: 2, column: 2 };
    assert!(matches!(error, Error::Hessian { problem, .. } if problem == at), "{error}");
    hessian[5] = -4e4;
    assert!(matches!(
        refused(&dense, &hessian),
        Error::Hessian { problem: GptqError::NotPositive { .. }, .. }
    ));
    let mut odd = dense.clone();
    odd[3] = f32::INFINITY;
    assert!(matches!(refused(&odd, &[0.0; 136]), Error::NotFinite { row: 1, col: 1, .. }));
    assert!(matches!(refused(&[3e38; 32], &[0.0; 136]), Error::ScaleRange { group: 0, col: 0, .. }));
    assert!(matches!(add_inputs(&mut hessian, &[0.0; 17], 16), Err(Error::Length { .. })));
    assert!(matches!(add_inputs(&mut [0.0; 9], &[0.0; 16], 16), Err(Error::Length { .. })));
}
