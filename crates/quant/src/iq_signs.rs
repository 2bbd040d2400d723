//! Signs of the IQ2 and IQ3 formats.

/// Eight sign bits from a seven-bit index; the eighth bit makes the parity even. Formats save a bit
/// per eight weights this way, and encoders flip the sign of the least important weight if the
/// parity is odd.
#[inline(always)]
pub fn even_signs(index: u8) -> u8 {
    let index = index & 127;
    index | ((index.count_ones() as u8 & 1) << 7)
}

/// Writes `scale` · grid row, with element i negated where bit i of `signs` is set.
#[inline(always)]
pub(crate) fn signed_row<const W: usize>(out: &mut [f32], scale: f32, row: &[i8; W], signs: u8) {
    for (i, (out, value)) in out.iter_mut().zip(row).enumerate() {
        let size = scale * f32::from(*value);
        *out = if (signs >> i) & 1 == 1 { -size } else { size };
    }
}
