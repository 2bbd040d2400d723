//! DRY ("don't repeat yourself", p-e-w 2024): penalizes tokens that would continue a repetition of
//! an earlier part of the text. The penalty grows with the length of the repetition:
//! multiplier · base^(length − allowed).

use super::breakers::Breakers;
use super::candidate::{TokenCandidate, of_token};
use super::params::SamplingParams;

pub(super) struct DrySampler {
    breakers: Breakers,
    /// For each position of the reversed text, how many tokens from there on are equal to its
    /// beginning (Z-algorithm).
    lengths: Vec<usize>,
}

/// Maximum length of a repetition. Longer ones have a decisive penalty already.
const MAX_LENGTH: usize = 80;

impl DrySampler {
    pub(super) fn new(breakers: Breakers) -> DrySampler {
        DrySampler { breakers, lengths: Vec::new() }
    }

    /// Subtracts the penalties. Candidates are in ascending order of ids.
    pub(super) fn apply(&mut self, params: &SamplingParams, seen: &[u32], candidates: &mut [TokenCandidate]) {
        if params.dry_multiplier == 0.0 {
            return;
        }
        let seen = &seen[seen.len().saturating_sub(params.dry_last)..];
        // A repetition at the end of the text must not reach across the last breaker.
        let reach = self.breakers.tokens_after_last(seen);
        if reach == 0 {
            return;
        }
        self.match_ends(seen, reach);
        // Position i of the reversed text begins a repetition of the last lengths[i] tokens. The
        // token that followed it is at position i − 1.
        for i in 1..seen.len() {
            let length = self.lengths[i].min(MAX_LENGTH);
            if length >= params.dry_allowed && length > 0 {
                let next = seen[seen.len() - i];
                let penalty =
                    params.dry_multiplier * params.dry_base.powi((length - params.dry_allowed) as i32);
                // base^length overflows to infinity for large bases, which would ban the token. If
                // every candidate were banned, no token could be chosen.
                self.keep_largest(candidates, next, penalty.min(f32::MAX));
            }
        }
        for candidate in candidates {
            candidate.logit -= candidate.probability;
            candidate.probability = 0.0;
        }
    }

    /// Records the penalty of a token in its `probability`, unless a longer repetition has a larger
    /// one.
    fn keep_largest(&self, candidates: &mut [TokenCandidate], token: u32, penalty: f32) {
        // A breaker ends the repetition.
        if !self.breakers.is_breaker(token)
            && let Some(candidate) = of_token(candidates, token)
        {
            candidate.probability = candidate.probability.max(penalty);
        }
    }

    /// Fills `lengths`, with at most `reach` per position, in linear time (Z-algorithm).
    fn match_ends(&mut self, seen: &[u32], reach: usize) {
        let n = seen.len();
        let at = |i: usize| seen[n - 1 - i];
        self.lengths.clear();
        self.lengths.resize(n, 0);
        // The match that reaches farthest: left..right equals the beginning, so lengths within it
        // are known from there.
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
        // Only now: the algorithm above needs the full lengths.
        self.lengths.iter_mut().for_each(|length| *length = (*length).min(reach));
    }
}
