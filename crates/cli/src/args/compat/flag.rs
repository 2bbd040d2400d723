//! The form of a flag of another server.

/// A flag of another server.
#[derive(Clone, Copy)]
pub(crate) struct CompatFlag {
    /// Spellings with blanks between, the usual one first.
    pub(super) names: &'static str,
    /// The variable that sets it, if any; after a `!` one that sets it where its value means "off".
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
    /// `latent serve` has the flag under the same name, the first of the row that begins with two dashes.
    Own,
    /// These words, and the value after them if the flag takes one.
    Becomes(&'static str),
    /// The value decides.
    ByValue(fn(&str) -> FlagOutcome),
    /// Accepted without an effect.
    Ignored,
    /// An error says why, and what to use instead.
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

    /// The spelling of messages and of `latent serve` itself: the first long one, else the first.
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
