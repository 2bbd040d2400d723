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

#[cfg(test)]
mod tests {
    use super::*;
    use latent_graph::ir::BoundKernel;

    fn node(op: Op, activations: &[&str]) -> Node {
        let kernel = |(index, activation): (usize, &&str)| BoundKernel {
            index,
            name: String::new(),
            activation: (*activation).to_owned(),
            small_batch: None,
        };
        let kernels = activations.iter().enumerate().map(kernel).collect();
        Node { kernels, ..Node::new(op, None, Vec::new(), Vec::new()) }
    }

    #[test]
    fn expanded_attention_is_compared_with_the_arithmetic_of_its_scores() {
        let of = |op, activations: &[&str]| of_kernels(&node(op, activations));
        assert_eq!(of(Op::AttendExpanded, &["f32", "a8", "f32"]), Arithmetic::F32);
        assert_eq!(of(Op::AttendExpanded, &["bf16", "a8", "bf16"]), Arithmetic::Bf16);
        assert_eq!(of(Op::AttendExpanded, &["f32", "a8", "f16"]), Arithmetic::F16);
        assert_eq!(of(Op::Linear, &["a8"]), Arithmetic::Int8);
        assert_eq!(of(Op::Linear, &[]), Arithmetic::F32);
    }
}
