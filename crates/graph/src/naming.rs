//! How a file names its tensors.

/// Which column of the slot table a file's names follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorNaming {
    /// GGUF names: `blk.0.attn_q_a.weight`.
    Gguf,
    /// Hugging Face names: `model.layers.0.self_attn.q_a_proj.weight`.
    HuggingFace,
}

/// What stands before the language model's names in safetensors of models that also see (Kimi-VL and Mistral Small 4, DeepSeek-VL2).
pub(crate) const HF_PREFIXES: [&str; 3] = ["", "language_model.", "language."];

/// Where safetensors of a family are called otherwise than circuits call them: parts of names, replaced in this order.
#[derive(Debug)]
pub(crate) struct NamingScheme {
    /// Its name in circuit files (`hf_names`).
    pub(crate) name: &'static str,
    replaced: &'static [(&'static str, &'static str)],
}

/// The names that circuits use.
pub(crate) static PLAIN: NamingScheme = NamingScheme { name: "plain", replaced: &[] };

/// The names of Ling-3.0.
pub(crate) static BAILING: NamingScheme = NamingScheme {
    name: "bailing",
    replaced: &[
        ("model.embed_tokens.", "model.word_embeddings."),
        (".self_attn.o_proj.", ".attention.dense."),
        (".self_attn.", ".attention."),
        (".mlp.gate.e_score_correction_bias", ".mlp.gate.expert_bias"),
    ],
};

pub(crate) static KIMI_LINEAR: NamingScheme = NamingScheme {
    name: "kimi_linear",
    replaced: &[
        (".mlp.gate.", ".block_sparse_moe.gate."),
        (".mlp.shared_experts.", ".block_sparse_moe.shared_experts."),
        (".mlp.experts.{expert}.gate_proj.", ".block_sparse_moe.experts.{expert}.w1."),
        (".mlp.experts.{expert}.up_proj.", ".block_sparse_moe.experts.{expert}.w3."),
        (".mlp.experts.{expert}.down_proj.", ".block_sparse_moe.experts.{expert}.w2."),
    ],
};

impl NamingScheme {
    pub(crate) fn named(name: &str) -> Option<&'static NamingScheme> {
        [&PLAIN, &BAILING, &KIMI_LINEAR].into_iter().find(|scheme| scheme.name == name)
    }

    /// What files call the tensor that circuits call `name`.
    pub(crate) fn stored(&self, name: &str) -> String {
        self.replaced.iter().fold(name.to_owned(), |name, (ours, theirs)| name.replace(ours, theirs))
    }

    /// What circuits call the tensor that files call `name`.
    pub(crate) fn plain(&self, name: &str) -> String {
        self.replaced.iter().rev().fold(name.to_owned(), |name, (ours, theirs)| name.replace(theirs, ours))
    }
}
