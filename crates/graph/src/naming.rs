//! Tensor naming schemes of files.

pub(crate) use latent_formats::HF_PREFIXES;
use latent_formats::{BAILING_NAMES, KIMI_LINEAR_NAMES, NameReplacements};

/// The naming convention of a file's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorNaming {
    /// GGUF names: `blk.0.attn_q_a.weight`.
    Gguf,
    /// Hugging Face names: `model.layers.0.self_attn.q_a_proj.weight`.
    HuggingFace,
}

/// Name differences of a family's safetensors from the names in circuits: substrings that are
/// replaced in this order. Kimi-Linear and Ling-3.0 share blocks with DeepSeek but name the tensors
/// differently.
#[derive(Debug)]
pub(crate) struct NamingScheme {
    /// Its name in circuit files (`hf_names`).
    pub(crate) name: &'static str,
    replaced: NameReplacements,
}

/// The names in circuits, which are DeepSeek's.
pub(crate) static PLAIN: NamingScheme = NamingScheme { name: "plain", replaced: &[] };

/// The names of Ling-3.0 (`bailing_hybrid`).
pub(crate) static BAILING: NamingScheme = NamingScheme { name: "bailing", replaced: BAILING_NAMES };

pub(crate) static KIMI_LINEAR: NamingScheme =
    NamingScheme { name: "kimi_linear", replaced: KIMI_LINEAR_NAMES };

impl NamingScheme {
    pub(crate) fn named(name: &str) -> Option<&'static NamingScheme> {
        // Circuit files name a scheme by this word (`hf_names`).
        [&PLAIN, &BAILING, &KIMI_LINEAR].into_iter().find(|scheme| scheme.name == name)
    }

    /// The name in files of the tensor that circuits call `name`.
    pub(crate) fn stored(&self, name: &str) -> String {
        self.replaced.iter().fold(name.to_owned(), |name, (ours, theirs)| name.replace(ours, theirs))
    }

    /// The name in circuits of the tensor that files call `name`.
    pub(crate) fn plain(&self, name: &str) -> String {
        // In reverse: a later replacement may have changed the result of an earlier one.
        self.replaced.iter().rev().fold(name.to_owned(), |name, (ours, theirs)| name.replace(theirs, ours))
    }
}
