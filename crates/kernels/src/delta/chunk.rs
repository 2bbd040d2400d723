//! Delta rule of one head over a chunk of rows, as products of matrices.
//!
//! With aᵢ = e^gᵢ and Π over the rows between two of them, a chunk of n rows that begins with state
//! S has
//!
//! * scores KKᵢⱼ = Σ_c kᵢ kⱼ Π_{j<t≤i} a_t for j < i, and QKᵢⱼ the same of qᵢ for j ≤ i;
//! * uᵢ = βᵢ (vᵢ − (kᵢ Π_{t≤i} a_t)ᵀ S − Σ_{j<i} KKᵢⱼ uⱼ), solved row after row;
//! * outᵢ = (qᵢ Π_{t≤i} a_t)ᵀ S + Σ_{j≤i} QKᵢⱼ uⱼ;
//! * S ← Π_t a_t S + Σⱼ (kⱼ Π_{t>j} a_t) uⱼᵀ.
//!
//! Each element of a key has its own decay, so that a score is not a product of two scaled keys:
//! e^−G of a cumulative decay G overflows. Blocks of one row, then of two, four and so on are
//! joined in pairs. The products of decays from the start of a block to its rows, and from its rows
//! to its end, are factors of the scores between two joined blocks. All factors are at most 1, no
//! logarithms are subtracted, and each row and element needs one exponential.
#![allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]

use super::{DeltaScratch, DeltaState};
use crate::elementwise::sigmoid;
use crate::gemm::{LeftOperand, gemm};
use crate::math::exp;
use crate::reduce::sum_lanes;
use crate::simd::Simd;
use crate::simd::portable::PortableSimd;
use crate::tiers::{RowwiseIsa, best_isa};
use crate::{MatrixView, MatrixViewMut};
use latent_types::Tier;

/// Maximum number of rows of a chunk. The state is read and written once per chunk, and the work
/// within a chunk grows with its rows: of 8, 16, 32 and 64 rows of heads of 128, 16 are the fastest
/// on Zen 5, with AVX-512 and with AVX2.
pub const DELTA_CHUNK: usize = 16;

/// Rows that are solved together.
// Eight rows are a block of the f32 GEMM in registers with AVX-512.
const SOLVE_ROWS: usize = 8;

/// Elements of a vector.
// A register of AVX-512. Other ISAs use several registers, so that sums have the same order.
const LANES: usize = 16;

/// The rows of one head in a chunk.
#[derive(Clone, Copy, Debug)]
pub struct DeltaChunk<'a> {
    /// Queries, with their factor.
    pub q: MatrixView<'a>,
    pub k: MatrixView<'a>,
    pub v: MatrixView<'a>,
    /// The log decay of each row of the state, at most 0.
    pub log_decay: MatrixView<'a>,
    /// The logit of β: one column.
    pub beta: MatrixView<'a>,
}

/// [`delta_row`](super::delta_row) for up to [`DELTA_CHUNK`] rows at once, on the best ISA up to
/// `tier`. Sums have another order, so that results differ by rounding; they have the same bits on
/// every ISA with fused multiply-adds. What a row gives does not depend on the rows after it.
///
/// # Panics
/// When the shapes do not fit together, or the chunk has too many rows.
pub fn delta_chunk(
    tier: Tier,
    chunk: &DeltaChunk<'_>,
    state: DeltaState<'_>,
    scratch: &mut DeltaScratch,
    out: &mut MatrixViewMut<'_>,
) {
    run_on(best_isa(tier), chunk, state, scratch, out);
}

/// [`delta_chunk`] compiled for one ISA.
fn run_on(
    isa: RowwiseIsa,
    chunk: &DeltaChunk<'_>,
    state: DeltaState<'_>,
    scratch: &mut DeltaScratch,
    out: &mut MatrixViewMut<'_>,
) {
    #[cfg(target_arch = "x86_64")]
    crate::isa::isa_fn! { Avx2;
        fn avx2(chunk: &DeltaChunk<'_>, state: DeltaState<'_>, scratch: &mut Vec<f32>, out: &mut MatrixViewMut<'_>) {
            // SAFETY: this function is compiled for AVX2, and the body is inlined into it.
            unsafe { run::<crate::simd::avx2::Avx2<false>>(chunk, state, scratch, out) }
        }
    }
    #[cfg(target_arch = "x86_64")]
    crate::isa::isa_fn! { Avx512;
        fn avx512(chunk: &DeltaChunk<'_>, state: DeltaState<'_>, scratch: &mut Vec<f32>, out: &mut MatrixViewMut<'_>) {
            // SAFETY: this function is compiled for AVX-512, and the body is inlined into it.
            unsafe { run::<crate::simd::avx512::Avx512>(chunk, state, scratch, out) }
        }
    }
    let scratch = &mut scratch.chunk;
    match isa {
        // SAFETY: the token proves the features that the function is compiled for.
        #[cfg(target_arch = "x86_64")]
        RowwiseIsa::Avx512(_) => unsafe { avx512(chunk, state, scratch, out) },
        // SAFETY: the token proves the features that the function is compiled for.
        #[cfg(target_arch = "x86_64")]
        RowwiseIsa::Avx2(_) => unsafe { avx2(chunk, state, scratch, out) },
        // SAFETY: the portable lanes are plain Rust, which every CPU runs.
        RowwiseIsa::Portable => unsafe { run::<PortableSimd>(chunk, state, scratch, out) },
    }
}

/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn run<L: Simd>(
    chunk: &DeltaChunk<'_>,
    state: DeltaState<'_>,
    scratch: &mut Vec<f32>,
    out: &mut MatrixViewMut<'_>,
) {
    let (rows, keys, columns) = (chunk.k.rows(), chunk.k.cols(), chunk.v.cols());
    assert!(rows <= DELTA_CHUNK, "{rows} rows of a chunk");
    let like_keys = [&chunk.q, &chunk.log_decay].iter().all(|m| (m.rows(), m.cols()) == (rows, keys));
    let like_values = (chunk.v.rows(), out.rows(), out.cols()) == (rows, rows, columns);
    let betas = (chunk.beta.rows(), chunk.beta.cols()) == (rows, 1);
    assert!(like_keys && like_values && betas, "shapes of a chunk");
    let lengths = [rows * keys, rows * keys, rows * keys, rows * keys, rows * columns, rows * rows];
    let needed = lengths.iter().sum::<usize>() + rows * rows;
    // It only grows. Every element is written before it is read, so old contents do no harm.
    if scratch.len() < needed {
        scratch.resize(needed, 0.0);
    }
    let (from_start_k, rest) = scratch.split_at_mut(lengths[0]);
    let (from_start_q, rest) = rest.split_at_mut(lengths[1]);
    let (to_end, rest) = rest.split_at_mut(lengths[2]);
    let (decay, rest) = rest.split_at_mut(lengths[3]);
    let (u, rest) = rest.split_at_mut(lengths[4]);
    let (kk, rest) = rest.split_at_mut(lengths[5]);
    let qk = &mut rest[..rows * rows];
    let mut factors = ChunkFactors { keys, from_start_k, from_start_q, to_end, decay, kk, qk };
    // SAFETY: the caller is compiled for `L`.
    unsafe { factors.scores::<L>(chunk) };
    let (old, new) = match state {
        DeltaState::From(from, to) => {
            assert!(to.len() == from.len(), "states of {} and {} elements", from.len(), to.len());
            (Some(from), to)
        }
        DeltaState::InPlace(state) => (None, state),
    };
    assert!(new.len() == keys * columns, "a state of {} elements for {keys} × {columns}", new.len());
    // In place, the state is read before its decay is applied below.
    let read = old.unwrap_or(new);
    let mut predicted = MatrixViewMut::new(u, rows, columns, columns);
    // SAFETY: the caller is compiled for `L`.
    unsafe {
        gemm::<L>(
            keys,
            LeftOperand::Rows(factors.from_start_k, keys),
            (read, columns),
            &mut predicted,
            false,
        );
        gemm::<L>(keys, LeftOperand::Rows(factors.from_start_q, keys), (read, columns), out, false);
        factors.solve::<L>(chunk, u);
        factors.read::<L>(u, out);
    }
    // The first row of `decay` holds the product of all decays of the chunk: see `scores`.
    let decayed = factors.decay[..keys].iter();
    match old {
        Some(old) => {
            let old = old.chunks_exact(columns);
            for ((to, from), decay) in new.chunks_exact_mut(columns).zip(old).zip(decayed) {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *decay * *from);
            }
        }
        None => {
            for (state, decay) in new.chunks_exact_mut(columns).zip(decayed) {
                state.iter_mut().for_each(|state| *state *= *decay);
            }
        }
    }
    let mut new = MatrixViewMut::new(new, keys, columns, columns);
    // SAFETY: the caller is compiled for `L`.
    unsafe { gemm::<L>(rows, LeftOperand::Columns(factors.to_end, keys), (u, columns), &mut new, true) };
}

/// Factors and scores of a chunk. Factors have a row of `keys` elements for each row of the chunk.
struct ChunkFactors<'s> {
    keys: usize,
    /// k, times the decays from the start of its block to its row.
    from_start_k: &'s mut [f32],
    /// The same of q.
    from_start_q: &'s mut [f32],
    /// k, times the decays after its row to the end of its block.
    to_end: &'s mut [f32],
    /// The decays of a whole block, at its first row.
    decay: &'s mut [f32],
    /// Scores of the keys, negated; 0 from the diagonal on.
    kk: &'s mut [f32],
    /// Scores of the queries; 0 above the diagonal.
    qk: &'s mut [f32],
}

impl ChunkFactors<'_> {
    /// Fills everything in. In the end one block covers the chunk.
    ///
    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn scores<L: Simd>(&mut self, chunk: &DeltaChunk<'_>) {
        let (rows, keys) = (chunk.k.rows(), self.keys);
        // `solve` and `read` multiply whole blocks of rows, including scores above the diagonal.
        self.kk.fill(0.0);
        self.qk.fill(0.0);
        for i in 0..rows {
            let of_row = i * keys..(i + 1) * keys;
            let (k, q) = (chunk.k.row(i), chunk.q.row(i));
            let decay = &mut self.decay[of_row.clone()];
            for (decay, log) in decay.iter_mut().zip(chunk.log_decay.row(i)) {
                *decay = exp(*log);
            }
            product(k, decay, &mut self.from_start_k[of_row.clone()]);
            product(q, decay, &mut self.from_start_q[of_row.clone()]);
            self.to_end[of_row].copy_from_slice(k);
            // SAFETY: the caller is compiled for `L`.
            self.qk[i * rows + i] = unsafe { dots::<L, 1, 1>([q], [k]) }[0][0];
        }
        let mut block = 1;
        while block < rows {
            for first in (0..rows).step_by(2 * block) {
                let (middle, end) = (first + block, (first + 2 * block).min(rows));
                // With an odd number of blocks, the last one has no partner. It keeps its factors
                // until a later round joins it.
                if middle >= rows {
                    break;
                }
                // SAFETY: the caller is compiled for `L`.
                unsafe { self.scores_between::<L>(rows, first..middle, middle..end) };
                let (before, after) = self.decay.split_at_mut(middle * keys);
                let (before, after) = (&mut before[first * keys..][..keys], &after[..keys]);
                for row in self.to_end[first * keys..middle * keys].chunks_exact_mut(keys) {
                    scale_by(row, after);
                }
                for rows in [&mut *self.from_start_k, &mut *self.from_start_q] {
                    for row in rows[middle * keys..end * keys].chunks_exact_mut(keys) {
                        scale_by(row, before);
                    }
                }
                scale_by(before, after);
            }
            block *= 2;
        }
    }

    /// Scores of the rows `later` with those of the block before them.
    ///
    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn scores_between<L: Simd>(
        &mut self,
        rows: usize,
        earlier: std::ops::Range<usize>,
        later: std::ops::Range<usize>,
    ) {
        let keys = self.keys;
        let mut j = earlier.start;
        while j < earlier.end {
            // Two earlier rows and the later row's key and query: each load serves two products.
            let pair = j + 1 < earlier.end;
            for i in later.clone() {
                let left = [
                    &self.from_start_k[i * keys..(i + 1) * keys],
                    &self.from_start_q[i * keys..(i + 1) * keys],
                ];
                let right = |j: usize| &self.to_end[j * keys..(j + 1) * keys];
                let at = i * rows + j;
                // SAFETY: the caller is compiled for `L`.
                unsafe {
                    if pair {
                        let [k, q] = dots::<L, 2, 2>(left, [right(j), right(j + 1)]);
                        (self.kk[at], self.kk[at + 1]) = (-k[0], -k[1]);
                        (self.qk[at], self.qk[at + 1]) = (q[0], q[1]);
                    } else {
                        let [k, q] = dots::<L, 2, 1>(left, [right(j)]);
                        (self.kk[at], self.qk[at]) = (-k[0], q[0]);
                    }
                }
            }
            j += 1 + usize::from(pair);
        }
    }

    /// u, which holds what the state predicts, becomes β · (v − what state and earlier rows
    /// predict).
    ///
    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn solve<L: Simd>(&self, chunk: &DeltaChunk<'_>, u: &mut [f32]) {
        let (rows, columns) = (chunk.v.rows(), chunk.v.cols());
        for (i, u) in u.chunks_exact_mut(columns).enumerate() {
            u.iter_mut().zip(chunk.v.row(i)).for_each(|(u, v)| *u = *v - *u);
        }
        for first in (0..rows).step_by(SOLVE_ROWS) {
            let end = (first + SOLVE_ROWS).min(rows);
            // Rows before the block are solved: their part is one product of matrices. Only the
            // few rows of the block itself depend on each other.
            let (done, rest) = u.split_at_mut(first * columns);
            let mut block = MatrixViewMut::new(rest, end - first, columns, columns);
            let left = LeftOperand::Rows(&self.kk[first * rows..], rows);
            // SAFETY: the caller is compiled for `L`.
            unsafe { gemm::<L>(first, left, (done, columns), &mut block, true) };
            for i in first..end {
                let (before, row) = rest[..(i + 1 - first) * columns].split_at_mut((i - first) * columns);
                for (before, score) in before.chunks_exact(columns).zip(&self.kk[i * rows + first..]) {
                    row.iter_mut().zip(before).for_each(|(row, before)| *row += *score * *before);
                }
                let beta = sigmoid(chunk.beta.row(i)[0]);
                row.iter_mut().for_each(|row| *row *= beta);
            }
        }
    }

    /// Adds what the queries read of the chunk's own rows.
    ///
    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn read<L: Simd>(&self, u: &[f32], out: &mut MatrixViewMut<'_>) {
        let (rows, columns) = (out.rows(), out.cols());
        for first in (0..rows).step_by(SOLVE_ROWS) {
            let end = (first + SOLVE_ROWS).min(rows);
            let left = LeftOperand::Rows(&self.qk[first * rows..], rows);
            // SAFETY: the caller is compiled for `L`.
            unsafe { gemm::<L>(end, left, (u, columns), &mut out.slice_rows(first..end), true) };
        }
    }
}

/// out = a · b, element by element.
#[inline(always)]
fn product(a: &[f32], b: &[f32], out: &mut [f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = *a * *b;
    }
}

#[inline(always)]
fn scale_by(x: &mut [f32], by: &[f32]) {
    x.iter_mut().zip(by).for_each(|(x, by)| *x *= *by);
}

/// The products of `R` rows with `C` rows of the same length.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn dots<L: Simd, const R: usize, const C: usize>(a: [&[f32]; R], b: [&[f32]; C]) -> [[f32; C]; R] {
    let len = a[0].len();
    assert!(a.iter().all(|a| a.len() == len) && b.iter().all(|b| b.len() == len), "rows of a product");
    let mut out = [[0.0; C]; R];
    // SAFETY: the loads are inside the rows, which have `len` elements; the ISA by this function's
    // contract.
    unsafe {
        let mut sums = [[L::splat_f32(0.0); C]; R];
        let mut at = 0;
        while at + LANES <= len {
            let mut right = [L::splat_f32(0.0); C];
            for c in 0..C {
                right[c] = L::load_f32(b[c].as_ptr().add(at));
            }
            for r in 0..R {
                let left = L::load_f32(a[r].as_ptr().add(at));
                for c in 0..C {
                    sums[r][c] = L::mul_add_relaxed(left, right[c], sums[r][c]);
                }
            }
            at += LANES;
        }
        for r in 0..R {
            for c in 0..C {
                out[r][c] = sum_lanes(L::store(sums[r][c]));
                for l in at..len {
                    out[r][c] += a[r][l] * b[c][l];
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta::tests::delta;
    use crate::delta::{DeltaRow, delta_row, l2_norm};
    use crate::testing::numbers;

    fn isas() -> Vec<RowwiseIsa> {
        let mut isas = vec![RowwiseIsa::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            isas.extend(<crate::isa::Avx2>::detect().map(RowwiseIsa::Avx2));
            isas.extend(crate::isa::Avx512::detect().map(RowwiseIsa::Avx512));
        }
        isas
    }

    /// Rows of one head, with keys and queries of unit length.
    struct Text {
        keys: usize,
        columns: usize,
        q: Vec<f32>,
        k: Vec<f32>,
        v: Vec<f32>,
        log_decay: Vec<f32>,
        beta: Vec<f32>,
    }

    impl Text {
        /// Log decays between 0 and `-steep`.
        fn new(rows: usize, (keys, columns): (usize, usize), steep: f32) -> Text {
            let mut text = Text {
                keys,
                columns,
                q: numbers(1, rows * keys),
                k: numbers(2, rows * keys),
                v: numbers(3, rows * columns),
                log_decay: numbers(4, rows * keys).iter().map(|g| (g - 1.0) / 2.0 * steep).collect(),
                beta: numbers(5, rows).iter().map(|b| 4.0 * b + 1.0).collect(),
            };
            text.q.chunks_exact_mut(keys).for_each(|q| l2_norm(q, 1.0 / (keys as f32).sqrt()));
            text.k.chunks_exact_mut(keys).for_each(|k| l2_norm(k, 1.0));
            text
        }

        fn row(&self, i: usize) -> DeltaRow<'_> {
            let of_row = i * self.keys..(i + 1) * self.keys;
            DeltaRow {
                q: &self.q[of_row.clone()],
                k: &self.k[of_row.clone()],
                v: &self.v[i * self.columns..(i + 1) * self.columns],
                log_decay: &self.log_decay[of_row],
                beta: self.beta[i],
            }
        }

        fn rows(&self, rows: std::ops::Range<usize>) -> DeltaChunk<'_> {
            let view =
                |data, width| MatrixView::new(data, self.beta.len(), width, width).slice_rows(rows.clone());
            DeltaChunk {
                q: view(&self.q, self.keys),
                k: view(&self.k, self.keys),
                v: view(&self.v, self.columns),
                log_decay: view(&self.log_decay, self.keys),
                beta: view(&self.beta, 1),
            }
        }

        /// Results and the last state, in chunks of these lengths by turns: into another state and
        /// in place by turns.
        fn run(&self, isa: RowwiseIsa, lengths: &[usize]) -> (Vec<f32>, Vec<f32>) {
            let (rows, columns) = (self.beta.len(), self.columns);
            let (mut state, mut other) =
                (numbers(6, self.keys * columns), vec![f32::NAN; self.keys * columns]);
            let mut out = vec![f32::NAN; rows * columns];
            // memory that earlier calls have used
            let mut scratch = DeltaScratch { chunk: vec![f32::NAN; 9], ..DeltaScratch::default() };
            let (mut first, mut turn) = (0, 0);
            while first < rows {
                let end = (first + lengths[turn % lengths.len()]).min(rows);
                let out = &mut out[first * columns..end * columns];
                let mut out = MatrixViewMut::new(out, end - first, columns, columns);
                let chunk = self.rows(first..end);
                if turn % 2 == 0 {
                    run_on(isa, &chunk, DeltaState::From(&state, &mut other), &mut scratch, &mut out);
                    std::mem::swap(&mut state, &mut other);
                } else {
                    run_on(isa, &chunk, DeltaState::InPlace(&mut state), &mut scratch, &mut out);
                }
                (first, turn) = (end, turn + 1);
            }
            (out, state)
        }

        /// The same by the formula in f64.
        fn truth(&self) -> (Vec<f64>, Vec<f64>) {
            let mut state: Vec<f64> =
                numbers(6, self.keys * self.columns).into_iter().map(f64::from).collect();
            let rows = (0..self.beta.len()).flat_map(|i| delta(&mut state, self.row(i))).collect();
            (rows, state)
        }
    }

    fn nmse(found: &[f32], truth: &[f64]) -> f64 {
        let error: f64 = found.iter().zip(truth).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
        error / truth.iter().map(|t| t * t).sum::<f64>()
    }

    #[test]
    fn chunks_of_every_length_follow_the_formula_on_every_isa() {
        for shape in [(1, 1), (7, 5), (16, 16), (24, 75), (75, 24), (128, 128)] {
            for steep in [0.05, 5.0, 60.0] {
                let text = Text::new(150, shape, steep);
                let truth = text.truth();
                for isa in isas() {
                    for lengths in [&[1, 2][..], &[3], &[5, 8, 7], &[9], &[13], &[15], &[16], &[16, 11, 1]] {
                        let (out, state) = text.run(isa, lengths);
                        let errors = [nmse(&out, &truth.0), nmse(&state, &truth.1)];
                        assert!(
                            errors.iter().all(|error| *error <= 1e-11),
                            "{shape:?} {steep} {lengths:?}: {errors:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn chunks_agree_with_rows() {
        let text = Text::new(97, (40, 56), 3.0);
        let mut state = numbers(6, 40 * 56);
        let mut rows = vec![0.0; 97 * 56];
        let mut scratch = DeltaScratch::default();
        for (i, out) in rows.chunks_exact_mut(56).enumerate() {
            delta_row(text.row(i), DeltaState::InPlace(&mut state), &mut scratch, out);
        }
        let as_f64 = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
        for isa in isas() {
            for length in 1..=DELTA_CHUNK {
                let (out, last) = text.run(isa, &[length]);
                assert!(nmse(&out, &as_f64(&rows)) <= 1e-12 && nmse(&last, &as_f64(&state)) <= 1e-12);
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_those_after_it() {
        let text = Text::new(DELTA_CHUNK, (128, 128), 2.0);
        for isa in isas() {
            let whole = text.run(isa, &[DELTA_CHUNK]).0;
            for rows in 1..DELTA_CHUNK {
                let first = text.run(isa, &[rows, DELTA_CHUNK]).0;
                assert_eq!(first[..rows * 128], whole[..rows * 128], "{rows} rows");
            }
        }
    }

    #[test]
    fn decays_beyond_the_range_of_f32_give_numbers() {
        // e^-g would be infinite after one row, and after all rows of a chunk
        for steep in [180.0, 8.0, 1e30] {
            let text = Text::new(64, (32, 32), steep);
            let truth = text.truth();
            for isa in isas() {
                let (out, state) = text.run(isa, &[DELTA_CHUNK]);
                assert!(nmse(&out, &truth.0) <= 1e-11 && nmse(&state, &truth.1) <= 1e-11, "{steep}");
            }
        }
    }
}
