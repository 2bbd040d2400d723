//! Input rows in the form that a kernel reads.

use super::matrix::WORD;
use crate::Rows;
use crate::shape::{ShapeError, times};
use std::ops::Range;

/// The form in which a kernel reads its input rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum W4Form {
    /// f32 rows as they are.
    F32,
    /// Panels of eight rows of bf16 pairs: elements j and j + 4 of each eight, the order in which codes come out of a word.
    Pairs,
    /// Panels of 16-bit integers with a scale per 32 elements; of eight rows, or 1, 2 or 4 where there are no more.
    Int16,
}

/// Most rows per panel.
pub(super) const HEIGHT: usize = 8;

/// Inputs that share a scale as 16-bit integers.
pub(super) const INT16_BLOCK: usize = 32;

/// What an [`W4Form::Int16`] panel holds of eight inputs of a row.
#[derive(Clone, Copy)]
pub(super) enum Int16Lane {
    /// Upper bytes of elements 0, 2, 4, 6.
    EvenUpper,
    /// Lower bytes, signed: element = 256 · upper + lower.
    EvenLower,
    /// Of elements 1, 3, 5, 7.
    OddUpper,
    OddLower,
    /// The sum of the eight.
    Total,
    /// The scale of their block, in f32.
    Scale,
}

/// How many there are.
pub(super) const INT16_LANES: usize = 6;

impl W4Form {
    /// Words of a panel that eight inputs of a row take.
    fn lanes(self) -> usize {
        match self {
            W4Form::F32 => 0,
            W4Form::Pairs => WORD / 2,
            W4Form::Int16 => INT16_LANES,
        }
    }

    /// Rows that each panel of some of `rows` rows has, the last one padded.
    pub fn panel_rows(self, rows: usize) -> usize {
        match self {
            W4Form::F32 => 1,
            W4Form::Pairs => HEIGHT,
            W4Form::Int16 => rows.next_power_of_two().min(HEIGHT),
        }
    }

    /// Words of a panel of some of `rows` rows of `k` inputs; `k` is a multiple of 8.
    ///
    /// # Errors
    /// When the size overflows.
    pub fn panel_len(self, rows: usize, k: usize) -> Result<usize, ShapeError> {
        times("panels of inputs", self.panel_rows(rows) * self.lanes(), k / WORD)
    }

    /// Writes a panel of `x`; rows that are missing are zeros.
    ///
    /// # Panics
    /// When the panel is not one of at least as many rows.
    pub fn pack(self, x: &Rows<'_>, panel: &mut [u32]) {
        let per_row = x.cols() / WORD * self.lanes();
        let height = panel.len() / per_row.max(1);
        assert!(panel.len() == height * per_row && x.cols().is_multiple_of(WORD), "a panel of inputs");
        assert!(per_row == 0 || x.rows() <= height, "{} rows in a panel of {height}", x.rows());
        panel.fill(0);
        for r in 0..x.rows().min(height) {
            match self {
                W4Form::F32 => {}
                W4Form::Pairs => pack_pairs(x.row(r), (panel, height), r),
                W4Form::Int16 => pack_int16(x.row(r), (panel, height), r),
            }
        }
    }
}

/// Writes row `r` of a panel of bf16 pairs.
fn pack_pairs(x: &[f32], (panel, height): (&mut [u32], usize), r: usize) {
    for (eight, out) in x.chunks_exact(WORD).zip(panel.chunks_exact_mut(WORD / 2 * height)) {
        for pair in 0..WORD / 2 {
            let (first, second) = (round(eight[pair]), round(eight[pair + WORD / 2]));
            out[pair * height + r] = u32::from(first) | u32::from(second) << 16;
        }
    }
}

/// Largest magnitude: the upper byte of 256 · upper + lower stays in range.
const INT16_MOST: f32 = 32_639.0;

/// Writes row `r` of a panel of 16-bit integers. A block with an infinity or NaN has the scale NaN; one below 1e-34, where the inverse of the scale overflows,
/// is zero.
fn pack_int16(x: &[f32], (panel, height): (&mut [u32], usize), r: usize) {
    let mut eights = panel.chunks_exact_mut(INT16_LANES * height);
    for block in x.chunks(INT16_BLOCK) {
        // magnitudes sort like their bits, NaN above infinity
        let largest = block.iter().fold(0, |largest, v| largest.max(v.to_bits() & 0x7fff_ffff));
        let largest = f32::from_bits(largest);
        let inverse = INT16_MOST / largest;
        let (scale, inverse) = match (largest.is_finite(), inverse.is_finite()) {
            (false, _) => (f32::NAN, 0.0),
            (true, false) => (0.0, 0.0),
            (true, true) => (largest / INT16_MOST, inverse),
        };
        for eight in block.chunks_exact(WORD) {
            let Some(out) = eights.next() else { return };
            let mut lanes = [0u32; INT16_LANES];
            let mut total = 0;
            for (i, v) in eight.iter().enumerate() {
                // adding 1.5 · 2^23 rounds to the nearest integer, even, and leaves it in the low bits; of NaN, nothing is used
                let value = i32::from((v * inverse + 12_582_912.0).to_bits() as i16);
                let lower = value as i8;
                let upper = (value - i32::from(lower)) >> 8;
                let (lane, shift) = (i % 2 * 2, i / 2 * 8);
                lanes[lane] |= u32::from(upper as u8) << shift;
                lanes[lane + 1] |= u32::from(lower as u8) << shift;
                total += value;
            }
            lanes[Int16Lane::Total as usize] = total as u32;
            lanes[Int16Lane::Scale as usize] = scale.to_bits();
            for (lane, bits) in lanes.into_iter().enumerate() {
                out[lane * height + r] = bits;
            }
        }
    }
}

/// The nearest bf16, ties to even.
#[inline(always)]
fn round(v: f32) -> u16 {
    let bits = v.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // a NaN keeps its upper bits and becomes quiet
    (if v.is_nan() { (bits >> 16) | 0x40 } else { rounded }) as u16
}

/// Input rows in a kernel's form.
#[derive(Clone, Copy)]
pub struct W4Input<'a> {
    form: W4Form,
    rows: usize,
    k: usize,
    floats: Rows<'a>,
    panels: &'a [u32],
}

impl<'a> W4Input<'a> {
    /// f32 rows, for [`W4Form::F32`].
    pub fn from_rows(x: Rows<'a>) -> W4Input<'a> {
        W4Input { form: W4Form::F32, rows: x.rows(), k: x.cols(), floats: x, panels: &[] }
    }

    /// [Packed](W4Form::pack) panels of `rows` rows of `k` inputs, one after the other.
    ///
    /// # Errors
    /// When `k` is not a multiple of 8, the form has no panels, or there are not as many.
    pub fn from_panels(
        form: W4Form,
        panels: &'a [u32],
        rows: usize,
        k: usize,
    ) -> Result<W4Input<'a>, ShapeError> {
        if !k.is_multiple_of(WORD) || form == W4Form::F32 {
            return Err(ShapeError::Range { what: "K", value: k, expected: "a multiple of 8, in panels" });
        }
        let count = rows.div_ceil(form.panel_rows(rows));
        let needed = times("panels of inputs", count, form.panel_len(rows, k)?)?;
        if panels.len() != needed {
            return Err(ShapeError::Length { what: "panels of inputs", needed, found: panels.len() });
        }
        Ok(W4Input { form, rows, k, floats: Rows::new(&[], 0, 0, 0), panels })
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs per row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The rows `range`.
    ///
    /// # Panics
    /// When the kernel reads another form, or there are fewer rows.
    pub(super) fn float_rows(&self, range: &Range<usize>) -> Rows<'a> {
        assert!(self.form == W4Form::F32, "f32 rows in another form");
        self.floats.slice_rows(range.clone())
    }

    /// The panels of the rows `range`, with their height.
    ///
    /// # Panics
    /// When the kernel reads another form, there are fewer rows, or the range begins inside a panel.
    pub(super) fn panels(&self, form: W4Form, range: &Range<usize>) -> (&'a [u32], usize) {
        assert!(
            self.form == form && range.start <= range.end && range.end <= self.rows,
            "rows in another form"
        );
        let height = form.panel_rows(self.rows);
        assert!(range.start.is_multiple_of(height), "row {} inside a panel", range.start);
        let len = height * form.lanes() * (self.k / WORD);
        (&self.panels[range.start / height * len..range.end.div_ceil(height) * len], height)
    }
}
