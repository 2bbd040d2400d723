//! Candidates of a sampler.

/// A token that may be chosen. Samplers change its logit. Its probability is valid only after a
/// softmax over the remaining candidates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TokenCandidate {
    pub(crate) id: u32,
    pub(crate) logit: f32,
    pub(crate) probability: f32,
}

/// The candidate of a token, if it is among the candidates, which must be in ascending order of
/// ids.
pub(super) fn of_token(candidates: &mut [TokenCandidate], token: u32) -> Option<&mut TokenCandidate> {
    // While no candidate was dropped, the index is the id.
    let at = candidates.get(token as usize).filter(|candidate| candidate.id == token).map(|_| token as usize);
    let at = at.or_else(|| candidates.binary_search_by_key(&token, |candidate| candidate.id).ok())?;
    candidates.get_mut(at)
}
