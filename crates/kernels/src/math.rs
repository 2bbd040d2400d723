//! Exponentials, one per required accuracy (relative error).
//!
//! * [`exp`]: scalar f32, 2.5e-7. Softmax of f32 attention and of the router, SiLU.
//! * [`exp2_f16`]: AVX-512, 3e-7. Softmax whose weights are rounded to f16.
//! * [`exp2_bf16`]: AVX-512, 7e-5. Softmax whose weights are rounded to bf16.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// e^x without branches, so that loops over it vectorize: relative error below 2.5e-7 for finite
/// results. e^-∞ is 0, as are results below f32's normal range.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // x = n ln 2 + r, |r| ≤ ln 2 / 2; e^r by a polynomial of degree 6, scaled by 2^n. Adding SHIFT,
    // which is 1.5 · 2^23, rounds to an integer and leaves it in the low bits. `as i32` saturates,
    // which the compiler does element by element: SiLU took three times as long.
    // measured: docs/notes/gemv-and-gemm.md "Registers and accumulators"
    const SHIFT: f32 = 12_582_912.0;
    // The range whose results are normal numbers: ln 2^-126 = −87.34, ln f32::MAX = 88.72.
    let clamped = x.clamp(-87.3, 88.7);
    let shifted = clamped * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    // ln 2 in two parts (Cody and Waite): the first has few bits, so that its product with n is
    // exact.
    let r = (clamped - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let mut p = 1.388_889e-3;
    p = p * r + 8.333_333e-3;
    p = p * r + 4.166_666_6e-2;
    p = p * r + 0.166_666_67;
    p = p * r + 0.5;
    let value = (p * r * r + r) + 1.0;
    // The low bits of `shifted` hold n: shifted by 23 they are added to the exponent.
    let scaled = f32::from_bits(value.to_bits().wrapping_add(shifted.to_bits() << 23));
    let low = if x < -87.3 { 0.0 } else { scaled };
    if x.is_nan() {
        x
    } else if x > 88.7 {
        f32::INFINITY
    } else {
        low
    }
}

/// 2^x for x ≤ 0 or −∞: relative error below 3e-7.
///
/// # Safety
/// The caller is compiled for AVX-512, and the CPU has it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(unsafe_code, reason = "vector instructions")]
pub(crate) unsafe fn exp2_f16(x: __m512) -> __m512 {
    // SAFETY: registers only, in a caller compiled for AVX-512.
    unsafe {
        // 2^-200 is 0 in f32, and a finite argument avoids −∞ − −∞ = NaN below.
        let x = _mm512_max_ps(x, _mm512_set1_ps(-200.0));
        let n = _mm512_roundscale_ps::<0>(x);
        let r = _mm512_sub_ps(x, n);
        // 2^r for |r| ≤ 1/2: the Taylor series of e^(r ln 2) to degree 6.
        let mut p = _mm512_set1_ps(1.54e-4);
        for term in [1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 0.240_226_5, std::f32::consts::LN_2, 1.0] {
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(term));
        }
        _mm512_scalef_ps(p, n)
    }
}

/// 2^x for finite x ≤ 0: relative error below 7e-5, where rounding to bf16 costs 2e-3.
///
/// # Safety
/// The caller is compiled for AVX-512, and the CPU has it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(unsafe_code, reason = "vector instructions")]
pub(crate) unsafe fn exp2_bf16(x: __m512) -> __m512 {
    // SAFETY: registers only, in a caller compiled for AVX-512.
    unsafe {
        let n = _mm512_roundscale_ps::<0>(x);
        let r = _mm512_sub_ps(x, n);
        // 2^r for |r| ≤ 1/2: the Taylor series of e^(r ln 2) to degree 4, since bf16 has eight
        // significant bits.
        let mut p = _mm512_set1_ps(9.618_129e-3);
        for term in [5.550_411e-2, 0.240_226_5, std::f32::consts::LN_2, 1.0] {
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(term));
        }
        _mm512_scalef_ps(p, n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_its_error_bound() {
        let mut worst = 0.0f64;
        for i in -870_000..=880_000 {
            let x = i as f32 * 1e-4;
            let truth = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - truth).abs() / truth);
        }
        assert!(worst < 2.5e-7, "{worst}");
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }
}
