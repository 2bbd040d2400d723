//! Input rows in the form that a kernel reads.

use super::matrix::WORD;
use crate::MatrixView;
use crate::shape::{ShapeError, times};
use std::ops::Range;

/// The layout in which a kernel reads its input rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum W4Form {
    /// Plain f32 rows.
    F32,
    /// Panels of eight rows of bf16 pairs: elements j and j + 4 of each eight, the order in which a
    /// shift and a mask extract codes from a word.
    Pairs,
    /// bf16 pairs in the same order, row by row, for tiles: panels of 32 rows, or of 16 for at most
    /// 16 rows.
    TileRows,
    /// Panels of 16-bit integers with a scale per 32 elements. A panel has 8 rows, or 1, 2 or 4 if
    /// only that many remain.
    Int16,
    /// Panels of 8-bit integers with a scale per 32 elements, of the same heights.
    Int8,
}

/// Maximum number of rows per panel.
pub(super) const HEIGHT: usize = 8;

pub(super) const TILE_ROWS: usize = 16;

/// Padding of a row of [`W4Form::TileRows`], in words. A tile that begins at any word is inside the
/// row, and rows are not a multiple of 4096 bytes apart, which would map them to one cache set.
const ROW_PADDING: usize = 16;

/// Words from one row of [`W4Form::TileRows`] to the next.
pub(super) fn tile_row(k: usize) -> usize {
    k / 2 + ROW_PADDING
}

/// Inputs that share a scale in the integer forms.
pub(super) const INTEGER_BLOCK: usize = 32;

/// The words that a panel of integers of `P` bytes has per eight inputs of a row. First come the
/// bytes of elements 0, 2, 4, 6: their upper bytes if `P` is 2, then their lower bytes. All bytes
/// are signed; integer = 256 · upper + lower.
pub(super) struct PanelWords<const P: usize>;

impl<const P: usize> PanelWords<P> {
    /// The bytes of elements 1, 3, 5, 7.
    pub const ODD: usize = P;
    /// The sum of the eight integers.
    pub const TOTAL: usize = 2 * P;
    /// The scale of their block, in f32.
    pub const SCALE: usize = 2 * P + 1;
    /// Number of words.
    pub const COUNT: usize = 2 * P + 2;
}

impl W4Form {
    /// Words per row of `k` inputs in a panel.
    fn row_words(self, k: usize) -> usize {
        match self {
            W4Form::F32 => 0,
            W4Form::Pairs => k / 2,
            W4Form::TileRows => tile_row(k),
            W4Form::Int16 => k / WORD * PanelWords::<2>::COUNT,
            W4Form::Int8 => k / WORD * PanelWords::<1>::COUNT,
        }
    }

    /// Rows per panel, padding included, for `rows` rows in total.
    pub fn panel_rows(self, rows: usize) -> usize {
        match self {
            W4Form::F32 => 1,
            W4Form::Pairs => HEIGHT,
            W4Form::TileRows if rows <= TILE_ROWS => TILE_ROWS,
            W4Form::TileRows => 2 * TILE_ROWS,
            W4Form::Int16 | W4Form::Int8 => rows.next_power_of_two().min(HEIGHT),
        }
    }

    /// Words per panel for `rows` rows of `k` inputs; `k` is a multiple of 8.
    pub fn panel_len(self, rows: usize, k: usize) -> Result<usize, ShapeError> {
        times("panels of inputs", self.panel_rows(rows), self.row_words(k))
    }

    /// Writes a panel of `x`; missing rows are zeros.
    ///
    /// # Panics
    /// When the panel has fewer rows than `x`, or not whole rows.
    pub fn pack(self, x: &MatrixView<'_>, panel: &mut [u32]) {
        let per_row = self.row_words(x.cols());
        let height = panel.len() / per_row.max(1);
        assert!(panel.len() == height * per_row && x.cols().is_multiple_of(WORD), "a panel of inputs");
        assert!(per_row == 0 || x.rows() <= height, "{} rows in a panel of {height}", x.rows());
        panel.fill(0);
        for r in 0..x.rows().min(height) {
            match self {
                W4Form::F32 => {}
                W4Form::Pairs => pack_pairs(x.row(r), (panel, height), r),
                W4Form::TileRows => pack_tile_row(x.row(r), &mut panel[r * per_row..]),
                W4Form::Int16 => pack_integers::<2>(x.row(r), (panel, height), r),
                W4Form::Int8 => pack_integers::<1>(x.row(r), (panel, height), r),
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

/// Writes a row of bf16 pairs.
fn pack_tile_row(x: &[f32], row: &mut [u32]) {
    for (eight, out) in x.chunks_exact(WORD).zip(row.chunks_exact_mut(WORD / 2)) {
        for pair in 0..WORD / 2 {
            out[pair] = u32::from(round(eight[pair])) | u32::from(round(eight[pair + WORD / 2])) << 16;
        }
    }
}

/// Largest magnitude of integers of `P` bytes. With two it is 127 · 256 + 127: beyond it, the
/// signed upper byte of 256 · upper + lower would overflow.
const fn max_integer<const P: usize>() -> f32 {
    if P == 1 { 127.0 } else { 32_639.0 }
}

/// Writes row `r` of a panel of integers of `P` bytes. A block with an infinity or NaN gets the
/// scale NaN. A block below about 1e-34, for which the inverse of the scale overflows, becomes
/// zero.
fn pack_integers<const P: usize>(x: &[f32], (panel, height): (&mut [u32], usize), r: usize) {
    let mut eights = panel.chunks_exact_mut(PanelWords::<P>::COUNT * height);
    for block in x.chunks(INTEGER_BLOCK) {
        // Bits of magnitudes sort like integers, and those of NaN are the largest.
        let largest = block.iter().fold(0, |largest, v| largest.max(v.to_bits() & 0x7fff_ffff));
        let largest = f32::from_bits(largest);
        let inverse = max_integer::<P>() / largest;
        let (scale, inverse) = match (largest.is_finite(), inverse.is_finite()) {
            (false, _) => (f32::NAN, 0.0),
            (true, false) => (0.0, 0.0),
            (true, true) => (largest / max_integer::<P>(), inverse),
        };
        for eight in block.chunks_exact(WORD) {
            let Some(out) = eights.next() else { return };
            let mut lanes = [0u32; PanelWords::<2>::COUNT];
            let mut total = 0;
            for (i, v) in eight.iter().enumerate() {
                // Adding 1.5 · 2^23 rounds to the nearest integer, ties to even, and leaves it in
                // the low bits. NaN gives some integer, which the scale NaN hides.
                let value = i32::from((v * inverse + 12_582_912.0).to_bits() as i16);
                let lower = value as i8;
                let (lane, shift) = (i % 2 * PanelWords::<P>::ODD, i / 2 * 8);
                if P == 2 {
                    let upper = (value - i32::from(lower)) >> 8;
                    lanes[lane] |= u32::from(upper as u8) << shift;
                }
                lanes[lane + P - 1] |= u32::from(lower as u8) << shift;
                total += value;
            }
            lanes[PanelWords::<P>::TOTAL] = total as u32;
            lanes[PanelWords::<P>::SCALE] = scale.to_bits();
            for (lane, bits) in lanes.into_iter().take(PanelWords::<P>::COUNT).enumerate() {
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
    // A NaN keeps its upper bits and becomes quiet: rounding could carry it into infinity or a
    // number.
    (if v.is_nan() { (bits >> 16) | 0x40 } else { rounded }) as u16
}

/// Input rows in a kernel's form.
#[derive(Clone, Copy)]
pub struct W4Input<'a> {
    form: W4Form,
    rows: usize,
    k: usize,
    floats: MatrixView<'a>,
    panels: &'a [u32],
}

impl<'a> W4Input<'a> {
    /// f32 rows, for [`W4Form::F32`].
    pub fn from_rows(x: MatrixView<'a>) -> W4Input<'a> {
        W4Input { form: W4Form::F32, rows: x.rows(), k: x.cols(), floats: x, panels: &[] }
    }

    /// Consecutive [packed](W4Form::pack) panels of `rows` rows of `k` inputs.
    ///
    /// # Errors
    /// When `k` is not a multiple of 8, the form has no panels, or their number does not match.
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
        Ok(W4Input { form, rows, k, floats: MatrixView::new(&[], 0, 0, 0), panels })
    }

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
    pub(super) fn float_rows(&self, range: &Range<usize>) -> MatrixView<'a> {
        assert!(self.form == W4Form::F32, "f32 rows in another form");
        self.floats.slice_rows(range.clone())
    }

    /// The panels of the rows `range`, with their height.
    ///
    /// # Panics
    /// When the kernel reads another form, there are fewer rows, or the range begins inside a
    /// panel.
    pub(super) fn panels(&self, form: W4Form, range: &Range<usize>) -> (&'a [u32], usize) {
        assert!(
            self.form == form && range.start <= range.end && range.end <= self.rows,
            "rows in another form"
        );
        let height = form.panel_rows(self.rows);
        assert!(range.start.is_multiple_of(height), "row {} inside a panel", range.start);
        let len = height * form.row_words(self.k);
        (&self.panels[range.start / height * len..range.end.div_ceil(height) * len], height)
    }
}
