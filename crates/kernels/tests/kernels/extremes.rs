//! The largest quants of each format times the largest inputs: 16-bit sums must not overflow.
#![forbid(unsafe_code)]

use latent_kernels::{
    KernelFn, MatmulArgs, MatmulFn, MatmulScratch, MatrixViewMut, Q8Block, Q8Rows, QuantizedInput,
    WeightMatrix,
};
use latent_quant::tiles::{FORMATS, ROWS, TileLayout, TilePlane};
use latent_types::{ActivationType, OpKind, TensorType, Tier, WeightLayout};

const COLS: usize = 512;

/// Tiles whose quants have all bits of `quant` and whose scales are finite and positive.
fn tiles(ty: TensorType, layout: &TileLayout, quant: u8) -> Vec<u8> {
    let mut tile = vec![quant; layout.tile_bytes()];
    tile[layout.start(TilePlane::Scales)..].fill(1);
    let super_scales = &mut tile[layout.start(TilePlane::SuperScales)..];
    match ty {
        TensorType::MXFP4 | TensorType::NVFP4 => super_scales.fill(0x38),
        // f16 1.0
        _ => super_scales.chunks_exact_mut(2).for_each(|scale| scale.copy_from_slice(&[0, 0x3c])),
    }
    tile
}

/// Input rows with quants ±127: of one sign, or with signs that alternate by pair or by element.
fn inputs(rows: usize) -> Vec<Q8Block> {
    let blocks = Q8Rows::row_blocks(COLS);
    let sign = |row: usize, i: usize| match row % 4 {
        0 => 127,
        1 => -127,
        2 => [127, -127][i / 2 % 2],
        _ => [127, -127][i % 2],
    };
    (0..rows * blocks)
        .map(|at| {
            let quants = std::array::from_fn(|i| sign(at / blocks, i));
            let sum =
                |part: std::ops::Range<usize>| quants[part].iter().map(|q: &i8| i32::from(*q)).sum::<i32>();
            let sums = [sum(0..16), sum(16..32)];
            Q8Block {
                quants,
                scale: 1.0,
                total: (sums[0] + sums[1]) as f32,
                halves: sums.map(|sum| sum as f32),
                bias: -128 * (sums[0] + sums[1]),
                half_biases: sums.map(|sum| -128 * sum),
            }
        })
        .collect()
}

fn product(kernel: MatmulFn, weight: &WeightMatrix<'_>, x: &[Q8Block], rows: usize) -> Vec<u32> {
    let input = QuantizedInput::A8(Q8Rows::new(x, rows, COLS).unwrap());
    let mut y = vec![f32::NAN; rows * ROWS];
    let mut out = MatrixViewMut::new(&mut y, rows, ROWS, ROWS);
    let args = MatmulArgs { weight, input: &input, row_ids: None, outputs: 0..ROWS, y: &mut out };
    kernel(args, &mut MatmulScratch::default());
    y.into_iter().map(f32::to_bits).collect()
}

#[test]
fn every_tier_sums_the_largest_quants_and_inputs_exactly() {
    let best = latent_kernels::features().tier();
    let kernel = |ty: TensorType, tier: Tier| {
        let mut table = latent_kernels::table().iter();
        table.find_map(|(contract, kernel)| match kernel {
            KernelFn::Matmul(kernel)
                if contract.op == OpKind::Linear
                    && contract.weight == Some(ty)
                    && contract.tier == tier
                    && contract.layout == WeightLayout::Tiles
                    && contract.activation == ActivationType::A8 =>
            {
                Some(*kernel)
            }
            _ => None,
        })
    };
    let mut compared = 0;
    for ty in FORMATS {
        let Some(reference) = kernel(ty, Tier::Portable) else { continue };
        let layout = TileLayout::new(ty, COLS).unwrap();
        for quant in [0x00, 0xff, 0x80, 0x7f, 0x77, 0x88] {
            let bytes = tiles(ty, &layout, quant);
            let weight = WeightMatrix::from_tiles(ty, &bytes, ROWS, COLS).unwrap();
            for rows in [1, 2, 4, 8, 33] {
                let x = inputs(rows);
                let expected = product(reference, &weight, &x, rows);
                assert!(expected.iter().all(|y| f32::from_bits(*y).is_finite()), "{ty}");
                for tier in Tier::ALL.into_iter().filter(|tier| *tier <= best && *tier != Tier::Portable) {
                    let Some(kernel) = kernel(ty, tier) else { continue };
                    for vnni in [true, false] {
                        latent_kernels::allow_avx_vnni(vnni);
                        let what = format!("{ty} {quant:#x}, {rows} rows on {tier}, AVX-VNNI {vnni}");
                        assert!(product(kernel, &weight, &x, rows) == expected, "{what}");
                        compared += 1;
                    }
                }
            }
        }
    }
    assert!(best == Tier::Portable || compared >= 14 * 6 * 5 * 2, "{compared}");
}
