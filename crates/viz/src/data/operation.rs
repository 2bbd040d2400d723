//! Blocks and their operations.

use crate::scene::Primitive;
use latent_graph::KernelCalls;
use serde::Serialize;

/// A run of layers of equal structure, or the part before or after the layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DrawingBlock {
    /// `Layers 3–60`.
    pub title: String,
    /// `mixture of experts`.
    pub subtitle: String,
    /// First and last layer of each range of layers.
    pub layers: Vec<(usize, usize)>,
    /// The number of layers.
    pub count: usize,
    /// Phases per layer (0 for circuit and IR).
    pub phases: usize,
    /// Width in drawing units.
    pub width: f64,
    pub height: f64,
    /// Its operations, in order.
    pub operations: Vec<DrawingOperation>,
    /// The rendered block.
    pub scene: Vec<Primitive>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DrawingOperation {
    /// The word of the operation.
    pub op: &'static str,
    /// The word with the slots of its weights: `linear q_a + kv_a`.
    pub title: String,
    /// The colour class: `io`, `norm`, `linear`, `position`, `attention`, `cache`, `experts` or
    /// `sum`.
    pub family: &'static str,
    /// Its line in `latent graph`, for the first layer of the block.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub line: String,
    /// The phase within the block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<usize>,
    /// `absorbed` or `naive`, if only rows of that attention path use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<&'static str>,
    /// Whether the step whose costs are shown takes this path. In a circuit: whether the model
    /// takes
    /// this branch.
    pub taken: bool,
    /// Conditions of the circuit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<String>,
    /// Values read.
    pub inputs: Vec<OperationPort>,
    /// Values written.
    pub outputs: Vec<OperationPort>,
    /// Operations fused before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prologue: Vec<String>,
    /// Operations fused after it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub epilogue: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<OperationWeight>,
    /// Bindings that read no weight.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<usize>,
    /// The KV layer that it reads or writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_layer: Option<KvAccess>,
    /// Its kernel calls, if the target is a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<OperationRun>,
    /// Mean cost per layer of the block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<OperationCost>,
}

/// The kernel calls of an operation on a device, in the first layer of its block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OperationRun {
    pub device: String,
    /// Its kernels, in order.
    pub kernels: Vec<KernelCalls>,
}

/// A value that an operation reads or writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperationPort {
    pub name: String,
    /// `rows × 128 × 192`.
    pub shape: String,
    /// Where it is stored: `residual stream`, `arena`, `in q_a`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub place: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperationWeight {
    /// Index into the drawing's weights.
    pub weight: usize,
    /// Indices into the drawing's bindings, one per format of the weight; empty for circuit and IR.
    pub kernels: Vec<usize>,
}

/// Access of an operation to a KV layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KvAccess {
    /// `latent`, `expanded`, or the kind of a recurrent state.
    pub kind: &'static str,
    /// Writes (true) or reads. A recurrent state is read and replaced.
    pub writes: bool,
    /// Whether it is one state per sequence instead of rows.
    pub recurrent: bool,
    /// Elements per row, or of the state.
    pub width: usize,
    /// Bytes of a row, or of the state.
    pub row_bytes: usize,
}

/// The cost of one operation in one layer; with n cached rows: `a + n · a_per_cached`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OperationCost {
    /// Bytes of weights read.
    pub weight_bytes: f64,
    /// Bytes of KV cache read or written, with an empty cache.
    pub cache_bytes: f64,
    /// Additional bytes per cached row.
    pub cache_bytes_per_cached: f64,
    /// Floating-point operations, with an empty cache.
    pub flops: f64,
    /// Additional operations per cached row.
    pub flops_per_cached: f64,
}
