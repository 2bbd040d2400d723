//! Operations that select, split, join and rotate rows.

use super::operation::*;
use super::port::*;
use super::shapes::ShapeRule;
use super::shared::*;
use latent_types::OpKind;

pub(super) const EMBED: Operation = Operation {
    name: "embed",
    inputs: &[Port::u32("tokens", "rows")],
    outputs: Outputs::Ports(&[Port::f32("h", "rows × hidden").with_note("the residual stream")]),
    slots: &[WeightSlot::new("embed", "vocab × hidden")],
    weights_fit: one_weight,
    kernels: RequiredKernels::PerWeight(|_| OpKind::Embed, &[]),
    shape_rule: ShapeRule::Gives,
    cost: |at| {
        // Only the rows of the step's tokens are read, not the whole table.
        let row: f64 = at.weights.iter().map(|w| w.row_bytes).sum();
        NodeCost { weight_bytes: row * at.rows, ..NodeCost::default() }
    },
    reference: OpReference {
        weight_bytes: "rows*row_bytes",
        ..OpReference::new(
            "Rows of the embedding, times a factor where the model has one.",
            "h[r] = s · E[token[r]]",
            "the circuit",
        )
    },
    ..Operation::DEFAULT
};

pub(super) const SPLIT: Operation = Operation {
    name: "split",
    inputs: &[X],
    outputs: Outputs::PerPart(Port::f32("part", "rows × part").with_note("a view of a range of each head")),
    is_view: true,
    // The parts are adjacent and together cover the whole row.
    check: |node| {
        let whole = node.inputs[0].clone();
        let mut at = 0;
        for part in node.outputs.clone() {
            if part.heads != whole.heads || part.offset != Some(at) {
                let text =
                    format!("{} does not begin at element {at} of each head of {}", part.name, whole.name);
                node.wrong(ShapeRule::Kept, part.name, text);
            }
            at += part.width;
        }
        if at != whole.width {
            let text = format!("the parts have {at} elements, a head has {}", whole.width);
            node.wrong(ShapeRule::Kept, None, text);
        }
    },
    reference: OpReference::new("Parts of each head, as views: nothing is moved.", "[a | b] = x", OURS),
    ..Operation::DEFAULT
};

pub(super) const CONCAT: Operation = Operation {
    name: "concat",
    inputs: &[Port::f32("a", "rows × width"), Port::f32("b", "rows × part")],
    outputs: Outputs::Ports(&[Port::f32("y", "rows × outputs").with_note("width + part elements")]),
    check: |node| {
        let parts = node.inputs[0].row_width() + node.inputs[1].row_width();
        let whole = node.outputs[0].row_width();
        if parts != whole {
            let text = format!("the parts have {parts} elements, the row has {whole}");
            node.wrong(ShapeRule::Kept, None, text);
        }
    },
    reference: OpReference::new("Two rows side by side, copied into one.", "y = [a | b]", OURS),
    ..Operation::DEFAULT
};

pub(super) const ROPE: Operation = Operation {
    name: "rope",
    outputs: Outputs::Ports(&[Port::f32("y", "rows × width").with_note("in place or a copy")]),
    kernels: RequiredKernels::Own(OpKind::Rope),
    reference: OpReference::new(
        "Rotates pairs of elements by the row's position: neighbours, or elements half a row apart. `fold_ropes` makes it part of \
             the operation that stores a key or absorbs a query.",
        "(a, b) ← (a·cos θ − b·sin θ, a·sin θ + b·cos θ),  θᵢ = p · ωᵢ",
        "Su and others, arXiv:2104.09864",
    ),
    ..IN_PLACE
};

pub(super) const PARTIAL_ROPE_CONCAT: Operation = Operation {
    name: "partial_rope_concat",
    made_by: NodeMaker::Pass("expand_stores"),
    inputs: &[Port::f32("k_nope", "rows × heads × nope"), K_ROPE],
    outputs: Outputs::Ports(&[Port::f32("key", "rows × heads × (nope + rope)")]),
    shape_rule: ShapeRule::Attention,
    reference: OpReference::new(
        "The key of each head: its part without position, and the rotated key that all heads share.",
        "key = [k_nope | k_rope]",
        MLA,
    ),
    ..Operation::DEFAULT
};

pub(super) const GATHER_ROWS: Operation = Operation {
    name: "gather_rows",
    built: NodeConstruction::LikeFirst,
    inputs: &[Port::f32("x", "rows × hidden").with_note("all rows of the step")],
    outputs: Outputs::Ports(&[Port::f32("y", "rows × hidden").with_note("rows with a logits request")]),
    check: |node| node.keeps_width(),
    reference: OpReference::new(
        "The rows of the residual stream whose logits are wanted: the lm_head works on no others.",
        "y[i] = x[wanted[i]]",
        OURS,
    ),
    ..Operation::DEFAULT
};
