//! Routing and the experts (DeepSeekMoE, arXiv:2401.06066; DeepSeek-V3, arXiv:2412.19437, section
//! 2.1.2).

use crate::interpret::{Interpreter, internal, silu};
use crate::products::product;
use latent_backend::BackendError;
use latent_graph::config::{Gating, GroupMask, GroupScore, RouterSpec};
use latent_graph::ir::Node;

impl Interpreter<'_> {
    /// Chooses the experts of every row and computes their weights.
    pub(super) fn route(&mut self, node: &Node) -> Result<(), BackendError> {
        let Some(moe) = self.config.moe else { return internal("routing without experts".into()) };
        let bias = match node.weights.first() {
            Some((_, id)) => self.weights.vector(self.ir().weight(*id))?,
            None => vec![0.0; moe.experts],
        };
        let (mut ids, mut weights) = (Vec::new(), Vec::new());
        for logits in self.input(node, 0)?.chunks_exact(moe.experts) {
            let chosen = choose(logits, &bias, &moe.router, moe.num_experts_per_tok);
            ids.extend(chosen.iter().map(|(id, _)| *id as u32));
            weights.extend(chosen.iter().map(|(_, weight)| *weight as f32));
        }
        self.ids.insert(node.outputs[0], ids);
        self.set(node, 1, weights);
        Ok(())
    }

    /// Σ weight · W_down (silu(W_gate · x) ⊙ W_up · x) over the experts of each row.
    pub(super) fn expert_mlp(&mut self, node: &Node) -> Result<(), BackendError> {
        let Some(moe) = self.config.moe else { return internal("experts without a router".into()) };
        let (x, weights) = (self.input(node, 0)?.clone(), self.input(node, 2)?.clone());
        let Some(ids) = self.ids.get(&node.inputs[1]) else { return internal("no expert ids".into()) };
        let (hidden, ffn) = (self.config.hidden_size, moe.intermediate);
        let weight = |slot: &str| node.weight(slot).map(|id| self.ir().weight(id));
        // In f64, so that the order of the experts does not matter.
        let mut sums = vec![0.0f64; x.len()];
        let own = self.config.own_experts().range();
        for (place, (id, mix)) in ids.iter().zip(&weights).enumerate() {
            // Other ranks add the terms of their experts; an all-reduce sums them later.
            let Some(expert) = (*id as usize).checked_sub(own.start).filter(|expert| *expert < own.len())
            else {
                continue;
            };
            let row = place / moe.num_experts_per_tok;
            let x = &x[row * hidden..(row + 1) * hidden];
            let of = |slot: &str, from: usize| match weight(slot) {
                Some(weight) => {
                    let mut sums = product(self.weights, weight, expert, from..from + ffn, x)?;
                    self.add_expert_terms(node, slot, (expert, row), from, x, &mut sums)?;
                    Ok(sums)
                }
                None => internal(format!("no weight {slot}")),
            };
            // Files have either one tensor, with the outputs of the gate and then those of up, or
            // two.
            let fused = weight("expert_gate_up").is_some();
            let (gate, up) = if fused {
                (of("expert_gate_up", 0)?, of("expert_gate_up", ffn)?)
            } else {
                (of("expert_gate", 0)?, of("expert_up", 0)?)
            };
            let activated: Vec<f32> = gate.iter().zip(&up).map(|(gate, up)| silu(*gate) * up).collect();
            let Some(down) = weight("expert_down") else { return internal("no weight expert_down".into()) };
            let mut term = product(self.weights, down, expert, 0..hidden, &activated)?;
            self.add_expert_terms(node, "expert_down", (expert, row), 0, &activated, &mut term)?;
            let sums = &mut sums[row * hidden..(row + 1) * hidden];
            sums.iter_mut().zip(term).for_each(|(sum, term)| *sum += f64::from(*mix) * f64::from(term));
        }
        self.set(node, 0, sums.into_iter().map(|sum| sum as f32).collect());
        Ok(())
    }
}

/// The experts of one row, best first, with their weights. Of equal scores the lower index wins.
fn choose(logits: &[f32], bias: &[f32], router: &RouterSpec, count: usize) -> Vec<(usize, f64)> {
    let scores = scores(logits, router.gating);
    // The bias balances the load of experts: it affects the choice, but not the weights.
    let mut choice: Vec<f64> =
        scores.iter().zip(bias).map(|(score, bias)| score + f64::from(*bias)).collect();
    if router.groups > 1 && router.groups_used < router.groups {
        keep_best_groups(&mut choice, router);
    }
    let chosen = largest(&choice, count);
    let mut weights: Vec<f64> = chosen.iter().map(|id| scores[*id]).collect();
    if router.gating == Gating::SoftmaxOfSelected {
        weights = softmax(&weights);
    }
    if router.normalise {
        let sum = weights.iter().sum::<f64>().max(router.norm_floor);
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    chosen.into_iter().zip(weights).map(|(id, weight)| (id, weight * router.scale)).collect()
}

fn scores(logits: &[f32], gating: Gating) -> Vec<f64> {
    let logits: Vec<f64> = logits.iter().map(|logit| f64::from(*logit)).collect();
    match gating {
        Gating::Softmax => softmax(&logits),
        Gating::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        Gating::SoftmaxOfSelected => logits,
        Gating::SqrtSoftplus => {
            // The square root of softplus(x), in a form that does not overflow: see `log_decay`.
            logits.iter().map(|x| (x.max(0.0) + (-x.abs()).exp().ln_1p()).sqrt()).collect()
        }
    }
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

/// Sets the scores of experts outside of the best groups to −∞, so that they cannot be chosen, or
/// to 0, depending on the model.
fn keep_best_groups(choice: &mut [f64], router: &RouterSpec) {
    let size = choice.len() / router.groups;
    let judged = choice.chunks_exact(size).map(|group| {
        // Neither kind of group score uses more than the two best experts.
        let best: Vec<f64> = largest(group, 2).into_iter().map(|i| group[i]).collect();
        match router.group_score {
            GroupScore::TopTwoSum => best.iter().sum(),
            GroupScore::Max => best[0],
        }
    });
    let kept = largest(&judged.collect::<Vec<f64>>(), router.groups_used);
    for (group, experts) in choice.chunks_exact_mut(size).enumerate() {
        if !kept.contains(&group) {
            experts.fill(match router.group_mask {
                GroupMask::Excluded => f64::NEG_INFINITY,
                GroupMask::Zero => 0.0,
            });
        }
    }
}

/// Indices of the `count` largest, largest first.
fn largest(x: &[f64], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    // `total_cmp` gives NaN a place too, so that a broken model still has a defined result.
    order.sort_by(|a, b| x[*b].total_cmp(&x[*a]).then(a.cmp(b)));
    order.truncate(count);
    order
}
