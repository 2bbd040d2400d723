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

/// What says how much scratch memory an operation takes.
#[derive(Clone, Copy)]
pub(crate) struct ScratchLimits<'s> {
    pub(crate) config: &'s ModelConfig,
    pub(crate) plan: &'s Plan,
    /// Maximum bytes of a scratch buffer, for operations that can split their work into passes.
    pub(crate) scratch: u64,
    /// Bytes that a buffer may have.
    pub(crate) most: u64,
}

impl ScratchLimits<'_> {
    /// Most rows of a step.
    pub(crate) fn rows(&self) -> usize {
        self.plan.max_rows.max(1)
    }
}

/// What an operation is compiled with.
pub(crate) struct Compiler<'c> {
    pub(crate) device: &'c Arc<Device>,
    pub(crate) plan: &'c Plan,
    pub(crate) config: &'c ModelConfig,
    pub(crate) rotation: &'c Rotation,
    pub(crate) weights: &'c DeviceWeights,
    pub(crate) cache_type: CacheType,
    /// Maximum bytes of a scratch buffer, for operations that can split their work into passes.
    pub(crate) scratch: u64,
    /// Operations of a portion of a step.
    pub(crate) portion: f64,
    pub(crate) registers: &'c ValueRegisters,
}

impl Compiler<'_> {
    /// What scratch memory depends on.
    pub(crate) fn sizes(&self) -> ScratchLimits<'_> {
        let most = largest_binding(&self.device.limits);
        ScratchLimits { config: self.config, plan: self.plan, scratch: self.scratch, most }
    }

    pub(crate) fn operand(&self, id: ValueId) -> Result<ShaderOperand, BackendError> {
        self.registers.operand(self.plan, id)
    }

    pub(crate) fn input(&self, node: &Node, i: usize) -> Result<ShaderOperand, BackendError> {
        match node.inputs.get(i) {
            Some(id) => self.operand(*id),
            None => internal(format!("{} lacks input {i}", node.op.word())),
        }
    }

    /// The input at a port that may be left out.
    pub(crate) fn input_at(&self, node: &Node, port: &str) -> Result<Option<ShaderOperand>, BackendError> {
        node.input_at(port).map(|id| self.operand(id)).transpose()
    }

    pub(crate) fn output(&self, node: &Node, i: usize) -> Result<ShaderOperand, BackendError> {
        match node.outputs.get(i) {
            Some(id) => self.operand(*id),
            None => internal(format!("{} lacks output {i}", node.op.word())),
        }
    }

    /// A weight that rows are multiplied by.
    pub(crate) fn product_weight(&self, id: WeightId) -> Result<Arc<DeviceWeight>, BackendError> {
        self.weights.product(self.plan.ir.weight(id))
    }

    /// The vector of a node that has only one weight.
    pub(crate) fn vector(&self, node: &Node) -> Result<Arc<DeviceVector>, BackendError> {
        match &node.weights[..] {
            [(_, id)] => self.weights.vector(self.plan.ir.weight(*id)),
            _ => internal(format!("{} needs one weight", node.op.word())),
        }
    }

    /// The node's KV layer: its index in the plan, and what it holds.
    pub(crate) fn kv_layer(&self, node: &Node) -> Result<(usize, &KvLayer), BackendError> {
        match node.kv_layer {
            Some(id) => Ok((id.0, &self.plan.ir.kv_layers[id.0])),
            None => internal(format!("{} has no KV layer", node.op.word())),
        }
    }

    /// Elements of the rows of a value with another width of heads.
    pub(crate) fn cut(&self, operand: ShaderOperand, width: usize) -> Result<ShaderOperand, BackendError> {
        let width = count(width)?;
        operand.cut(width).map_or_else(
            || internal(format!("rows of {} elements are not cut into {width}", operand.row_width())),
            Ok,
        )
    }
}
