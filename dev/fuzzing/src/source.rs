//! Choices, read from the bytes of an input.

/// The bytes of an input that no choice has used yet.
pub(crate) struct FuzzSource<'a> {
    bytes: &'a [u8],
}

/// Integers at which arithmetic, allocation or recursion tends to fail. The seeds in `fuzz/corpus`
/// depend on the order of this and of all other lists of choices, so new items go to the end.
const NUMBERS: [i64; 24] = [
    0,
    1,
    2,
    3,
    16,
    17,
    64,
    127,
    128,
    255,
    256,
    -1,
    -2,
    1000,
    65_535,
    100_000,
    1_000_000_000,
    i32::MAX as i64,
    i32::MIN as i64,
    u32::MAX as i64,
    u32::MAX as i64 + 1,
    1 << 53,
    i64::MAX,
    i64::MIN,
];

/// Pieces of unusual texts.
const TEXTS: [&str; 26] = [
    "",
    " ",
    "a",
    "aa",
    "é",
    "\n",
    "\r\n",
    "\0",
    "12345",
    "Hello",
    " wörld",
    "日本語",
    "🙂",
    "e\u{301}",
    "\u{fdfa}",
    "\u{202e}",
    "\u{feff}",
    "▁",
    "Ġ",
    "<s>",
    "<|im_end|>",
    "<｜User｜>",
    "</think>",
    "{{ x }}",
    "\"'\\",
    "don't",
];

impl<'a> FuzzSource<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> FuzzSource<'a> {
        FuzzSource { bytes }
    }

    /// Whether all bytes are used. Every further choice is the first one.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The remaining bytes as text.
    pub(crate) fn rest(&mut self) -> String {
        String::from_utf8_lossy(std::mem::take(&mut self.bytes)).into_owned()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    pub(crate) fn u64(&mut self) -> u64 {
        (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// A number below `count`. A `count` above 256 is not reached in full, since a choice is one
    /// byte.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    /// True once in `times` calls on average, and false after the last byte.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        !self.is_empty() && self.below(times) == times - 1
    }

    pub(crate) fn pick<'t, T>(&mut self, list: &'t [T]) -> &'t T {
        &list[self.below(list.len())]
    }

    /// An integer: a small one, one of `NUMBERS`, or any.
    pub(crate) fn number(&mut self) -> i64 {
        match self.byte() {
            byte @ 0..=127 => i64::from(byte % 20),
            byte @ 128..=247 => NUMBERS[usize::from(byte) % NUMBERS.len()],
            _ => self.u64() as i64,
        }
    }

    /// A text of up to three pieces of `TEXTS`, or of the input's own bytes.
    pub(crate) fn text(&mut self) -> String {
        if self.once_in(8) {
            let length = self.below(12).min(self.bytes.len());
            let (text, rest) = self.bytes.split_at(length);
            self.bytes = rest;
            return String::from_utf8_lossy(text).into_owned();
        }
        (0..self.below(4)).map(|_| *self.pick(&TEXTS)).collect()
    }
}
