//! MLA decode over an F8_E4M3 cache whose rows have scales of very different magnitudes.

use latent_kernels::{AttendArgs, AttendFn, CacheView, KernelFn, MatrixView, PartialSoftmax, store_row};
use latent_types::{ActivationType, CacheRow, CacheType, OpKind, Tier};

const HEADS: usize = 5;

/// The kernels for an F8_E4M3 cache that this machine can run, and their arithmetic.
fn kernels() -> Vec<(&'static str, ActivationType, AttendFn)> {
    let best = latent_kernels::features().tier();
    let reads = latent_kernels::table().iter().filter(|(contract, _)| {
        contract.tier <= best
            && contract.op == OpKind::AttendLatent
            && contract.cache.is_none_or(|cache| cache == CacheType::Fp8)
    });
    let kernel = reads.filter_map(|(contract, kernel)| match kernel {
        KernelFn::AttendLatent(kernel) => Some((contract.name, contract.activation, *kernel)),
        _ => None,
    });
    kernel.collect()
}

/// Element `n` of the cached row at `index`: rows 0, 5, 10 … are zeros, and magnitudes of the other
/// rows differ by up to 2^24.
fn element(index: usize, n: usize) -> f32 {
    let size = [0.0, 1.0, 1e-4, 30.0, 1e3][index % 5] / (1.0 + (index / 5) as f32);
    size * ((index * 31 + n * 7) % 23) as f32 / 11.0 - size
}

/// Results of all heads over the first `count` rows, as weighted means.
fn attend(kernel: AttendFn, row: CacheRow, bytes: &[u8], count: usize) -> Vec<f32> {
    let width = row.width();
    let q: Vec<f32> = (0..HEADS * width).map(|i| ((i * 13) % 19) as f32 / 19.0 - 0.5).collect();
    let (q, table) = (MatrixView::new(&q, HEADS, width, width), [0, 1]);
    let cache = CacheView::new(row, bytes, 64, &table).unwrap();
    let mut memory = vec![0.0; latent_kernels::partial_softmax_len(HEADS, row.content)];
    let mut part = PartialSoftmax::in_memory(&mut memory, HEADS, row.content);
    let args = AttendArgs { q, cache: &cache, rows: 0..count, scale: 1e-3, latent: row.content };
    kernel(&args, &mut part, &mut Vec::new());
    // Maxima and sums of the heads, then their weighted sums.
    let (sums, weighted) = memory[HEADS..].split_at(HEADS);
    weighted.iter().enumerate().map(|(i, o)| o / sums[i / row.content]).collect()
}

#[test]
fn any_number_of_rows_agrees_with_the_portable_kernel() {
    let all = kernels();
    let portable = all.iter().find(|(name, ..)| name.starts_with("portable")).unwrap().2;
    assert!(latent_kernels::features().tier() < Tier::Avx2 || all.len() > 1, "{} kernels", all.len());
    for (content, rope) in [(64, 32), (64, 7), (48, 8), (96, 0)] {
        let row = CacheRow { ty: CacheType::Fp8, content, rope };
        let mut bytes = vec![0; 128 * row.bytes()];
        for (index, out) in bytes.chunks_exact_mut(row.bytes()).enumerate() {
            store_row(row, &(0..row.width()).map(|n| element(index, n)).collect::<Vec<_>>(), out);
        }
        for count in 1..=70 {
            let expected = attend(portable, row, &bytes, count);
            let largest = expected.iter().fold(0.0f32, |largest, o| largest.max(o.abs()));
            for (name, activation, kernel) in &all {
                let bound = if *activation == ActivationType::F32 { 1e-4 } else { 1e-2 } * largest.max(1e-6);
                let found = attend(*kernel, row, &bytes, count);
                let near = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= bound);
                assert!(near, "{name}, {content}+{rope}, {count} rows: {found:?} {expected:?}");
            }
        }
        // A row with an element that is not finite is NaN, and so are the results of all queries
        // that attend to it.
        let mut wide = vec![1.0; row.width()];
        wide[3] = f32::INFINITY;
        store_row(row, &wide, &mut bytes[2 * row.bytes()..3 * row.bytes()]);
        for (name, _, kernel) in &all {
            assert!(attend(*kernel, row, &bytes, 9).iter().all(|o| o.is_nan()), "{name}, {content}+{rope}");
            assert!(
                attend(*kernel, row, &bytes, 2).iter().all(|o| o.is_finite()),
                "{name}, {content}+{rope}"
            );
        }
    }
}
