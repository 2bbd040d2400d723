//! The arithmetic of a plan's operations.

use latent_graph::ir::Node;
use latent_types::Arithmetic;

/// The arithmetic of a node from the target's kernels; f32 if it has none.
pub(crate) fn of_kernels(node: &Node) -> Arithmetic {
    let any = |activation: &str| node.kernels.iter().any(|kernel| kernel.activation == activation);
    // attention over expanded keys has both: its scores and sums are more than its values' product
    // few rows of experts may go by another kernel: most rows tell
    let known = [("f16", Arithmetic::F16), ("bf16", Arithmetic::Bf16), ("a8", Arithmetic::Int8)];
    known.into_iter().find(|(activation, _)| any(activation)).map_or(Arithmetic::F32, |(_, found)| found)
}
