//! Element types of tensors: names, ids, block sizes.

use std::fmt;

/// Element type of a tensor.
///
/// A row of a tensor consists of *blocks* of [`block_len`](Self::block_len) elements in
/// [`block_bytes`](Self::block_bytes) bytes. The types are those of ggml and safetensors. Types
/// that ggml has retired (Q4_2, Q4_3, the `Q4_0_4_4` family) are omitted, because current tools do
/// not write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, missing_docs, reason = "the field writes the formats' names this way")]
pub enum TensorType {
    F32,
    F16,
    BF16,
    F64,
    /// FP8 with 4 exponent and 3 mantissa bits, without infinities (OCP E4M3). In safetensors only.
    F8_E4M3,
    /// FP8 with 5 exponent and 2 mantissa bits: the upper half of an f16. In safetensors only, and
    /// read as F16.
    F8_E5M2,
    I8,
    I16,
    I32,
    I64,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
}

/// A row of the table: type, ggml id (`None` if GGUF has no id), name, elements per block, bytes
/// per block.
type TensorTypeRow = (TensorType, Option<u32>, &'static str, usize, usize);

use TensorType::*;

// In the order of the enum, because a type's discriminant is its index. A test checks that. The
// sums of bytes list the fields of ggml's block structs in their order.
const TABLE: [TensorTypeRow; 37] = [
    (F32, Some(0), "F32", 1, 4),
    (F16, Some(1), "F16", 1, 2),
    (BF16, Some(30), "BF16", 1, 2),
    (F64, Some(28), "F64", 1, 8),
    (F8_E4M3, None, "F8_E4M3", 1, 1),
    (F8_E5M2, None, "F8_E5M2", 1, 1),
    (I8, Some(24), "I8", 1, 1),
    (I16, Some(25), "I16", 1, 2),
    (I32, Some(26), "I32", 1, 4),
    (I64, Some(27), "I64", 1, 8),
    (Q4_0, Some(2), "Q4_0", 32, 2 + 16),
    (Q4_1, Some(3), "Q4_1", 32, 2 + 2 + 16),
    (Q5_0, Some(6), "Q5_0", 32, 2 + 4 + 16),
    (Q5_1, Some(7), "Q5_1", 32, 2 + 2 + 4 + 16),
    (Q8_0, Some(8), "Q8_0", 32, 2 + 32),
    (Q8_1, Some(9), "Q8_1", 32, 2 + 2 + 32),
    (Q2_K, Some(10), "Q2_K", 256, 16 + 64 + 2 + 2),
    (Q3_K, Some(11), "Q3_K", 256, 32 + 64 + 12 + 2),
    (Q4_K, Some(12), "Q4_K", 256, 2 + 2 + 12 + 128),
    (Q5_K, Some(13), "Q5_K", 256, 2 + 2 + 12 + 32 + 128),
    (Q6_K, Some(14), "Q6_K", 256, 128 + 64 + 16 + 2),
    (Q8_K, Some(15), "Q8_K", 256, 4 + 256 + 32),
    (IQ1_S, Some(19), "IQ1_S", 256, 2 + 32 + 16),
    (IQ1_M, Some(29), "IQ1_M", 256, 32 + 16 + 8),
    (IQ2_XXS, Some(16), "IQ2_XXS", 256, 2 + 64),
    (IQ2_XS, Some(17), "IQ2_XS", 256, 2 + 64 + 8),
    (IQ2_S, Some(22), "IQ2_S", 256, 2 + 64 + 8 + 8),
    (IQ3_XXS, Some(18), "IQ3_XXS", 256, 2 + 64 + 32),
    (IQ3_S, Some(21), "IQ3_S", 256, 2 + 64 + 8 + 32 + 4),
    (IQ4_NL, Some(20), "IQ4_NL", 32, 2 + 16),
    (IQ4_XS, Some(23), "IQ4_XS", 256, 2 + 2 + 4 + 128),
    (TQ1_0, Some(34), "TQ1_0", 256, 2 + 48 + 4),
    (TQ2_0, Some(35), "TQ2_0", 256, 2 + 64),
    (MXFP4, Some(39), "MXFP4", 32, 1 + 16),
    (NVFP4, Some(40), "NVFP4", 64, 4 + 32),
    (Q1_0, Some(41), "Q1_0", 128, 2 + 16),
    (Q2_0, Some(42), "Q2_0", 64, 2 + 16),
];

impl TensorType {
    /// Every type, in the table's order.
    pub fn all() -> impl Iterator<Item = TensorType> {
        TABLE.iter().map(|row| row.0)
    }

    /// The type with an id of `enum ggml_type`.
    ///
    /// # Errors
    /// [`UnknownTensorType`] for an id that ggml does not use or has retired.
    pub fn from_ggml_id(id: u32) -> Result<Self, UnknownTensorType> {
        TABLE
            .iter()
            .find(|row| row.1 == Some(id))
            .map(|row| row.0)
            .ok_or_else(|| UnknownTensorType(format!("id {id}")))
    }

    /// The type with a name, in any case: `"Q4_K"`, `"bf16"`.
    pub fn from_name(name: &str) -> Result<Self, UnknownTensorType> {
        TABLE
            .iter()
            .find(|row| row.2.eq_ignore_ascii_case(name))
            .map(|row| row.0)
            .ok_or_else(|| UnknownTensorType(format!("name {name:?}")))
    }

    fn row(self) -> &'static TensorTypeRow {
        &TABLE[self as usize]
    }

    /// The id in GGUF files, if GGUF has this type.
    pub fn ggml_id(self) -> Option<u32> {
        self.row().1
    }

    /// The usual name: `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Elements per block: 1 for plain formats.
    pub fn block_len(self) -> usize {
        self.row().3
    }

    pub fn block_bytes(self) -> usize {
        self.row().4
    }

    /// Bytes of a row of `cols` elements; `None` if `cols` is not a whole number of blocks or the
    /// size overflows.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        let (len, bytes) = (self.block_len(), self.block_bytes());
        // Checked, because shapes come from files.
        if cols.is_multiple_of(len) { (cols / len).checked_mul(bytes) } else { None }
    }

    /// Bits per element including scales: 4.5 for Q4_0.
    pub fn bits_per_weight(self) -> f64 {
        self.block_bytes() as f64 * 8.0 / self.block_len() as f64
    }

    /// Whether elements share a scale per block (everything except plain floats and integers).
    pub fn is_quantized(self) -> bool {
        // FP8 weights have scales too, but in tensors of their own.
        self.block_len() > 1
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A tensor type that is not in the table, with the id or name given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownTensorType(pub String);

impl fmt::Display for UnknownTensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown tensor type ({})", self.0)
    }
}

impl std::error::Error for UnknownTensorType {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_the_order_of_the_enum_and_ids_and_names_are_unique() {
        for (i, t) in TensorType::all().enumerate() {
            assert_eq!(t as usize, i, "{t}");
            assert_eq!(TensorType::from_name(&t.name().to_lowercase()), Ok(t));
            if let Some(id) = t.ggml_id() {
                assert_eq!(TensorType::from_ggml_id(id), Ok(t));
            }
        }
    }

    #[test]
    fn retired_and_future_ids_are_unknown() {
        for id in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
            assert!(TensorType::from_ggml_id(id).is_err(), "{id}");
        }
    }

    #[test]
    fn row_bytes_refuses_partial_blocks_and_overflow() {
        assert_eq!(Q6_K.row_bytes(256), Some(210));
        assert_eq!(Q6_K.row_bytes(0), Some(0));
        assert_eq!(Q6_K.row_bytes(255), None);
        assert_eq!(F64.row_bytes(usize::MAX), None);
    }
}
