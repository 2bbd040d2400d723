//! Scores of an indexer: Σₕ wₕ · max(0, qₕ · k) of queries with cached keys.
#![allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]

use super::args::{IndexArgs, LANES, weighted};
use crate::attention::{QuantizedQueries, queries_len};
use crate::gemm::{LeftOperand, gemm};
use crate::kv_cache::{scale_of, widen};
use crate::simd::Simd;
use crate::simd::portable::PortableSimd;
use crate::{MatrixView, MatrixViewMut};
use latent_types::{Arithmetic, CacheRow, CacheType};

/// Keys that are widened and scored in one pass.
const KEY_BLOCK: usize = 64;

/// Writes the score of each query with each key: Σₕ wₕ · max(0, qₕ · k), as [queries, keys]. A
/// score depends on its query and key alone, not on other queries or keys of the call. `scratch` is
/// memory of any length.
///
/// # Panics
/// When shapes differ, or a key is not in the block table.
pub fn index_scores(args: &IndexArgs<'_>, out: &mut [f32], scratch: &mut Vec<f32>) {
    #[cfg(target_arch = "x86_64")]
    crate::isa::isa_fn! { Avx2;
        fn avx2(args: &IndexArgs<'_>, out: &mut [f32], scratch: &mut Vec<f32>) {
            // SAFETY: this function is compiled for AVX2, and the body is inlined into it.
            unsafe { scores::<crate::simd::avx2::Avx2<false>>(args, out, scratch) }
        }
    }
    #[cfg(target_arch = "x86_64")]
    crate::isa::isa_fn! { Avx512;
        fn avx512(args: &IndexArgs<'_>, out: &mut [f32], scratch: &mut Vec<f32>) {
            // SAFETY: this function is compiled for AVX-512, and the body is inlined into it.
            unsafe { scores::<crate::simd::avx512::Avx512>(args, out, scratch) }
        }
    }
    // Before the limit of row-wise operations: see `reads`.
    #[cfg(target_arch = "x86_64")]
    if super::avx512::reads(args) {
        return super::avx512::scores(args, out, scratch);
    }
    #[cfg(target_arch = "x86_64")]
    match crate::tiers::active_isa() {
        // SAFETY: the token proves the features that the function is compiled for.
        crate::tiers::RowwiseIsa::Avx512(_) => return unsafe { avx512(args, out, scratch) },
        // SAFETY: the token proves the features that the function is compiled for.
        crate::tiers::RowwiseIsa::Avx2(_) => return unsafe { avx2(args, out, scratch) },
        crate::tiers::RowwiseIsa::Portable => {}
    }
    // SAFETY: the portable lanes are plain Rust, which every CPU runs.
    unsafe { scores::<PortableSimd>(args, out, scratch) }
}

/// The arithmetic of [`index_scores`] with keys of a type.
pub fn index_arithmetic(keys: CacheType, exact: bool, avx512: bool) -> Arithmetic {
    let has = crate::features::features();
    match keys {
        _ if exact => Arithmetic::F32,
        CacheType::Int8 => Arithmetic::Int8,
        CacheType::F32 => Arithmetic::F32,
        _ if avx512 && has.avx512 && has.avx512_bf16 => Arithmetic::Bf16,
        _ => Arithmetic::F32,
    }
}

/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn scores<S: Simd>(args: &IndexArgs<'_>, out: &mut [f32], scratch: &mut Vec<f32>) {
    let (width, heads, queries) = args.check(out);
    if args.rows.is_empty() {
        return;
    }
    for (query, out) in out.chunks_exact_mut(args.rows.len()).enumerate().take(queries) {
        let args = IndexArgs {
            q: &args.q[query * heads * width..][..heads * width],
            weights: &args.weights[query * heads..][..heads],
            rows: args.rows.clone(),
            ..*args
        };
        // SAFETY: the caller is compiled for `S`.
        unsafe { query_scores::<S>(&args, out, scratch) }
    }
}

/// Scores of one query, whose shapes have been checked.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn query_scores<S: Simd>(args: &IndexArgs<'_>, out: &mut [f32], scratch: &mut Vec<f32>) {
    let (width, heads) = (args.cache.width(), args.heads);
    if args.cache.ty() == CacheType::Int8 && !args.exact {
        // SAFETY: the caller is compiled for `S`, and shapes are checked.
        return unsafe { quantized::<S>(args, out, scratch) };
    }
    let columns = heads.next_multiple_of(LANES);
    let lengths = [width * columns, columns, KEY_BLOCK * width, KEY_BLOCK * columns];
    // Grows only: shrinking and growing again would zero the memory in every call.
    let needed = lengths.iter().sum();
    if scratch.len() < needed {
        scratch.resize(needed, 0.0);
    }
    let (query, rest) = scratch.split_at_mut(lengths[0]);
    let (weights, rest) = rest.split_at_mut(lengths[1]);
    let (keys, products) = rest.split_at_mut(lengths[2]);
    // Heads as columns. Padding columns are 0, so their products do not count.
    for (k, row) in query.chunks_exact_mut(columns).enumerate() {
        row.fill(0.0);
        row.iter_mut().zip(args.q[k..].iter().step_by(width)).for_each(|(to, from)| *to = *from);
    }
    weights.fill(0.0);
    weights[..heads].copy_from_slice(args.weights);
    let row = CacheRow { ty: args.cache.ty(), content: width, rope: 0 };
    for (block, out) in out.chunks_mut(KEY_BLOCK).enumerate() {
        let first = args.rows.start + block * KEY_BLOCK;
        let count = out.len();
        for (i, key) in keys.chunks_exact_mut(width).take(count).enumerate() {
            // SAFETY: the caller is compiled for `S`.
            unsafe { widen::<S>(row, args.cache.row(first + i), key) };
        }
        let left = LeftOperand::Rows(keys, width);
        let mut made = MatrixViewMut::new(products, count, columns, columns);
        // SAFETY: the caller is compiled for `S`.
        unsafe { gemm::<S>(width, left, (query, columns), &mut made, false) };
        for (score, line) in out.iter_mut().zip(products.chunks_exact(columns)) {
            *score = weighted(std::iter::once(line), weights, columns);
        }
    }
}

/// Scores of int8 keys by integer products with the query in int8, a scale for each of its heads.
///
/// # Safety
/// As for [`Simd`]; the shapes of `args` and `out` have been checked.
#[inline(always)]
unsafe fn quantized<S: Simd>(args: &IndexArgs<'_>, out: &mut [f32], scratch: &mut Vec<f32>) {
    let (width, heads) = (args.cache.width(), args.heads);
    let (groups, len) = (heads.div_ceil(LANES), queries_len(width));
    let needed = groups * (len + LANES + KEY_BLOCK * LANES);
    if scratch.len() < needed {
        scratch.resize(needed, 0.0);
    }
    let (memory, rest) = scratch.split_at_mut(groups * len);
    let (weights, products) = rest.split_at_mut(groups * LANES);
    weights.fill(0.0);
    weights[..heads].copy_from_slice(args.weights);
    let queries: Vec<QuantizedQueries<'_>> = memory
        .chunks_exact_mut(len)
        .zip(args.q.chunks(LANES * width))
        .map(|(memory, q)| {
            let q = MatrixView::new(q, q.len() / width, width, width);
            QuantizedQueries::new(&q, width, 1.0, memory)
        })
        .collect();
    let mut start = args.rows.start;
    while start < args.rows.end {
        let (count, mut prefetch) = args.cache.block(start, args.rows.end, KEY_BLOCK);
        let out = &mut out[start - args.rows.start..][..count];
        let keys = (args.cache.row(start).as_ptr(), args.cache.row_bytes());
        for (queries, products) in queries.iter().zip(products.chunks_exact_mut(KEY_BLOCK * LANES)) {
            // SAFETY: the caller is compiled for `S`. The block's keys are contiguous, and the
            // quants of each are followed by the four bytes of its scale.
            unsafe { queries.qk::<S, 4>(keys, count, products, &mut prefetch.next) };
        }
        for (i, score) in out.iter_mut().enumerate() {
            let lines = products[i * LANES..].chunks(KEY_BLOCK * LANES);
            *score = weighted(lines, weights, LANES) * scale_of(args.cache.row(start + i));
        }
        start += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_cache::CacheView;
    use crate::store_row;

    #[test]
    fn scores_are_weighted_sums_of_positive_products_for_any_range_and_batch() {
        for (heads, width) in [(5, 24), (1, 8), (33, 128), (40, 72)] {
            for ty in CacheType::ALL {
                for exact in [true, false] {
                    check_scores(heads, width, ty, exact);
                }
            }
        }
    }

    fn check_scores(heads: usize, width: usize, ty: CacheType, exact: bool) {
        let (queries, keys) = (3, 150);
        let number = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 32.0;
        let q: Vec<f32> = (0..queries * heads * width).map(number).collect();
        let weights: Vec<f32> = (0..queries * heads).map(|h| number(h * 13 + 2)).collect();
        let row = CacheRow { ty, content: width, rope: 0 };
        let mut bytes = vec![0; 192 * row.bytes()];
        let table = [2, 0, 1];
        let key = |at: usize| -> Vec<f32> { (0..width).map(|i| number(at * 7 + i * i)).collect() };
        for at in 0..keys {
            let slot = table[at / 64] as usize * 64 + at % 64;
            store_row(row, &key(at), &mut bytes[slot * row.bytes()..(slot + 1) * row.bytes()]);
        }
        let cache = CacheView::new(row, &bytes, 64, &table).unwrap();
        let scores = |query: std::ops::Range<usize>, rows: std::ops::Range<usize>| {
            let mut out = vec![f32::NAN; query.len() * rows.len()];
            let args = IndexArgs {
                q: &q[query.start * heads * width..query.end * heads * width],
                weights: &weights[query.start * heads..query.end * heads],
                heads,
                cache: &cache,
                rows,
                exact,
                avx512: !exact,
            };
            index_scores(&args, &mut out, &mut vec![7.0; 3]);
            out
        };
        let all = scores(0..queries, 0..keys);
        for (at, found) in all.iter().enumerate() {
            let (query, at) = (at / keys, at % keys);
            // The key as the cache has rounded it.
            let mut stored = vec![0.0; width];
            crate::load_row(row, cache.row(at), &mut stored);
            let dot = |h: usize| -> f64 {
                let q = &q[(query * heads + h) * width..][..width];
                q.iter().zip(stored.iter().copied()).map(|(q, k)| f64::from(*q) * f64::from(k)).sum()
            };
            let weight = |h: usize| f64::from(weights[query * heads + h]);
            let truth: f64 = (0..heads).map(|h| weight(h) * dot(h).max(0.0)).sum();
            let magnitude = |h: usize| -> f64 {
                let q = &q[(query * heads + h) * width..][..width];
                q.iter().zip(&stored).map(|(q, k)| f64::from((q * k).abs())).sum()
            };
            let size: f64 = (0..heads).map(|h| weight(h).abs() * magnitude(h)).sum();
            let bound = match ty {
                CacheType::Int8 if !exact => 0.01,
                CacheType::F32 => 1e-6,
                // Both operands are rounded to nine bits.
                _ if !exact => 0.004,
                _ => 1e-6,
            };
            assert!(
                (f64::from(*found) - truth).abs() <= bound * size + 1e-6,
                "{ty}, {heads} heads of {width}, query {query}, key {at}: {found}, not {truth}"
            );
        }
        for query in 0..queries {
            let part = scores(query..query + 1, 33..103);
            assert_eq!(part, all[query * keys..][33..103], "{ty}: some of the keys");
        }
        assert_eq!(scores(1..1, 0..keys), []);
    }
}
