//! Errors of safetensors files.

use crate::limits;

/// An error of a safetensors header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// The given bytes end inside the header: read more of the file.
    #[error("the first {have} bytes end inside the header; {need} bytes are needed")]
    NeedMore {
        have: u64,
        /// Bytes that hold the whole header.
        need: u64,
    },
    #[error(
        "the header claims {claimed} bytes, but the file has only {len}; it is truncated: download it again"
    )]
    Truncated {
        /// Bytes of the header, including its length field.
        claimed: u64,
        len: u64,
    },
    /// The first eight bytes are not a plausible header length.
    #[error(
        "the header claims {claimed} bytes, more than the limit of {}: not a safetensors file",
        limits::MAX_SAFETENSORS_HEADER
    )]
    HeaderLength { claimed: u64 },
    /// The header is not valid JSON, or not of the expected form.
    #[error("the header is malformed: {problem}")]
    Json {
        /// The error with line and column.
        problem: String,
    },
    #[error("tensor {name:?} occurs twice")]
    Duplicate { name: String },
    #[error("tensor {tensor}: {problem}")]
    Tensor {
        tensor: String,
        /// The error, and the expected value.
        problem: String,
    },
    #[error(
        "tensor {tensor}: dtype {dtype:?} is not supported; BF16, F16, F32, F64, F8_E4M3, BOOL, and integers of 8 to 64 bits are"
    )]
    Dtype { tensor: String, dtype: String },
    #[error(
        "tensor {tensor}: its data (bytes {start} to {end} of {len}) extends past the end of the file, which \
         is truncated: download it again"
    )]
    PastEnd {
        tensor: String,
        /// First byte, from the start of the data.
        start: u64,
        end: u64,
        /// Bytes of data in the file.
        len: u64,
    },
    #[error("the data of tensors {first} and {second} overlap at byte {at} of the data")]
    Overlap {
        first: String,
        second: String,
        /// First shared byte, from the start of the data.
        at: u64,
    },
    /// Bytes without a tensor, which the format does not allow.
    #[error(
        "bytes {start} to {end} of the data do not belong to any tensor; the file is damaged or has hidden \
         contents"
    )]
    Hole {
        /// First byte, from the start of the data.
        start: u64,
        end: u64,
    },
}
