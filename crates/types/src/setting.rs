//! Settings in errors and reports. Each program has its own names for them: flags, fields of a
//! request, or arguments of a function.

use std::borrow::Cow;
use std::fmt;

// A macro, so that `ALL` contains every setting.
macro_rules! settings {
    ($($(#[$doc:meta])* $setting:ident $name:literal,)*) => {
        /// A setting in a text of a library. It is displayed with the name of its field: option
        /// `context`. A program with another name replaces that by [`Setting::rename`].
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
    /// Tokens of the KV cache, over all sequences.
    CacheTokens "cache_tokens",
    /// The form of KV cache rows (latents or expanded).
    CacheForm "form",
    /// The circuit that replaces the model's own.
    Circuit "circuit",
    /// Maximum tokens of a sequence.
    Context "context",
    /// The device that runs the model.
    Device "device",
    /// The source of drafts.
    Draft "draft",
    /// Proceed despite a failed check.
    Force "force",
    /// The device on which a server runs its model after a GPU was lost.
    GpuFallback "gpu_fallback",
    /// The file of Hessians.
    Hessians "hessians",
    /// The ranks that share the model.
    Hosts "hosts",
    /// The importance matrix.
    Imatrix "imatrix",
    /// Tokens that a context shift keeps.
    Keep "keep",
    /// The layers to record.
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
    /// The tokens to discard when the context is full.
    Shift "shift",
    /// Attention only to tokens that an indexer selects.
    SparseAttention "sparse_attention",
    /// Memory for recurrent states.
    StateCache "state_cache",
    /// Number of CPU threads.
    Threads "threads",
    /// ISA tier of the CPU.
    Tier "tier",
    /// Token ids instead of text.
    Tokens "tokens",
    /// Check the values of all weights.
    Weights "weights",
}

/// The text before a setting's name. [`Setting::rename`] searches for it.
const PREFIX: &str = "option `";

impl Setting {
    /// The setting with a value, displayed as: option `context: 128`.
    pub fn to(self, value: impl fmt::Display) -> SettingValue {
        SettingValue { setting: self, value: value.to_string() }
    }

    /// Replaces the names of settings in a text by those of a program, followed by a blank and the
    /// value. `name` gives the program's name of a setting. Settings for which it returns `None`
    /// are not changed.
    pub fn rename(text: &str, name: impl Fn(Setting) -> Option<&'static str>) -> Cow<'_, str> {
        let (mut renamed, mut rest) = (String::new(), text);
        while let Some((before, behind)) = rest.split_once(PREFIX) {
            let Some((inside, after)) = behind.split_once('`') else { break };
            // The first colon separates, since a value may contain others.
            let (field, value) =
                inside.split_once(": ").map_or((inside, None), |(field, value)| (field, Some(value)));
            // Text of a file or path may contain the prefix with another name.
            let setting = Setting::ALL.iter().find(|setting| setting.name() == field);
            renamed.push_str(before);
            match setting.and_then(|setting| name(*setting)) {
                Some(name) => renamed.extend([name, value.map_or("", |_| " "), value.unwrap_or_default()]),
                None => renamed.extend([PREFIX, inside, "`"]),
            }
            rest = after;
        }
        // Most texts contain no setting, and need no copy.
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

/// A setting with a value; see [`Setting::to`].
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
        // Values may contain the separator.
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
