//! How fast multiply-adds can go in registers: the limit that products are held against.
#![allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]

use crate::simd::Simd;
use latent_types::Tier;
use std::time::Instant;

/// Multiply-adds a second of one core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// 8-bit integers, summed in 32 bits.
    pub int8: f64,
    /// f32.
    pub f32: f64,
    /// f16; 0 where the processor does not multiply them.
    pub f16: f64,
    /// bf16, by tiles or in vectors; 0 where no kernel multiplies them.
    pub bf16: f64,
    /// 8-bit integers, by tiles; 0 where the processor has none.
    pub amx_int8: f64,
}

impl Peak {
    /// Nothing a second.
    const NONE: Peak = Peak { int8: 0.0, f32: 0.0, f16: 0.0, bf16: 0.0, amx_int8: 0.0 };
}

/// Independent sums of sixteen lanes, enough to hide the latency of an instruction. AVX2 has two registers for one, sixteen in all.
const SUMS: usize = 12;
#[cfg(target_arch = "x86_64")]
const SUMS_AVX2: usize = 6;

/// Multiply-adds of one round: sixteen lanes, four integers in each.
const ROUNDS: usize = 200_000;

/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn measure<L: Simd, const SUMS: usize>() -> Peak {
    // SAFETY: the caller's promise; all addresses are of local arrays.
    unsafe {
        let (codes, input) = (std::hint::black_box([3u8; 64]), std::hint::black_box([2i8; 4]));
        let codes = L::load(codes.as_ptr());
        let mut sums = [L::zero(); SUMS];
        let start = Instant::now();
        for _ in 0..ROUNDS {
            // read anew, lest the compiler foresee all rounds
            let input = std::hint::black_box(input.as_ptr());
            for sum in &mut sums {
                *sum = L::dot(*sum, codes, input);
            }
        }
        std::hint::black_box(sums.map(|sum| L::store(L::to_f32(sum))));
        let int8 = (ROUNDS * SUMS * 64) as f64 / start.elapsed().as_secs_f64();

        let factor = L::splat_f32(std::hint::black_box(0.5));
        let mut sums = [L::splat_f32(0.0); SUMS];
        let start = Instant::now();
        for _ in 0..ROUNDS {
            let term = L::splat_f32(std::hint::black_box(0.25));
            for sum in &mut sums {
                *sum = L::mul_add_relaxed(*sum, factor, term);
            }
        }
        std::hint::black_box(sums.map(|sum| L::store(sum)));
        let f32 = (ROUNDS * SUMS * 16) as f64 / start.elapsed().as_secs_f64();
        Peak { int8, f32, ..Peak::NONE }
    }
}

/// Measures the multiply-adds of a tier on this core: the best of a few short runs.
///
/// # Panics
/// When the processor does not have the tier.
pub fn peak(tier: Tier) -> Peak {
    #[cfg(target_arch = "x86_64")]
    fn avx2() -> Peak {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner() -> Peak {
            // SAFETY: compiled for AVX2.
            unsafe { measure::<crate::simd::avx2::Avx2<false>, SUMS_AVX2>() }
        }
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        fn vnni() -> Peak {
            // SAFETY: compiled for AVX2 and AVX-VNNI.
            unsafe { measure::<crate::simd::avx2::Avx2<true>, SUMS_AVX2>() }
        }
        assert!(crate::features().avx2, "a machine without AVX2");
        if crate::features().avx_vnni {
            // SAFETY: as just checked.
            unsafe { vnni() }
        } else {
            // SAFETY: as just checked.
            unsafe { inner() }
        }
    }
    #[cfg(target_arch = "x86_64")]
    fn avx512() -> Peak {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,avx2,fma,f16c")]
        fn inner() -> Peak {
            // SAFETY: compiled for AVX-512.
            unsafe { measure::<crate::simd::avx512::Avx512, SUMS>() }
        }
        assert!(crate::features().avx512, "a machine without AVX-512");
        // SAFETY: as just checked.
        unsafe { inner() }
    }
    let once = || match tier {
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 => avx2(),
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 | Tier::Amx => avx512(),
        // SAFETY: plain Rust.
        _ => unsafe { measure::<crate::simd::portable::Portable, SUMS>() },
    };
    let mut best = Peak::NONE;
    for _ in 0..8 {
        let found = once();
        let (bf16, amx_int8) = bf16(tier);
        best = Peak {
            int8: best.int8.max(found.int8),
            f32: best.f32.max(found.f32),
            f16: best.f16.max(f16(tier)),
            bf16: best.bf16.max(bf16),
            amx_int8: best.amx_int8.max(amx_int8),
        };
    }
    best
}

/// Multiply-adds a second of an instruction that does 32, from registers: how many sums hide its latency, what it needs, and sum = dot(sum, factor,
/// term) of one and the same 16 or 32 bits in all lanes.
#[cfg(target_arch = "x86_64")]
macro_rules! vector_peak {
    ($sums:literal, $features:literal, $factor:literal, $term:literal, |$bits:ident| $numbers:expr, $zeros:expr, $dot:expr) => {{
        #[target_feature(enable = $features)]
        fn inner() -> f64 {
            use std::arch::x86_64::*;
            macro_rules! numbers {
                ($value:expr) => {{
                    let $bits = std::hint::black_box($value);
                    $numbers
                }};
            }
            let (factor, mut sums) = (numbers!($factor), [$zeros; $sums]);
            let start = Instant::now();
            for _ in 0..ROUNDS {
                let term = numbers!($term);
                for sum in &mut sums {
                    *sum = $dot(*sum, factor, term);
                }
            }
            std::hint::black_box(sums);
            (ROUNDS * $sums * 32) as f64 / start.elapsed().as_secs_f64()
        }
        // SAFETY: the processor has the features, as the caller has checked.
        unsafe { inner() }
    }};
}

/// Multiply-adds of f16, where a tier's kernels have them.
fn f16(tier: Tier) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if tier >= Tier::Avx512 && crate::features().avx512 && crate::features().avx512_fp16 {
        // sum = sum · 0.5 + 0.25
        return vector_peak!(
            12,
            "avx512f,avx512bw,avx512vl,avx512fp16",
            0x3800,
            0x3400,
            |bits| _mm512_castsi512_ph(_mm512_set1_epi16(bits)),
            _mm512_castsi512_ph(_mm512_setzero_si512()),
            _mm512_fmadd_ph
        );
    }
    let _ = tier;
    0.0
}

/// Multiply-adds of bf16 in pairs.
#[cfg(target_arch = "x86_64")]
fn avx512_bf16() -> f64 {
    // sum + 0.5 · 0.25 twice
    vector_peak!(
        24,
        "avx512f,avx512bf16",
        0x3f00_3f00,
        0x3e80_3e80,
        // SAFETY: any bits are numbers; the types are of one size.
        |bits| unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(bits)) },
        _mm512_setzero_ps(),
        _mm512_dpbf16_ps
    )
}

/// Multiply-adds of bf16, and of 8-bit integers by tiles, where a tier's kernels have them.
fn bf16(tier: Tier) -> (f64, f64) {
    #[cfg(target_arch = "x86_64")]
    if tier == Tier::Amx {
        return (crate::bf16::bf16_peak(), crate::bf16::integer_peak());
    } else if tier == Tier::Avx512 && crate::bf16::has_bf16_vectors() {
        return (avx512_bf16(), 0.0);
    }
    let _ = tier;
    (0.0, 0.0)
}

crate::tiers::tiers! {
/// The sum of numbers, modulo 2^64, read as kernels read weights: whole vectors, and lines ahead asked for.
pub fn read_all(numbers: &[u64]) -> u64 {
    let mut strands = [0u64; 64];
    for chunk in numbers.chunks_exact(64) {
        #[cfg(target_arch = "x86_64")]
        for line in 0..8 {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: asking for any address is allowed.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(chunk.as_ptr().wrapping_add(256 + 8 * line).cast()) };
        }
        for (strand, number) in strands.iter_mut().zip(chunk) {
            *strand = strand.wrapping_add(*number);
        }
    }
    strands.iter().fold(0, |a, b| a.wrapping_add(*b))
}
}
