//! `send_rows`: the residual stream to another rank.

use super::shared::{COLLECTIVES, OURS, link_cost};
use super::{CostInput, NodeCost, NodeMaker, OpReference, Operation, Outputs, Port};

/// Rows for the rank that has the next layers, or that computes logits.
pub(super) struct SendRows;

impl Operation for SendRows {
    fn name(&self) -> &'static str {
        "send_rows"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass(COLLECTIVES)
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::f32("h", "rows × hidden")] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(&[])
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        link_cost(at)
    }

    fn reference(&self) -> OpReference {
        OpReference {
            link_bytes: "4*rows*hidden",
            ..OpReference::new(
                "Sends the residual rows after a rank's last layer to the rank that has the next one, or, after the model's last layer, to the one that computes \
             logits.",
                "h → rank",
                OURS,
            )
        }
    }
}
