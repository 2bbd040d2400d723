//! A cursor over header bytes. Every length is checked before it is used.

use super::GgufError;

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    file_len: u64,
}

impl<'a> Reader<'a> {
    /// A cursor over `bytes`, the first bytes of a file of `file_len` bytes.
    pub(super) fn new(bytes: &'a [u8], file_len: u64) -> Reader<'a> {
        Reader { bytes, at: 0, file_len: file_len.max(bytes.len() as u64) }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Rejects a claim of `count` items of at least `size` bytes each if the rest of the file is
    /// shorter.
    pub(super) fn room_for(&self, count: u64, size: u64, what: &dyn Fn() -> String) -> Result<(), GgufError> {
        // Saturating: a product beyond u64 exceeds any file too.
        let claimed = count.saturating_mul(size);
        let at = self.at as u64;
        // Cannot underflow: `at` is within `bytes`, and `file_len` is at least their length.
        if claimed <= self.file_len - at {
            return Ok(());
        }
        Err(GgufError::Truncated { what: what(), claimed, at, len: self.file_len })
    }

    /// The next `len` bytes. `what` names them in an error.
    pub(super) fn take(&mut self, len: u64, what: &dyn Fn() -> String) -> Result<&'a [u8], GgufError> {
        self.room_for(len, 1, what)?;
        let have = self.bytes.len();
        match usize::try_from(len) {
            Ok(len) if len <= have - self.at => {
                let taken = &self.bytes[self.at..self.at + len];
                self.at += len;
                Ok(taken)
            }
            _ => Err(GgufError::NeedMore { what: what(), have: have as u64, need: self.at as u64 + len }),
        }
    }

    pub(super) fn u32(&mut self, what: &dyn Fn() -> String) -> Result<u32, GgufError> {
        let b = self.take(4, what)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    pub(super) fn u64(&mut self, what: &dyn Fn() -> String) -> Result<u64, GgufError> {
        let b = self.take(8, what)?;
        Ok(u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
    }

    /// A string: its length, then its bytes.
    pub(super) fn string(&mut self, limit: u64, what: &dyn Fn() -> String) -> Result<&'a [u8], GgufError> {
        let len = self.u64(what)?;
        if len > limit {
            return Err(GgufError::Limit { what: format!("length of {}", what()), value: len, limit });
        }
        self.take(len, what)
    }
}
