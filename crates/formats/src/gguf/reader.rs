//! A cursor over header bytes in which every length is checked before it is used.

use super::GgufError;

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `len` bytes; `what` names them should they be missing.
    pub(super) fn take(&mut self, len: u64, what: &dyn Fn() -> String) -> Result<&'a [u8], GgufError> {
        match usize::try_from(len) {
            Ok(len) if len <= self.left() => {
                let taken = &self.bytes[self.at..self.at + len];
                self.at += len;
                Ok(taken)
            }
            _ => Err(GgufError::NeedMore { what: what(), have: self.bytes.len() as u64 }),
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
