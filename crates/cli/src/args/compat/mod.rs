//! Flags and variables of other servers, and what they mean to `latent serve`.
//!
//! One table per server says it all: the parser reads it, docs/switching.md and the tests are made from it.

mod llama_server;
mod translate;
mod values;
mod vllm;

pub(super) use translate::{Environment, FromVariable, translate, with_environment};

use Meaning::{Becomes, ByValue, Ignored, Own, Refused};

/// A flag of another server.
#[derive(Clone, Copy)]
pub(crate) struct CompatFlag {
    /// Spellings with blanks between, the usual one first.
    names: &'static str,
    /// The variable that sets it, if any; after a `!` one that sets it where its value means "off".
    variable: &'static str,
    takes: Takes,
    meaning: Meaning,
    /// What Latent does instead, or why the flag has no effect or is refused.
    text: &'static str,
}

/// What follows a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// Nothing.
    Nothing,
    /// A value.
    Value,
    /// `on`, `off` or `auto`, or nothing.
    Switch,
    /// Values up to the next flag.
    Values,
}

/// What a flag means here.
#[derive(Clone, Copy)]
pub(super) enum Meaning {
    /// `latent serve` has the flag under the same name, the first of the row that begins with two dashes.
    Own,
    /// These words, and the value after them if the flag takes one.
    Becomes(&'static str),
    /// The value decides.
    ByValue(fn(&str) -> Outcome),
    /// Accepted without an effect.
    Ignored,
    /// An error says why, and what to use instead.
    Refused,
}

/// What a value of a flag means here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// These words.
    Words(Vec<String>),
    /// No effect, for this reason.
    Ignored(&'static str),
    /// An error with this text.
    Refused(String),
}

impl Outcome {
    /// A flag with its value.
    fn flag(flag: &str, value: impl Into<String>) -> Outcome {
        Outcome::Words(vec![flag.to_owned(), value.into()])
    }
}

const fn row(
    names: &'static str,
    variable: &'static str,
    takes: Takes,
    meaning: Meaning,
    text: &'static str,
) -> CompatFlag {
    CompatFlag { names, variable, takes, meaning, text }
}

impl CompatFlag {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.names.split(' ')
    }

    /// The spelling of messages and of `latent serve` itself: the first long one, else the first.
    fn long(&self) -> &'static str {
        self.names().find(|name| name.starts_with("--")).or(self.names().next()).unwrap_or_default()
    }

    /// The variable, and whether a value that means "off" sets the flag.
    fn variable(&self) -> Option<(&'static str, bool)> {
        match self.variable.strip_prefix('!') {
            Some(name) => Some((name, true)),
            None if self.variable.is_empty() => None,
            None => Some((self.variable, false)),
        }
    }
}

/// The servers, and their flags.
pub(super) const SERVERS: [(&str, &[CompatFlag]); 2] =
    [("llama-server", llama_server::FLAGS), ("vllm serve", vllm::FLAGS)];

/// The flags of all servers. Where two have a flag of the same name, the first one counts.
fn flags() -> impl Iterator<Item = &'static CompatFlag> {
    SERVERS.into_iter().flat_map(|(_, flags)| flags)
}

/// A row as docs/switching.md and the tests show it.
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
    /// What Latent does instead, or why not.
    pub text: &'static str,
}

/// The rows of each server.
#[doc(hidden)]
pub fn rows() -> Vec<(&'static str, Vec<CompatRow>)> {
    let row = |flag: &CompatFlag| CompatRow {
        names: flag.names().collect(),
        variable: flag.variable().map(|(name, _)| name),
        variable_is_inverted: flag.variable().is_some_and(|(_, inverted)| inverted),
        takes_value: matches!(flag.takes, Takes::Value | Takes::Values),
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
