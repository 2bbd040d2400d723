//! Elementwise operations on rows.

use crate::math::exp;
use crate::tiers::tiers;
use latent_types::OpKind;

/// An elementwise operation: overwrites a row, given the row of the second input (empty for unary
/// operations) and a factor, which most operations ignore.
pub type ElementwiseFn = fn(&mut [f32], &[f32], f32);

/// The kernel of an elementwise operation, and the index of the input that it overwrites; `None`
/// for other operations.
pub(crate) fn kernel(op: OpKind) -> Option<(ElementwiseFn, usize)> {
    Some(match op {
        // The inputs are `gate` and `up`, of which `silu_mul` overwrites `up`.
        OpKind::SiluMul => (of_rows::silu_mul, 1),
        OpKind::SigmoidMul => (of_rows::sigmoid_mul, 0),
        OpKind::Silu => (of_rows::silu, 0),
        OpKind::Relu2 => (of_rows::relu2, 0),
        OpKind::Add => (of_rows::add, 0),
        OpKind::Scale => (of_rows::scale, 0),
        _ => return None,
    })
}

/// The operations in the form of [`ElementwiseFn`].
mod of_rows {
    pub(super) fn silu_mul(up: &mut [f32], gate: &[f32], _: f32) {
        super::silu_mul(gate, up);
    }

    pub(super) fn sigmoid_mul(x: &mut [f32], gate: &[f32], _: f32) {
        super::sigmoid_mul(gate, x);
    }

    pub(super) fn silu(x: &mut [f32], _: &[f32], _: f32) {
        super::silu_row(x);
    }

    pub(super) fn relu2(x: &mut [f32], _: &[f32], _: f32) {
        super::relu2(x);
    }

    pub(super) fn add(base: &mut [f32], term: &[f32], factor: f32) {
        super::axpy(base, factor, term);
    }

    pub(super) fn scale(x: &mut [f32], _: &[f32], factor: f32) {
        super::scale(x, factor);
    }
}

/// SiLU: x / (1 + e^-x).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    // For large negative x the exponential is ∞, and the quotient −0.
    x / (1.0 + exp(-x))
}

tiers! {
pub fn silu_mul(gate: &[f32], up: &mut [f32]) {
    for (up, gate) in up.iter_mut().zip(gate) {
        *up *= silu(*gate);
    }
}
}

tiers! {
/// x = SiLU(x).
pub fn silu_row(x: &mut [f32]) {
    for x in x {
        *x = silu(*x);
    }
}
}

/// Sigmoid: 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

tiers! {
/// x = sigmoid(gate) · x. Each gate scales the same number of consecutive elements of x: one
/// element, or the elements of a head.
///
/// # Panics
/// When the length of `x` is not a multiple of the number of gates.
pub fn sigmoid_mul(gate: &[f32], x: &mut [f32]) {
    assert!(!gate.is_empty() && x.len().is_multiple_of(gate.len()), "{} gates for {}", gate.len(), x.len());
    let width = x.len() / gate.len();
    // This loop vectorizes over gates; the loop below vectorizes over the elements of a head.
    if width == 1 {
        for (x, gate) in x.iter_mut().zip(gate) {
            *x *= sigmoid(*gate);
        }
        return;
    }
    for (x, gate) in x.chunks_exact_mut(width.max(1)).zip(gate) {
        let factor = sigmoid(*gate);
        for x in x {
            *x *= factor;
        }
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
pub fn scale(x: &mut [f32], s: f32) {
    x.iter_mut().for_each(|x| *x *= s);
}
}

tiers! {
pub fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}
}

tiers! {
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
    fn a_gate_scales_one_element_or_a_whole_head() {
        let mut x = [1.0, -2.0, 3.0, 4.0];
        sigmoid_mul(&[200.0, -200.0], &mut x);
        assert_eq!(x, [1.0, -2.0, 0.0, 0.0]);
        sigmoid_mul(&[0.0, 200.0, 0.0, f32::NEG_INFINITY], &mut x);
        assert_eq!(x, [0.5, -2.0, 0.0, 0.0]);
        sigmoid_mul(&[f32::NAN], &mut x);
        assert!(x.iter().all(|x| x.is_nan()));
    }

    #[test]
    fn silu_of_extremes() {
        assert_eq!(silu(-200.0), -0.0);
        assert_eq!(silu(200.0), 200.0);
    }
}
