//! The sampler for code completion (llama.cpp's `infill`): decides whether to end the text, and
//! merges tokens of which one is a prefix of the other.

use super::candidate::TokenCandidate;
use super::truncation::{likelier, softmax};
use latent_text::Tokenizer;

/// Minimum probability of a candidate after merging.
const MIN_PROBABILITY: f64 = 0.2;

/// Maximum number of candidates that are compared with each other, since that takes quadratic time.
const MAX_JOINED: usize = 256;

/// Keeps only the tokens that end the text if these are likely relative to the number of
/// candidates. Otherwise merges tokens with a common prefix, and keeps those that are likely then.
pub(super) fn infill(tokenizer: &Tokenizer, candidates: &mut Vec<TokenCandidate>) {
    candidates.sort_unstable_by(likelier);
    softmax(candidates, 1.0);
    let ends = |c: &TokenCandidate| tokenizer.end_of_generation().contains(&c.id);
    let sum = |ending: bool| -> f64 {
        candidates.iter().filter(|c| ends(c) == ending).map(|c| f64::from(c.probability)).sum()
    };
    // The rule and the factor of llama.cpp.
    if 3.0 * sum(true) * candidates.len() as f64 > sum(false) {
        candidates.retain(ends);
        return;
    }
    join(tokenizer, candidates);
    let likely = |candidates: &[TokenCandidate], least: f64| -> Vec<bool> {
        candidates.iter().map(|c| ends(c) || f64::from(c.probability) >= least).collect()
    };
    let kept = likely(candidates, MIN_PROBABILITY);
    let texts = candidates.iter().zip(&kept).filter(|(c, kept)| **kept && !ends(c)).count();
    if texts == 0 {
        // No text is likely enough to be suggested, so end.
        let end = tokenizer.eos().or_else(|| tokenizer.end_of_generation().first().copied());
        if let Some(id) = end.or_else(|| candidates.first().map(|c| c.id)) {
            candidates.clear();
            candidates.push(TokenCandidate { id, logit: 1.0, probability: 1.0 });
        }
        return;
    }
    retain(candidates, &kept);
    let total: f64 = candidates.iter().map(|c| f64::from(c.probability)).sum();
    candidates.iter_mut().for_each(|c| c.probability = (f64::from(c.probability) / total) as f32);
    let kept = likely(candidates, 1.0 / (texts + 1) as f64);
    if kept.iter().any(|kept| *kept) {
        retain(candidates, &kept);
    }
}

fn retain(candidates: &mut Vec<TokenCandidate>, kept: &[bool]) {
    let mut kept = kept.iter();
    candidates.retain(|_| kept.next().copied().unwrap_or(false));
}

/// Merges pairs of tokens of which one is a prefix of the other: the likelier one gets the
/// probability of both, and the other is dropped.
fn join(tokenizer: &Tokenizer, candidates: &mut Vec<TokenCandidate>) {
    let piece = |c: &TokenCandidate| tokenizer.piece(c.id).unwrap_or_default();
    let count = candidates.len().min(MAX_JOINED);
    let mut gone = vec![false; candidates.len()];
    for shorter in 0..count {
        for longer in 0..count {
            if gone[shorter] {
                break;
            }
            let text = piece(&candidates[shorter]);
            let begins = !text.is_empty() && piece(&candidates[longer]).starts_with(text);
            if shorter == longer || gone[longer] || !begins {
                continue;
            }
            let first = candidates[longer].probability > candidates[shorter].probability;
            let (to, from) = if first { (longer, shorter) } else { (shorter, longer) };
            candidates[to].probability += candidates[from].probability;
            gone[from] = true;
        }
    }
    let mut gone = gone.into_iter();
    candidates.retain(|_| !gone.next().unwrap_or(false));
}
