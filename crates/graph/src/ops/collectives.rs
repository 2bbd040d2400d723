//! Exchange of rows between ranks.

use super::operation::*;
use super::port::*;
use super::shared::*;

pub(super) const ALL_REDUCE: Operation = Operation {
    name: "all_reduce",
    made_by: NodeMaker::Pass(COLLECTIVES),
    inputs: &[X],
    outputs: Outputs::Ports(&[Y_IN_PLACE]),
    check: |node| node.keeps_width(),
    cost: link_cost,
    reference: OpReference {
        link_bytes: "4*rows*width",
        ..OpReference::new(
            "Adds up what the ranks that share a layer have each computed of a row: their heads, columns or experts. Each element is summed in the order of \
             the ranks, so that every rank has the same bits.",
            "y = ((x₀ + x₁) + x₂) + …",
            OURS,
        )
    },
    ..Operation::DEFAULT
};

pub(super) const SEND_ROWS: Operation = Operation {
    name: "send_rows",
    made_by: NodeMaker::Pass(COLLECTIVES),
    inputs: &[Port::f32("h", "rows × hidden")],
    outputs: Outputs::Ports(&[]),
    cost: link_cost,
    reference: OpReference {
        link_bytes: "4*rows*hidden",
        ..OpReference::new(
            "Sends the residual rows after a rank's last layer to the rank that has the next one, or, after the model's last layer, to the one that computes \
             logits.",
            "h → rank",
            OURS,
        )
    },
    ..Operation::DEFAULT
};

pub(super) const RECEIVE_ROWS: Operation = Operation {
    name: "receive_rows",
    made_by: NodeMaker::Pass(COLLECTIVES),
    inputs: &[Port::f32("h", "rows × hidden").with_note("overwritten")],
    outputs: Outputs::Ports(&[Port::f32("y", "rows × hidden").with_note("in place of h")]),
    check: |node| node.keeps_width(),
    reference: OpReference::new(
        "Waits for the residual rows that another rank sends: before a rank's first layer, or, on the rank that computes logits, after the model's last.",
        "h ← rank",
        OURS,
    ),
    ..Operation::DEFAULT
};
