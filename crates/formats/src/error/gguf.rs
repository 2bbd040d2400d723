//! Errors of GGUF files.

/// An error of a GGUF header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The given bytes end inside the header: read more of the file.
    #[error("the first {have} bytes end inside the header, in {what}; at least {need} bytes are needed")]
    NeedMore {
        what: String,
        have: u64,
        /// Bytes that are needed to continue. The whole header may be longer.
        need: u64,
    },
    /// The file ends before its header does, or a length in the header is wrong.
    #[error(
        "{what} claims {claimed} bytes at byte {at}, but the file has only {len}; it is truncated or damaged: download it again"
    )]
    Truncated { what: String, claimed: u64, at: u64, len: u64 },
    #[error("the first bytes are {found:02x?}, not \"GGUF\": this is not a GGUF file")]
    Magic { found: [u8; 4] },
    #[error("the file is big-endian (version {version} with swapped bytes); convert it to little-endian")]
    BigEndian {
        /// The version with swapped bytes.
        version: u32,
    },
    #[error("GGUF version {version} is not supported; versions 2 and 3 are{}", if *version == 1 { ": convert the file with a current tool" } else { "" })]
    Version { version: u32 },
    #[error("{what}: {value} exceeds the limit of {limit}")]
    Limit { what: String, value: u64, limit: u64 },
    /// An invalid key, name or value.
    #[error("{what}: {problem}")]
    Invalid { what: String, problem: String },
    #[error("{what} {name:?} occurs twice")]
    Duplicate { what: &'static str, name: String },
    #[error(
        "tensor {tensor}: its data (bytes {start} to {end}) extends past the end of the file ({len} bytes); \
         the file is truncated: download it again"
    )]
    PastEnd { tensor: String, start: u64, end: u64, len: u64 },
    #[error("the data of tensors {first} and {second} overlap at byte {at}")]
    Overlap { first: String, second: String, at: u64 },
}
