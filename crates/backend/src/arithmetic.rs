//! What multiplications and additions are done in.

use latent_graph::ir::Node;

/// What the multiplications and additions of an operation are done in: which of the [`Limits`](crate::Limits) they are held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Integers of 8 bits.
    Int8,
    /// f32.
    F32,
    /// f16, with sums in f16 or f32.
    F16,
    /// bf16, with sums in f32.
    Bf16,
}

impl Arithmetic {
    /// All of them.
    pub const ALL: [Arithmetic; 4] = [Arithmetic::Int8, Arithmetic::F32, Arithmetic::F16, Arithmetic::Bf16];

    /// Of a node for which the target's kernels were chosen; f32 where it has none.
    pub fn of_kernels(node: &Node) -> Arithmetic {
        let any = |activation: &str| node.kernels.iter().any(|kernel| kernel.activation == activation);
        // attention over expanded keys has both: its scores and sums are more than its values' product
        // few rows of experts may go by another kernel: most rows tell
        let known = [("f16", Arithmetic::F16), ("bf16", Arithmetic::Bf16), ("a8", Arithmetic::Int8)];
        known.into_iter().find(|(activation, _)| any(activation)).map_or(Arithmetic::F32, |(_, found)| found)
    }
}
