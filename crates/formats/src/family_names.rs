//! Tensor names in published safetensors of some families.

/// Prefixes of the language model's tensors in safetensors files: none, that of Kimi-VL and Mistral
/// Small 4, and that of DeepSeek-VL2.
pub const HF_PREFIXES: [&str; 3] = ["", "language_model.", "language."];

/// Replacements from names of Transformers' modules to names of published files, in this order. The
/// inverse replacements in reverse order lead back.
pub type NameReplacements = &'static [(&'static str, &'static str)];

/// Names of Ling-3.0.
pub const BAILING_NAMES: NameReplacements = &[
    ("model.embed_tokens.", "model.word_embeddings."),
    (".self_attn.", ".attention."),
    (".attention.o_proj.", ".attention.dense."),
    (".mlp.gate.e_score_correction_bias", ".mlp.gate.expert_bias"),
];

/// Names of Kimi-Linear. `{expert}` stands for the number of an expert, as in circuits.
pub const KIMI_LINEAR_NAMES: NameReplacements = &[
    (".mlp.gate.", ".block_sparse_moe.gate."),
    (".mlp.shared_experts.", ".block_sparse_moe.shared_experts."),
    (".mlp.experts.{expert}.gate_proj.", ".block_sparse_moe.experts.{expert}.w1."),
    (".mlp.experts.{expert}.up_proj.", ".block_sparse_moe.experts.{expert}.w3."),
    (".mlp.experts.{expert}.down_proj.", ".block_sparse_moe.experts.{expert}.w2."),
];
