//! Control tokens of fill-in-the-middle prompts.

/// Control tokens of fill-in-the-middle prompts, from a file's metadata or by their usual names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FimTokens {
    /// Begins the text before the gap.
    pub prefix: Option<u32>,
    /// Begins the text after the gap.
    pub suffix: Option<u32>,
    /// Begins the text in the gap, which the model writes.
    pub middle: Option<u32>,
    /// Pads training batches.
    pub pad: Option<u32>,
    /// Begins the name of a repository.
    pub repository: Option<u32>,
    /// Begins the name of a file of a repository.
    pub file: Option<u32>,
}

/// Names of each token in known vocabularies: Qwen, StarCoder, Granite, DeepSeek, CodeLlama, GLM,
/// Falcon.
const PREFIX: [&str; 8] = [
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const SUFFIX: [&str; 8] = [
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const MIDDLE: [&str; 8] = [
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const PAD: [&str; 3] = ["<|fim_pad|>", "<fim-pad>", "<fim_pad>"];
const REPOSITORY: [&str; 5] = ["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FILE: [&str; 1] = ["<|file_sep|>"];

impl FimTokens {
    /// The tokens of a vocabulary with known names.
    pub(super) fn named(token_id: impl Fn(&str) -> Option<u32>) -> FimTokens {
        let find = |names: &[&str]| names.iter().find_map(|name| token_id(name));
        FimTokens {
            prefix: find(&PREFIX),
            suffix: find(&SUFFIX),
            middle: find(&MIDDLE),
            pad: find(&PAD),
            repository: find(&REPOSITORY),
            file: find(&FILE),
        }
    }

    /// These tokens if the vocabulary has them, otherwise those of `others`.
    pub(super) fn or(self, others: FimTokens, vocabulary: usize) -> FimTokens {
        // A file may name an id beyond a vocabulary that was cut.
        let either = |own: Option<u32>, other: Option<u32>| {
            own.filter(|id| usize::try_from(*id).is_ok_and(|id| id < vocabulary)).or(other)
        };
        FimTokens {
            prefix: either(self.prefix, others.prefix),
            suffix: either(self.suffix, others.suffix),
            middle: either(self.middle, others.middle),
            pad: either(self.pad, others.pad),
            repository: either(self.repository, others.repository),
            file: either(self.file, others.file),
        }
    }

    /// Tokens that end the text of the gap, because they begin another file.
    pub(super) fn ends(&self) -> impl Iterator<Item = u32> {
        // Without the three FIM tokens, the same names may have another meaning.
        let is_complete = self.prefix.is_some() && self.suffix.is_some() && self.middle.is_some();
        // llama.cpp ends the generation at the same three tokens.
        [self.pad, self.repository, self.file].into_iter().flatten().filter(move |_| is_complete)
    }

    /// Names of the tokens that prompts with a gap need and the vocabulary lacks.
    pub fn missing(&self) -> Vec<&'static str> {
        let tokens = [("prefix", self.prefix), ("suffix", self.suffix), ("middle", self.middle)];
        tokens.into_iter().filter(|(_, token)| token.is_none()).map(|(name, _)| name).collect()
    }
}
