//! Invalid arguments from safe code that kernels must refuse: sizes that wrap, shapes larger than
//! memory.
#![forbid(unsafe_code)]

use latent_kernels::{
    AttendArgs, Bf16Rows, CacheView, KernelFn, MatmulArgs, MatmulScratch, MatrixView, MatrixViewMut,
    PartialSoftmax, Q8Block, Q8Rows, QuantizedInput, ShapeError, WeightMatrix,
};
use latent_quant::tiles::TileLayout;
use latent_types::{CacheRow, CacheType, TensorType, WeightLayout};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn rows_whose_extent_wraps_are_refused() {
    let mut memory = vec![0.0f32; 64];
    // Regression: the second row lay 256 bytes before the vector.
    let refused = MatrixViewMut::try_new(&mut memory, 2, 64, usize::MAX - 63).err();
    assert_eq!(refused, Some(ShapeError::Overflow { what: "a matrix of rows" }));
    let refused = MatrixView::try_new(&memory, 2, 64, usize::MAX - 63).err();
    assert_eq!(refused, Some(ShapeError::Overflow { what: "a matrix of rows" }));
}

#[test]
fn products_refuse_outputs_and_inputs_beyond_their_weight() {
    let (rows, cols) = (64, 64);
    let x = vec![0.5; 32 * cols];
    let bits = vec![0; 32 * cols];
    let blocks = vec![Q8Block::ZERO; 32 * Q8Rows::row_blocks(cols)];
    let best = latent_kernels::features().tier();
    let mut types = BTreeSet::new();
    for (contract, kernel) in latent_kernels::table().iter().filter(|(contract, _)| contract.tier <= best) {
        let KernelFn::Matmul(kernel) = kernel else { continue };
        let Some(ty) = contract.weight.filter(|_| contract.layout == WeightLayout::Tiles) else { continue };
        let Some(layout) = TileLayout::new(ty, cols) else { continue };
        let bytes = vec![0; layout.matrix_bytes(rows)];
        // A slice, whose first row is not the first row of a tile.
        let weight = WeightMatrix::from_tiles(ty, &bytes, rows, cols).unwrap().slice_rows(32..64);
        let acts = [
            QuantizedInput::F32(MatrixView::new(&x, 32, cols, cols)),
            QuantizedInput::Bf16(Bf16Rows::new(&bits, 32, cols, cols).unwrap()),
            QuantizedInput::A8(Q8Rows::new(&blocks, 32, cols).unwrap()),
        ];
        // Outputs beyond the last, and a range that ends before it begins, whose start wraps to a
        // row of the tiles.
        let wraps = usize::MAX - 15;
        for outs in [0..33, 33..40, wraps..32] {
            let mut y = vec![0.0; 32 * outs.len().max(1)];
            for acts in &acts {
                let _refused = catch_unwind(AssertUnwindSafe(|| {
                    let mut y = MatrixViewMut::new(&mut y, 32, outs.len(), outs.len().max(1));
                    let (weight, outputs) = (&weight, outs.clone());
                    let args = MatmulArgs { weight, input: acts, row_ids: None, outputs, y: &mut y };
                    kernel(args, &mut MatmulScratch::default());
                }));
            }
            assert!(y.iter().all(|y| *y == 0.0), "{} {outs:?}", contract.name);
        }
        types.insert(ty.name());
    }
    // The portable tier has the fewest kernels for tiles.
    assert!(types.len() > 10, "only {types:?}");
}

#[test]
fn attention_refuses_rows_beyond_its_block_table() {
    let best = latent_kernels::features().tier();
    let q = vec![0.5; 4 * 96];
    for ty in CacheType::ALL {
        let row = CacheRow { ty, content: 64, rope: 32 };
        // Two pages; the sequence has the second.
        let bytes = vec![0; 128 * row.bytes()];
        let table = [1];
        let cache = CacheView::new(row, &bytes, 64, &table).unwrap();
        for (contract, kernel) in latent_kernels::table().iter().filter(|(contract, _)| contract.tier <= best)
        {
            let (KernelFn::AttendLatent(kernel) | KernelFn::AttendSeparate(kernel)) = kernel else {
                continue;
            };
            let attend = |rows: std::ops::Range<usize>| {
                let mut memory = vec![0.0; latent_kernels::partial_softmax_len(4, 64)];
                let mut part = PartialSoftmax::in_memory(&mut memory, 4, 64);
                let q = MatrixView::new(&q, 4, 96, 96);
                catch_unwind(AssertUnwindSafe(|| {
                    let args = AttendArgs { q, cache: &cache, rows, scale: 1.0, latent: 64 };
                    kernel(&args, &mut part, &mut Vec::new());
                }))
            };
            for rows in [0..65, 64..70, 1 << 40..(1 << 40) + 1] {
                assert!(attend(rows.clone()).is_err(), "{} {ty} {rows:?}", contract.name);
            }
            // Kernels for this type read the last row of the last page.
            let reads = contract.cache.is_none_or(|cache| cache == ty);
            assert!(!reads || attend(0..64).is_ok(), "{} {ty}", contract.name);
        }
    }
    let row = CacheRow { ty: CacheType::F16, content: 64, rope: 32 };
    let refused = CacheView::new(row, &vec![0; 128 * 192], 64, &[0, 2]).err();
    assert_eq!(refused, Some(ShapeError::Page { page: 2, pages: 2 }));
}

#[test]
fn a_matrix_larger_than_its_bytes_is_refused() {
    let bytes = vec![0; TileLayout::new(TensorType::Q8_0, 64).unwrap().matrix_bytes(16)];
    for (rows, cols) in [(17, 64), (16, 1 << 20), (1 << 63, 64), (16, 1 << 59)] {
        let refused = WeightMatrix::from_tiles(TensorType::Q8_0, &bytes, rows, cols).err();
        assert!(refused.is_some(), "{rows} × {cols}");
    }
}
