//! `route`: the router of a mixture of experts.

use super::shared::{EXPERTS, TOPK_IDS, TOPK_WEIGHTS};
use super::{NodeWeights, OpReference, Operation, Outputs, Port, RequiredKernels, ShapeRule, WeightSlot};
use latent_types::OpKind;

/// Top-k routing from router logits.
pub(super) struct Route;

impl Operation for Route {
    fn name(&self) -> &'static str {
        "route"
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::f32("logits", "rows × experts")] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[TOPK_IDS, TOPK_WEIGHTS] })
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const { &[WeightSlot::new("router_bias", "experts").with_note("optional")] }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        if weights.count <= 1 { Ok(()) } else { Err("none or a bias") }
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::Own(OpKind::Route)
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Experts
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "Selects experts by the router's rules (gating, groups, bias, normalization, scale: see `RouterSpec`).",
            "S = gate(x · Wᵀ);  topk_ids = top-k(S + bias) in the best groups;  topk_weights = scale · S / Σ S over topk_ids",
            EXPERTS,
        )
    }
}
