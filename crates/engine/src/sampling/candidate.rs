//! What samplers choose from.

/// A token that may be chosen. Samplers change its logit; its probability follows from the logits that are left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) id: u32,
    pub(crate) logit: f32,
    pub(crate) probability: f32,
}
