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
            "llama.cpp does not support the architecture {architecture}: it will not load the file"
        ));
    }
    if config.query_gate == Some(QueryGate::Fused) {
        notes.push(
            "llama.cpp needs separate matrices for queries and output gates, but this model has one that is \
             not block-diagonal: it will not load the file"
                .into(),
        );
    }
    if config.moe.is_some_and(|moe| moe.router.groups > 1 && moe.router.group_mask == GroupMask::Zero) {
        notes.push(
            "llama.cpp never selects experts of other groups, but this model scores them as 0: it will \
             select other experts if scores are negative"
                .into(),
        );
    }
    if config.attention_bias {
        notes.push("llama.cpp does not support attention biases: it will not load the file".into());
    }
    if config.moe.is_some_and(|moe| best_expert(&moe.router)) {
        notes.push(
            "llama.cpp ranks expert groups by their two best experts, but this model by the best one: it \
             will select other experts"
                .into(),
        );
    }
    if config.own_scales().iter().any(Option::is_some) {
        notes.push(format!(
            "llama.cpp uses the same scaling factors for all models of architecture {architecture}, but this \
             one has others: its results will differ"
        ));
    }
    notes
}
