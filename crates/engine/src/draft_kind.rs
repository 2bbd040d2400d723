//! Kinds of drafting, and counts of accepted drafts.

/// What drafts tokens, which the model then verifies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Draft {
    /// Nothing: one step for each token.
    #[default]
    None,
    /// Tokens that followed the same words before, in the prompt or the answer: up to eight drafts per step,
    /// where the engine's own steps show that they pay. On devices that run a step at a time; on others nothing
    /// is drafted. A model with recurrent layers keeps a state for each draft of a step.
    Ngram,
    /// The model's own layer for multi-token prediction: one draft, verified in the step of its
    /// token.
    Mtp,
    /// Both: where nothing repeats, the model's layer drafts.
    All,
}

impl Draft {
    /// Whether the model's layer for multi-token prediction drafts, so that its weights are needed.
    pub fn has_mtp(self) -> bool {
        matches!(self, Draft::Mtp | Draft::All)
    }

    /// Whether drafts are looked up in the text.
    pub fn has_ngram(self) -> bool {
        matches!(self, Draft::Ngram | Draft::All)
    }

    /// Its word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Draft::None => "none",
            Draft::Ngram => "ngram",
            Draft::Mtp => "mtp",
            Draft::All => "all",
        }
    }
}

impl std::str::FromStr for Draft {
    type Err = String;

    fn from_str(word: &str) -> Result<Draft, String> {
        [Draft::None, Draft::Ngram, Draft::Mtp, Draft::All]
            .into_iter()
            .find(|draft| draft.name() == word)
            .ok_or_else(|| format!("unknown kind of drafts {word:?}; expected none, ngram, mtp or all"))
    }
}

/// Tokens that were drafted for an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DraftCount {
    /// Steps that verified drafts.
    pub steps: usize,
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
