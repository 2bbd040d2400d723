//! Reference implementation of routing in f64.

use crate::reference::ReferenceResults;
use latent_kernels::{RouteGating, RouteGroupScore, RouteSpec};
use std::fmt;

/// Parameters of a router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoutingRules {
    /// Gating function: logits to scores.
    pub gating: RouteGating,
    /// Whether a bias is added for the selection.
    pub bias: bool,
    /// Number of expert groups, and of groups selected per token.
    pub groups: (usize, usize),
    pub group_score: RouteGroupScore,
    /// Whether experts of groups that are not selected count as 0 instead of −∞.
    pub masked_zero: bool,
    /// Whether weights are normalized by their sum.
    pub norm: bool,
    /// Scale of the weights.
    pub scale: f32,
    /// Experts per token (top-k).
    pub chosen: usize,
}

impl fmt::Display for RoutingRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gating = match self.gating {
            RouteGating::Softmax => "softmax",
            RouteGating::Sigmoid => "sigmoid",
            RouteGating::SoftmaxOfSelected => "softmax of chosen",
            RouteGating::SqrtSoftplus => "sqrt softplus",
        };
        let bias = if self.bias { " bias" } else { "" };
        let norm = if self.norm { " norm" } else { "" };
        write!(f, "{gating}{bias}{norm}, k={}", self.chosen)?;
        if self.groups.0 > 1 {
            write!(f, ", groups={}/{}", self.groups.1, self.groups.0)?;
            if self.masked_zero {
                f.write_str(" or 0")?;
            }
        }
        Ok(())
    }
}

impl RoutingRules {
    /// Converts to the kernels' form.
    pub(crate) fn spec<'a>(&self, bias: &'a [f32]) -> RouteSpec<'a> {
        RouteSpec {
            gating: self.gating,
            bias: self.bias.then_some(bias),
            groups: self.groups.0,
            groups_used: self.groups.1,
            group_score: self.group_score,
            masked_score: if self.masked_zero { 0.0 } else { f32::NEG_INFINITY },
            norm: self.norm,
            norm_floor: 1e-20,
            scale: self.scale,
        }
    }

    /// Pushes the top-k expert ids of a row of logits, best first, and their weights.
    pub(crate) fn truth(&self, logits: &[f32], bias: &[f32], truth: &mut ReferenceResults) {
        let logits: Vec<f64> = logits.iter().map(|l| f64::from(*l)).collect();
        let scores: Vec<f64> = match self.gating {
            RouteGating::Softmax => softmax(&logits),
            RouteGating::Sigmoid => logits.iter().map(|l| 1.0 / (1.0 + (-l).exp())).collect(),
            RouteGating::SoftmaxOfSelected => logits.clone(),
            RouteGating::SqrtSoftplus => logits.iter().map(|l| l.exp().ln_1p().sqrt()).collect(),
        };
        // The bias affects the selection only. Weights use the plain scores.
        let biased = |e: usize| scores[e] + if self.bias { f64::from(bias[e]) } else { 0.0 };
        let (groups, used) = self.groups;
        let size = logits.len() / groups.max(1);
        let mut by_group: Vec<usize> = (0..groups.max(1)).collect();
        by_group.sort_by(|a, b| {
            let judged = |group: usize| {
                let mut members: Vec<f64> = (group * size..(group + 1) * size).map(biased).collect();
                members.sort_by(|a, b| b.total_cmp(a));
                let best = if self.group_score == RouteGroupScore::TopTwoSum { 2 } else { 1 };
                members.iter().take(best).sum::<f64>()
            };
            // `sort_by` is stable: of equal groups, the lower one comes first.
            judged(*b).total_cmp(&judged(*a))
        });
        let kept = &by_group[..used.clamp(1, by_group.len())];
        // With masked groups as 0, their experts are chosen if the remaining scores are negative.
        let in_choice = |e: &usize| self.masked_zero || kept.contains(&(e / size));
        let choice = |e: usize| if kept.contains(&(e / size)) { biased(e) } else { 0.0 };
        let mut experts: Vec<usize> = (0..logits.len()).filter(in_choice).collect();
        // A stable sort: of equal scores, the lower id comes first.
        experts.sort_by(|a, b| choice(*b).total_cmp(&choice(*a)));
        experts.truncate(self.chosen);
        let mut weights: Vec<f64> = experts.iter().map(|e| scores[*e]).collect();
        if self.gating == RouteGating::SoftmaxOfSelected {
            weights = softmax(&weights);
        }
        let sum = if self.norm { weights.iter().sum() } else { 1.0 };
        experts.iter().for_each(|e| truth.exact(*e as f32));
        for weight in weights {
            let value = weight / sum * f64::from(self.scale);
            truth.push(value, value.abs());
        }
    }
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|v| (v - max).exp()).sum();
    x.iter().map(|v| (v - max).exp() / sum).collect()
}
