//! Penalties on tokens that occurred: repetition (CTRL, Keskar et al. 2019), presence and frequency.

use super::candidate::{TokenCandidate, of_token};
use super::params::SamplingParams;

/// How many tokens back penalties look; 0 where they leave everything as it is.
pub(super) fn window(params: &SamplingParams) -> usize {
    let neutral =
        params.repeat_penalty == 1.0 && params.presence_penalty == 0.0 && params.frequency_penalty == 0.0;
    if neutral { 0 } else { params.repeat_last_n }
}

/// Whether they only lower logits.
pub(super) fn only_lower(params: &SamplingParams) -> bool {
    params.repeat_penalty >= 1.0 && params.presence_penalty >= 0.0 && params.frequency_penalty >= 0.0
}

/// How often each token occurred in the window; kept so that nothing is allocated per token.
pub(super) struct Penalties {
    counts: Vec<u32>,
}

impl Penalties {
    pub(super) fn new() -> Penalties {
        Penalties { counts: Vec::new() }
    }

    /// Candidates are in the order of their ids.
    pub(super) fn apply(&mut self, params: &SamplingParams, seen: &[u32], candidates: &mut [TokenCandidate]) {
        // tokens behind the last candidate have no logit to lower
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
            // each token once: its count is taken
            let times = std::mem::take(count);
            if let Some(candidate) = of_token(candidates, token).filter(|_| times > 0) {
                let logit = &mut candidate.logit;
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
