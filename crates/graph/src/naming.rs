//! How a file names its tensors.

pub(crate) use latent_formats::HF_PREFIXES;
use latent_formats::{BAILING_NAMES, KIMI_LINEAR_NAMES, NameReplacements};

/// Which column of the slot table a file's names follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorNaming {
    /// GGUF names: `blk.0.attn_q_a.weight`.
    Gguf,
    /// Hugging Face names: `model.layers.0.self_attn.q_a_proj.weight`.
    HuggingFace,
}

/// Where safetensors of a family are called otherwise than circuits call them: parts of names, replaced in this order.
#[derive(Debug)]
pub(crate) struct NamingScheme {
    /// Its name in circuit files (`hf_names`).
    pub(crate) name: &'static str,
    replaced: NameReplacements,
}

/// The names that circuits use.
pub(crate) static PLAIN: NamingScheme = NamingScheme { name: "plain", replaced: &[] };

/// The names of Ling-3.0.
pub(crate) static BAILING: NamingScheme = NamingScheme { name: "bailing", replaced: BAILING_NAMES };

pub(crate) static KIMI_LINEAR: NamingScheme =
    NamingScheme { name: "kimi_linear", replaced: KIMI_LINEAR_NAMES };

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
