//! IQ4_NL: 32 weights in 18 bytes, weight = d · VALUES\[quant\].
//!
//! ```text
//! 0   2                                  18
//! │ d │ byte i: quant i | quant i+16 « 4 │
//! ```

use crate::blocks::{half, nibbles, put_nibbles};
use crate::search::LANES;
use crate::search::levels::{self, QuantLevels};

/// The values of the sixteen quants of IQ4_NL and IQ4_XS, ascending.
pub const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The table of IQ4_NL.
pub(crate) struct Iq4Table;

impl QuantLevels for Iq4Table {
    const ENDS: [f32; 2] = [-127.0, 113.0];

    #[inline(always)]
    fn end(candidate: usize) -> f32 {
        // The extreme weight is mapped to ±15 around either end of the table, in steps of 2.
        let step = (candidate % LANES) as f32 - 7.5;
        if candidate < LANES { -127.0 + 2.0 * step } else { 113.0 + 2.0 * step }
    }

    #[inline(always)]
    fn nearest(v: f32) -> f32 {
        // Fifteen comparisons and selections instead of a search: they vectorize over candidates.
        let mut value = f32::from(VALUES[0]);
        for i in 0..15 {
            let (below, above) = (f32::from(VALUES[i]), f32::from(VALUES[i + 1]));
            value = if v > (below + above) * 0.5 { above } else { value };
        }
        value
    }
}

#[inline(always)]
pub(crate) fn decode(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (out, quant) in out.iter_mut().zip(nibbles(&block[2..])) {
        *out = d * f32::from(VALUES[usize::from(quant)]);
    }
}

/// The quants of 32 values of the table.
#[inline(always)]
pub(crate) fn quants_of(values: &[f32]) -> [u8; 32] {
    // A quant is the number of table values above the first that are not larger. It vectorizes,
    // unlike a search.
    let mut quants = [0; 32];
    for i in 0..32 {
        for bound in &VALUES[1..] {
            quants[i] += u8::from(values[i] >= f32::from(*bound));
        }
    }
    quants
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 32], importance: Option<&[f32]>, out: &mut [u8; 18]) {
    let (d, values) = levels::block::<Iq4Table, 32>(x, importance);
    out[..2].copy_from_slice(&d.to_le_bytes());
    put_nibbles(&mut out[2..], &quants_of(&values));
}
