//! Context for compiling operations: the locations of values and weights.

use crate::buffers::largest_binding;
use crate::device::Device;
use crate::matmul::weight::DeviceWeight;
use crate::values::{ShaderOperand, ValueRegisters, count, internal};
use crate::weights::{DeviceVector, DeviceWeights};
use latent_backend::{BackendError, Rotation};
use latent_graph::ir::{KvLayer, Node, ValueId, WeightId};
use latent_graph::{ModelConfig, Plan};
use latent_types::CacheType;
use std::sync::Arc;

/// The inputs from which operations compute their scratch memory.
#[derive(Clone, Copy)]
pub(crate) struct ScratchLimits<'s> {
    pub(crate) config: &'s ModelConfig,
    pub(crate) plan: &'s Plan,
    /// Maximum bytes of a scratch buffer, for operations that can split their work into passes.
    pub(crate) scratch: u64,
    /// Maximum bytes of a buffer.
    pub(crate) max_buffer: u64,
}

impl ScratchLimits<'_> {
    /// Maximum rows of a step.
    pub(crate) fn rows(&self) -> usize {
        self.plan.max_rows.max(1)
    }
}

/// The context in which operations are compiled.
pub(crate) struct Compiler<'c> {
    pub(crate) device: &'c Arc<Device>,
    pub(crate) plan: &'c Plan,
    pub(crate) config: &'c ModelConfig,
    pub(crate) rotation: &'c Rotation,
    pub(crate) weights: &'c DeviceWeights,
    pub(crate) cache_type: CacheType,
    /// Maximum bytes of a scratch buffer, for operations that can split their work into passes.
    pub(crate) scratch: u64,
    /// Maximum arithmetic operations per portion of a step.
    pub(crate) portion: f64,
    pub(crate) registers: &'c ValueRegisters,
}

impl Compiler<'_> {
    pub(crate) fn sizes(&self) -> ScratchLimits<'_> {
        let max_buffer = largest_binding(&self.device.limits);
        ScratchLimits { config: self.config, plan: self.plan, scratch: self.scratch, max_buffer }
    }

    pub(crate) fn operand(&self, id: ValueId) -> Result<ShaderOperand, BackendError> {
        self.registers.operand(self.plan, id)
    }

    pub(crate) fn input(&self, node: &Node, i: usize) -> Result<ShaderOperand, BackendError> {
        match node.inputs.get(i) {
            Some(id) => self.operand(*id),
            None => internal(format!("{} has no input {i}", node.op.word())),
        }
    }

    /// The input at an optional port.
    pub(crate) fn input_at(&self, node: &Node, port: &str) -> Result<Option<ShaderOperand>, BackendError> {
        node.input_at(port).map(|id| self.operand(id)).transpose()
    }

    pub(crate) fn output(&self, node: &Node, i: usize) -> Result<ShaderOperand, BackendError> {
        match node.outputs.get(i) {
            Some(id) => self.operand(*id),
            None => internal(format!("{} has no output {i}", node.op.word())),
        }
    }

    /// A weight of a product.
    pub(crate) fn product_weight(&self, id: WeightId) -> Result<Arc<DeviceWeight>, BackendError> {
        self.weights.product(self.plan.ir.weight(id))
    }

    /// The vector of a node with exactly one weight.
    pub(crate) fn vector(&self, node: &Node) -> Result<Arc<DeviceVector>, BackendError> {
        match &node.weights[..] {
            [(_, id)] => self.weights.vector(self.plan.ir.weight(*id)),
            _ => internal(format!("{} needs one weight", node.op.word())),
        }
    }

    /// The node's KV layer and its index in the plan.
    pub(crate) fn kv_layer(&self, node: &Node) -> Result<(usize, &KvLayer), BackendError> {
        match node.kv_layer {
            Some(id) => Ok((id.0, &self.plan.ir.kv_layers[id.0])),
            None => internal(format!("{} has no KV layer", node.op.word())),
        }
    }

    /// A view of a value with heads of another width.
    pub(crate) fn cut(&self, operand: ShaderOperand, width: usize) -> Result<ShaderOperand, BackendError> {
        let width = count(width)?;
        operand.cut(width).map_or_else(
            || internal(format!("rows of {} elements are not cut into {width}", operand.row_width())),
            Ok,
        )
    }
}
