//! Weights decoded to f32.
#![allow(unsafe_code, reason = "vector instructions, and addresses that callers keep in bounds")]

use super::matrix::WORD;
use super::nibbles::{LANES, Nibbles};
use super::part::W4ColumnBlock;
use std::ops::Range;

/// Runs `$body` for the eight codes of a word, with `$j` their index as a constant.
macro_rules! codes {
    (|$j:ident| $body:expr) => {
        codes!(@ $j, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $j:ident, $body:expr, $($index:literal)*) => {
        $({
            const $j: u32 = $index;
            $body
        })*
    };
}
pub(super) use codes;

/// Decodes the inputs `k` (from and to multiples of 8) of `cols` (whole vectors, counted from the
/// part's first column) to rows of `stride` f32. A row is an input.
///
/// # Safety
/// The part has the inputs and columns, and there is room for the rows at `out`. The caller is
/// compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
pub(super) unsafe fn decode<L: Nibbles>(
    part: &W4ColumnBlock<'_>,
    k: Range<usize>,
    cols: Range<usize>,
    (out, stride): (*mut f32, usize),
) {
    // SAFETY: words, scales and zero points of the part, and rows of `out`, by this function's
    // contract, as is the ISA.
    unsafe {
        let table = L::table(part.values);
        let minus_one = L::splat_f32(-1.0);
        for run in part.runs(k.clone(), usize::MAX) {
            for col in cols.clone().step_by(LANES) {
                let at = run.group * part.stride + part.first + col;
                let scale = part.scales.load::<L>(at, part.factor);
                let zero = match part.zeros {
                    Some(zeros) => L::load_zeros(zeros.as_ptr().add(at)),
                    None => L::splat_f32(0.0),
                };
                for word in run.start / WORD..run.end.div_ceil(WORD) {
                    let words = part.words.as_ptr().add(word * part.stride + part.first + col);
                    let words = L::load_words(words, table);
                    let out = out.add((word * WORD - k.start) * stride + (col - cols.start));
                    let inside = run.start.saturating_sub(word * WORD)..(run.end - word * WORD).min(WORD);
                    codes!(|J| {
                        if inside.contains(&(J as usize)) {
                            let value = L::mul_add_relaxed(minus_one, zero, L::value::<J>(words, table));
                            L::store_f32(out.add(J as usize * stride), L::mul(value, scale));
                        }
                    });
                }
            }
        }
    }
}
