//! Options of the GGUF writer.

use crate::quantize::{Importances, Options};

/// How a GGUF file is written.
#[derive(Clone, Copy, Default)]
pub struct GgufOptions<'a> {
    /// Types of the tensors; none: as the folder stores its matrices, FP8 and 4-bit ones as BF16.
    pub types: Option<&'a Options>,
    /// What errors are weighted by.
    pub importances: Option<&'a Importances>,
    /// Threads; none: one for each core that this process may use.
    pub threads: Option<usize>,
    /// Bytes of tensors that a file may have; none: one file.
    pub split: Option<u64>,
    /// What the pre-tokenizer's rules are called; none: found by what they do.
    pub pre: Option<&'a str>,
    /// The model's id, `OWNER/NAME`; none: the name of its folder.
    pub id: Option<&'a str>,
    /// Replace what is there.
    pub force: bool,
}
