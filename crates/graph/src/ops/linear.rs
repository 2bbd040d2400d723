//! `linear`: matmuls with weights.

use super::{
    CostInput, Epilogue, Folds, KernelRows, NodeCost, NodeShapes, NodeWeights, NormFold, OpReference,
    Operation, Outputs, Port, RequiredKernels, ShapeRule, WeightSlot,
};
use latent_types::OpKind;

/// One or several matmuls of the same input: GEMV or GEMM, by the number of rows.
pub(super) struct Linear;

impl Operation for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::f32("x", "rows × inputs")] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::PerWeight(Port::f32("y", "rows × outputs"))
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const { &[WeightSlot::new("any", "outputs × inputs").with_note("one or several")] }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        let (fits, expected) = match weights.epilogue {
            Epilogue::SiluMul => (weights.count == 2, "two, gate and up"),
            Epilogue::Relu2 | Epilogue::AddTo(_) => (weights.count == 1, "one"),
            Epilogue::None | Epilogue::KvSplits => (weights.count > 0, "at least one"),
        };
        if fits { Ok(()) } else { Err(expected) }
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::PerWeight(|_| OpKind::Linear, &[])
    }

    fn kernel_rows(&self) -> KernelRows {
        KernelRows::Bucket
    }

    fn folds(&self) -> Folds {
        Folds { norm: NormFold::EachThread, activation: true, sum: true, ..Folds::default() }
    }

    /// Every weight takes the row that is read, and gives the row that is made.
    fn check(&self, node: &mut NodeShapes<'_>) {
        let width = node.inputs[0].row_width();
        let gated = node.epilogue == Epilogue::SiluMul;
        for (i, weight) in node.weights.clone().into_iter().enumerate() {
            if weight.inputs() != width || weight.shape.len() != 2 {
                let text =
                    format!("the weight of shape {:?} does not take a row of {width} elements", weight.shape);
                node.wrong(ShapeRule::Takes, weight.slot.to_owned(), text);
            }
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
            node.same_width(1);
        }
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        NodeCost {
            weight_bytes: at.weight_bytes(1.0),
            cache_bytes: 0.0,
            flops: at.matmul_flops(at.rows),
            link_bytes: 0.0,
        }
    }

    fn reference(&self) -> OpReference {
        OpReference {
            weight_bytes: "weight_bytes",
            flops: "2*rows*weights",
            ..OpReference::new(
                "One matmul per weight, all of the same input. `fuse_projections` joins matmuls that share it; `fold_epilogues` lets it \
             apply an activation or add to the residual stream.",
                "y = x · Wᵀ",
                "the circuit",
            )
        }
    }
}
