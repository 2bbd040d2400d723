//! Rows of the tables of other servers' flags.

/// A flag of another server.
#[derive(Clone, Copy)]
pub(crate) struct CompatFlag {
    /// Spellings separated by spaces, the usual one first.
    pub(super) names: &'static str,
    /// The environment variable that sets it, if any. With a leading `!`, a value that means "off"
    /// sets it.
    pub(super) variable: &'static str,
    pub(super) takes: FlagOperand,
    pub(super) meaning: FlagMeaning,
    /// What Latent does instead, or why the flag has no effect or is refused.
    pub(super) text: &'static str,
}

/// What follows a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagOperand {
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
pub(super) enum FlagMeaning {
    /// `latent serve` has the flag under the same name, the first of the row that begins with two
    /// dashes.
    Own,
    /// These words, followed by the value if the flag takes one.
    Becomes(&'static str),
    /// The function decides by the value.
    ByValue(fn(&str) -> FlagOutcome),
    /// Accepted without an effect.
    Ignored,
    /// An error with the reason and what to use instead.
    Refused,
}

/// What a value of a flag means here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FlagOutcome {
    /// These words.
    Words(Vec<String>),
    /// No effect, for this reason.
    Ignored(&'static str),
    /// An error with this text.
    Refused(String),
}

impl FlagOutcome {
    /// A flag with its value.
    pub(super) fn flag(flag: &str, value: impl Into<String>) -> FlagOutcome {
        FlagOutcome::Words(vec![flag.to_owned(), value.into()])
    }
}

pub(super) const fn row(
    names: &'static str,
    variable: &'static str,
    takes: FlagOperand,
    meaning: FlagMeaning,
    text: &'static str,
) -> CompatFlag {
    CompatFlag { names, variable, takes, meaning, text }
}

impl CompatFlag {
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.names.split(' ')
    }

    /// The spelling in messages and of `latent serve`: the first long one, else the first.
    pub(super) fn long(&self) -> &'static str {
        self.names().find(|name| name.starts_with("--")).or(self.names().next()).unwrap_or_default()
    }

    /// The variable, and whether a value that means "off" sets the flag.
    pub(super) fn variable(&self) -> Option<(&'static str, bool)> {
        match self.variable.strip_prefix('!') {
            Some(name) => Some((name, true)),
            None if self.variable.is_empty() => None,
            None => Some((self.variable, false)),
        }
    }
}
