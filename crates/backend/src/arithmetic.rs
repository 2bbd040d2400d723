//! The arithmetic of a plan's operations.

use latent_graph::ir::{Node, Op};
use latent_types::Arithmetic;

/// The arithmetic of a node from the target's kernels; f32 if it has none.
pub(crate) fn of_kernels(node: &Node) -> Arithmetic {
    let any = |activation: &str| node.kernels.iter().any(|kernel| kernel.activation == activation);
    // few rows of experts may go by another kernel: most rows tell
    let known = [("f16", Arithmetic::F16), ("bf16", Arithmetic::Bf16), ("a8", Arithmetic::Int8)];
    // attention over expanded keys: an integer product expands its values, but its scores and sums are more
    let expands = node.op == Op::AttendExpanded;
    let known = known.into_iter().filter(|(_, found)| !(expands && *found == Arithmetic::Int8));
    let mut found = known.filter(|(activation, _)| any(activation));
    found.next().map_or(Arithmetic::F32, |(_, found)| found)
}
