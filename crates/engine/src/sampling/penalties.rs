//! Penalties on recent tokens: repetition (CTRL, Keskar et al. 2019), presence and frequency.

use super::candidate::{TokenCandidate, of_token};
use super::params::SamplingParams;

/// The number of recent tokens for the penalties. 0 if the penalties have no effect.
pub(super) fn window(params: &SamplingParams) -> usize {
    let neutral =
        params.repeat_penalty == 1.0 && params.presence_penalty == 0.0 && params.frequency_penalty == 0.0;
    if neutral { 0 } else { params.repeat_last_n }
}

/// Whether the penalties never raise a logit.
pub(super) fn only_lower(params: &SamplingParams) -> bool {
    params.repeat_penalty >= 1.0 && params.presence_penalty >= 0.0 && params.frequency_penalty >= 0.0
}

pub(super) struct Penalties {
    /// How often each token occurred in the window. All zero between calls; kept so that no memory
    /// is allocated per token.
    counts: Vec<u32>,
}

impl Penalties {
    pub(super) fn new() -> Penalties {
        Penalties { counts: Vec::new() }
    }

    /// Applies the penalties. Candidates are in ascending order of ids.
    pub(super) fn apply(&mut self, params: &SamplingParams, seen: &[u32], candidates: &mut [TokenCandidate]) {
        // Tokens with larger ids than the last candidate have no logit to change.
        let ids = candidates.last().map_or(0, |last| last.id as usize + 1);
        if self.counts.len() < ids {
            self.counts.resize(ids, 0);
        }
        let window = &seen[seen.len().saturating_sub(window(params))..];
        for &token in window {
            if let Some(count) = self.counts.get_mut(token as usize) {
                *count += 1;
            }
        }
        for &token in window {
            let Some(count) = self.counts.get_mut(token as usize) else { continue };
            // Taking the count applies the penalty once per token, and clears the table for the
            // next call.
            let times = std::mem::take(count);
            if let Some(candidate) = of_token(candidates, token).filter(|_| times > 0) {
                let logit = &mut candidate.logit;
                // Dividing a negative logit would make the token more likely.
                *logit = if *logit <= 0.0 {
                    *logit * params.repeat_penalty
                } else {
                    *logit / params.repeat_penalty
                };
                *logit -= times as f32 * params.frequency_penalty + params.presence_penalty;
            }
        }
    }
}
