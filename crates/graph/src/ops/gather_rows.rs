//! `gather_rows`: rows whose logits are wanted.

use super::shared::OURS;
use super::{NodeConstruction, NodeShapes, OpReference, Operation, Outputs, Port};

/// The rows of the residual stream whose logits are wanted.
pub(super) struct GatherRows;

impl Operation for GatherRows {
    fn name(&self) -> &'static str {
        "gather_rows"
    }

    fn built(&self) -> NodeConstruction {
        NodeConstruction::LikeFirst
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::f32("x", "rows × hidden").with_note("all rows of the step")] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port::f32("y", "rows × hidden").with_note("rows with a logits request")] })
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        node.keeps_width();
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "The rows of the residual stream whose logits are wanted: the lm_head works on no others.",
            "y[i] = x[wanted[i]]",
            OURS,
        )
    }
}
