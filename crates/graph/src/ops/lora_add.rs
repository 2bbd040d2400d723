//! `lora_add`: the low-rank term of an adapter.

use super::shared::{LORA, one_weight};
use super::{
    CostInput, KernelRows, NodeCost, NodeMaker, NodeShapes, NodeWeights, OpReference, Operation, Outputs,
    Port, RequiredKernels, ShapeRule, WeightSlot,
};
use latent_types::OpKind;

/// Adds B · (A x) to the result of a matmul, in place, times the scale of the row's sequence.
pub(super) struct LoraAdd;

impl Operation for LoraAdd {
    fn name(&self) -> &'static str {
        "lora_add"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass("adapters")
    }

    fn inputs(&self) -> &'static [Port] {
        const {
            &[
                Port::f32("base", "rows × outputs"),
                Port::f32("low", "rows × lora_rank").with_note("A x, by a linear"),
            ]
        }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port::f32("y", "rows × outputs").with_note("in place of base")] })
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const { &[WeightSlot::new("lora_b", "outputs × lora_rank").with_note("B")] }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        one_weight(weights)
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::PerWeight(|_| OpKind::Linear, &[])
    }

    fn kernel_rows(&self) -> KernelRows {
        KernelRows::Bucket
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        node.same_width(0);
        let (low, made) = (node.inputs[1].row_width(), node.outputs[0].row_width());
        if let Some(weight) = node.weights.first().copied()
            && weight.shape != [made, low]
        {
            let text = format!("the weight has shape {:?}, expected [{made}, {low}]", weight.shape);
            node.wrong(ShapeRule::Takes, weight.slot.to_owned(), text);
        }
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        NodeCost {
            weight_bytes: at.weight_bytes(1.0),
            flops: at.matmul_flops(at.rows),
            ..NodeCost::default()
        }
    }

    fn reference(&self) -> OpReference {
        OpReference {
            weight_bytes: "weight_bytes",
            flops: "2*rows*weights",
            ..OpReference::new(
                "Adds what a LoRA adapter changes to the result of a matmul, in place. Each row has the scale s of its sequence; f is \
                 alpha / rank.",
                "y = base + s · f · B low",
                LORA,
            )
        }
    }
}
