//! Matmuls with weights, and the low-rank terms of adapters.

use super::operation::*;
use super::port::*;
use super::shapes::ShapeRule;
use super::shared::*;
use latent_types::OpKind;

pub(super) const LINEAR: Operation = Operation {
    name: "linear",
    inputs: &[Port::f32("x", "rows × inputs")],
    outputs: Outputs::PerWeight(Port::f32("y", "rows × outputs")),
    slots: &[WeightSlot::new("any", "outputs × inputs").with_note("one or several")],
    weights_fit: |weights| {
        let (fits, expected) = match weights.epilogue {
            Epilogue::SiluMul => (weights.count == 2, "two, gate and up"),
            Epilogue::Relu2 | Epilogue::AddTo(_) => (weights.count == 1, "one"),
            Epilogue::None | Epilogue::KvSplits => (weights.count > 0, "at least one"),
        };
        if fits { Ok(()) } else { Err(expected) }
    },
    kernels: RequiredKernels::PerWeight(|_| OpKind::Linear, &[]),
    kernel_rows: KernelRows::Bucket,
    folds: Folds { norm: NormFold::EachThread, activation: true, sum: true, ..Folds::NONE },
    // Every weight reads the input row and writes its own output row.
    check: |node| {
        let width = node.inputs[0].row_width();
        let gated = node.epilogue == Epilogue::SiluMul;
        for (i, weight) in node.weights.clone().into_iter().enumerate() {
            if weight.inputs() != width || weight.shape.len() != 2 {
                let text =
                    format!("the weight of shape {:?} does not take a row of {width} elements", weight.shape);
                node.wrong(ShapeRule::Takes, weight.slot.to_owned(), text);
            }
            // With SiLU·up, gate and up share one output.
            let out = if gated { node.outputs.first() } else { node.outputs.get(i) };
            if let Some(out) = out
                && out.row_width() != weight.outputs()
            {
                let (gives, name, made) = (weight.outputs(), &out.name, out.row_width());
                let text = format!("the weight gives {gives} elements, but {name} has {made}");
                node.wrong(ShapeRule::Gives, weight.slot.to_owned(), text);
            }
        }
        if matches!(node.epilogue, Epilogue::AddTo(_)) {
            // Input 1 is the residual.
            node.same_width(1);
        }
    },
    cost: matmul_cost,
    reference: OpReference {
        weight_bytes: "weight_bytes",
        flops: "2*rows*weights",
        ..OpReference::new(
            "One matmul per weight, all of the same input. `fuse_projections` joins matmuls that share it; `fold_epilogues` lets it \
             apply an activation or add to the residual stream.",
            "y = x · Wᵀ",
            "the circuit",
        )
    },
    ..Operation::DEFAULT
};

pub(super) const LORA_ADD: Operation = Operation {
    name: "lora_add",
    made_by: NodeMaker::Pass("adapters"),
    inputs: &[
        Port::f32("base", "rows × outputs"),
        Port::f32("low", "rows × lora_rank").with_note("A x, by a linear"),
    ],
    outputs: Outputs::Ports(&[Port::f32("y", "rows × outputs").with_note("in place of base")]),
    slots: &[WeightSlot::new("lora_b", "outputs × lora_rank").with_note("B")],
    weights_fit: one_weight,
    kernels: RequiredKernels::PerWeight(|_| OpKind::Linear, &[]),
    kernel_rows: KernelRows::Bucket,
    check: |node| {
        node.same_width(0);
        let (low, made) = (node.inputs[1].row_width(), node.outputs[0].row_width());
        if let Some(weight) = node.weights.first().copied()
            && weight.shape != [made, low]
        {
            let text = format!("the weight has shape {:?}, expected [{made}, {low}]", weight.shape);
            node.wrong(ShapeRule::Takes, weight.slot.to_owned(), text);
        }
    },
    cost: matmul_cost,
    reference: OpReference {
        weight_bytes: "weight_bytes",
        flops: "2*rows*weights",
        ..OpReference::new(
            "Adds what a LoRA adapter changes to the result of a matmul, in place. Each row has the scale s of its sequence; f is \
                 alpha / rank.",
            "y = base + s · f · B low",
            LORA,
        )
    },
    ..Operation::DEFAULT
};

/// An adapter of `kv_b` in absorbed attention.
const LORA_ABSORB: Operation = Operation {
    made_by: NodeMaker::Pass("lower_mla"),
    slots: &[LORA_KV_A, LORA_KV_B],
    weights_fit: |weights| {
        if weights.count == 2 { Ok(()) } else { Err("two, A and B") }
    },
    shape_rule: ShapeRule::Attention,
    ..Operation::DEFAULT
};

pub(super) const LORA_ABSORB_K: Operation = Operation {
    name: "lora_absorb_k",
    inputs: &[Q_LATENT, Q_NOPE],
    outputs: Outputs::Ports(&[Q_LATENT]),
    cost: |at| lora_attention_cost(at, at.width(1)),
    reference: OpReference {
        weight_bytes: "weight_bytes",
        flops: "2*rows*heads*lora_rank*(nope + kv_lora)",
        ..OpReference::new(
            "Adds what an adapter of `kv_b` changes to the queries in latent space, in place.",
            "q̃ + s · f · Aᵀ (B_UKᵀ q_nope)",
            LORA,
        )
    },
    ..LORA_ABSORB
};

pub(super) const LORA_ABSORB_V: Operation = Operation {
    name: "lora_absorb_v",
    inputs: &[ATTN, LATENT_MIX],
    outputs: Outputs::Ports(&[ATTN]),
    cost: |at| lora_attention_cost(at, at.width(0)),
    reference: OpReference {
        weight_bytes: "weight_bytes",
        flops: "2*rows*heads*lora_rank*(v + kv_lora)",
        ..OpReference::new(
            "Adds what an adapter of `kv_b` changes to each head's values, in place.",
            "o + s · f · B_UV (A õ)",
            LORA,
        )
    },
    ..LORA_ABSORB
};
