//! How a file names its tensors.

/// Which column of the slot table a file's names follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// GGUF names: `blk.0.attn_q_a.weight`.
    Gguf,
    /// Hugging Face names: `model.layers.0.self_attn.q_a_proj.weight`.
    HuggingFace,
}
