//! `receive_rows`: the residual stream from another rank.

use super::shared::{COLLECTIVES, OURS};
use super::{NodeMaker, NodeShapes, OpReference, Operation, Outputs, Port};

/// Rows of the rank that has the layers before, or the last ones.
pub(super) struct ReceiveRows;

impl Operation for ReceiveRows {
    fn name(&self) -> &'static str {
        "receive_rows"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass(COLLECTIVES)
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::f32("h", "rows × hidden").with_note("overwritten")] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port::f32("y", "rows × hidden").with_note("in place of h")] })
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        node.keeps_width();
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "Waits for the residual rows that another rank sends: before a rank's first layer, or, on the rank that computes logits, after the model's last.",
            "h ← rank",
            OURS,
        )
    }
}
