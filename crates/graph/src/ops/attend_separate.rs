//! `attend_separate`: attention in latent space with separate scores.

use super::shared::{
    ATTENDS_LATENT, LATENT_MIX, Q_LATENT, SELECTED, check_partials, latent_attention_cost,
    latent_attention_reference,
};
use super::{
    CostInput, Folds, KvUse, NodeCost, NodeMaker, NodeShapes, OpReference, Operation, Outputs, Port,
    RequiredKernels, ShapeRule, SplitFold,
};
use latent_types::OpKind;

/// The same as `attend_latent`, with content and rope scores computed separately.
pub(super) struct AttendSeparate;

impl Operation for AttendSeparate {
    fn name(&self) -> &'static str {
        "attend_separate"
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
        RequiredKernels::Own(OpKind::AttendSeparate)
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
            "The same as `attend_latent`, with the scores of content and rope computed separately and added.",
            "õ = Σⱼ softmaxⱼ(s · (q̃_c · cⱼ + q_rope · k_ropeⱼ)) · cⱼ",
            "DeepSeek-V3's published inference code",
        )
    }
}
