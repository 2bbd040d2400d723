//! Kimi Delta Attention: short convolutions, decays, and the recurrence over the state of one head.
//!
//! Row-wise functions are compiled for every ISA from one body and give the same bits on each: sums
//! over the rows of a state are taken in order, with columns side by side, so that the width of
//! vectors does not matter. `chunk` has the recurrence over several rows as products of matrices.

mod chunk;

pub use chunk::{DELTA_CHUNK, DeltaChunk, delta_chunk};

use crate::elementwise::{sigmoid, silu};
use crate::math::exp;
use crate::tiers::tiers;

/// Under the root of [`l2_norm`], as in all published models.
const L2_EPS: f64 = 1e-6;

tiers! {
/// `out = silu(Σⱼ taps[j] · inputs[j])` for each channel: a causal convolution at one row. `inputs`
/// are the rows that it sees, the oldest first; `taps` has as many weights for each channel, one
/// channel after the other.
///
/// # Panics
/// When an input or the weights are shorter than the output requires.
pub fn short_conv(inputs: &[&[f32]], taps: &[f32], out: &mut [f32]) {
    let count = inputs.len();
    assert!(taps.len() >= count * out.len(), "weights of {} channels", out.len());
    match inputs {
        // The width of all published models. One pass over the channels keeps the sum in a
        // register.
        [a, b, c, d] => convolved([a, b, c, d], taps, out),
        _ => {
            out.fill(0.0);
            for (j, input) in inputs.iter().enumerate() {
                let input = &input[..out.len()];
                for ((out, x), taps) in out.iter_mut().zip(input).zip(taps.chunks_exact(count)) {
                    *out += taps[j] * x;
                }
            }
        }
    }
    for out in out {
        *out = silu(*out);
    }
}
}

/// Σⱼ taps[j] · inputs[j] for each channel, with all inputs at once.
#[inline(always)]
fn convolved<const N: usize>(inputs: [&[f32]; N], taps: &[f32], out: &mut [f32]) {
    let channels = out.len();
    let inputs = inputs.map(|input| &input[..channels]);
    let taps = &taps.as_chunks::<N>().0[..channels];
    for channel in 0..channels {
        let mut sum = 0.0;
        for j in 0..N {
            sum += taps[channel][j] * inputs[j][channel];
        }
        out[channel] = sum;
    }
}

/// Σ x², in 8 accumulators of f64, so that the order of the sum depends on the length alone.
#[inline(always)]
fn squares(x: &[f32]) -> f64 {
    let mut acc = [0.0f64; 8];
    let chunks = x.chunks_exact(8);
    // The remainder comes first: its lanes are then added to in the same order on every ISA.
    for (lane, v) in acc.iter_mut().zip(chunks.remainder()) {
        *lane += f64::from(*v) * f64::from(*v);
    }
    for chunk in chunks {
        for (lane, v) in acc.iter_mut().zip(chunk) {
            *lane += f64::from(*v) * f64::from(*v);
        }
    }
    acc.iter().sum()
}

tiers! {
/// x = factor · x / √(Σ x² + 1e-6).
pub fn l2_norm(x: &mut [f32], factor: f32) {
    let by = (f64::from(factor) / (squares(x) + L2_EPS).sqrt()) as f32;
    for x in x {
        *x *= by;
    }
}
}

/// ln(1 + e^z), relative error below 3e-7.
#[inline(always)]
fn softplus(z: f32) -> f32 {
    // max(z, 0) + ln(1 + u), u = e^−|z| ≤ 1; ln(1 + u) = 2 atanh(s), s = u / (2 + u) ≤ 1/3. `ln` of
    // the standard library is not vectorized, and loses the digits of a small u in 1 + u.
    let u = exp(-z.abs());
    let s = u / (2.0 + u);
    let t = s * s;
    let mut p = 1.0 / 15.0;
    for term in [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0] {
        p = p * t + term;
    }
    // Not `max`, which would turn a NaN into 0 and hide a broken model.
    let positive = if z > 0.0 { z } else { 0.0 };
    positive + 2.0 * s * p
}

tiers! {
/// out = −rate · softplus(z + bias): the log decay without a bound.
pub fn softplus_decay(z: &[f32], bias: &[f32], rate: f32, out: &mut [f32]) {
    for ((out, z), bias) in out.iter_mut().zip(z).zip(bias) {
        *out = -rate * softplus(*z + *bias);
    }
}
}

tiers! {
/// out = bound · sigmoid(rate · (z + bias)): the log decay between bound and 0. `factors` are rate
/// and bound.
pub fn bounded_decay(z: &[f32], bias: &[f32], factors: (f32, f32), out: &mut [f32]) {
    let (rate, bound) = factors;
    for ((out, z), bias) in out.iter_mut().zip(z).zip(bias) {
        *out = bound * sigmoid(rate * (*z + *bias));
    }
}
}

tiers! {
/// x = x / √(mean x² + eps) · weight · sigmoid(gate): one head of the delta rule's result.
pub fn gated_norm(x: &mut [f32], weight: &[f32], gate: &[f32], eps: f32) {
    let mean = squares(x) / x.len().max(1) as f64;
    let factor = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
    for ((x, weight), gate) in x.iter_mut().zip(weight).zip(gate) {
        *x = *x * factor * weight * sigmoid(*gate);
    }
}
}

/// Inputs of the delta rule: one row of one head.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRow<'a> {
    /// The query, with the factor on it.
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    /// The log decay of each row of the state.
    pub log_decay: &'a [f32],
    /// The logit of β.
    pub beta: f32,
}

/// Buffers of the delta rule of one head.
#[derive(Debug, Default)]
pub struct DeltaScratch {
    /// Of a single row: e^log_decay, k and q times that, and u.
    row: Vec<f32>,
    /// Factors and scores of a chunk.
    chunk: Vec<f32>,
}

/// The state of one head, and where the new one is written.
#[derive(Debug)]
pub enum DeltaState<'a> {
    /// The old state, and memory for the new one.
    // The first row of a step uses it: a step that is stopped runs again from the old state.
    From(&'a [f32], &'a mut [f32]),
    /// The old state, which the new one replaces.
    InPlace(&'a mut [f32]),
}

/// One row of one head: S ← diag(e^g) S; u = β · (v − Sᵀk); S ← S + k uᵀ; out = Sᵀq, with β =
/// sigmoid(beta). The state has a row for each element of the key, and a column for each element of
/// the value. It is read twice, the second time from the CPU's cache, and written once.
///
/// # Panics
/// When the lengths do not fit together.
pub fn delta_row(row: DeltaRow<'_>, state: DeltaState<'_>, scratch: &mut DeltaScratch, out: &mut [f32]) {
    let (keys, columns) = (row.k.len(), row.v.len());
    assert!(row.q.len() == keys && row.log_decay.len() == keys && out.len() == columns, "rows of one head");
    scratch.row.resize(3 * keys + columns, 0.0);
    // Decays are applied to k and q instead of to the state, which would be written twice
    // otherwise.
    let (decay, rest) = scratch.row.split_at_mut(keys);
    let (faded_k, rest) = rest.split_at_mut(keys);
    let (faded_q, u) = rest.split_at_mut(keys);
    fade(row.log_decay, (row.k, row.q), decay, faded_k, faded_q);
    let old: &[f32] = match &state {
        DeltaState::From(from, _) => from,
        DeltaState::InPlace(state) => state,
    };
    assert!(old.len() == keys * columns, "a state of {} elements for {keys} × {columns}", old.len());
    // u becomes what the faded state predicts for the key, and `out` what it gives for the query.
    // The new row adds k·u to the state, so `finish` adds (q·k)·u to `out`. The updated state is
    // therefore written once and never read again in this step.
    read_twice(old, faded_k, faded_q, u, out);
    let beta = sigmoid(row.beta);
    finish(row.v, (beta, dot(row.q, row.k)), u, out);
    // The state is in the L2 cache from the first reading: 64 KiB for 128 × 128.
    match state {
        DeltaState::From(from, to) => {
            assert!(to.len() == from.len(), "states of {} and {} elements", from.len(), to.len());
            update(from, decay, row.k, u, to);
        }
        DeltaState::InPlace(state) => update_in_place(state, decay, row.k, u),
    }
}

tiers! {
fn fade(log_decay: &[f32], kq: (&[f32], &[f32]), decay: &mut [f32], faded_k: &mut [f32], faded_q: &mut [f32]) {
    let (k, q) = kq;
    for (decay, log) in decay.iter_mut().zip(log_decay) {
        *decay = exp(*log);
    }
    for (((faded_k, faded_q), decay), (k, q)) in faded_k.iter_mut().zip(faded_q).zip(decay).zip(k.iter().zip(q)) {
        *faded_k = *k * *decay;
        *faded_q = *q * *decay;
    }
}
}

tiers! {
/// Σ a · b, in 8 accumulators.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut acc = [0.0f32; 8];
    let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
    for (lane, (a, b)) in acc.iter_mut().zip(a.remainder().iter().zip(b.remainder())) {
        *lane += a * b;
    }
    for (a, b) in a.zip(b) {
        for (lane, (a, b)) in acc.iter_mut().zip(a.iter().zip(b)) {
            *lane += a * b;
        }
    }
    acc.iter().sum()
}
}

/// one = Stateᵀ · a and other = Stateᵀ · b for columns from `first` on, `N` at a time: sums over
/// the rows of the state, in their order. Returns the first column that is left.
#[inline(always)]
fn read_columns<const N: usize>(
    state: &[f32],
    weights: (&[f32], &[f32]),
    mut first: usize,
    out: (&mut [f32], &mut [f32]),
) -> usize {
    let width = out.0.len();
    while first + N <= width {
        let mut sums = [[0.0f32; N]; 2];
        for (row, (a, b)) in state.chunks_exact(width).zip(weights.0.iter().zip(weights.1)) {
            for (j, s) in row[first..first + N].iter().enumerate() {
                sums[0][j] += a * s;
                sums[1][j] += b * s;
            }
        }
        out.0[first..first + N].copy_from_slice(&sums[0]);
        out.1[first..first + N].copy_from_slice(&sums[1]);
        first += N;
    }
    first
}

tiers! {
/// one = Stateᵀ · a and other = Stateᵀ · b.
fn read_twice(state: &[f32], a: &[f32], b: &[f32], one: &mut [f32], other: &mut [f32]) {
    // A state of 64 KiB comes from memory, and CPUs prefetch best what is read in order of
    // addresses. Whole rows of 128 columns are read twice as fast as 32 columns of all rows and
    // then the next 32, also on AVX2, where half of the sums are in the L1 cache and not in
    // registers.
    let first = read_columns::<128>(state, (a, b), 0, (one, other));
    let first = read_columns::<32>(state, (a, b), first, (one, other));
    let first = read_columns::<8>(state, (a, b), first, (one, other));
    read_columns::<1>(state, (a, b), first, (one, other));
}
}

tiers! {
/// u = β · (v − u), and out += qk · u. `factors` are β and qk.
fn finish(v: &[f32], factors: (f32, f32), u: &mut [f32], out: &mut [f32]) {
    let (beta, qk) = factors;
    for ((u, out), v) in u.iter_mut().zip(out).zip(v) {
        *u = beta * (*v - *u);
        *out += qk * *u;
    }
}
}

tiers! {
/// to = diag(decay) · from + k uᵀ.
fn update(from: &[f32], decay: &[f32], k: &[f32], u: &[f32], to: &mut [f32]) {
    let rows = from.chunks_exact(u.len()).zip(to.chunks_exact_mut(u.len()));
    for ((from, to), (decay, k)) in rows.zip(decay.iter().zip(k)) {
        for ((to, from), u) in to.iter_mut().zip(from).zip(u) {
            *to = *decay * *from + *k * *u;
        }
    }
}
}

tiers! {
/// The same in place.
// Not `update` with equal pointers: two slices that may not overlap are vectorized without checks.
fn update_in_place(state: &mut [f32], decay: &[f32], k: &[f32], u: &[f32]) {
    for (row, (decay, k)) in state.chunks_exact_mut(u.len()).zip(decay.iter().zip(k)) {
        for (s, u) in row.iter_mut().zip(u) {
            *s = *decay * *s + *k * *u;
        }
    }
}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::numbers;

    #[test]
    fn softplus_is_exact_to_f32_everywhere() {
        for i in -6000..=6000 {
            let z = i as f32 * 0.01;
            let truth = f64::from(z).max(0.0) + (-f64::from(z).abs()).exp().ln_1p();
            let error = (f64::from(softplus(z)) - truth).abs() / truth;
            assert!(error < 4e-7, "{z}: {error}");
        }
        assert_eq!((softplus(500.0), softplus(-500.0)), (500.0, 0.0));
        assert!(softplus(f32::NAN).is_nan());
    }

    #[test]
    fn a_convolution_sees_the_rows_before() {
        let (a, b, c) = ([1.0, 0.0], [0.0, 2.0], [3.0, -1.0]);
        let mut out = [9.0; 2];
        short_conv(&[&a, &b, &c], &[1.0, 10.0, 100.0, 0.5, 0.25, 2.0], &mut out);
        assert_eq!(out, [silu(301.0), silu(0.5 - 2.0)]);
        // of every width, also where vectors end
        for (width, channels) in [(1, 5), (2, 16), (4, 1), (4, 33), (4, 128), (7, 20)] {
            let inputs: Vec<Vec<f32>> = (0..width).map(|j| numbers(j as u32, channels)).collect();
            let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
            let taps = numbers(99, width * channels);
            let mut out = vec![f32::NAN; channels];
            short_conv(&inputs, &taps, &mut out);
            for (channel, out) in out.iter().enumerate() {
                let terms = (0..width).map(|j| taps[channel * width + j] * inputs[j][channel]);
                assert_eq!(*out, silu(terms.fold(0.0, |sum, term| sum + term)), "{width} {channel}");
            }
        }
    }

    /// The formula, in f64.
    pub(super) fn delta(state: &mut [f64], row: DeltaRow<'_>) -> Vec<f64> {
        let (keys, columns) = (row.k.len(), row.v.len());
        let beta = 1.0 / (1.0 + (-f64::from(row.beta)).exp());
        for c in 0..keys {
            let decay = f64::from(row.log_decay[c]).exp();
            state[c * columns..(c + 1) * columns].iter_mut().for_each(|s| *s *= decay);
        }
        let read = |state: &[f64], by: &[f32], j: usize| -> f64 {
            (0..keys).map(|c| f64::from(by[c]) * state[c * columns + j]).sum()
        };
        let u: Vec<f64> =
            (0..columns).map(|j| beta * (f64::from(row.v[j]) - read(state, row.k, j))).collect();
        for c in 0..keys {
            for j in 0..columns {
                state[c * columns + j] += f64::from(row.k[c]) * u[j];
            }
        }
        (0..columns).map(|j| read(state, row.q, j)).collect()
    }

    #[test]
    fn rows_of_the_delta_rule_follow_its_formula_in_place_and_elsewhere() {
        for (keys, columns) in [(1, 1), (24, 24), (16, 75), (128, 128), (20, 300)] {
            let mut truth: Vec<f64> = numbers(1, keys * columns).into_iter().map(f64::from).collect();
            let mut state: Vec<f32> = truth.iter().map(|s| *s as f32).collect();
            let mut scratch = DeltaScratch::default();
            for t in 0..6 {
                let mut k = numbers(10 + t, keys);
                let mut q = numbers(20 + t, keys);
                l2_norm(&mut k, 1.0);
                l2_norm(&mut q, 1.0 / (keys as f32).sqrt());
                let (v, g) = (numbers(30 + t, columns), numbers(40 + t, keys));
                let log_decay: Vec<f32> = g.iter().map(|g| 3.0 * g - 3.0).collect();
                let row = DeltaRow { q: &q, k: &k, v: &v, log_decay: &log_decay, beta: t as f32 - 3.0 };
                let mut elsewhere = vec![f32::NAN; keys * columns];
                let (mut out, mut again) = (vec![f32::NAN; columns], vec![f32::NAN; columns]);
                delta_row(row, DeltaState::From(&state, &mut elsewhere), &mut scratch, &mut out);
                delta_row(row, DeltaState::InPlace(&mut state), &mut scratch, &mut again);
                assert_eq!((&out, &elsewhere), (&again, &state));
                let expected = delta(&mut truth, row);
                let close = |found: &[f32], truth: &[f64]| {
                    let error = |(a, b): (&f32, &f64)| (f64::from(*a) - b).powi(2);
                    let all: f64 = found.iter().zip(truth).map(error).sum();
                    all <= 1e-12 * truth.iter().map(|t| t * t).sum::<f64>()
                };
                assert!(close(&out, &expected) && close(&state, &truth), "{keys} × {columns}, row {t}");
            }
        }
    }
}
