//! Matrices of f32 rows: borrowed views with a stride.
#![allow(unsafe_code, reason = "threads of one step write disjoint parts of one arena through raw pointers")]

use std::marker::PhantomData;
use std::ops::Range;

/// Rows to be read.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> Rows<'a> {
    /// `rows` rows of `cols` numbers, `stride` numbers apart.
    ///
    /// # Panics
    /// When `data` is too short.
    pub fn new(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Rows<'a> {
        assert!(
            rows == 0 || (rows - 1) * stride + cols <= data.len(),
            "{rows} rows of {cols} exceed {}",
            data.len()
        );
        Rows { data, rows, cols, stride }
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// One row.
    #[inline]
    pub fn row(&self, i: usize) -> &'a [f32] {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        &self.data[i * self.stride..][..self.cols]
    }

    /// All rows as they lie in memory, and their distance.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn raw(&self) -> (*const f32, usize) {
        (self.data.as_ptr(), self.stride)
    }

    /// Some of the rows.
    pub fn slice_rows(&self, range: Range<usize>) -> Rows<'a> {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let data = if range.is_empty() { &[] } else { &self.data[range.start * self.stride..] };
        Rows { data, rows: range.len(), ..*self }
    }
}

/// Rows to be written.
pub struct RowsMut<'a> {
    start: *mut f32,
    rows: usize,
    cols: usize,
    stride: usize,
    _borrow: PhantomData<&'a mut [f32]>,
}

impl<'a> RowsMut<'a> {
    /// `rows` rows of `cols` numbers, `stride` numbers apart.
    ///
    /// # Panics
    /// When `data` is too short, or rows would overlap.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize, stride: usize) -> RowsMut<'a> {
        assert!(
            rows == 0 || (rows - 1) * stride + cols <= data.len(),
            "{rows} rows of {cols} exceed {}",
            data.len()
        );
        assert!(rows <= 1 || stride >= cols, "rows of {cols} overlap at stride {stride}");
        RowsMut { start: data.as_mut_ptr(), rows, cols, stride, _borrow: PhantomData }
    }

    /// The same from an address.
    ///
    /// # Safety
    /// All rows lie in memory that is valid for `'a`, and nobody else touches their `cols` numbers meanwhile.
    pub unsafe fn from_raw(start: *mut f32, rows: usize, cols: usize, stride: usize) -> RowsMut<'a> {
        RowsMut { start, rows, cols, stride, _borrow: PhantomData }
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// One row.
    #[inline]
    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        // SAFETY: in range by the assertion; exclusive by the promise of the constructors.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(i * self.stride), self.cols) }
    }

    /// Some of the rows, borrowed anew.
    pub(crate) fn slice_rows(&mut self, range: Range<usize>) -> RowsMut<'_> {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        // SAFETY: a part of what this view holds exclusively.
        let start = unsafe { self.start.add(range.start * self.stride) };
        RowsMut { start, rows: range.len(), cols: self.cols, stride: self.stride, _borrow: PhantomData }
    }

    /// All rows as they lie in memory, and their distance. Only for rows without gaps between them that others may write.
    pub(crate) fn raw_mut(&mut self) -> (*mut f32, usize) {
        (self.start, self.stride)
    }

    /// Writes one number.
    #[inline]
    pub fn set(&mut self, row: usize, col: usize, value: f32) {
        self.row_mut(row)[col] = value;
    }

    /// The columns in `range`, borrowed anew.
    pub fn columns(&mut self, range: Range<usize>) -> RowsMut<'_> {
        assert!(range.start <= range.end && range.end <= self.cols, "columns {range:?} of {}", self.cols);
        // SAFETY: a part of what this view holds exclusively.
        let start = unsafe { self.start.add(range.start) };
        RowsMut { start, rows: self.rows, cols: range.len(), stride: self.stride, _borrow: PhantomData }
    }
}
