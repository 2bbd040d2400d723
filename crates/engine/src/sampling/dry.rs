//! DRY ("don't repeat yourself", p-e-w 2024): a token that would continue a repetition of what was said before is penalised, the
//! more the longer the repetition: multiplier · base^(length − allowed).

use super::breakers::Breakers;
use super::candidate::{TokenCandidate, of_token};
use super::params::SamplingParams;

pub(super) struct DrySampler {
    /// What no repetition reaches across.
    breakers: Breakers,
    /// How many tokens before each place agree with the end (Z-algorithm, over the reversed text).
    lengths: Vec<usize>,
}

/// Longest repetition that counts: the penalty has long been decisive.
const MAX_LENGTH: usize = 80;

impl DrySampler {
    pub(super) fn new(breakers: Breakers) -> DrySampler {
        DrySampler { breakers, lengths: Vec::new() }
    }

    /// Candidates are in the order of their ids.
    pub(super) fn apply(&mut self, params: &SamplingParams, seen: &[u32], candidates: &mut [TokenCandidate]) {
        if params.dry_multiplier == 0.0 {
            return;
        }
        let seen = &seen[seen.len().saturating_sub(params.dry_last)..];
        // nothing before the last breaker counts for the end of the text
        let reach = self.breakers.tokens_after_last(seen);
        if reach == 0 {
            return;
        }
        self.match_ends(seen, reach);
        // place i of the reversed text repeats the last lengths[i] tokens; what came after it is place i − 1
        for i in 1..seen.len() {
            let length = self.lengths[i].min(MAX_LENGTH);
            if length >= params.dry_allowed && length > 0 {
                let next = seen[seen.len() - i];
                let penalty =
                    params.dry_multiplier * params.dry_base.powi((length - params.dry_allowed) as i32);
                // an infinite penalty would be a ban, and with every token banned nothing could be said
                self.keep_largest(candidates, next, penalty.min(f32::MAX));
            }
        }
        for candidate in candidates {
            candidate.logit -= candidate.probability;
            candidate.probability = 0.0;
        }
    }

    /// The penalty of a token is that of the longest repetition that it continues. Kept in `probability` until all are known.
    fn keep_largest(&self, candidates: &mut [TokenCandidate], token: u32, penalty: f32) {
        if !self.breakers.is_breaker(token)
            && let Some(candidate) = of_token(candidates, token)
        {
            candidate.probability = candidate.probability.max(penalty);
        }
    }

    /// Fills `lengths`: for each place of the reversed text, how many tokens agree with its beginning, at most `reach`.
    fn match_ends(&mut self, seen: &[u32], reach: usize) {
        let n = seen.len();
        let at = |i: usize| seen[n - 1 - i];
        self.lengths.clear();
        self.lengths.resize(n, 0);
        let (mut left, mut right) = (0, 0);
        for i in 1..n {
            let mut length = if i < right { self.lengths[i - left].min(right - i) } else { 0 };
            while i + length < n && at(length) == at(i + length) {
                length += 1;
            }
            if i + length > right {
                (left, right) = (i, i + length);
            }
            self.lengths[i] = length;
        }
        self.lengths.iter_mut().for_each(|length| *length = (*length).min(reach));
    }
}
