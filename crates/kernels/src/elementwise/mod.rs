//! Elementwise operations on rows.

use crate::math::exp;
use crate::tiers::tiers;
use latent_types::OpKind;

/// An elementwise operation: overwrites a row, with the row of the other input (empty for operations of one) and a factor, which operations
/// without one ignore.
pub type ElementwiseFn = fn(&mut [f32], &[f32], f32);

/// The elementwise kernel of an operation, and the input, counted from 0, that it overwrites; none for other operations.
pub(crate) fn kernel(op: OpKind) -> Option<(ElementwiseFn, usize)> {
    Some(match op {
        OpKind::SiluMul => (of_rows::silu_mul, 1),
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
    fn silu_of_extremes() {
        assert_eq!(silu(-200.0), -0.0);
        assert_eq!(silu(200.0), 200.0);
    }
}
