//! Kinds of drafting, and counts of accepted drafts.

/// The method of drafting tokens, which the model then verifies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Draft {
    /// No drafts: one step for each token.
    #[default]
    None,
    /// N-gram lookup: tokens that followed the same words in the prompt or the answer. Up to eight
    /// drafts per step, if the measured times of steps show that they pay. Devices that run several
    /// steps at a time draft nothing. A model with recurrent layers keeps a state for each draft of
    /// a step.
    Ngram,
    /// The model's own layer for multi-token prediction: one draft, verified in the step of its
    /// token.
    Mtp,
    /// Both: the MTP layer drafts if the n-gram lookup finds nothing.
    All,
}

impl Draft {
    /// Whether the MTP layer drafts, so that its weights are needed.
    pub fn has_mtp(self) -> bool {
        matches!(self, Draft::Mtp | Draft::All)
    }

    /// Whether drafts are looked up in the text.
    pub fn has_ngram(self) -> bool {
        matches!(self, Draft::Ngram | Draft::All)
    }

    /// The name on the command line.
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
            .ok_or_else(|| format!("unknown draft kind {word:?}; expected none, ngram, mtp or all"))
    }
}

/// Numbers of drafted and accepted tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DraftCount {
    /// Steps that verified drafts.
    pub steps: usize,
    /// Verified drafts.
    pub drafted: usize,
    /// Drafts that were equal to the chosen token.
    pub accepted: usize,
}

impl DraftCount {
    /// The fraction of drafts that was accepted. 0 without drafts.
    pub fn acceptance(&self) -> f64 {
        self.accepted as f64 / self.drafted.max(1) as f64
    }
}
