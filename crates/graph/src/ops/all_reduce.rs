//! `all_reduce`: terms of several ranks become their sum on each.

use super::shared::{COLLECTIVES, OURS, X, Y_IN_PLACE, link_cost};
use super::{CostInput, NodeCost, NodeMaker, NodeShapes, OpReference, Operation, Outputs, Port};

/// The sum over the ranks that share a layer, in the order of their numbers.
pub(super) struct AllReduce;

impl Operation for AllReduce {
    fn name(&self) -> &'static str {
        "all_reduce"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass(COLLECTIVES)
    }

    fn inputs(&self) -> &'static [Port] {
        &[X]
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(&[Y_IN_PLACE])
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        node.keeps_width();
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        link_cost(at)
    }

    fn reference(&self) -> OpReference {
        OpReference {
            link_bytes: "4*rows*width",
            ..OpReference::new(
                "Adds up what the ranks that share a layer have each computed of a row: their heads, columns or experts. Each element is summed in the order of \
             the ranks, so that every rank has the same bits.",
                "y = ((x₀ + x₁) + x₂) + …",
                OURS,
            )
        }
    }
}
