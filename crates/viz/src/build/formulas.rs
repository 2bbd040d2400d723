//! Formulas of the operations, with the values of their symbols in one model.

use crate::data::Formula;
use latent_graph::config::{Gating, GroupMask, GroupScore, ModelConfig, RopePairs, RopeScaling};
use latent_graph::ir::Op;
use std::collections::BTreeMap;

/// Word, meaning, formula and source of drawn elements that are not operations of the IR.
const OTHERS: [(&str, &str, &str, &str); 2] = [
    (
        "mlp",
        "A feed-forward block: two or three products with an activation between.",
        "y = W_down (silu(W_gate x) ⊙ W_up x);  without a gate: y = W_down relu(W_up x)²",
        "Shazeer, arXiv:2002.05202",
    ),
    (
        "cache",
        "What a layer stores for every token.",
        "row p of token p",
        "DeepSeek-V2, arXiv:2405.04434, section 2.1",
    ),
];

/// Meaning, formula and source of a word.
fn row(word: &str) -> Option<(&'static str, &'static str, &'static str)> {
    if let Some(op) = Op::ALL.iter().find(|op| op.word() == word) {
        let of = op.reference();
        return Some((of.what, of.formula, of.source));
    }
    OTHERS.iter().find(|other| other.0 == word).map(|(_, about, formula, source)| (*about, *formula, *source))
}

/// The formulas of the words in `used`.
pub(crate) fn of(
    config: &ModelConfig,
    used: impl Iterator<Item = &'static str>,
) -> BTreeMap<&'static str, Formula> {
    used.filter_map(|word| {
        let (about, formula, source) = row(word)?;
        Some((word, Formula { about, formula, symbols: symbols(word, config), source }))
    })
    .collect()
}

/// The values of a formula's symbols.
fn symbols(word: &str, config: &ModelConfig) -> Vec<String> {
    let a = &config.attention;
    let scale = || format!("s = {:.6}, the softmax scale", a.softmax_scale);
    let latent = || format!("c: {} elements, k_rope: {}", a.kv_lora_rank, a.rope);
    let heads =
        || format!("{} heads; q_nope: {} elements, q_rope: {}, value: {}", a.heads, a.nope, a.rope, a.v);
    match word {
        "embed" => {
            vec![format!("s = {}", config.embedding_scale), format!("{} tokens", config.vocab_size)]
        }
        "rms_norm" => {
            vec![format!("ε = {:e}; of latents {:e}", config.rms_eps, config.norm_eps("kv_a_norm"))]
        }
        "add" => vec![format!("s = {:.6} into the residual stream", config.residual_scale)],
        "scale" => vec![format!("s = {:.6}", config.logits_scale)],
        "rope" => rope(config),
        "mla_attention" | "attend_expanded" => vec![heads(), latent(), scale()],
        "attend_latent" | "attend_separate" => vec![format!("{} heads", a.heads), latent(), scale()],
        "absorb_k" => vec![heads(), format!("W_UK per head: {} × {}", a.nope, a.kv_lora_rank)],
        "absorb_v" => vec![format!("W_UV per head: {} × {}", a.v, a.kv_lora_rank)],
        "latent_store" => vec![latent()],
        "expanded_store" | "kv_lora_decompress" | "partial_rope_concat" => vec![heads(), latent()],
        "route" | "expert_mlp" | "expert_gate_up" | "expert_down" => router(config),
        _ => Vec::new(),
    }
}

fn rope(config: &ModelConfig) -> Vec<String> {
    let pairs = match config.rope.pairs {
        RopePairs::Interleaved => "pairs (0, 1), (2, 3), …",
        RopePairs::NeoX => "pairs (0, d/2), (1, d/2 + 1), …",
    };
    let d = config.rope.dims;
    let mut symbols =
        vec![pairs.to_owned(), format!("ωᵢ = b^(−2i/d), b = {}, d = {d}, i < {}", config.rope.base, d / 2)];
    symbols.extend(match &config.rope.scaling {
        RopeScaling::None => None,
        RopeScaling::Linear { factor } => Some(format!("every ω divided by {factor}")),
        RopeScaling::Yarn { factor, original, beta_fast, beta_slow, .. } => Some(format!(
            "YaRN: slow pairs divided by {factor}, context {original} before, β {beta_fast} and {beta_slow} (arXiv:2309.00071)"
        )),
        RopeScaling::LongRope { original, .. } => {
            Some(format!("LongRoPE: every ω divided by its own factor, context {original} before (arXiv:2402.13753)"))
        }
    });
    symbols
}

fn router(config: &ModelConfig) -> Vec<String> {
    let Some(moe) = config.moe else { return Vec::new() };
    let r = moe.router;
    let gate = match r.gating {
        Gating::Softmax => "softmax over all experts",
        Gating::Sigmoid => "sigmoid of each",
        Gating::SoftmaxOfSelected => "softmax over the chosen",
        Gating::SqrtSoftplus => "√softplus of each",
    };
    let mut symbols = vec![
        format!(
            "k = {} of {} experts, {} elements wide",
            moe.num_experts_per_tok, moe.experts, moe.intermediate
        ),
        format!("gate: {gate}; bias for choosing: {}", if r.bias { "yes" } else { "no" }),
        format!(
            "weights divided by their sum: {}; scale = {}",
            if r.normalise { "yes" } else { "no" },
            r.scale
        ),
    ];
    if r.groups > 1 {
        let score = match r.group_score {
            GroupScore::TopTwoSum => "the sum of its two best",
            GroupScore::Max => "its best",
        };
        let others = if r.group_mask == GroupMask::Zero { "; experts of the others count as 0" } else { "" };
        symbols.push(format!(
            "the best {} of {} groups, each judged by {score}{others}",
            r.groups_used, r.groups
        ));
    }
    symbols
}

#[cfg(test)]
mod tests {
    use super::*;
    use latent_graph::circuit::OP_WORDS;

    #[test]
    fn every_word_of_a_circuit_has_a_formula_and_a_source() {
        for word in OP_WORDS.iter() {
            assert!(row(word).is_some(), "{word}");
        }
        for (word, about, formula, source) in OTHERS {
            assert!(about.ends_with('.') && !formula.is_empty() && !source.is_empty(), "{word}");
        }
    }
}
