//! A compiled plan: a list of operations with their buffers and pipelines.

use crate::compile::Compiler;
use crate::ops;
use crate::run::GpuOperation;
use crate::values::ValueRegisters;
use latent_backend::BackendError;
use latent_graph::ir::AttentionPath;
use latent_types::Arithmetic;

/// A node with its operation.
pub(crate) struct Instruction {
    /// The node's index in the plan.
    pub(crate) node: usize,
    pub(crate) path: AttentionPath,
    pub(crate) operation: Box<dyn GpuOperation>,
}

/// A compiled plan.
pub(crate) struct Program {
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) registers: ValueRegisters,
}

impl Program {
    /// The arithmetic of a node of the plan in a step of `rows` rows.
    pub(crate) fn arithmetic(&self, node: usize, rows: usize) -> Arithmetic {
        let instruction = self.instructions.iter().find(|instruction| instruction.node == node);
        instruction.map_or(Arithmetic::F32, |found| found.operation.arithmetic(rows))
    }
}

/// Compiles the nodes of the compiler's plan, in their order.
pub(crate) fn instructions(compiler: &Compiler<'_>) -> Result<Vec<Instruction>, BackendError> {
    let (plan, mut instructions) = (compiler.plan, Vec::new());
    for (index, node) in plan.ir.nodes.iter().enumerate() {
        if let Some(operation) = ops::compile(compiler, node)? {
            instructions.push(Instruction { node: index, path: node.path, operation });
        }
    }
    Ok(instructions)
}
