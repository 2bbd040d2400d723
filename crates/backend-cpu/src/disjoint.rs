//! Buffers that the workers of a step share. Between two barriers a worker may write parts of a
//! buffer exclusively.
//!
//! Reading is safe. Writing is unsafe: the writer promises that no other worker uses the part until
//! the next barrier. With `debug_assertions`, and in this crate's tests, every use is recorded. If
//! two workers use one element between two barriers and one of them writes it, a panic names both.
#![allow(unsafe_code, reason = "workers write disjoint parts of one buffer between barriers")]

use latent_kernels::{KvElement, MatrixView, MatrixViewMut};
use std::marker::PhantomData;
use std::ops::Range;
#[cfg(any(test, debug_assertions))]
use std::sync::{Mutex, PoisonError};

/// A worker in an interval between two barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferUser {
    /// Index of the worker.
    pub worker: usize,
    /// Number of the interval, from 1 on. It is the same for all workers between the same barriers.
    pub interval: u64,
}

/// A buffer of which each worker uses disjoint parts.
pub(crate) struct DisjointBuffer<'m, T> {
    start: *mut T,
    len: usize,
    uses: ElementUses,
    /// The buffer is borrowed exclusively while this lives.
    memory: PhantomData<&'m mut [T]>,
}

// SAFETY: the exclusive borrow of the buffer is divided by element. A shared reference to an
// element may cross threads because T is Sync. An exclusive one may because T is Send, and because
// callers of the unsafe functions promise that no other worker uses the element.
unsafe impl<T: Send + Sync> Sync for DisjointBuffer<'_, T> {}

impl<'m, T> DisjointBuffer<'m, T> {
    pub(crate) fn new(memory: &'m mut [T]) -> DisjointBuffer<'m, T> {
        DisjointBuffer {
            start: memory.as_mut_ptr(),
            len: memory.len(),
            uses: ElementUses::default(),
            memory: PhantomData,
        }
    }

    /// Address of `len` elements.
    ///
    /// # Panics
    /// When they are outside of the buffer.
    fn at(&self, start: usize, len: usize) -> *mut T {
        // A subtraction, because `start + len` may overflow.
        assert!(
            start <= self.len && len <= self.len - start,
            "elements {start} to {start} + {len} of {}",
            self.len
        );
        // SAFETY: in bounds as just asserted.
        unsafe { self.start.add(start) }
    }

    /// `len` elements to read.
    ///
    /// # Panics
    /// When they are outside of the buffer.
    pub(crate) fn read(&self, by: BufferUser, start: usize, len: usize) -> &[T] {
        let at = self.at(start, len);
        self.uses.record(by, start..start + len, ElementAccess::Read);
        // SAFETY: in bounds, and initialized, since the buffer was a slice. A writer of one of
        // these elements promises that no worker reads it until the next barrier.
        unsafe { std::slice::from_raw_parts(at, len) }
    }

    /// `len` elements to write.
    ///
    /// # Safety
    /// Until the next barrier these elements are used only through the result. The result is not
    /// used after that barrier, nor are references from earlier [`read`](Self::read)s of these
    /// elements.
    ///
    /// # Panics
    /// When they are outside of the buffer.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that the elements are its own")]
    pub(crate) unsafe fn write(&self, by: BufferUser, start: usize, len: usize) -> &mut [T] {
        let at = self.at(start, len);
        self.uses.record(by, start..start + len, ElementAccess::Write);
        // SAFETY: in bounds and initialized; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(at, len) }
    }
}

/// The position and shape of a matrix in a buffer.
#[derive(Clone, Copy)]
pub(crate) struct MatrixBlock {
    pub start: usize,
    pub rows: usize,
    pub cols: usize,
    /// Elements from one row to the next.
    pub stride: usize,
}

impl MatrixBlock {
    /// Elements from the first to the last one. The last row has no padding behind it.
    fn len(&self) -> usize {
        if self.rows == 0 { 0 } else { (self.rows - 1) * self.stride + self.cols }
    }
}

impl DisjointBuffer<'_, f32> {
    /// A matrix to read. The elements between its rows count as read too, since the view borrows
    /// them.
    ///
    /// # Panics
    /// When it is not inside of the buffer.
    pub(crate) fn read_block(&self, by: BufferUser, block: MatrixBlock) -> MatrixView<'_> {
        let data = if block.rows == 0 { &[] } else { self.read(by, block.start, block.len()) };
        MatrixView::new(data, block.rows, block.cols, block.stride)
    }

    /// A matrix to write. Other workers may use the elements between its rows.
    ///
    /// # Safety
    /// As for [`write`](Self::write), of the elements of its rows.
    ///
    /// # Panics
    /// When it is not inside of the buffer.
    pub(crate) unsafe fn write_block(&self, by: BufferUser, block: MatrixBlock) -> MatrixViewMut<'_> {
        let MatrixBlock { start, rows, cols, stride } = block;
        if rows == 0 {
            return MatrixViewMut::new(&mut [], 0, cols, stride);
        }
        let at = self.at(start, block.len());
        // Row by row: the elements between the rows belong to other workers.
        if cfg!(any(test, debug_assertions)) {
            (0..rows).map(|row| start + row * stride).for_each(|start| {
                self.uses.record(by, start..start + cols, ElementAccess::Write);
            });
        }
        // SAFETY: in bounds and initialized; its rows are exclusive by the caller's promise. A raw
        // pointer, because a slice over all rows would alias what other workers write between them.
        unsafe { MatrixViewMut::from_raw(at, rows, cols, stride) }
    }

    /// The address of `len` keys or values that begin `start` elements of their own type into the
    /// buffer, and the range of f32 elements that they cover.
    fn elements<N: KvElement>(&self, start: usize, len: usize) -> (*mut N, Range<usize>) {
        let (first, end) = (start * size_of::<N>(), (start + len) * size_of::<N>());
        // Rounded outwards: an odd number of 2-byte elements covers half of an f32.
        let touched = first / size_of::<f32>()..end.div_ceil(size_of::<f32>());
        assert!(touched.end <= self.len, "expanded elements {start} + {len} are out of range");
        (self.start.cast::<N>().wrapping_add(start), touched)
    }

    /// Keys or values to read.
    ///
    /// # Panics
    /// When they are outside of the buffer.
    pub(crate) fn read_elements<N: KvElement>(&self, by: BufferUser, start: usize, len: usize) -> &[N] {
        let (at, touched) = self.elements(start, len);
        self.uses.record(by, touched, ElementAccess::Read);
        // SAFETY: in bounds; f32, f16 and bf16 admit every bit pattern and need no more alignment
        // than f32; unwritten as in `read`.
        unsafe { std::slice::from_raw_parts(at, len) }
    }

    /// Keys or values to write.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    ///
    /// # Panics
    /// When they are outside of the buffer.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that the elements are its own")]
    pub(crate) unsafe fn write_elements<N: KvElement>(
        &self,
        by: BufferUser,
        start: usize,
        len: usize,
    ) -> &mut [N] {
        let (at, touched) = self.elements(start, len);
        self.uses.record(by, touched, ElementAccess::Write);
        // SAFETY: in bounds; any bits and alignment as in `read_elements`; exclusive by the
        // caller's promise.
        unsafe { std::slice::from_raw_parts_mut(at, len) }
    }
}

/// How an element is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementAccess {
    Read,
    Write,
}

/// The uses of elements since the last barrier. Without `debug_assertions` it is empty and records
/// nothing.
#[derive(Default)]
pub(crate) struct ElementUses {
    #[cfg(any(test, debug_assertions))]
    elements: Mutex<Vec<Option<LatestUse>>>,
}

/// The latest use of an element.
#[cfg(any(test, debug_assertions))]
#[derive(Clone, Copy)]
struct LatestUse {
    by: BufferUser,
    access: ElementAccess,
    /// Whether other workers read it too.
    several: bool,
}

impl ElementUses {
    /// Records the use of some elements.
    ///
    /// # Panics
    /// With `debug_assertions`, when another worker has used one of them since the last barrier and
    /// one of both has written it.
    // Always inlined, so that release builds have no call here.
    #[inline(always)]
    pub(crate) fn record(&self, by: BufferUser, elements: Range<usize>, access: ElementAccess) {
        #[cfg(any(test, debug_assertions))]
        self.check(by, elements, access);
        #[cfg(not(any(test, debug_assertions)))]
        let _ = (by, elements, access);
    }

    #[cfg(any(test, debug_assertions))]
    fn check(&self, by: BufferUser, elements: Range<usize>, access: ElementAccess) {
        let mut uses = self.elements.lock().unwrap_or_else(PoisonError::into_inner);
        if uses.len() < elements.end {
            uses.resize(elements.end, None);
        }
        for (at, last) in uses[elements.clone()].iter_mut().enumerate() {
            // A use in an earlier interval is ordered by a barrier and cannot conflict.
            let earlier = last.filter(|last| last.by.interval == by.interval);
            let mut now = LatestUse { by, access, several: false };
            if let Some(earlier) = earlier {
                let other = earlier.by.worker != by.worker || earlier.several;
                assert!(
                    !other || (earlier.access, access) == (ElementAccess::Read, ElementAccess::Read),
                    "worker {} and worker {} use element {} between two barriers ({:?}, {access:?})",
                    earlier.by.worker,
                    by.worker,
                    elements.start + at,
                    earlier.access
                );
                now.several = other;
                // A read by the writer itself must not hide its write from the next worker.
                if earlier.access == ElementAccess::Write {
                    now.access = ElementAccess::Write;
                }
            }
            *last = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn user(worker: usize, interval: u64) -> BufferUser {
        BufferUser { worker, interval }
    }

    /// The message of a panic in `work`, or an empty string.
    fn panic_message(work: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(work)).err();
        panic.map_or_else(String::new, |panic| *panic.downcast::<String>().unwrap())
    }

    #[test]
    fn two_writers_of_an_element_between_barriers_panic() {
        let mut memory = [0.0f32; 12];
        let shared = DisjointBuffer::new(&mut memory);
        let block = |start| MatrixBlock { start, rows: 3, cols: 2, stride: 4 };
        // SAFETY: one thread, which does not use the results again.
        unsafe {
            shared.write_block(user(0, 1), block(0)).row_mut(2)[1] = 1.0;
            // The other columns of the same rows.
            shared.write_block(user(1, 1), block(2)).row_mut(0)[0] = 2.0;
            assert_eq!(
                panic_message(|| _ = shared.write_block(user(1, 1), block(1))),
                "worker 0 and worker 1 use element 1 between two barriers (Write, Write)"
            );
            assert_eq!(panic_message(|| _ = shared.write(user(1, 2), 0, 12)), "");
        }
        assert_eq!((memory[9], memory[2]), (1.0, 2.0));
    }

    #[test]
    fn several_workers_may_read_an_element_that_is_not_written() {
        let mut memory = [7u32; 4];
        let shared = DisjointBuffer::new(&mut memory);
        for worker in 0..3 {
            assert_eq!(shared.read(user(worker, 1), 0, 4), [7; 4]);
        }
        // SAFETY: one thread, which does not use the results again.
        unsafe {
            // The last reader is not the only one.
            assert!(panic_message(|| _ = shared.write(user(2, 1), 0, 1)).ends_with("(Read, Write)"));
            shared.write(user(2, 2), 0, 1)[0] = 8;
            assert_eq!(panic_message(|| _ = shared.read(user(2, 2), 0, 1)), "");
            assert!(panic_message(|| _ = shared.read(user(1, 2), 0, 1)).ends_with("(Write, Read)"));
        }
        assert_eq!(shared.read(user(1, 3), 0, 1), [8]);
    }

    #[test]
    fn elements_outside_of_the_buffer_are_refused() {
        let mut memory = [0.0f32; 4];
        let shared = DisjointBuffer::new(&mut memory);
        assert_eq!(panic_message(|| _ = shared.read(user(0, 1), 3, 2)), "elements 3 to 3 + 2 of 4");
        assert!(panic_message(|| _ = shared.read(user(0, 1), usize::MAX, 2)).ends_with(" of 4"));
        assert_eq!(shared.read_elements::<latent_kernels::half::f16>(user(0, 1), 6, 2).len(), 2);
        let beyond = || _ = shared.read_elements::<latent_kernels::half::f16>(user(0, 1), 7, 2);
        assert_eq!(panic_message(beyond), "expanded elements 7 + 2 are out of range");
    }
}
