//! The IR after each pass, before kernels are selected, and what each pass changed.

use crate::build::fold::{DrawnLayers, Section, runs};
use crate::data::PassInfo;
use latent_graph::GraphError;
use latent_graph::ir::Ir;
use latent_graph::passes::{
    fold_epilogues, fold_norms, fold_ropes, fuse_projections, group_experts, insert_collectives, lower_mla,
};
use latent_graph::{ModelConfig, PlanOptions};

/// The passes in the order of [`latent_graph::Plan::from_ir`].
const PASSES: [PassInfo; 6] = [
    PassInfo {
        key: "lower_mla",
        name: "choose formulations",
        about: "Lowers each mla_attention to the operations of its formulation, with explicit stores to the KV cache.",
    },
    PassInfo {
        key: "fuse_projections",
        name: "fuse projections",
        about: "Joins matmuls that read the same input.",
    },
    PassInfo {
        key: "group_experts",
        name: "group experts",
        about: "Splits each expert_mlp into its two matmuls over all chosen experts.",
    },
    PassInfo {
        key: "fold_norms",
        name: "fold norms",
        about: "Moves norms into the operations that read them, where that saves a phase.",
    },
    PassInfo {
        key: "fold_ropes",
        name: "fold ropes",
        about: "Moves rotations into the stores and the attention that read them.",
    },
    PassInfo {
        key: "fold_epilogues",
        name: "fold epilogues",
        about: "Moves activations and residual sums into the matmuls that precede them.",
    },
];

/// The first pass of a rank's plans.
const COLLECTIVES: PassInfo = PassInfo {
    key: "insert_collectives",
    name: "insert collectives",
    about: "Inserts the sums over ranks that share layers, and rows of the residual stream that cross to other ranks.",
};

/// The passes of a model, or of one rank's part of it.
pub(crate) fn of(config: &ModelConfig) -> Vec<PassInfo> {
    config.part.iter().map(|_| COLLECTIVES).chain(PASSES).collect()
}

/// The IR after each of the passes.
pub(crate) fn after_each(ir: Ir, config: &ModelConfig, options: &PlanOptions) -> Result<Vec<Ir>, GraphError> {
    // Called directly and not through the pipeline: the drawing shows every pass, whether or not
    // the target wants it.
    let collected = config.part.as_ref().map(|part| insert_collectives(ir.clone(), part));
    let ir = collected.clone().unwrap_or(ir);
    let lowered = lower_mla(ir, options.mla, options.form, &config.attention)?;
    let fused = fuse_projections(lowered.clone());
    let grouped = group_experts(fused.clone());
    let norms = fold_norms(grouped.clone(), options.bucket);
    let ropes = fold_ropes(norms.clone());
    let epilogues = fold_epilogues(ropes.clone());
    Ok(collected.into_iter().chain([lowered, fused, grouped, norms, ropes, epilogues]).collect())
}

/// Changes of a pass in one part of the model.
pub(crate) struct PassChanges {
    /// Indices of the operations that it added or rewrote.
    pub(crate) changed: Vec<usize>,
    /// The lines that it removed or rewrote.
    pub(crate) removed: Vec<String>,
}

/// The changes from `before` to `after` in each of `parts`, the runs of `after`. A run of layers is
/// represented by its first layer.
pub(crate) fn changes(before: &Ir, after: &Ir, parts: &[DrawnLayers]) -> Vec<PassChanges> {
    let old_parts = runs(before, &vec![0; before.nodes.len()]);
    let of_part = |part: &DrawnLayers| {
        let new: Vec<String> = part.nodes[0].iter().map(|n| after.line(&after.nodes[*n])).collect();
        let old: Vec<String> = match &part.section {
            Section::Layers(layers) => {
                // A pass can change which layers are equal, so runs before and after need not
                // correspond. The first layer always does.
                let nodes = before.nodes.iter().filter(|node| node.layer == layers.first().copied());
                nodes.map(|node| before.line(node)).collect()
            }
            section => {
                let twin = old_parts.iter().find(|other| other.section == *section);
                let nodes = twin.into_iter().flat_map(|twin| &twin.nodes[0]);
                nodes.map(|n| before.line(&before.nodes[*n])).collect()
            }
        };
        PassChanges {
            changed: (0..new.len()).filter(|at| !old.contains(&new[*at])).collect(),
            removed: old.into_iter().filter(|line| !new.contains(line)).collect(),
        }
    };
    parts.iter().map(of_part).collect()
}
