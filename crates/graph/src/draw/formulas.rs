//! What each kind of operation computes, in symbols, with the source: one table for drawings and documents.

use super::data::Formula;
use crate::contract::{Contract, Gating, GroupScore, RopePairs, RopeScaling};
use std::collections::BTreeMap;

/// Word, meaning, formula, source.
type Row = (&'static str, &'static str, &'static str, &'static str);

const MLA: &str = "DeepSeek-V2, arXiv:2405.04434, section 2.1";
const ABSORBED: &str = "DeepSeek-V2, arXiv:2405.04434, section 2.1.2 and appendix C: matrices absorbed";
const EXPERTS: &str = "DeepSeekMoE, arXiv:2401.06066; DeepSeek-V3, arXiv:2412.19437, section 2.1.2";
const RESIDUAL: &str = "He and others, arXiv:1512.03385";
const OURS: &str = "ARCHITECTURE.md";

/// One row for each word that an operation, or a circuit, can have.
const TABLE: [Row; 24] = [
    ("embed", "Looks up each token's row of the embedding.", "h[r] = s · E[token[r]]", "the circuit"),
    (
        "rms_norm",
        "Divides a row by its root mean square and multiplies by a weight.",
        "y = x / √(mean(x²) + ε) · w",
        "Zhang and Sennrich, arXiv:1910.07467",
    ),
    ("linear", "A product with each row of a weight matrix.", "y = x · Wᵀ", "the circuit"),
    ("split", "Names parts of each head; nothing is computed or moved.", "[a | b] = x", OURS),
    (
        "rope",
        "Rotates pairs of numbers by the row's position p.",
        "(a, b) ← (a·cos θ − b·sin θ, a·sin θ + b·cos θ),  θᵢ = p · ωᵢ",
        "Su and others, arXiv:2104.09864",
    ),
    (
        "mla_attention",
        "Multi-head Latent Attention, before a formulation is chosen: each cached token is one latent c and one rotated key.",
        "o = Σⱼ softmaxⱼ(s · (q_nope · W_UK cⱼ + q_rope · k_ropeⱼ)) · W_UV cⱼ",
        MLA,
    ),
    (
        "route",
        "Chooses the experts of each row and weighs them.",
        "S = gate(x · Wᵀ);  chosen = top-k(S + bias) in the best groups;  mix = scale · S / Σ S over the chosen",
        EXPERTS,
    ),
    (
        "expert_mlp",
        "The feed-forward block of each chosen expert, summed.",
        "y = Σₑ mixₑ · W_down,ₑ (silu(W_gate,ₑ x) ⊙ W_up,ₑ x)",
        EXPERTS,
    ),
    (
        "mlp",
        "A feed-forward block: two or three products with an activation between.",
        "y = W_down (silu(W_gate x) ⊙ W_up x);  without a gate: y = W_down relu(W_up x)²",
        "Shazeer, arXiv:2002.05202",
    ),
    (
        "silu_mul",
        "The gated activation.",
        "y = silu(gate) ⊙ up,  silu(g) = g / (1 + e⁻ᵍ)",
        "Shazeer, arXiv:2002.05202",
    ),
    ("relu2", "The squared activation.", "y = max(x, 0)²", "So and others, arXiv:2109.08668"),
    ("add", "Adds to the residual stream, or two branches.", "y = a + s · b", RESIDUAL),
    ("scale", "Multiplies by a number.", "y = s · x", "the circuit"),
    ("gather_rows", "Takes the rows whose logits are wanted.", "y[i] = x[wanted[i]]", OURS),
    (
        "latent_store",
        "Writes each row's normalised latent and rotated key into the cache, at the row's position.",
        "cache[p] ← [c | k_rope]",
        MLA,
    ),
    (
        "expanded_store",
        "Writes every head's key and value into the cache: what attention without latents would store.",
        "cache[p] ← [W_UK c | k_rope | W_UV c] of every head",
        MLA,
    ),
    (
        "absorb_k",
        "Moves each head's query into latent space, so that it meets the cached latents themselves.",
        "q̃ = [W_UKᵀ q_nope | q_rope]",
        ABSORBED,
    ),
    (
        "attend_latent",
        "Attention in latent space: all heads share one key, whose first part is also the value.",
        "õ = Σⱼ softmaxⱼ(s · q̃ · [cⱼ | k_ropeⱼ]) · cⱼ",
        ABSORBED,
    ),
    (
        "attend_split",
        "Attention in latent space, with the scores of content and position computed apart and added.",
        "õ = Σⱼ softmaxⱼ(s · (q̃_c · cⱼ + q_rope · k_ropeⱼ)) · cⱼ",
        "DeepSeek-V3's published inference code",
    ),
    ("absorb_v", "Moves each head's result out of latent space.", "o = W_UV õ", ABSORBED),
    (
        "attend_expanded",
        "Attention over keys and values expanded from the cached latents (for a group of heads at a time), or read as stored.",
        "kⱼ = [W_UK cⱼ | k_ropeⱼ],  vⱼ = W_UV cⱼ;  o = Σⱼ softmaxⱼ(s · q · kⱼ) · vⱼ",
        MLA,
    ),
    (
        "expert_gate_up",
        "Gate and up of each chosen expert, rows sorted by expert, activation fused.",
        "a[r,e] = silu(W_gate,ₑ x) ⊙ W_up,ₑ x",
        EXPERTS,
    ),
    (
        "expert_down",
        "Down of each chosen expert, weighed and summed in the order of the experts.",
        "y[r] = Σₑ mix[r,e] · W_down,ₑ a[r,e]",
        EXPERTS,
    ),
    ("cache", "What a layer stores for every token.", "row p of token p", MLA),
];

/// The formulas of the words in `used`, with what the symbols are in this model.
pub(super) fn of(
    contract: &Contract,
    used: impl Iterator<Item = &'static str>,
) -> BTreeMap<&'static str, Formula> {
    used.filter_map(|word| {
        let (_, about, formula, source) = *TABLE.iter().find(|row| row.0 == word)?;
        Some((word, Formula { about, formula, symbols: symbols(word, contract), source }))
    })
    .collect()
}

/// What the symbols of a formula are in this model.
fn symbols(word: &str, contract: &Contract) -> Vec<String> {
    let a = &contract.attention;
    let scale = || format!("s = {:.6}, the softmax scale", a.softmax_scale);
    let latent = || format!("c: {} numbers, k_rope: {}", a.kv_lora_rank, a.rope);
    let heads =
        || format!("{} heads; q_nope: {} numbers, q_rope: {}, value: {}", a.heads, a.nope, a.rope, a.v);
    match word {
        "embed" => {
            vec![format!("s = {}", contract.embedding_scale), format!("{} tokens", contract.vocab_size)]
        }
        "rms_norm" => vec![format!("ε = {:e}", contract.rms_eps)],
        "add" => vec![format!("s = {:.6} into the residual stream", contract.residual_scale)],
        "scale" => vec![format!("s = {:.6}", contract.logits_scale)],
        "rope" => rope(contract),
        "mla_attention" | "attend_expanded" => vec![heads(), latent(), scale()],
        "attend_latent" | "attend_split" => vec![format!("{} heads", a.heads), latent(), scale()],
        "absorb_k" => vec![heads(), format!("W_UK of a head: {} × {}", a.nope, a.kv_lora_rank)],
        "absorb_v" => vec![format!("W_UV of a head: {} × {}", a.v, a.kv_lora_rank)],
        "latent_store" => vec![latent()],
        "expanded_store" => vec![heads(), latent()],
        "route" | "expert_mlp" | "expert_gate_up" | "expert_down" => router(contract),
        _ => Vec::new(),
    }
}

fn rope(contract: &Contract) -> Vec<String> {
    let pairs = match contract.rope.pairs {
        RopePairs::Interleaved => "pairs (0, 1), (2, 3), …",
        RopePairs::Split => "pairs (0, d/2), (1, d/2 + 1), …",
    };
    let d = contract.rope.dims;
    let mut symbols =
        vec![pairs.to_owned(), format!("ωᵢ = b^(−2i/d), b = {}, d = {d}, i < {}", contract.rope.base, d / 2)];
    symbols.extend(match &contract.rope.scaling {
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

fn router(contract: &Contract) -> Vec<String> {
    let Some(moe) = contract.moe else { return Vec::new() };
    let r = moe.router;
    let gate = match r.gating {
        Gating::Softmax => "softmax over all experts",
        Gating::Sigmoid => "sigmoid of each",
        Gating::SoftmaxOfSelected => "softmax over the chosen",
        Gating::SqrtSoftplus => "√softplus of each",
    };
    let mut symbols = vec![
        format!("k = {} of {} experts, {} numbers wide", moe.experts_used, moe.experts, moe.intermediate),
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
        symbols.push(format!("the best {} of {} groups, each judged by {score}", r.groups_used, r.groups));
    }
    symbols
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::circuit::OP_WORDS;

    #[test]
    fn every_word_of_a_circuit_has_a_formula_and_a_source() {
        for word in OP_WORDS {
            assert!(TABLE.iter().any(|row| row.0 == word), "{word}");
        }
        for (word, about, formula, source) in TABLE {
            assert!(about.ends_with('.') && !formula.is_empty() && !source.is_empty(), "{word}");
        }
    }
}
