//! Kinds of drafting, and counts of accepted drafts.

/// What drafts tokens, which the model then verifies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Draft {
    /// Nothing: one step for each token.
    #[default]
    None,
    /// The model's own layer for multi-token prediction: one draft, verified in the step of its
    /// token.
    Mtp,
}

impl Draft {
    /// Its word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Draft::None => "none",
            Draft::Mtp => "mtp",
        }
    }
}

impl std::str::FromStr for Draft {
    type Err = String;

    fn from_str(word: &str) -> Result<Draft, String> {
        [Draft::None, Draft::Mtp]
            .into_iter()
            .find(|draft| draft.name() == word)
            .ok_or_else(|| format!("{word:?} drafts nothing; expected none or mtp"))
    }
}

/// Tokens that were drafted for an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DraftCount {
    /// Drafts that were verified.
    pub drafted: usize,
    /// Those that were the token that the model chose.
    pub accepted: usize,
}

impl DraftCount {
    /// The share that was accepted; 0 of none.
    pub fn acceptance(&self) -> f64 {
        self.accepted as f64 / self.drafted.max(1) as f64
    }
}
