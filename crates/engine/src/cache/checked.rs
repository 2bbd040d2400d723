//! Reads and writes numbers and bytes of a file with a checksum over them.

use std::io::{self, Read, Write};

/// Offset basis of 64-bit FNV-1a.
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// A reader or writer that computes a checksum (FNV-1a) of the bytes that pass through.
pub(super) struct ChecksumStream<T> {
    pub inner: T,
    pub sum: u64,
}

impl<T> ChecksumStream<T> {
    pub(super) fn new(inner: T) -> ChecksumStream<T> {
        ChecksumStream { inner, sum: FNV_START }
    }

    /// Begins a new checksum.
    pub(super) fn restart(&mut self) {
        self.sum = FNV_START;
    }

    fn count(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.sum = (self.sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

impl<W: Write> ChecksumStream<W> {
    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.count(bytes);
        self.inner.write_all(bytes)
    }

    /// Writes the checksum of everything so far.
    pub(super) fn put_sum(&mut self) -> io::Result<()> {
        // Not by `put`: the checksum does not cover itself.
        self.inner.write_all(&self.sum.to_le_bytes())
    }
}

impl<R: Read> ChecksumStream<R> {
    pub(super) fn take(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.inner.read_exact(bytes)?;
        self.count(bytes);
        Ok(())
    }

    pub(super) fn u32(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.take(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    pub(super) fn u64(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.take(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads a checksum, and returns whether it is that of everything before it.
    pub(super) fn sum_agrees(&mut self) -> io::Result<bool> {
        // Saved first: reading the number changes `sum`.
        let sum = self.sum;
        Ok(self.u64()? == sum)
    }
}
