//! How published safetensors of some families name their tensors.

/// What stands before the language model's names in safetensors of models that also see (Kimi-VL and Mistral Small 4, DeepSeek-VL2).
pub const HF_PREFIXES: [&str; 3] = ["", "language_model.", "language."];

/// Parts of names in Transformers' modules, and in published files, replaced in this order. In reverse order they lead back.
pub type NameReplacements = &'static [(&'static str, &'static str)];

/// Of Ling-3.0. Published files have `o_proj` as `dense`.
pub const BAILING_NAMES: NameReplacements = &[
    ("model.embed_tokens.", "model.word_embeddings."),
    (".self_attn.", ".attention."),
    (".attention.o_proj.", ".attention.dense."),
    (".mlp.gate.e_score_correction_bias", ".mlp.gate.expert_bias"),
];

/// Of Kimi-Linear. Names of circuits have `{expert}` for the number of an expert.
pub const KIMI_LINEAR_NAMES: NameReplacements = &[
    (".mlp.gate.", ".block_sparse_moe.gate."),
    (".mlp.shared_experts.", ".block_sparse_moe.shared_experts."),
    (".mlp.experts.{expert}.gate_proj.", ".block_sparse_moe.experts.{expert}.w1."),
    (".mlp.experts.{expert}.up_proj.", ".block_sparse_moe.experts.{expert}.w3."),
    (".mlp.experts.{expert}.down_proj.", ".block_sparse_moe.experts.{expert}.w2."),
];
