//! What samplers choose from.

/// A token that may be chosen. Samplers change its logit; its probability follows from the logits that are left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TokenCandidate {
    pub(crate) id: u32,
    pub(crate) logit: f32,
    pub(crate) probability: f32,
}

/// The candidate of a token, if it is among these, which are in ascending order of their ids.
pub(super) fn of_token(candidates: &mut [TokenCandidate], token: u32) -> Option<&mut TokenCandidate> {
    let at = candidates.get(token as usize).filter(|candidate| candidate.id == token).map(|_| token as usize);
    let at = at.or_else(|| candidates.binary_search_by_key(&token, |candidate| candidate.id).ok())?;
    candidates.get_mut(at)
}
