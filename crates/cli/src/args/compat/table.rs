//! The tables of all servers.

use super::flag::CompatFlag;
use super::flag::FlagMeaning::{Becomes, ByValue, Ignored, Own, Refused};
use super::flag::FlagOperand;
use super::{llama_server, vllm};

/// The servers and their flags.
pub(super) const SERVERS: [(&str, &[CompatFlag]); 2] =
    [("llama-server", llama_server::FLAGS), ("vllm serve", vllm::FLAGS)];

/// The flags of all servers. If two servers share a name, the first one counts.
pub(super) fn flags() -> impl Iterator<Item = &'static CompatFlag> {
    SERVERS.into_iter().flat_map(|(_, flags)| flags)
}

/// A row of docs/switching.md and of the tests.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct CompatRow {
    /// All spellings.
    pub names: Vec<&'static str>,
    /// The variable, if any.
    pub variable: Option<&'static str>,
    /// Whether a value of the variable that means "off" sets the flag.
    pub variable_is_inverted: bool,
    /// Whether a value must follow.
    pub takes_value: bool,
    /// What it means: `same`, `becomes`, `by value`, `ignored` or `refused`.
    pub kind: &'static str,
    /// What it becomes, for a row of that kind.
    pub becomes: Option<&'static str>,
    /// What Latent does instead, or why the flag has no effect.
    pub text: &'static str,
}

/// The rows of each server.
#[doc(hidden)]
pub fn rows() -> Vec<(&'static str, Vec<CompatRow>)> {
    let row = |flag: &CompatFlag| CompatRow {
        names: flag.names().collect(),
        variable: flag.variable().map(|(name, _)| name),
        variable_is_inverted: flag.variable().is_some_and(|(_, inverted)| inverted),
        takes_value: matches!(flag.takes, FlagOperand::Value | FlagOperand::Values),
        kind: match flag.meaning {
            Own => "same",
            Becomes(_) => "becomes",
            ByValue(_) => "by value",
            Ignored => "ignored",
            Refused => "refused",
        },
        becomes: match flag.meaning {
            Becomes(words) => Some(words),
            _ => None,
        },
        text: flag.text,
    };
    SERVERS.into_iter().map(|(server, flags)| (server, flags.iter().map(row).collect())).collect()
}
