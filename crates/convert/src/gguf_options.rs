//! Options of the GGUF writer.

use crate::quantize::{Importances, Options};

/// Options of [`to_gguf`](crate::to_gguf).
#[derive(Clone, Copy, Default)]
pub struct GgufOptions<'a> {
    /// Types of the tensors. `None` keeps the type of the folder's matrices, with FP8 and 4-bit
    /// ones as BF16.
    pub types: Option<&'a Options>,
    /// Importances that weight quantization errors.
    pub importances: Option<&'a Importances>,
    /// Number of threads. `None`: one per core that this process may use.
    pub threads: Option<usize>,
    /// Maximum bytes of tensors per file. `None`: a single file.
    pub split: Option<u64>,
    /// Name of the pre-tokenizer (`tokenizer.ggml.pre`). `None`: identified by its behaviour.
    pub pre: Option<&'a str>,
    /// Id of the model, `OWNER/NAME`. `None`: the name of its folder.
    pub id: Option<&'a str>,
    /// Replace existing files.
    pub force: bool,
}
