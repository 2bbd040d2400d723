//! Hyper-parameters of a model as text, for `inspect` and `check`.

use latent_graph::ModelConfig;
use latent_graph::circuit::LayerRun;
use latent_graph::config::{OutputGate, RopeScaling};
use latent_graph::passes::crossover;

/// Layers and the sizes of attention, experts and vocabulary. One line per part.
pub(super) fn facts(c: &ModelConfig, layers: &[LayerRun]) -> Vec<String> {
    let a = &c.attention;
    let mut lines = Vec::new();
    let layers: Vec<String> = layers.iter().map(ToString::to_string).collect();
    let mtp = if c.mtp_layers > 0 {
        let which = if c.mtp_layers > 1 { "the first drafts" } else { "it drafts" };
        format!(", {} for multi-token prediction ({which} with --draft mtp)", c.mtp_layers)
    } else {
        String::new()
    };
    lines.push(format!("layers         {} ({}){mtp}", c.layers, layers.join(", ")));
    lines.push(format!("hidden size    {}, feed-forward {}", c.hidden_size, c.intermediate_size));
    lines.push(format!(
        "attention      {} heads, q_lora {}, kv_lora {}, nope {}, rope {}, v {}, softmax scale {:.6}",
        a.heads,
        a.q_lora_rank.map_or_else(|| "none".into(), |r| r.to_string()),
        a.kv_lora_rank,
        a.nope,
        a.rope,
        a.v,
        a.softmax_scale
    ));
    if let Some(kda) = &c.kda {
        let rank = kda.rank.map_or_else(|| "one matrix".into(), |rank| format!("rank {rank}"));
        let decay = kda.lower_bound.map_or_else(|| "no bound".into(), |bound| format!("log bound {bound}"));
        let (all, own) = (c.layers, c.layers - c.latent_layers());
        lines.push(format!(
            "recurrent      {own} of {all} layers: {} heads of {}, convolutions of {} tokens, gates of {rank}, decay with {decay}",
            kda.heads, kda.width, kda.taps
        ));
    }
    match a.output_gate {
        None => {}
        Some(OutputGate::PerHead) => lines.push("output gate    one for each head".into()),
        Some(OutputGate::PerElement) => lines.push("output gate    one for each element".into()),
    }
    match (a.indexer, c.index_topk) {
        (Some(indexer), _) => {
            let full = c.full_indexers.iter().take(c.layers).filter(|full| **full).count();
            lines.push(format!(
                "sparse         {} tokens, selected by {} heads of width {} in {full} of {} layers",
                indexer.topk, indexer.heads, indexer.width, c.layers
            ));
        }
        // The indexer is off (--sparse-attention) or missing: the model attends to all tokens.
        (None, Some(topk)) => lines.push(format!(
            "sparse         no: trained with attention to {topk} tokens, but runs with dense attention"
        )),
        (None, None) => {}
    }
    lines.push(match crossover(a) {
        Some(from) => format!("formulations   auto: absorbed for few new tokens, naive from {from}"),
        None => "formulations   auto: absorbed for any number of new tokens".into(),
    });
    if let Some(m) = &c.moe {
        lines.push(format!(
            "experts        {} of {} of width {}, shared {}; {:?}{}, {} of {} groups, scale {}",
            m.num_experts_per_tok,
            m.experts,
            m.intermediate,
            m.shared_intermediate,
            m.router.gating,
            if m.router.bias { " with bias" } else { "" },
            m.router.groups_used,
            m.router.groups,
            m.router.scale
        ));
    }
    lines.push(format!(
        "vocabulary     {} tokens{}",
        c.vocab_size,
        if c.tied_embeddings { ", head tied to the embedding" } else { "" }
    ));
    lines.push(format!("context        {} tokens", c.context_length));
    lines
}

/// Rotary embedding and its scaling.
pub(super) fn rope(config: &ModelConfig) -> Vec<String> {
    let r = &config.rope;
    if r.dims == 0 {
        return vec!["rope           none: no position encoding".into()];
    }
    let scaling = match &r.scaling {
        RopeScaling::None => "no scaling".to_owned(),
        RopeScaling::Linear { factor } => format!("linear scaling by {factor}"),
        RopeScaling::Yarn { factor, original, beta_fast, beta_slow, .. } => {
            format!("YaRN by {factor} from {original} tokens (beta {beta_fast} and {beta_slow})")
        }
        RopeScaling::LongRope { original, .. } => format!("LongRoPE from {original} tokens"),
    };
    let pairs = format!("{:?}", r.pairs).to_lowercase();
    vec![
        format!("rope           {} elements, base {}, {pairs} pairs", r.dims, r.base),
        format!("               {scaling}"),
    ]
}
