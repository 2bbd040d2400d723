//! Borrowed f32 matrices with a row stride.
#![allow(unsafe_code, reason = "threads of one step write disjoint parts of one arena through raw pointers")]

use crate::shape::{ShapeError, fits};
use std::marker::PhantomData;
use std::ops::Range;

/// A matrix to read.
#[derive(Clone, Copy, Debug)]
pub struct MatrixView<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> MatrixView<'a> {
    /// `rows` rows of `cols` elements, `stride` elements apart.
    ///
    /// # Panics
    /// Where [`try_new`](Self::try_new) reports an error.
    #[track_caller]
    pub fn new(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> MatrixView<'a> {
        match MatrixView::try_new(data, rows, cols, stride) {
            Ok(rows) => rows,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`new`](Self::new), but returns an error instead of panicking.
    pub fn try_new(
        data: &'a [f32],
        rows: usize,
        cols: usize,
        stride: usize,
    ) -> Result<MatrixView<'a>, ShapeError> {
        fits("a matrix of rows", (rows, cols, stride), data.len())?;
        Ok(MatrixView { data, rows, cols, stride })
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    #[inline]
    pub fn row(&self, i: usize) -> &'a [f32] {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        &self.data[i * self.stride..][..self.cols]
    }

    /// The elements from the first row on, and the stride.
    #[cfg(feature = "w4")]
    pub(crate) fn parts(&self) -> (&'a [f32], usize) {
        (self.data, self.stride)
    }

    /// Address of the first row, and the stride.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn raw(&self) -> (*const f32, usize) {
        (self.data.as_ptr(), self.stride)
    }

    pub fn slice_rows(&self, range: Range<usize>) -> MatrixView<'a> {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let data = if range.is_empty() { &[] } else { &self.data[range.start * self.stride..] };
        MatrixView { data, rows: range.len(), ..*self }
    }
}

/// A matrix to write.
pub struct MatrixViewMut<'a> {
    // A pointer instead of a slice: threads hold views of interleaved columns of one buffer, and
    // `&mut` slices of those would overlap.
    start: *mut f32,
    rows: usize,
    cols: usize,
    stride: usize,
    _borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is an exclusive borrow of f32, which any thread may read and write.
unsafe impl Send for MatrixViewMut<'_> {}

impl<'a> MatrixViewMut<'a> {
    /// `rows` rows of `cols` elements, `stride` elements apart.
    ///
    /// # Panics
    /// Where [`try_new`](Self::try_new) reports an error.
    #[track_caller]
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize, stride: usize) -> MatrixViewMut<'a> {
        match MatrixViewMut::try_new(data, rows, cols, stride) {
            Ok(rows) => rows,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`new`](Self::new), but returns an error instead of panicking.
    ///
    /// # Errors
    /// When `data` is too short, rows would overlap, or the size overflows.
    pub fn try_new(
        data: &'a mut [f32],
        rows: usize,
        cols: usize,
        stride: usize,
    ) -> Result<MatrixViewMut<'a>, ShapeError> {
        fits("a matrix of rows", (rows, cols, stride), data.len())?;
        // Two `&mut` rows would alias. A single row is exempt: its stride is never used.
        if rows > 1 && stride < cols {
            return Err(ShapeError::Overlap { cols, stride });
        }
        Ok(MatrixViewMut { start: data.as_mut_ptr(), rows, cols, stride, _borrow: PhantomData })
    }

    /// A matrix at an address.
    ///
    /// # Safety
    /// For `'a`, all rows are in valid memory, and nothing else reads or writes their `cols`
    /// elements.
    pub unsafe fn from_raw(start: *mut f32, rows: usize, cols: usize, stride: usize) -> MatrixViewMut<'a> {
        MatrixViewMut { start, rows, cols, stride, _borrow: PhantomData }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    #[inline]
    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        // SAFETY: row `i` is in the memory that the constructor checked or was promised, for us
        // alone; `&mut self` keeps it so for the result's lifetime.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(i * self.stride), self.cols) }
    }

    /// Reborrows some of the rows.
    pub(crate) fn slice_rows(&mut self, range: Range<usize>) -> MatrixViewMut<'_> {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        // An empty range may start after the last row. Computing that address could leave the
        // allocation, which is undefined behavior.
        let first = if range.is_empty() { 0 } else { range.start };
        // SAFETY: `first` is a row of this matrix, or 0.
        let start = unsafe { self.start.add(first * self.stride) };
        MatrixViewMut { start, rows: range.len(), cols: self.cols, stride: self.stride, _borrow: PhantomData }
    }

    /// Address of the first row, and the stride. Never write the elements between two rows: they
    /// may belong to another thread's view.
    pub(crate) fn raw_mut(&mut self) -> (*mut f32, usize) {
        (self.start, self.stride)
    }

    /// Writes one element.
    #[inline]
    pub fn set(&mut self, row: usize, col: usize, value: f32) {
        self.row_mut(row)[col] = value;
    }

    /// Splits into the first `at` columns and the remaining ones, so that two threads can write
    /// them.
    pub fn split_columns(self, at: usize) -> (MatrixViewMut<'a>, MatrixViewMut<'a>) {
        assert!(at <= self.cols, "column {at} of {}", self.cols);
        // A matrix without rows may have no memory, so the column's address could be outside the
        // allocation.
        let first = if self.rows == 0 { 0 } else { at };
        // SAFETY: a column of the first row or its end, which is in the memory; 0 without rows. No
        // column is in both.
        let start = unsafe { self.start.add(first) };
        (MatrixViewMut { cols: at, ..self }, MatrixViewMut { start, cols: self.cols - at, ..self })
    }

    /// Splits into the first `at` rows and the remaining ones, so that two threads can write them.
    pub fn split_rows(self, at: usize) -> (MatrixViewMut<'a>, MatrixViewMut<'a>) {
        assert!(at <= self.rows, "row {at} of {}", self.rows);
        // As in `slice_rows`: the address after the last row may be outside the allocation.
        let first = if at == self.rows { 0 } else { at };
        // SAFETY: a row of this matrix, or 0. No row is in both.
        let start = unsafe { self.start.add(first * self.stride) };
        (MatrixViewMut { rows: at, ..self }, MatrixViewMut { start, rows: self.rows - at, ..self })
    }

    /// Reborrows some of the columns.
    pub fn columns(&mut self, range: Range<usize>) -> MatrixViewMut<'_> {
        assert!(range.start <= range.end && range.end <= self.cols, "columns {range:?} of {}", self.cols);
        // As in `split_columns`.
        let first = if self.rows == 0 { 0 } else { range.start };
        // SAFETY: a column of the first row or its end, which is in the memory; 0 without rows.
        let start = unsafe { self.start.add(first) };
        MatrixViewMut { start, rows: self.rows, cols: range.len(), stride: self.stride, _borrow: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_overflows_is_refused() {
        // (2 − 1) · stride + 64 wraps to 0: the second row would lie 256 bytes before the first.
        let stride = usize::MAX - 63;
        let overflow = ShapeError::Overflow { what: "a matrix of rows" };
        assert_eq!(MatrixViewMut::try_new(&mut [0.0; 64], 2, 64, stride).err(), Some(overflow));
        assert_eq!(MatrixView::try_new(&[0.0; 64], 2, 64, stride).err(), Some(overflow));
        assert_eq!(MatrixView::try_new(&[], usize::MAX, 1, 2).err(), Some(overflow));
        let caught = std::panic::catch_unwind(|| MatrixViewMut::new(&mut [0.0; 64], 2, 64, stride).rows());
        assert!(caught.is_err());
    }

    #[test]
    fn rows_must_fit_the_memory_and_not_overlap() {
        let short = ShapeError::Length { what: "a matrix of rows", needed: 9, found: 8 };
        assert_eq!(MatrixView::try_new(&[0.0; 8], 2, 4, 5).err(), Some(short));
        assert_eq!(
            MatrixViewMut::try_new(&mut [0.0; 8], 2, 4, 3).err(),
            Some(ShapeError::Overlap { cols: 4, stride: 3 })
        );
        // A thread's share may have no columns.
        assert_eq!(MatrixViewMut::new(&mut [], 7, 0, 0).row_mut(6).len(), 0);
        assert_eq!(MatrixView::new(&[0.0; 8], 2, 4, 4).row(1).len(), 4);
        assert_eq!(MatrixView::new(&[], 0, 4, usize::MAX).rows(), 0);
    }

    #[test]
    fn a_matrix_is_split_for_two_threads() {
        let mut memory = [0.0; 12];
        let (top, bottom) = MatrixViewMut::new(&mut memory, 3, 4, 4).split_rows(2);
        let (mut left, mut right) = top.split_columns(1);
        std::thread::scope(|scope| {
            let mut bottom = bottom;
            scope.spawn(move || bottom.row_mut(0).fill(3.0));
            scope.spawn(move || (0..2).for_each(|i| left.row_mut(i).fill(1.0)));
            (0..2).for_each(|i| right.row_mut(i).fill(2.0));
        });
        assert_eq!(memory, [1.0, 2.0, 2.0, 2.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0]);
        // Splits at the end, and of a matrix without rows.
        let (all, none) = MatrixViewMut::new(&mut memory, 3, 4, 4).split_rows(3);
        assert_eq!((all.rows(), none.rows()), (3, 0));
        let (none, all) = MatrixViewMut::new(&mut [], 0, 4, 4).split_columns(3);
        assert_eq!((none.cols(), all.cols(), all.rows()), (3, 1, 0));
    }

    #[test]
    fn an_empty_range_has_an_address_inside_the_memory() {
        let mut memory = [0.0; 9];
        let start = memory.as_mut_ptr();
        let mut rows = MatrixViewMut::new(&mut memory, 2, 4, 5);
        assert_eq!((rows.slice_rows(2..2).raw_mut().0, rows.slice_rows(2..2).rows()), (start, 0));
        assert_eq!(rows.slice_rows(1..2).raw_mut().0, start.wrapping_add(5));
        assert_eq!(rows.columns(4..4).row_mut(1).len(), 0);
    }
}
