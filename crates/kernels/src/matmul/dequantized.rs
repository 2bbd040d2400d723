//! Matmuls that dequantize a few weight rows at a time to f32: the fallback for any format and
//! layout.
#![allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]

use super::args::{MatmulArgs, input_row};
use super::scratch::{MatmulScratch, grow};
use crate::reduce::dots;
use crate::simd::Simd;
use crate::{MatrixViewMut, QuantizedInput};

/// y = x · Wᵀ with f32 inputs.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
pub(super) unsafe fn decoded<L: Simd>(args: MatmulArgs<'_, '_>, scratch: &mut MatmulScratch) {
    // SAFETY: the ISA by this function's contract.
    unsafe {
        // 4 × 4 sums fill half of AVX-512's 32 registers, 2 × 2 sums of two registers each half of
        // AVX2's sixteen.
        if L::TWO_TILES { multiply::<L, 4>(args, scratch) } else { multiply::<L, 2>(args, scratch) }
    }
}

/// The same in blocks of `N` input rows × `N` outputs.
///
/// # Safety
/// As for [`decoded`].
#[inline(always)]
unsafe fn multiply<L: Simd, const N: usize>(args: MatmulArgs<'_, '_>, scratch: &mut MatmulScratch) {
    let MatmulArgs { weight, input, row_ids, outputs, y } = args;
    let QuantizedInput::F32(x) = input else { return };
    let MatmulScratch { floats, bytes, .. } = scratch;
    let width = weight.cols();
    assert!(x.cols() == width, "{} inputs of weights for {width}", x.cols());
    let row_floats = grow(floats, N * width);
    let mut first = outputs.start;
    while first < outputs.end {
        let count = N.min(outputs.end - first);
        let mut rows: [*const f32; N] = [std::ptr::null(); N];
        let memory = row_floats.chunks_exact_mut(width.max(1));
        for ((output, row), floats) in (first..first + count).zip(&mut rows).zip(memory) {
            *row = match weight.f32_row(output) {
                Some(bytes) => bytes.as_ptr().cast(),
                None => {
                    weight.decode(output, 0..width, floats, bytes);
                    floats.as_ptr()
                }
            };
        }
        // If fewer rows remain, the last one is repeated and its results are discarded: one form of
        // the kernel instead of `N`.
        let last = rows[count - 1];
        rows[count..].fill(last);
        let mut row = 0;
        while row < y.rows() {
            let input = |i: usize| x.row(input_row(row_ids, i)).as_ptr();
            // SAFETY: rows of the weights and inputs have `width` elements; the ISA by this
            // function's contract.
            row += unsafe {
                // A separate form for one row: decode has no other.
                if row + 1 == y.rows() {
                    store(&dots::<L, 1, N>([input(row)], rows, width), (row, first - outputs.start), count, y)
                } else {
                    let inputs = std::array::from_fn(|i| input((row + i).min(y.rows() - 1)));
                    store(&dots::<L, N, N>(inputs, rows, width), (row, first - outputs.start), count, y)
                }
            };
        }
        first += count;
    }
}

/// Stores the first `count` columns of a block at `at`, without rows beyond the end of `y`. Returns
/// the rows of the block.
#[inline(always)]
fn store<const R: usize, const C: usize>(
    sums: &[[f32; C]; R],
    at: (usize, usize),
    count: usize,
    y: &mut MatrixViewMut<'_>,
) -> usize {
    for (row, sums) in (at.0..y.rows()).zip(sums) {
        for (column, sum) in (at.1..).zip(&sums[..count]) {
            y.set(row, column, *sum);
        }
    }
    R
}

/// The transposed product y = x · W: `y[i][o] = Σ_r w[r][o] · x[i][r]`.
///
/// # Panics
/// When the outputs cut a block of the format.
#[inline(always)]
pub(super) fn transposed(args: MatmulArgs<'_, '_>, scratch: &mut MatmulScratch) {
    let MatmulArgs { weight, input, row_ids, outputs, y } = args;
    let QuantizedInput::F32(x) = input else { return };
    let len = weight.ty().block_len();
    assert!(
        outputs.start.is_multiple_of(len) && outputs.end.is_multiple_of(len),
        "columns {outputs:?} cut a block of {}",
        weight.ty()
    );
    let MatmulScratch { floats, bytes, .. } = scratch;
    let row_floats = grow(floats, outputs.len());
    (0..y.rows()).for_each(|i| y.row_mut(i).fill(0.0));
    // Weight rows outside: each is dequantized once, and sums are in the order of weight rows for
    // any batch size.
    for r in 0..weight.rows() {
        weight.decode(r, outputs.clone(), row_floats, bytes);
        for i in 0..y.rows() {
            let factor = x.row(input_row(row_ids, i))[r];
            for (y, w) in y.row_mut(i).iter_mut().zip(row_floats.iter()) {
                *y += factor * w;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::reduce::dot;
    use crate::testing::numbers;
    use crate::{MatmulScratch, MatrixView, MatrixViewMut, QuantizedInput, WeightMatrix};
    use latent_types::TensorType;

    #[test]
    fn products_of_f32_rows_have_the_same_bits_in_any_batch_and_on_every_isa() {
        // Not the whole table of kernels, which would be compiled a second time for these tests.
        let best = crate::native_tier();
        let kernels = crate::matmul::tiers::DECODED.iter().filter(|(tier, _)| *tier <= best);
        let mut tiers = 0;
        for (_, kernel) in kernels {
            tiers += 1;
            for (cols, all) in [(1, 3), (16, 9), (37, 8), (200, 5)] {
                let (weight, inputs) = (numbers(1, all * cols), numbers(2, 11 * cols));
                // A byte off, as in a file whose tensors are not aligned.
                let bytes: Vec<u8> =
                    [0].into_iter().chain(weight.iter().flat_map(|w| w.to_le_bytes())).collect();
                let matrix = WeightMatrix::from_rows(TensorType::F32, &bytes[1..], all, cols).unwrap();
                let row_ids = [10, 0, 3, 3, 7, 1, 9];
                for (rows, outputs) in [(1, 0..all), (2, 1..all), (4, 2..3), (5, 0..all), (7, 1..2)] {
                    let input = QuantizedInput::F32(MatrixView::new(&inputs, 11, cols, cols));
                    let mut y = vec![f32::NAN; rows * outputs.len()];
                    let mut view = MatrixViewMut::new(&mut y, rows, outputs.len(), outputs.len());
                    let args = crate::MatmulArgs {
                        weight: &matrix,
                        input: &input,
                        row_ids: Some(&row_ids[..rows]),
                        outputs: outputs.clone(),
                        y: &mut view,
                    };
                    kernel(args, &mut MatmulScratch::default());
                    let row = |of: &[f32], i: usize| of[i * cols..(i + 1) * cols].to_vec();
                    let expected = row_ids[..rows].iter().flat_map(|id| {
                        let input = row(&inputs, *id as usize);
                        outputs.clone().map(move |o| (input.clone(), o))
                    });
                    let expected: Vec<f32> =
                        expected.map(|(input, o)| dot(&row(&weight, o), &input)).collect();
                    assert_eq!(y, expected, "{rows} rows, {cols} columns, outputs {outputs:?}");
                }
            }
        }
        assert!(tiers > 0);
    }
}
