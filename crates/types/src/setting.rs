//! Settings that errors and reports name. Each program calls them in its own way: by flags, by fields of a request, by arguments of a function.

use std::borrow::Cow;
use std::fmt;

macro_rules! settings {
    ($($(#[$doc:meta])* $setting:ident $name:literal,)*) => {
        /// A setting that a text of a library names. It is displayed by the name of the field that sets it: option `context`. A program that calls it
        /// otherwise replaces that: see [`Setting::rename`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Setting {
            $($(#[$doc])* $setting,)*
        }

        impl Setting {
            pub const ALL: &[Setting] = &[$(Setting::$setting),*];

            /// The field that sets it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Setting::$setting => $name,)*
                }
            }
        }
    };
}

settings! {
    /// Overwriting a quantized tensor with a smaller type.
    AllowRequantize "allow_requantize",
    /// Maximum rows of a step.
    BatchTokens "max_batch_tokens",
    /// Element type of the KV cache.
    Cache "cache",
    /// Tokens of the KV cache, all sequences together.
    CacheTokens "cache_tokens",
    /// What the KV cache stores.
    CacheForm "form",
    /// The circuit that takes the place of the model's own.
    Circuit "circuit",
    /// Tokens of a sequence.
    Context "context",
    /// The device that runs the model.
    Device "device",
    /// What drafts tokens.
    Draft "draft",
    /// Doing it in spite of what speaks against it.
    Force "force",
    /// Where a server runs its model after a GPU was lost.
    GpuFallback "gpu_fallback",
    /// The file of Hessians.
    Hessians "hessians",
    /// The ranks that share the model.
    Hosts "hosts",
    /// The importance matrix.
    Imatrix "imatrix",
    /// Tokens that a context shift keeps.
    Keep "keep",
    /// The layers that are recorded.
    Layers "layers",
    /// Formulation of MLA.
    Mla "mla",
    /// Working without a network.
    Offline "offline",
    /// The layers that a device runs.
    Offload "offload",
    /// Precision of the arithmetic.
    Precision "precision",
    /// The rules that split a text before it is tokenized.
    PreTokenizer "pre_tokenizer",
    /// A prompt without a chat template.
    Raw "raw",
    /// What to discard when the context is full.
    Shift "shift",
    /// Attention to the tokens that an indexer selects.
    SparseAttention "sparse_attention",
    /// Memory for recurrent states.
    StateCache "state_cache",
    /// Threads of the processor.
    Threads "threads",
    /// Instruction-set tier of the processor.
    Tier "tier",
    /// Token ids in place of a text.
    Tokens "tokens",
    /// Checking the values of all weights.
    Weights "weights",
}

/// What a setting's name begins with in a text.
const PREFIX: &str = "option `";

impl Setting {
    /// The setting with a value, displayed as: option `context: 128`.
    pub fn to(self, value: impl fmt::Display) -> SettingValue {
        SettingValue { setting: self, value: value.to_string() }
    }

    /// Replaces the names of settings in a text by those of a program. `name` gives the program's name of a setting; its value follows after a
    /// blank. A setting without a name there stays as it is.
    pub fn rename(text: &str, name: impl Fn(Setting) -> Option<&'static str>) -> Cow<'_, str> {
        let (mut renamed, mut rest) = (String::new(), text);
        while let Some((before, behind)) = rest.split_once(PREFIX) {
            let Some((inside, after)) = behind.split_once('`') else { break };
            let (field, value) =
                inside.split_once(": ").map_or((inside, None), |(field, value)| (field, Some(value)));
            let setting = Setting::ALL.iter().find(|setting| setting.name() == field);
            renamed.push_str(before);
            match setting.and_then(|setting| name(*setting)) {
                Some(name) => renamed.extend([name, value.map_or("", |_| " "), value.unwrap_or_default()]),
                None => renamed.extend([PREFIX, inside, "`"]),
            }
            rest = after;
        }
        if renamed.is_empty() {
            return text.into();
        }
        renamed.push_str(rest);
        renamed.into()
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}`", self.name())
    }
}

/// A setting with a value: see [`Setting::to`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingValue {
    setting: Setting,
    value: String,
}

impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}: {}`", self.setting.name(), self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flag(setting: Setting) -> Option<&'static str> {
        match setting {
            Setting::Context => Some("--ctx-size"),
            Setting::Force => Some("--force"),
            _ => None,
        }
    }

    #[test]
    fn a_program_replaces_the_names_that_it_knows() {
        let said = format!(
            "try {}, or {}; not {}",
            Setting::Context.to(128),
            Setting::Force,
            Setting::Device.to("cpu")
        );
        assert_eq!(said, "try option `context: 128`, or option `force`; not option `device: cpu`");
        assert_eq!(Setting::rename(&said, flag), "try --ctx-size 128, or --force; not option `device: cpu`");
    }

    #[test]
    fn other_texts_stay_as_they_are() {
        for text in [
            "",
            "no setting",
            "`context`",
            "option `",
            "option `context",
            "option `colour`",
            "option ``",
            "an option `context:128`",
        ] {
            assert_eq!(Setting::rename(text, flag), text);
        }
        assert_eq!(
            Setting::rename("option `context`option `context: a: b`", flag),
            "--ctx-size--ctx-size a: b"
        );
    }

    #[test]
    fn names_are_fields_and_differ() {
        let mut names: Vec<_> = Setting::ALL.iter().map(|setting| setting.name()).collect();
        assert!(names.iter().all(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Setting::ALL.len());
    }
}
