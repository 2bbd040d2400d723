//! Every tier of attention against sums in f64.

use super::{
    AttendExpandedFn, CacheView, ExpandKeysFn, Expanded, KEYS, KeyBlocks, KeyOrder, Number, Partials,
    merge_partials, store_row,
};
use crate::{KernelFn, Rows, RowsMut};
use base::{Activation, CacheType, KernelContract, OpKind};

struct Random(u64);

impl Random {
    fn numbers(&mut self, n: usize) -> Vec<f32> {
        let next = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 40) as f32 / (1 << 23) as f32) - 1.0
        };
        std::iter::repeat_with(next).take(n).collect()
    }
}

/// softmax(scale · q·K) V of one query, in f64.
fn truth(q: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>], scale: f64) -> Vec<f64> {
    let dot = |k: &Vec<f32>| q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let scores: Vec<f64> = keys.iter().map(|k| scale * dot(k)).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    (0..values[0].len())
        .map(|i| weights.iter().zip(values).map(|(w, v)| w * f64::from(v[i])).sum::<f64>() / sum)
        .collect()
}

fn close(found: &[f32], truth: &[f64], bound: f64, what: &str) {
    for (i, (a, b)) in found.iter().zip(truth).enumerate() {
        assert!((f64::from(*a) - b).abs() < bound, "{what}: number {i} is {a}, not {b}");
    }
}

#[test]
fn attention_in_latent_space_agrees_with_f64_on_every_tier() {
    let tier = crate::features().tier();
    let mut ran = 0;
    for (contract, kernel) in crate::table() {
        let (KernelFn::AttendLatent(kernel) | KernelFn::AttendSplit(kernel)) = kernel else { continue };
        if contract.tier > tier {
            eprintln!("{} skipped: this machine has no {}", contract.name, contract.tier);
            continue;
        }
        ran += 1;
        let bound = if contract.activation == Activation::F16 { 4e-3 } else { 2e-5 };
        for (heads, latent, rope, rows) in
            [(1, 48, 8, 1), (16, 64, 16, 130), (5, 40, 6, 64), (12, 512, 64, 33)]
        {
            for ty in CacheType::ALL.into_iter().filter(|ty| contract.cache.is_none_or(|own| own == *ty)) {
                one(*kernel, contract.name, ty, (heads, latent, rope, rows), bound);
            }
        }
    }
    assert!(ran >= 2);
}

fn one(
    kernel: super::AttendFn,
    name: &str,
    ty: CacheType,
    (heads, latent, rope, rows): (usize, usize, usize, usize),
    bound: f64,
) {
    let mut random = Random(rows as u64);
    let width = latent + rope;
    let (page_rows, table) = (64, [2u32, 0, 1]);
    let mut bytes = vec![0; 3 * page_rows * width * ty.bytes()];
    let mut cached = Vec::new();
    for row in 0..rows {
        let line = random.numbers(width);
        let at = (table[row / page_rows] as usize * page_rows + row % page_rows) * width * ty.bytes();
        let place = &mut bytes[at..at + width * ty.bytes()];
        store_row(ty, &line, place);
        let mut back = vec![0.0; width];
        super::load_row(ty, place, &mut back);
        cached.push(back);
    }
    let row_bytes = width * ty.bytes();
    let cache = CacheView { ty, bytes: &bytes, page_rows, row_bytes, width, table: &table };
    let q = random.numbers(heads * width);
    let values: Vec<Vec<f32>> = cached.iter().map(|row| row[..latent].to_vec()).collect();
    let stride = heads * (latent + 2);
    // in one piece, and in two that are merged
    for cut in [rows, rows.div_ceil(2)] {
        let mut memory = vec![0.0; 2 * stride];
        let mut scratch = Vec::new();
        let pieces: Vec<_> = [0..cut, cut..rows].into_iter().filter(|p| !p.is_empty()).collect();
        for (piece, memory) in pieces.iter().zip(memory.chunks_exact_mut(stride)) {
            let (max, rest) = memory.split_at_mut(heads);
            let (sum, o) = rest.split_at_mut(heads);
            let mut part = Partials { max, sum, o: RowsMut::new(o, heads, latent, latent) };
            kernel(
                Rows::new(&q, heads, width, width),
                &cache,
                piece.clone(),
                0.3,
                latent,
                &mut part,
                &mut scratch,
            );
        }
        let mut out = vec![0.0; heads * latent];
        let mut result = RowsMut::new(&mut out, heads, latent, latent);
        merge_partials(&memory, pieces.len(), stride, heads, latent, &mut result);
        for head in 0..heads {
            let truth = truth(&q[head * width..(head + 1) * width], &cached, &values, f64::from(0.3f32));
            let what = format!("{name} {ty} head {head}");
            close(&out[head * latent..(head + 1) * latent], &truth, bound, &what);
        }
    }
}

#[test]
fn attention_over_expanded_keys_agrees_with_f64_on_every_tier() {
    let tier = crate::features().tier();
    for (contract, kernel) in crate::table() {
        if contract.tier > tier {
            eprintln!("{} skipped: this machine has no {}", contract.name, contract.tier);
            continue;
        }
        for (queries, position) in [(1, 0), (1, 63), (1, 64), (16, 0), (16, 60), (7, 200), (16, 300)] {
            match kernel {
                KernelFn::AttendExpanded(kernel) => expanded(*kernel, contract.name, queries, position, 2e-5),
                KernelFn::AttendHalves(kernel) => expanded(*kernel, contract.name, queries, position, 4e-3),
                _ => {}
            }
        }
    }
}

/// Numbers as a kernel takes them, and what they are then.
fn rounded<N: Number + Into<f32>>(numbers: &[f32]) -> (Vec<N>, Vec<f32>) {
    let mut out = vec![N::ZERO; numbers.len()];
    N::round(numbers, &mut out);
    let back = out.iter().map(|n| (*n).into()).collect();
    (out, back)
}

fn expanded<N: Number + Into<f32>>(
    kernel: AttendExpandedFn<N>,
    name: &str,
    queries: usize,
    position: usize,
    bound: f64,
) {
    let mut random = Random(position as u64 + 7);
    for (nope, rope, v) in [(24, 8, 40), (128, 64, 128), (7, 0, 3)] {
        let length = position + queries;
        let blocks = length.div_ceil(KEYS);
        let keys: Vec<Vec<f32>> = (0..length).map(|_| rounded::<N>(&random.numbers(nope + rope)).1).collect();
        let values: Vec<Vec<f32>> = (0..length).map(|_| rounded::<N>(&random.numbers(v)).1).collect();
        let lines = |from: usize, width: usize| {
            let mut out = vec![0.0; blocks * width * KEYS];
            for (i, key) in keys.iter().enumerate() {
                for n in 0..width {
                    out[(i / KEYS * width + n) * KEYS + i % KEYS] = key[from + n];
                }
            }
            rounded::<N>(&out).0
        };
        let (content, rotated, flat) = (lines(0, nope), lines(nope, rope), rounded::<N>(&values.concat()).0);
        let expanded = Expanded {
            keys: &content,
            rope_keys: &rotated,
            rope_stride: rope * KEYS,
            values: &flat,
            value_width: v,
            nope,
            rope,
        };
        let q = random.numbers(queries * (nope + rope));
        let scales: Vec<f32> = (0..queries).map(|i| 0.2 + i as f32 * 0.01).collect();
        let mut out = vec![f32::NAN; queries * v];
        let rows = Rows::new(&q, queries, nope + rope, nope + rope);
        let mut memory = vec![f32::NAN; 9];
        kernel(rows, &expanded, position, &scales, &mut RowsMut::new(&mut out, queries, v, v), &mut memory);
        for i in 0..queries {
            let seen = position + i + 1;
            let truth = truth(rows.row(i), &keys[..seen], &values[..seen], f64::from(scales[i]));
            let what = format!("{name} {queries} at {position}, query {i}");
            close(&out[i * v..(i + 1) * v], &truth, bound, &what);
        }
    }
}

#[test]
fn keys_are_expanded_from_either_order_of_weights() {
    let tier = crate::features().tier();
    for (contract, kernel) in crate::table().iter().filter(|(contract, _)| contract.tier <= tier) {
        match kernel {
            KernelFn::ExpandKeys(kernel) => keys(*kernel, contract, 1e-5),
            KernelFn::ExpandHalves(kernel) => keys(*kernel, contract, 2e-2),
            _ => assert!(contract.op != OpKind::ExpandKeys),
        }
    }
}

fn keys<N: Number + Into<f32>>(kernel: ExpandKeysFn<N>, contract: &KernelContract, bound: f64) {
    let (nope, latent, blocks) = (13, 50, 2);
    let stride = (latent + 3) * KEYS;
    let mut random = Random(3);
    let weights = random.numbers(nope * latent);
    let (latents, exact) = rounded::<N>(&random.numbers(stride + latent * KEYS));
    let transposed: Vec<f32> = (0..nope * latent).map(|i| weights[i % nope * latent + i / nope]).collect();
    for (given, order) in [(&weights, KeyOrder::Keys), (&transposed, KeyOrder::Latents)] {
        let mut keys = vec![N::ZERO; blocks * nope * KEYS];
        kernel(
            given,
            order,
            &KeyBlocks { latents: &latents, stride, latent, nope },
            &mut keys,
            &mut Vec::new(),
        );
        for (i, found) in keys.iter().enumerate() {
            let (block, n, key) = (i / (nope * KEYS), i / KEYS % nope, i % KEYS);
            let number = |l: usize| f64::from(exact[block * stride + l * KEYS + key]);
            let truth: f64 = (0..latent).map(|l| f64::from(weights[n * latent + l]) * number(l)).sum();
            let found: f32 = (*found).into();
            assert!((f64::from(found) - truth).abs() < bound, "{} {i}: {found}, not {truth}", contract.name);
        }
    }
}
