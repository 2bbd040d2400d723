//! Operations on single numbers of rows, and the exponential that softmax and SiLU share.

use crate::tiers::tiers;

/// e^x, written so that compilers vectorise it: relative error below 2.5e-7 for finite results; e^-∞ = 0; results below
/// f32's normal range are 0.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // x = n ln 2 + r, |r| ≤ ln 2 / 2; e^r by a polynomial of degree 6, scaled by 2^n. Added to SHIFT, a number is rounded to an integer, whose
    // lower bits are those of the sum: a conversion, which saturates, would be done number by number.
    const SHIFT: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.3, 88.7);
    let shifted = clamped * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = (clamped - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let mut p = 1.388_889e-3;
    p = p * r + 8.333_333e-3;
    p = p * r + 4.166_666_6e-2;
    p = p * r + 0.166_666_67;
    p = p * r + 0.5;
    let value = (p * r * r + r) + 1.0;
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

/// x / (1 + e^-x).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

tiers! {
/// up = silu(gate) · up.
pub fn silu_mul(gate: &[f32], up: &mut [f32]) {
    for (up, gate) in up.iter_mut().zip(gate) {
        *up *= silu(*gate);
    }
}
}

tiers! {
/// x = max(x, 0)².
pub fn relu2(x: &mut [f32]) {
    for x in x {
        let positive = x.max(0.0);
        *x = positive * positive;
    }
}
}

tiers! {
/// x = s · x.
pub fn scale(x: &mut [f32], s: f32) {
    x.iter_mut().for_each(|x| *x *= s);
}
}

tiers! {
/// x = x + y.
pub fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}
}

tiers! {
/// y = y + s · x.
pub fn axpy(y: &mut [f32], s: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += s * x;
    }
}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_the_true_one_everywhere() {
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

    #[test]
    fn silu_of_extremes() {
        assert_eq!(silu(-200.0), -0.0);
        assert_eq!(silu(200.0), 200.0);
    }
}
