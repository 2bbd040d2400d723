//! Samplers that drop candidates: top-k, typical, top-p, min-p, XTC.

use super::candidate::Candidate;
use super::params::SamplingParams;
use super::random::Random;
use std::cmp::Ordering;

/// Memory of the typical sampler.
#[derive(Default)]
pub(super) struct Scratch {
    surprise: Vec<(f32, usize)>,
    kept: Vec<Candidate>,
}

/// Likeliest first, the lower id of equal ones (0 and −0 are equal, as for the greedy choice). No candidate is NaN.
fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// Probabilities at a temperature.
pub(super) fn softmax(candidates: &mut [Candidate], temperature: f32) {
    let max = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0f64;
    for candidate in candidates.iter_mut() {
        // an infinite logit is certain
        let distance = if candidate.logit == max { 0.0 } else { (candidate.logit - max) / temperature };
        candidate.probability = latent_kernels::exp(distance);
        sum += f64::from(candidate.probability);
    }
    candidates.iter_mut().for_each(|c| c.probability = (f64::from(c.probability) / sum) as f32);
}

/// The whole chain. Something always remains.
pub(super) fn truncate(
    params: &SamplingParams,
    random: &mut Random,
    candidates: &mut Vec<Candidate>,
    scratch: &mut Scratch,
) {
    top_k(params.top_k, candidates);
    if params.typical < 1.0 {
        typical(params.typical, candidates, scratch);
    }
    let sorts = params.top_p < 1.0 || params.xtc_probability > 0.0;
    if sorts && !cut_large(params.top_p, candidates) {
        candidates.sort_unstable_by(likelier);
        if params.top_p < 1.0 {
            top_p(params.top_p, candidates);
        }
    }
    min_p(params.min_p, candidates);
    // the chance is drawn whether it is needed or not, so that the seed's sequence does not depend on the candidates
    if params.xtc_probability > 0.0 && random.unit() < f64::from(params.xtc_probability) {
        xtc(params.xtc_threshold, candidates);
    }
}

fn top_k(k: usize, candidates: &mut Vec<Candidate>) {
    if k > 0 && k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, likelier);
        candidates.truncate(k);
        // the order that selection leaves is not promised, but the draw depends on it
        candidates.sort_unstable_by(likelier);
    }
}

/// Top-p of a large vocabulary, where a few tokens usually reach p: only those are sorted. Whether it was done; what remains is sorted.
fn cut_large(p: f32, candidates: &mut Vec<Candidate>) -> bool {
    const FEW: usize = 1024;
    if candidates.len() <= 4 * FEW || p >= 1.0 {
        return false;
    }
    softmax(candidates, 1.0);
    candidates.select_nth_unstable_by(FEW - 1, likelier);
    candidates[..FEW].sort_unstable_by(likelier);
    let mut sum = 0.0;
    let reached = candidates[..FEW].iter().position(|c| {
        sum += f64::from(c.probability);
        sum >= f64::from(p)
    });
    if let Some(last) = reached {
        candidates.truncate(last + 1);
    }
    reached.is_some()
}

/// Candidates are sorted.
fn top_p(p: f32, candidates: &mut Vec<Candidate>) {
    softmax(candidates, 1.0);
    let mut sum = 0.0;
    let reached = candidates.iter().position(|c| {
        sum += f64::from(c.probability);
        sum >= f64::from(p)
    });
    if let Some(last) = reached {
        candidates.truncate(last + 1);
    }
}

fn min_p(p: f32, candidates: &mut Vec<Candidate>) {
    if p <= 0.0 {
        return;
    }
    let max = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
    let least = max + p.ln();
    candidates.retain(|c| c.logit >= least || c.logit == max);
}

/// Keeps what is closest to the expected information (Meister et al. 2022).
fn typical(p: f32, candidates: &mut Vec<Candidate>, scratch: &mut Scratch) {
    softmax(candidates, 1.0);
    let information = |c: &Candidate| -f64::from(c.probability).max(f64::MIN_POSITIVE).ln();
    let expected: f64 = candidates.iter().map(|c| f64::from(c.probability) * information(c)).sum();
    scratch.surprise.clear();
    let distance = |(i, c): (usize, &Candidate)| ((information(c) - expected).abs() as f32, i);
    scratch.surprise.extend(candidates.iter().enumerate().map(distance));
    scratch
        .surprise
        .sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(candidates[a.1].id.cmp(&candidates[b.1].id)));
    let mut sum = 0.0;
    scratch.kept.clear();
    for (_, i) in &scratch.surprise {
        scratch.kept.push(candidates[*i]);
        sum += f64::from(candidates[*i].probability);
        if sum >= f64::from(p) {
            break;
        }
    }
    std::mem::swap(candidates, &mut scratch.kept);
}

/// Drops all candidates above the threshold but the least likely of them ("exclude top choices", p-e-w 2024).
fn xtc(threshold: f32, candidates: &mut Vec<Candidate>) {
    softmax(candidates, 1.0);
    let above = candidates.iter().filter(|c| c.probability >= threshold).count();
    if above >= 2 {
        // candidates are sorted, so that those above the threshold come first
        candidates.drain(..above - 1);
    }
}
