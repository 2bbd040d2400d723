//! Notes on what llama.cpp computes differently from Latent and no GGUF key can express. The user
//! should know before sharing the file.

use latent_graph::ModelConfig;
use latent_graph::config::{GroupMask, GroupScore, QueryGate};

/// Architectures that only Latent reads.
const OWN: [&str; 1] = ["axk1"];

/// One note per difference, for a config in the form of the GGUF file.
pub(crate) fn notes(config: &ModelConfig) -> Vec<String> {
    let architecture = &config.architecture;
    let best_expert = |router: &latent_graph::config::RouterSpec| {
        router.groups > 1 && router.group_score == GroupScore::Max
    };
    let mut notes = Vec::new();
    if OWN.contains(&architecture.as_str()) {
        notes.push(format!(
            "llama.cpp does not know the architecture {architecture}: it will not load the file"
        ));
    }
    if config.query_gate == Some(QueryGate::Fused) {
        notes.push(
            "llama.cpp needs queries and output gates as two matrices, and in this model they are one that is not block-diagonal: it will not load \
             the file"
                .into(),
        );
    }
    if config.moe.is_some_and(|moe| moe.router.groups > 1 && moe.router.group_mask == GroupMask::Zero) {
        notes.push(
            "llama.cpp never chooses experts of other groups, and this model counts them as 0: where scores are negative it will choose other experts"
                .into(),
        );
    }
    if config.attention_bias {
        notes.push("llama.cpp has no biases of attention: it will not load the file".into());
    }
    if config.moe.is_some_and(|moe| best_expert(&moe.router)) {
        notes.push(
            "llama.cpp judges groups of experts by their two best experts, and this model by the best one: it will choose other experts".into(),
        );
    }
    if config.own_scales().iter().any(Option::is_some) {
        notes.push(format!(
            "llama.cpp scales every model of architecture {architecture} alike, and this one has other factors: it will compute something else"
        ));
    }
    notes
}
