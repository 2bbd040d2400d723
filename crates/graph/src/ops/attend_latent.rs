//! `attend_latent`: attention in latent space.

use super::shared::{
    ABSORBED, ATTENDS_LATENT, LATENT_MIX, Q_LATENT, SELECTED, check_partials, latent_attention_cost,
    latent_attention_reference,
};
use super::{
    CostInput, Folds, KvUse, NodeCost, NodeMaker, NodeShapes, OpReference, Operation, Outputs, Port,
    RequiredKernels, ShapeRule, SplitFold,
};
use latent_types::OpKind;

/// Online-softmax attention over the cached latents: MQA with one key/value row per token.
pub(super) struct AttendLatent;

impl Operation for AttendLatent {
    fn name(&self) -> &'static str {
        "attend_latent"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass("lower_mla")
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Q_LATENT, SELECTED] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[LATENT_MIX] })
    }

    fn kv(&self) -> KvUse {
        ATTENDS_LATENT
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::Own(OpKind::AttendLatent)
    }

    fn folds(&self) -> Folds {
        Folds { kv_splits: SplitFold::Leaves, ..Folds::default() }
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Attention
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        check_partials(node, |node| node.outputs.clone());
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        latent_attention_cost(at)
    }

    fn reference(&self) -> OpReference {
        latent_attention_reference(
            "Attention of all heads to one row per token, whose first kv_lora elements are its value too. A cached row is read once for \
             all heads.",
            "õ = Σⱼ softmaxⱼ(s · q̃ · [cⱼ | k_ropeⱼ]) · cⱼ",
            ABSORBED,
        )
    }
}
