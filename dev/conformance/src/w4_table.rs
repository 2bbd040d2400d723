//! Table of cases for 4-bit weights.

use crate::case::KernelCase;
use crate::w4::{W4Case, W4Op, W4Quant, W4Rounding, W4ScaleType};
use latent_kernels::W4Shape;

/// M, K, N and group size.
// They cover tails in every dimension, groups that split words, a single group, row, column and
// word.
const SIZES: [(usize, usize, usize, usize); 12] = [
    (1, 8, 1, 8),
    (1, 512, 37, 32),
    (2, 96, 33, 4),
    (3, 120, 50, 12),
    (4, 256, 64, 128),
    (5, 136, 15, 136),
    (7, 272, 97, 16),
    (8, 320, 48, 64),
    (9, 1088, 65, 32),
    (17, 40, 17, 1),
    (35, 584, 113, 8),
    (70, 264, 49, 24),
];

const SCALES: [W4ScaleType; 3] = [W4ScaleType::F16, W4ScaleType::E8m0, W4ScaleType::E4m3(0.375)];

const EXTREMES: [W4ScaleType; 4] =
    [W4ScaleType::F16, W4ScaleType::E8m0, W4ScaleType::E4m3(1.0), W4ScaleType::E4m3(0.0)];

/// Rows of products with extreme scales: few and many.
const EXTREME_ROWS: [usize; 2] = [3, 20];

const PRODUCTS: [W4Op; 11] = [
    W4Op::Gemm(W4Rounding::F32),
    W4Op::Gemm(W4Rounding::Bf16),
    W4Op::Gemm(W4Rounding::Int16),
    W4Op::Gemm(W4Rounding::Int8),
    W4Op::Fused(W4Rounding::F32),
    W4Op::Fused(W4Rounding::Int16),
    W4Op::Fused(W4Rounding::Int8),
    W4Op::Striped(W4Rounding::F32, 1),
    W4Op::Striped(W4Rounding::Bf16, 1),
    W4Op::Striped(W4Rounding::Int16, 1),
    W4Op::Striped(W4Rounding::Int8, 1),
];

const DECODED: [W4Op; 2] = [W4Op::DequantF32, W4Op::DequantF16];

/// Rows, columns and slices of partial sums.
const PARTIALS: [(usize, usize, usize); 5] = [(1, 1, 1), (3, 33, 2), (2, 100, 7), (16, 16, 3), (5, 257, 4)];

/// All cases of the tests.
pub(crate) fn cases() -> Vec<KernelCase> {
    let mut cases = Vec::new();
    for quant in W4Quant::ALL {
        for scales in SCALES {
            for (rows, k, n, group) in SIZES {
                let shape = W4Shape { k, n, group };
                for op in PRODUCTS {
                    // A slice has at least one word of eight codes.
                    let op = match op {
                        W4Op::Striped(rounding, _) => W4Op::Striped(rounding, (k / 8).min(3)),
                        op => op,
                    };
                    cases.push(W4Case { op, quant, scales, rows, shape, extreme: false });
                }
                for op in DECODED {
                    cases.push(W4Case { op, quant, scales, rows: 0, shape, extreme: false });
                }
            }
        }
        for scales in EXTREMES {
            let shape = W4Shape { k: 64, n: W4Case::extreme_columns(scales), group: 32 };
            for op in PRODUCTS {
                for rows in EXTREME_ROWS {
                    cases.push(W4Case { op, quant, scales, rows, shape, extreme: true });
                }
            }
            for op in DECODED {
                // One word per column suffices: neighbouring columns cover all codes.
                let shape = W4Shape { k: 8, group: 8, ..shape };
                cases.push(W4Case { op, quant, scales, rows: 0, shape, extreme: true });
            }
        }
    }
    for (rows, n, slices) in PARTIALS {
        cases.extend(partials(rows, n, slices));
    }
    cases.into_iter().map(KernelCase::W4).collect()
}

/// The cases that sum and zero slices.
fn partials(rows: usize, n: usize, slices: usize) -> [W4Case; 2] {
    let shape = W4Shape { k: 0, n, group: 1 };
    [W4Op::Reduce(slices), W4Op::Zero(slices)].map(|op| {
        let (quant, scales) = (W4Quant::Fp4, W4ScaleType::F16);
        W4Case { op, quant, scales, rows, shape, extreme: false }
    })
}

/// All cases that are measured: a projection of an 8B model with groups of 16, 32 and 128.
pub(crate) fn real_sizes() -> Vec<KernelCase> {
    let mut cases = Vec::new();
    for (quant, scales, group) in [
        (W4Quant::Fp4, W4ScaleType::F16, 32),
        (W4Quant::Fp4, W4ScaleType::E4m3(0.375), 16),
        (W4Quant::Int4, W4ScaleType::F16, 128),
        (W4Quant::Int4Sym, W4ScaleType::F16, 32),
    ] {
        let shape = W4Shape { k: 4096, n: 4096, group };
        let mut add = |op, rows| cases.push(W4Case { op, quant, scales, rows, shape, extreme: false });
        for rows in [1, 4, 16] {
            add(W4Op::Fused(W4Rounding::Int16), rows);
            add(W4Op::Fused(W4Rounding::Int8), rows);
        }
        add(W4Op::Fused(W4Rounding::F32), 1);
        for rounding in [W4Rounding::F32, W4Rounding::Bf16] {
            add(W4Op::Gemm(rounding), 16);
            add(W4Op::Gemm(rounding), 512);
            add(W4Op::Striped(rounding, 4), 16);
        }
        add(W4Op::Gemm(W4Rounding::Int16), 512);
        add(W4Op::Gemm(W4Rounding::Int8), 512);
        add(W4Op::Striped(W4Rounding::Int16, 4), 1);
        add(W4Op::Striped(W4Rounding::Int8, 4), 1);
        DECODED.into_iter().for_each(|op| add(op, 0));
    }
    cases.extend(partials(16, 4096, 4));
    cases.into_iter().map(KernelCase::W4).collect()
}
