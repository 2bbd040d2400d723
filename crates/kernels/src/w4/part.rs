//! Columns of a matrix in whole vectors, as kernels read them. The columns of a last, partial
//! vector are copied and padded with zeros.
#![allow(unsafe_code, reason = "prefetches, which are generic over instruction sets")]

use super::matrix::{W4Codes, W4Matrix, WORD};
use super::nibbles::{LANES, Nibbles};
use super::scales::W4Scales;
use std::ops::Range;

/// Whole vectors of columns, for some words of K.
#[derive(Clone, Copy)]
pub(super) struct W4ColumnBlock<'a> {
    pub words: &'a [u32],
    pub scales: W4Scales<'a>,
    pub zeros: Option<&'a [u8]>,
    /// Columns of a row of words, scales and zero points.
    pub stride: usize,
    pub first: usize,
    /// Columns: a multiple of sixteen.
    pub cols: usize,
    /// Inputs that share a scale.
    pub group: usize,
    /// An integer per code.
    pub values: &'static [i8; 16],
    /// `values` plus `bias`: unsigned, as the integer dot product takes them.
    pub bytes: [u8; 16],
    pub bias: u8,
    /// Factor on the integers in addition to the scale.
    pub factor: f32,
}

/// Inputs that share a scale, within a range of K.
#[derive(Clone, Copy)]
pub(super) struct GroupRange {
    pub group: usize,
    pub start: usize,
    pub end: usize,
}

/// See [`W4ColumnBlock::runs`].
pub(super) struct GroupRanges {
    group: usize,
    at: usize,
    end: usize,
    step: usize,
}

impl Iterator for GroupRanges {
    type Item = GroupRange;

    #[inline(always)]
    fn next(&mut self) -> Option<GroupRange> {
        if self.at >= self.end {
            return None;
        }
        // Divided at absolute multiples of `step`, where blocks of integer inputs with a scale
        // begin, so that no run crosses one.
        let index = self.at / self.group;
        let end =
            ((index + 1) * self.group).min(self.end).min((self.at / self.step + 1).saturating_mul(self.step));
        let run = GroupRange { group: index, start: self.at, end };
        self.at = end;
        Some(run)
    }
}

impl W4ColumnBlock<'_> {
    /// Prefetches the scales and zero points from index `at`, which may be beyond the last.
    ///
    /// # Safety
    /// The caller is compiled for the ISA of `L`, and the CPU has it.
    #[inline(always)]
    pub(super) unsafe fn prefetch_group<L: Nibbles>(&self, at: usize) {
        let scales = match self.scales {
            W4Scales::F16(bits) => bits.as_ptr().wrapping_add(at).cast::<u8>(),
            W4Scales::E8m0(codes) | W4Scales::E4m3 { codes, .. } => codes.as_ptr().wrapping_add(at),
        };
        // SAFETY: a prefetch never faults; the ISA by this function's contract.
        unsafe {
            L::prefetch(scales.cast());
            if let Some(zeros) = self.zeros {
                L::prefetch(zeros.as_ptr().wrapping_add(at).cast());
            }
        }
    }

    /// The ranges of inputs with one scale inside of `k`, also divided at multiples of `step`
    /// inputs (a multiple of 8).
    #[inline(always)]
    pub(super) fn runs(&self, k: Range<usize>, step: usize) -> GroupRanges {
        GroupRanges { group: self.group, at: k.start, end: k.end, step }
    }
}

/// Memory of padded columns.
#[derive(Default)]
pub(super) struct PaddedColumns {
    words: Vec<u32>,
    halves: Vec<u16>,
    bytes: Vec<u8>,
    zeros: Vec<u8>,
}

/// Copies some columns of rows of `stride` elements, padded to a vector.
fn pad<T: Copy + Default>(from: &[T], stride: usize, cols: &Range<usize>, to: &mut Vec<T>) {
    to.clear();
    // `chunks_exact` panics on 0, and a matrix may have no columns.
    for row in from.chunks_exact(stride.max(1)) {
        to.extend_from_slice(&row[cols.clone()]);
        to.resize(to.len().next_multiple_of(LANES), T::default());
    }
}

/// The whole vectors of `columns`, if any.
pub(super) fn whole_vectors<'a>(w: &W4Matrix<'a>, columns: &Range<usize>) -> W4ColumnBlock<'a> {
    let (values, factor) = w.codes().values();
    // The bias that makes the lowest value 0.
    let bias = values.iter().map(|value| value.unsigned_abs() * u8::from(*value < 0)).max().unwrap_or(0);
    let shape = w.shape();
    W4ColumnBlock {
        words: w.words(),
        scales: w.scales(),
        zeros: if let W4Codes::Int4 { zeros } = w.codes() { Some(zeros) } else { None },
        stride: shape.n,
        first: columns.start,
        cols: columns.len() / LANES * LANES,
        group: shape.group,
        values,
        bytes: values.map(|value| value.wrapping_add_unsigned(bias) as u8),
        bias,
        factor,
    }
}

/// The columns of `columns` after its whole vectors, copied and padded, for all inputs.
pub(super) fn last_columns<'p>(
    w: &W4Matrix<'_>,
    columns: &Range<usize>,
    memory: &'p mut PaddedColumns,
) -> W4ColumnBlock<'p> {
    let shape = w.shape();
    let cols = columns.start + columns.len() / LANES * LANES..columns.end;
    debug_assert!(shape.k.is_multiple_of(WORD) && cols.len() < LANES);
    pad(w.words(), shape.n, &cols, &mut memory.words);
    let scales = match w.scales() {
        W4Scales::F16(bits) => {
            pad(bits, shape.n, &cols, &mut memory.halves);
            W4Scales::F16(&memory.halves)
        }
        W4Scales::E8m0(codes) => {
            pad(codes, shape.n, &cols, &mut memory.bytes);
            W4Scales::E8m0(&memory.bytes)
        }
        W4Scales::E4m3 { codes, tensor } => {
            pad(codes, shape.n, &cols, &mut memory.bytes);
            W4Scales::E4m3 { codes: &memory.bytes, tensor }
        }
    };
    let zeros = if let W4Codes::Int4 { zeros } = w.codes() {
        pad(zeros, shape.n, &cols, &mut memory.zeros);
        Some(&memory.zeros[..])
    } else {
        None
    };
    W4ColumnBlock {
        words: &memory.words,
        scales,
        zeros,
        stride: LANES,
        first: 0,
        cols: LANES,
        ..whole_vectors(w, &(0..0))
    }
}
