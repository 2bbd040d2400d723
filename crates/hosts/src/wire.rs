//! Little-endian encoding of messages between ranks.
//!
//! No serde: messages are few and simple, and every step sends one.

/// Writes a message.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn usize(&mut self, value: usize) {
        self.u64(value as u64);
    }

    pub(crate) fn u32s(&mut self, values: &[u32]) {
        self.usize(values.len());
        values.iter().for_each(|value| self.u32(*value));
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.usize(bytes.len());
        self.0.extend_from_slice(bytes);
    }
}

/// Reads a message. All methods return `None` if it is truncated.
pub(crate) struct Reader<'m>(pub(crate) &'m [u8]);

impl<'m> Reader<'m> {
    fn take(&mut self, len: usize) -> Option<&'m [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(crate) fn usize(&mut self) -> Option<usize> {
        self.u64()?.try_into().ok()
    }

    pub(crate) fn u32s(&mut self) -> Option<Vec<u32>> {
        let count = self.usize()?;
        // Checked before anything is allocated: `count` comes from another process.
        let bytes = self.take(count.checked_mul(4)?)?;
        Some(bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect())
    }

    pub(crate) fn bytes(&mut self) -> Option<&'m [u8]> {
        let len = self.usize()?;
        self.take(len)
    }

    /// Whether nothing is left.
    pub(crate) fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}
