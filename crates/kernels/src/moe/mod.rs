//! MoE routing: from a token's router logits to its top-k experts and their weights.

use crate::math::exp;

/// From logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteGating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// Top-k of the logits, then softmax over the selected.
    SoftmaxOfSelected,
    /// √softplus of each logit.
    SqrtSoftplus,
}

/// Score of a group of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteGroupScore {
    /// The sum of its two best experts.
    TopTwoSum,
    /// Its best expert.
    Max,
}

/// The rules of a router.
#[derive(Clone, Copy, Debug)]
pub struct RouteSpec<'a> {
    /// From logits to scores.
    pub gating: RouteGating,
    /// Added to the scores for selection only, not to the weights.
    pub bias: Option<&'a [f32]>,
    /// Groups of consecutive experts (0 or 1: no groups).
    pub groups: usize,
    /// Groups whose experts may be selected.
    pub groups_used: usize,
    pub group_score: RouteGroupScore,
    /// What experts of other groups count as: −∞, or 0.
    pub masked_score: f32,
    /// Whether weights are divided by their sum.
    pub norm: bool,
    /// Lower bound of the sum that weights are divided by.
    pub norm_floor: f32,
    /// Factor on the weights, after normalization.
    pub scale: f32,
}

/// Selects the `topk_ids.len()` best experts, best first. Ties go to the lower index; experts of
/// masked groups count as `masked_score`, and NaN logits as −∞. `scratch` grows to twice the number
/// of experts plus the number of groups.
// Repeated scans instead of a sort: k is small (6 to 8 in most models), and ties go to the lower
// index without a stable sort.
///
/// # Panics
/// When `topk_ids` is longer than `logits`, or `topk_weights` is not as long as `topk_ids`.
pub fn route(
    logits: &[f32],
    spec: &RouteSpec<'_>,
    topk_ids: &mut [u32],
    topk_weights: &mut [f32],
    scratch: &mut Vec<f32>,
) {
    let experts = logits.len();
    assert!(
        topk_ids.len() <= experts && topk_ids.len() == topk_weights.len(),
        "{} of {experts} experts",
        topk_ids.len()
    );
    if scratch.len() < 2 * experts + spec.groups {
        scratch.resize(2 * experts + spec.groups, 0.0);
    }
    let (scores, rest) = scratch.split_at_mut(experts);
    let (choice, groups) = rest.split_at_mut(experts);
    score(logits, spec.gating, scores);
    for (e, c) in choice.iter_mut().enumerate() {
        let biased = scores[e] + spec.bias.map_or(0.0, |bias| bias[e]);
        // −∞ rather than NaN, which marks selected experts: k may be the number of all experts, so
        // this one must remain selectable.
        *c = if biased.is_nan() || logits[e].is_nan() { f32::NEG_INFINITY } else { biased };
    }
    if spec.groups > 1 && spec.groups_used < spec.groups {
        mask_groups(choice, &mut groups[..spec.groups], spec);
    }
    for (place, id) in topk_ids.iter_mut().enumerate() {
        let best = best_of(choice);
        *id = best as u32;
        topk_weights[place] = scores[best];
        // Every comparison with NaN is false, so this expert is never selected again.
        choice[best] = f32::NAN;
    }
    if spec.gating == RouteGating::SoftmaxOfSelected {
        softmax(topk_weights);
    }
    if spec.norm {
        let sum = topk_weights.iter().sum::<f32>().max(spec.norm_floor);
        topk_weights.iter_mut().for_each(|w| *w /= sum);
    }
    if spec.scale != 1.0 {
        topk_weights.iter_mut().for_each(|w| *w *= spec.scale);
    }
}

fn score(logits: &[f32], gating: RouteGating, scores: &mut [f32]) {
    scores.copy_from_slice(logits);
    match gating {
        RouteGating::Softmax => softmax(scores),
        RouteGating::Sigmoid => scores.iter_mut().for_each(|s| *s = 1.0 / (1.0 + exp(-*s))),
        RouteGating::SoftmaxOfSelected => {}
        RouteGating::SqrtSoftplus => {
            // softplus(x) = max(x, 0) + ln(1 + e^-|x|): the exponent is never positive, so nothing
            // overflows.
            scores
                .iter_mut()
                .for_each(|s| *s = (s.max(0.0) + (f64::from(-s.abs()).exp().ln_1p()) as f32).sqrt());
        }
    }
    // A NaN weight would spread to the whole output row.
    for s in scores {
        if s.is_nan() {
            *s = 0.0;
        }
    }
}

fn softmax(x: &mut [f32]) {
    // Subtracting the maximum keeps every exponential at most 1. If all are −∞, −∞ − −∞ would be
    // NaN: all become 0.
    let max = x.iter().copied().filter(|v| !v.is_nan()).fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for v in x.iter_mut() {
        *v = if v.is_nan() || max == f32::NEG_INFINITY { 0.0 } else { exp(*v - max) };
        sum += *v;
    }
    if sum > 0.0 {
        x.iter_mut().for_each(|v| *v /= sum);
    }
}

/// Index of the first maximum; selected ones are NaN.
fn best_of(choice: &[f32]) -> usize {
    // Start at a number: nothing is larger than NaN, and −∞ is not larger than −∞.
    let mut best = choice.iter().position(|c| !c.is_nan()).unwrap_or(0);
    for (e, &c) in choice.iter().enumerate() {
        if c > choice[best] {
            best = e;
        }
    }
    best
}

/// Sets the experts of all but the best groups to `masked_score`.
fn mask_groups(choice: &mut [f32], groups: &mut [f32], spec: &RouteSpec<'_>) {
    let size = choice.len() / spec.groups;
    for (group, members) in groups.iter_mut().zip(choice.chunks_exact(size)) {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for &m in members {
            if m > first {
                (first, second) = (m, first);
            } else if m > second {
                second = m;
            }
        }
        *group = match spec.group_score {
            RouteGroupScore::TopTwoSum if size > 1 => first + second,
            _ => first,
        };
    }
    for _ in 0..spec.groups_used {
        let best = best_of(groups);
        // NaN marks a group whose experts may be selected.
        groups[best] = f32::NAN;
    }
    for (group, members) in groups.iter().zip(choice.chunks_exact_mut(size)) {
        if !group.is_nan() {
            members.fill(spec.masked_score);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: RouteSpec<'static> = RouteSpec {
        gating: RouteGating::Softmax,
        bias: None,
        groups: 1,
        groups_used: 1,
        group_score: RouteGroupScore::Max,
        masked_score: f32::NEG_INFINITY,
        norm: false,
        norm_floor: 0.0,
        scale: 1.0,
    };

    fn run(logits: &[f32], k: usize, spec: RouteSpec<'_>) -> (Vec<u32>, Vec<f32>) {
        let (mut chosen, mut weights) = (vec![0; k], vec![0.0; k]);
        route(logits, &spec, &mut chosen, &mut weights, &mut Vec::new());
        (chosen, weights)
    }

    #[test]
    fn ties_go_to_the_lower_index_and_all_experts_may_be_selected() {
        assert_eq!(run(&[1.0, 2.0, 2.0, 0.0], 2, PLAIN).0, [1, 2]);
        let (chosen, weights) = run(&[0.0, 3.0, 1.0], 3, PLAIN);
        assert_eq!(chosen, [1, 2, 0]);
        assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn the_bias_affects_selection_but_not_weights() {
        let bias = [0.0, 0.0, 10.0];
        let spec =
            RouteSpec { gating: RouteGating::Sigmoid, bias: Some(&bias), norm: true, scale: 2.5, ..PLAIN };
        let (chosen, weights) = run(&[2.0, 1.0, -1.0], 2, spec);
        assert_eq!(chosen, [2, 0]);
        let (a, b) = (1.0 / (1.0 + 1f32.exp()), 1.0 / (1.0 + (-2f32).exp()));
        assert!((weights[0] - 2.5 * a / (a + b)).abs() < 1e-5);
    }

    #[test]
    fn groups_are_scored_by_top_two_or_max_and_masked_groups_are_not_selected() {
        let logits = [5.0, -9.0, 3.0, 3.0, 1.0, 1.0];
        let two = RouteSpec {
            groups: 3,
            groups_used: 1,
            group_score: RouteGroupScore::TopTwoSum,
            gating: RouteGating::SoftmaxOfSelected,
            ..PLAIN
        };
        assert_eq!(run(&logits, 2, two).0, [2, 3]);
        let one = RouteSpec { group_score: RouteGroupScore::Max, ..two };
        assert_eq!(run(&logits, 2, one).0, [0, 1]);
    }

    #[test]
    fn negative_biased_scores_rank_above_masked_groups() {
        let bias = [-5.0; 4];
        let spec = RouteSpec {
            gating: RouteGating::Sigmoid,
            bias: Some(&bias),
            groups: 2,
            groups_used: 1,
            group_score: RouteGroupScore::TopTwoSum,
            ..PLAIN
        };
        assert_eq!(run(&[0.0, 1.0, 9.0, 9.0], 2, spec).0, [2, 3]);
    }

    #[test]
    fn nan_logits_do_not_panic() {
        for gating in [
            RouteGating::Softmax,
            RouteGating::Sigmoid,
            RouteGating::SoftmaxOfSelected,
            RouteGating::SqrtSoftplus,
        ] {
            let (chosen, weights) = run(
                &[f32::NAN, 1.0, f32::NAN, 0.5],
                3,
                RouteSpec { gating, norm: true, norm_floor: 1e-20, ..PLAIN },
            );
            assert_eq!(chosen[..2], [1, 3]);
            assert!(weights.iter().all(|w| w.is_finite()), "{gating:?} {weights:?}");
        }
    }
}
