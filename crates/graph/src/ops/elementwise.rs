//! Norms, activations and other operations on each element of a row.

use super::operation::*;
use super::port::*;
use super::shapes::ShapeRule;
use super::shared::*;
use latent_types::OpKind;

pub(super) const RMS_NORM: Operation = Operation {
    name: "rms_norm",
    built: NodeConstruction::LikeFirst,
    inputs: &[X],
    outputs: Outputs::Ports(&[Port::f32("y", "rows × width")]),
    slots: &[ROW_WEIGHT],
    weights_fit: one_weight,
    // `Own` and not `PerWeight`: the kernel does not depend on the weight's format.
    kernels: RequiredKernels::Own(OpKind::RmsNorm),
    check: check_row_weight,
    reference: OpReference::new(
        "Divides each row by its root mean square and multiplies by a weight. Where only matmuls and cache stores read the \
             result, `fold_norms` makes it their prologue.",
        "y = x / √(mean(x²) + ε) · w",
        "Zhang and Sennrich, arXiv:1910.07467",
    ),
    ..Operation::DEFAULT
};

pub(super) const GATED_NORM: Operation = Operation {
    name: "gated_norm",
    inputs: &[X, Port::f32("gate", "rows × width")],
    slots: &[WeightSlot::new("any", "part").with_note("one element for each of a head")],
    weights_fit: one_weight,
    kernels: RequiredKernels::Own(OpKind::GatedNorm),
    // With the delta rule and the convolution, in one phase: each thread keeps its heads.
    by_heads: true,
    check: |node| {
        node.keeps_width();
        let width = node.inputs.first().map_or(0, |x| x.width);
        // One weight of a head's width serves all heads.
        if let Some(weight) = node.weights.first().filter(|weight| *weight.shape != [width]).copied() {
            let text = format!("the weight has shape {:?}, a head has {width} elements", weight.shape);
            node.wrong(ShapeRule::Norm, weight.slot.to_owned(), text);
        }
    },
    reference: OpReference::new(
        "RMSNorm of each head, times the sigmoid of a gate, in place: the output of the delta rule.",
        "y = x / √(mean x² + ε) ⊙ w ⊙ σ(gate)",
        KDA,
    ),
    ..IN_PLACE
};

pub(super) const L2_NORM: Operation = Operation {
    name: "l2_norm",
    kernels: RequiredKernels::Own(OpKind::L2Norm),
    by_heads: true,
    check: |node| node.same_width(0),
    reference: OpReference::new(
        "Divides each head by its length, times a factor, in place. ε is 10⁻⁶ in every model.",
        "y = s · x / √(Σ x² + ε)",
        KDA,
    ),
    ..IN_PLACE
};

pub(super) const BIAS: Operation = Operation {
    name: "bias",
    slots: &[ROW_WEIGHT],
    weights_fit: one_weight,
    kernels: RequiredKernels::Own(OpKind::Add),
    check: check_row_weight,
    reference: OpReference::new(
        "Adds a weight to each row, in place: the bias of the projection before it.",
        "y = x + b",
        "DeepSeek-V3's code, `attention_bias`",
    ),
    ..IN_PLACE
};

pub(super) const ADD: Operation = Operation {
    name: "add",
    inputs: &[Port::f32("base", "rows × width"), Port::f32("term", "rows × width")],
    outputs: Outputs::Ports(&[Port::f32("y", "rows × width").with_note("in place of base")]),
    kernels: RequiredKernels::Own(OpKind::Add),
    reference: OpReference::new(
        "Adds to the residual stream, in place, times a factor where the model has one.",
        "y = base + s · term",
        "He and others, arXiv:1512.03385",
    ),
    ..IN_PLACE
};

pub(super) const SCALE: Operation = Operation {
    name: "scale",
    kernels: RequiredKernels::Own(OpKind::Scale),
    reference: OpReference::new("Multiplies by a factor, in place.", "y = s · x", "the circuit"),
    ..IN_PLACE
};

pub(super) const SILU: Operation = Operation {
    name: "silu",
    kernels: RequiredKernels::Own(OpKind::Silu),
    reference: OpReference::new(
        "SiLU of each element, in place: between the two products that make the gate of a norm (A.X-K2).",
        "y = x / (1 + e⁻ˣ)",
        "Elfwing and others, arXiv:1702.03118",
    ),
    ..IN_PLACE
};

pub(super) const SILU_MUL: Operation = Operation {
    name: "silu_mul",
    made_by: NodeMaker::CircuitMlp,
    inputs: &[Port::f32("gate", "rows × ffn"), Port::f32("up", "rows × ffn")],
    outputs: Outputs::Ports(&[Port::f32("y", "rows × ffn")]),
    kernels: RequiredKernels::Own(OpKind::SiluMul),
    check: |node| node.keeps_width(),
    reference: OpReference::new(
        "The activation of a gated MLP.",
        "y = silu(gate) ⊙ up,  silu(g) = g / (1 + e⁻ᵍ)",
        "Shazeer, arXiv:2002.05202",
    ),
    ..Operation::DEFAULT
};

pub(super) const SIGMOID_MUL: Operation = Operation {
    name: "sigmoid_mul",
    inputs: &[X, Port::f32("gate", "rows × inputs").with_note("one for each element of x, or for each head")],
    kernels: RequiredKernels::Own(OpKind::SigmoidMul),
    check: |node| {
        node.same_width(0);
        let [x, gate] = &node.inputs[..] else { return };
        if ![x.heads, x.row_width()].contains(&gate.row_width()) {
            let text = format!(
                "{} has {} elements, {} has {} heads × {}: expected one for each head or element",
                gate.name,
                gate.row_width(),
                x.name,
                x.heads,
                x.width
            );
            node.wrong(ShapeRule::Kept, "gate".to_owned(), text);
        }
    },
    reference: OpReference::new(
        "Multiplies by the sigmoid of a gate, in place: the output gate of attention, one for each head or for each element.",
        "y = σ(gate) ⊙ x,  σ(g) = 1 / (1 + e⁻ᵍ)",
        "Qiu and others, arXiv:2505.06708",
    ),
    ..IN_PLACE
};

pub(super) const RELU2: Operation = Operation {
    name: "relu2",
    made_by: NodeMaker::CircuitMlp,
    inputs: &[Port::f32("x", "rows × ffn")],
    outputs: Outputs::Ports(&[Port::f32("y", "rows × ffn")]),
    kernels: RequiredKernels::Own(OpKind::Relu2),
    check: |node| node.keeps_width(),
    reference: OpReference::new(
        "The activation of an MLP without gate.",
        "y = max(x, 0)²",
        "So and others, arXiv:2109.08668",
    ),
    ..Operation::DEFAULT
};
