//! Peak multiply-add rate in registers: the compute roofline for GEMM speeds.
#![allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]

#[cfg(target_arch = "x86_64")]
use crate::isa::{Avx2, Avx2Vnni, Avx512, Avx512Bf16, Avx512Fp16, isa_fn};
use crate::simd::Simd;
use latent_types::Tier;
use std::time::Instant;

/// Multiply-adds per second of one core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CorePeak {
    /// int8 with int32 accumulators.
    pub int8: f64,
    pub f32: f64,
    /// f16; 0 if the CPU has no f16 arithmetic.
    pub f16: f64,
    /// bf16 with f32 accumulators, on AMX or AVX512-BF16; 0 if no kernel uses bf16 arithmetic.
    pub bf16: f64,
    /// int8 on AMX; 0 without AMX.
    pub amx_int8: f64,
}

impl CorePeak {
    /// All rates 0.
    const NONE: CorePeak = CorePeak { int8: 0.0, f32: 0.0, f16: 0.0, bf16: 0.0, amx_int8: 0.0 };
}

/// Independent accumulators of sixteen lanes: enough to hide an instruction's latency. On AVX2 each
/// takes two of the sixteen registers.
const ACCUMULATORS: usize = 12;
#[cfg(target_arch = "x86_64")]
const ACCUMULATORS_AVX2: usize = 6;

/// Updates of every accumulator in one measurement.
const ROUNDS: usize = 200_000;

/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
unsafe fn measure<L: Simd, const N: usize>() -> CorePeak {
    // SAFETY: the ISA by this function's contract; loads read local arrays of the loaded size.
    unsafe {
        let (quants, input) = (std::hint::black_box([3u8; 64]), std::hint::black_box([2i8; 4]));
        let quants = L::load(quants.as_ptr());
        let mut sums = [L::zero(); N];
        let start = Instant::now();
        for _ in 0..ROUNDS {
            // Opaque to the compiler, which could otherwise fold all rounds into one.
            let input = std::hint::black_box(input.as_ptr());
            for sum in &mut sums {
                *sum = L::dot(*sum, quants, input);
            }
        }
        std::hint::black_box(sums.map(|sum| L::store(L::to_f32(sum))));
        let int8 = (ROUNDS * N * 64) as f64 / start.elapsed().as_secs_f64();

        let factor = L::splat_f32(std::hint::black_box(0.5));
        let mut sums = [L::splat_f32(0.0); N];
        let start = Instant::now();
        for _ in 0..ROUNDS {
            // x → x · 0.5 + 0.25 converges to 0.5, so no operand becomes subnormal, which would be
            // slower.
            let term = L::splat_f32(std::hint::black_box(0.25));
            for sum in &mut sums {
                *sum = L::mul_add_relaxed(*sum, factor, term);
            }
        }
        std::hint::black_box(sums.map(|sum| L::store(sum)));
        let f32 = (ROUNDS * N * 16) as f64 / start.elapsed().as_secs_f64();
        CorePeak { int8, f32, ..CorePeak::NONE }
    }
}

/// [`measure`] compiled for an ISA, whose token the result takes.
#[cfg(target_arch = "x86_64")]
macro_rules! measure_on {
    ($isa:ident, $accumulators:expr) => {
        |_proof: $isa| {
            isa_fn! { $isa;
                fn inner() -> CorePeak {
                    // SAFETY: this function is compiled for the ISA, and its caller holds the ISA's
                    // token.
                    unsafe { measure::<$isa, { $accumulators }>() }
                }
            }
            // SAFETY: the token proves that the CPU has the features that `inner` is compiled for.
            unsafe { inner() }
        }
    };
}

/// Measures the multiply-add rates of a tier on this core: the best of eight short runs, since
/// interrupts and other tenants only slow a run down.
///
/// # Panics
/// When the CPU lacks the tier.
pub fn peak(tier: Tier) -> CorePeak {
    let once = || match tier {
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 => match Avx2Vnni::detect() {
            Some(isa) => measure_on!(Avx2Vnni, ACCUMULATORS_AVX2)(isa),
            None => {
                let isa = <Avx2>::expect();
                CorePeak { int8: avx2_int8(isa), ..measure_on!(Avx2, ACCUMULATORS_AVX2)(isa) }
            }
        },
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 | Tier::Amx => measure_on!(Avx512, ACCUMULATORS)(Avx512::expect()),
        // SAFETY: `PortableSimd` is plain Rust and runs on any CPU.
        _ => unsafe { measure::<crate::simd::portable::PortableSimd, ACCUMULATORS>() },
    };
    let mut best = CorePeak::NONE;
    for _ in 0..8 {
        let found = once();
        let (bf16, amx_int8) = bf16(tier);
        best = CorePeak {
            int8: best.int8.max(found.int8),
            f32: best.f32.max(found.f32),
            f16: best.f16.max(f16(tier)),
            bf16: best.bf16.max(bf16),
            amx_int8: best.amx_int8.max(amx_int8),
        };
    }
    best
}

/// Multiply-adds of int8 without VNNI, on registers only: products of pairs (`vpmaddubsw`) are
/// added in 16 bits, and every fourth sum is widened to 32 bits, as kernels do for quants of up to
/// five bits.
///
/// Written by hand: in a loop like [`measure`]'s the compiler shares products between accumulators,
/// which doubled the reported rate.
#[cfg(target_arch = "x86_64")]
fn avx2_int8(_proof: Avx2) -> f64 {
    const ROWS: usize = 4;
    isa_fn! { Avx2;
        fn inner() -> f64 {
            use std::arch::x86_64::*;
            /// The same register, with a value that the compiler can no longer deduce.
            macro_rules! opaque {
                ($register:expr) => {{
                    let mut register = $register;
                    // SAFETY: no instruction at all.
                    unsafe {
                        std::arch::asm!("/* {0} */", inout(ymm_reg) register, options(nomem, nostack, preserves_flags));
                    }
                    register
                }};
            }
            let ones = opaque!(_mm256_set1_epi16(1));
            let quants = [opaque!(_mm256_set1_epi8(3)), opaque!(_mm256_set1_epi8(5))];
            let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
            let start = Instant::now();
            for _ in 0..ROUNDS {
                for sums in &mut sums {
                    let mut pairs = [_mm256_setzero_si256(); 2];
                    for j in 0..4 {
                        let input = opaque!(ones);
                        for (pairs, quants) in pairs.iter_mut().zip(quants) {
                            let products = _mm256_maddubs_epi16(quants, input);
                            *pairs = if j == 0 { products } else { _mm256_add_epi16(*pairs, products) };
                        }
                    }
                    for (sum, pairs) in sums.iter_mut().zip(pairs) {
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                    }
                }
            }
            std::hint::black_box(sums);
            (ROUNDS * ROWS * 2 * 4 * 32) as f64 / start.elapsed().as_secs_f64()
        }
    }
    // SAFETY: the token proves that the CPU has the features that `inner` is compiled for.
    unsafe { inner() }
}

/// Multiply-adds per second of an instruction that does 32, on registers only: the accumulators
/// that hide its latency, its ISA's token, and sum = dot(sum, factor, term) with every lane set to
/// the same 16 or 32 bits.
#[cfg(target_arch = "x86_64")]
macro_rules! vector_peak {
    ($sums:literal, $isa:ident = $proof:expr, $factor:literal, $term:literal, |$bits:ident| $splat:expr, $zeros:expr, $dot:expr) => {{
        isa_fn! { $isa;
            fn inner() -> f64 {
                use std::arch::x86_64::*;
                macro_rules! splat {
                    ($value:expr) => {{
                        let $bits = std::hint::black_box($value);
                        $splat
                    }};
                }
                let (factor, mut sums) = (splat!($factor), [$zeros; $sums]);
                let start = Instant::now();
                for _ in 0..ROUNDS {
                    let term = splat!($term);
                    for sum in &mut sums {
                        *sum = $dot(*sum, factor, term);
                    }
                }
                std::hint::black_box(sums);
                (ROUNDS * $sums * 32) as f64 / start.elapsed().as_secs_f64()
            }
        }
        let _proof: $isa = $proof;
        // SAFETY: the token proves that the CPU has the features that `inner` is compiled for.
        unsafe { inner() }
    }};
}

/// Multiply-adds of f16; 0 if the tier's kernels do not use f16 arithmetic.
fn f16(tier: Tier) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if tier >= Tier::Avx512
        && let Some(isa) = Avx512Fp16::detect()
    {
        // sum = sum · 0.5 + 0.25, which converges as in `measure`.
        return vector_peak!(
            12,
            Avx512Fp16 = isa,
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

/// Multiply-adds of bf16 pairs.
#[cfg(target_arch = "x86_64")]
fn avx512_bf16(isa: Avx512Bf16) -> f64 {
    // Each lane adds 0.5 · 0.25 twice. The instruction has a longer latency than an FMA, so 24
    // accumulators instead of 12.
    vector_peak!(
        24,
        Avx512Bf16 = isa,
        0x3f00_3f00,
        0x3e80_3e80,
        // SAFETY: both types are 512 bits, of which every pattern is valid.
        |bits| unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(bits)) },
        _mm512_setzero_ps(),
        _mm512_dpbf16_ps
    )
}

/// Multiply-adds of bf16, and of int8 on AMX; 0 if the tier's kernels do not use them.
fn bf16(tier: Tier) -> (f64, f64) {
    #[cfg(target_arch = "x86_64")]
    match Avx512Bf16::detect() {
        _ if tier == Tier::Amx => return (crate::bf16::bf16_peak(), crate::bf16::integer_peak()),
        Some(isa) if tier == Tier::Avx512 && crate::bf16::has_bf16_vectors() => {
            return (avx512_bf16(isa), 0.0);
        }
        _ => {}
    }
    let _ = tier;
    (0.0, 0.0)
}

crate::tiers::tiers! {
/// The sum of the elements, modulo 2^64, read as kernels read weights: whole vectors, with
/// prefetch.
// On the Xeon, a plain loop over small pages reads 14 to 24 GB/s; full vectors with prefetch over
// huge pages reach 28 to 32.
// measured: docs/notes/memory-and-prefetch.md "Measure the limit as carefully as the kernel"
pub fn read_all(numbers: &[u64]) -> u64 {
    let mut sums = [0u64; 64];
    for chunk in numbers.chunks_exact(64) {
        #[cfg(target_arch = "x86_64")]
        for line in 0..8 {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // 256 elements are 2 kB, the prefetch distance of the kernels.
            // SAFETY: a prefetch never faults for any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(chunk.as_ptr().wrapping_add(256 + 8 * line).cast()) };
        }
        for (sum, number) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*number);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}
}
