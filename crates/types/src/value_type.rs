//! Types of the values that operations exchange.

use std::fmt;

/// The type of a value's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ValueType {
    /// 32-bit float.
    F32,
    /// 32-bit unsigned integer, for ids of tokens and experts.
    U32,
}

impl ValueType {
    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            ValueType::F32 | ValueType::U32 => 4,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            ValueType::F32 => "f32",
            ValueType::U32 => "u32",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not `write_str`, which would ignore the width of table columns.
        f.pad(self.name())
    }
}
