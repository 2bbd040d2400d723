//! Scores of an indexer: Σₕ wₕ · max(0, qₕ · k) of one query with cached keys.
#![allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]

use super::args::{IndexArgs, LANES, weighted};
use crate::attention::{QuantizedQueries, queries_len};
use crate::gemm::{LeftOperand, gemm};
use crate::kv_cache::{scale_of, widen};
use crate::simd::Simd;
use crate::simd::portable::PortableSimd;
use crate::{MatrixView, MatrixViewMut};
use latent_types::{CacheRow, CacheType};

/// Keys that are widened and scored together.
const KEY_BLOCK: usize = 64;

/// Writes the score of each key: Σₕ wₕ · max(0, qₕ · k). A score depends on query and key alone, not on the others. `scratch` is memory of any
/// length.
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
    #[cfg(target_arch = "x86_64")]
    if args.bf16 && super::bf16::reads(args.cache.ty()) && crate::isa::Avx512Bf16::detect().is_some() {
        return super::bf16::scores(args, out, scratch);
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

/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn scores<S: Simd>(args: &IndexArgs<'_>, out: &mut [f32], scratch: &mut Vec<f32>) {
    let (width, heads) = (args.cache.width(), args.weights.len());
    assert!(args.q.len() == heads * width && out.len() == args.rows.len(), "{heads} heads of {width}");
    if args.cache.ty() == CacheType::Int8 && !args.exact {
        // SAFETY: the caller is compiled for `S`, and shapes are checked.
        return unsafe { quantized::<S>(args, out, scratch) };
    }
    let columns = heads.next_multiple_of(LANES);
    let lengths = [width * columns, columns, KEY_BLOCK * width, KEY_BLOCK * columns];
    let needed = lengths.iter().sum();
    if scratch.len() < needed {
        scratch.resize(needed, 0.0);
    }
    let (query, rest) = scratch.split_at_mut(lengths[0]);
    let (weights, rest) = rest.split_at_mut(lengths[1]);
    let (keys, products) = rest.split_at_mut(lengths[2]);
    // heads as columns: the padding scores 0
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
    let (width, heads) = (args.cache.width(), args.weights.len());
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
            // SAFETY: the caller is compiled for `S`. The block's keys are contiguous, and behind the quants of
            // each come the four bytes of its scale.
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
    fn scores_are_weighted_sums_of_positive_products_whatever_the_range() {
        let (heads, width, keys) = (5, 24, 150);
        let number = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 32.0;
        let q: Vec<f32> = (0..heads * width).map(number).collect();
        let weights: Vec<f32> = (0..heads).map(|h| number(h * 13 + 2)).collect();
        for ty in CacheType::ALL {
            let row = CacheRow { ty, content: width, rope: 0 };
            let mut bytes = vec![0; 192 * row.bytes()];
            let table = [2, 0, 1];
            let key = |at: usize| -> Vec<f32> { (0..width).map(|i| number(at * 7 + i * i)).collect() };
            for at in 0..keys {
                let slot = table[at / 64] as usize * 64 + at % 64;
                store_row(row, &key(at), &mut bytes[slot * row.bytes()..(slot + 1) * row.bytes()]);
            }
            let cache = CacheView::new(row, &bytes, 64, &table).unwrap();
            for exact in [true, false] {
                let mut all = vec![0.0; keys];
                index_scores(
                    &IndexArgs {
                        q: &q,
                        weights: &weights,
                        cache: &cache,
                        rows: 0..keys,
                        exact,
                        bf16: !exact,
                    },
                    &mut all,
                    &mut Vec::new(),
                );
                for (at, found) in all.iter().enumerate() {
                    // what the cache holds of the key
                    let mut held = vec![0.0; width];
                    crate::load_row(row, cache.row(at), &mut held);
                    let dot = |h: usize| -> f64 {
                        let q = &q[h * width..(h + 1) * width];
                        q.iter().zip(held.iter().copied()).map(|(q, k)| f64::from(*q) * f64::from(k)).sum()
                    };
                    let truth: f64 = (0..heads).map(|h| f64::from(weights[h]) * dot(h).max(0.0)).sum();
                    let size: f64 = (0..heads).map(|h| f64::from(weights[h]).abs() * dot(h).abs()).sum();
                    let bound = match ty {
                        CacheType::Int8 => 0.05,
                        CacheType::F16 | CacheType::Bf16 if !exact => 0.01,
                        _ => 1e-5,
                    };
                    assert!(
                        (f64::from(*found) - truth).abs() <= bound * size + 1e-4,
                        "{ty} key {at}: {found}, not {truth}"
                    );
                }
                let mut part = vec![0.0; 70];
                index_scores(
                    &IndexArgs {
                        q: &q,
                        weights: &weights,
                        cache: &cache,
                        rows: 33..103,
                        exact,
                        bf16: !exact,
                    },
                    &mut part,
                    &mut Vec::new(),
                );
                assert_eq!(part, all[33..103], "{ty}: a part of the keys");
            }
        }
    }
}
