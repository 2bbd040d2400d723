//! The IR: a circuit instantiated for one config, in dataflow form.
//!
//! A [`Node`] reads and produces [`Value`]s, uses [`Weight`]s, and reads or writes [`KvLayer`]s of
//! the KV cache. The number of rows is symbolic, because one plan serves steps of different sizes.
//! Passes rewrite an [`Ir`] into another; the last form is what a plan executes.

mod build;
mod cost;
mod dot;
mod signature;
mod span;
mod text;

pub use crate::ops::{Epilogue, KvLayerKind, NodeCost, Op, Port, RowCount};
pub use cost::StepWorkload;
pub use signature::Edge;
pub use span::{ModelSide, ModelSpan};

use crate::circuit::{CacheStream, StateShape, Weight};
use latent_types::{CacheRow, CacheType, ValueType};
use serde::{Serialize, Serializer};
use std::ops::Range;

/// Index of a value in [`Ir::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ValueId(pub usize);

/// Index of a weight in [`Ir::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct WeightId(pub usize);

/// Index of a KV layer in [`Ir::kv_layers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct KvLayerId(pub usize);

/// The operations of a span of layers, in an order in which every value is produced before it is
/// read.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Ir {
    pub values: Vec<Value>,
    /// All weights used.
    pub weights: Vec<Weight>,
    /// The cache streams that the circuit declares for these layers.
    pub streams: Vec<CacheStream>,
    /// The layers of the KV cache, which lowering creates from the streams.
    pub kv_layers: Vec<KvLayer>,
    /// The operations.
    pub nodes: Vec<Node>,
    /// Named results: `hidden`, `logits`.
    pub outputs: Vec<(String, ValueId)>,
}

/// A matrix that a node produces: rows × heads × width elements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Value {
    /// Its name in the circuit.
    pub name: String,
    /// The layer that produces it.
    pub layer: Option<usize>,
    /// The type of its elements.
    #[serde(serialize_with = "dtype_name")]
    pub dtype: ValueType,
    pub rows: RowCount,
    /// Heads per row; 1 if the row is not split into heads.
    pub heads: usize,
    /// Elements per head.
    pub width: usize,
    /// Where it is stored.
    pub storage: ValueStorage,
}

fn dtype_name<S: Serializer>(dtype: &ValueType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(dtype.name())
}

/// Where a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueStorage {
    /// Token ids of the batch.
    Tokens,
    /// The residual stream, which outlives the plan's arena.
    Hidden,
    /// The logits that the caller reads.
    Logits,
    /// Its own buffer in the arena, placed by lifetime.
    Own,
    /// A part of another value, or all of it when an operation works in place.
    View {
        /// The viewed value.
        of: ValueId,
        /// First element, from the start of each head.
        offset: usize,
    },
}

/// What one layer stores in the KV cache: per token, or as one state of a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KvLayer {
    /// What it holds.
    pub kind: KvLayerKind,
    /// The layer that owns it.
    pub layer: usize,
    /// Elements per row, or elements of the state.
    pub width: usize,
    /// Elements at the end of a latent row that hold the key shared by all heads. Only these are
    /// rotated by position.
    pub rope: usize,
    /// Shape of a recurrent state, with `width` elements in total.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<StateShape>,
}

impl KvLayer {
    /// A layer with one row per token.
    pub fn of_rows(kind: KvLayerKind, layer: usize, width: usize, rope: usize) -> KvLayer {
        KvLayer { kind, layer, width, rope, state: None }
    }

    /// Bytes per row in a cache of type `ty`, or bytes of the state.
    pub fn bytes(&self, ty: CacheType) -> usize {
        // A recurrent state is f32 in every cache type: each token updates it, so rounding errors
        // would accumulate.
        self.state
            .map_or_else(|| self.row(ty).bytes(), |state| size_of::<f32>().saturating_mul(state.elements()))
    }

    pub fn row(&self, ty: CacheType) -> CacheRow {
        CacheRow { ty, content: self.width - self.rope, rope: self.rope }
    }
}

/// The rows of the batch that a node works on, selected by the attention path of their sequence
/// span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionPath {
    /// Every row.
    All,
    /// Rows that attend in latent space.
    Absorbed,
    /// Rows that attend to expanded keys and values.
    Naive,
}

impl AttentionPath {
    /// Whether a row can belong to both paths.
    pub fn meets(self, other: AttentionPath) -> bool {
        self == other || self == AttentionPath::All || other == AttentionPath::All
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// The layer that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<usize>,
    /// The rows that it works on.
    pub path: AttentionPath,
    /// Values read, in the order of the operation's ports.
    pub inputs: Vec<ValueId>,
    /// Values produced.
    pub outputs: Vec<ValueId>,
    /// Weights used, under their slot names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<(String, WeightId)>,
    /// The KV layer that the node reads or writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_layer: Option<KvLayerId>,
    /// What happens to the first input before the operation.
    pub prologue: Prologue,
    /// What happens to the results before they are stored.
    pub epilogue: Epilogue,
    /// The kernel bound to each weight, or to the operation itself; filled by `select_kernels`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<BoundKernel>,
}

/// A kernel chosen by `select_kernels`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BoundKernel {
    /// Index in the table of kernel contracts.
    pub index: usize,
    pub name: String,
    /// The type in which it reads its input.
    pub activation: String,
    /// The kernel for calls with fewer rows than this kernel's minimum, if the node can get such
    /// calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub small_batch: Option<Box<BoundKernel>>,
    /// The measured times that decided between kernels, as text; `None` without measurements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
}

/// What happens to a node's first input before the operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Prologue {
    /// RMSNorm with this weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm: Option<WeightId>,
    /// Rotation by position, applied to the last input.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rope: bool,
    /// Combines the partial results of KV splits (the last input), for rows whose attention was
    /// split.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub kv_splits: bool,
}

impl Node {
    /// A node of one layer over all rows, without prologue, epilogue or kernels.
    pub fn new(op: Op, layer: Option<usize>, inputs: Vec<ValueId>, outputs: Vec<ValueId>) -> Node {
        Node {
            op,
            layer,
            path: AttentionPath::All,
            inputs,
            outputs,
            weights: Vec::new(),
            kv_layer: None,
            prologue: Prologue::default(),
            epilogue: Epilogue::None,
            kernels: Vec::new(),
        }
    }

    pub fn weight(&self, slot: &str) -> Option<WeightId> {
        self.weights.iter().find(|(name, _)| name == slot).map(|(_, id)| *id)
    }
}

impl Value {
    /// Elements per row, all heads.
    pub fn row_width(&self) -> usize {
        self.heads * self.width
    }
}

impl Ir {
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0]
    }

    /// The value whose buffer stores `id`, through all views.
    pub fn root(&self, id: ValueId) -> ValueId {
        match self.value(id).storage {
            // Chains of views are short in a valid IR. The audit, which must survive cyclic views,
            // resolves them by itself.
            ValueStorage::View { of, .. } => self.root(of),
            _ => id,
        }
    }

    /// Where a value is stored: its root value, and its range of elements within each head. The
    /// range covers everything if root and view are split into different heads.
    pub fn place(&self, id: ValueId) -> (ValueId, Range<usize>) {
        let value = self.value(id);
        let ValueStorage::View { of, offset } = value.storage else { return (id, 0..value.width) };
        let (root, within) = self.place(of);
        // With equal heads, an offset within a head of the view is one within a head of the root.
        if value.heads == self.value(root).heads {
            let from = within.start + offset;
            (root, from..from + value.width)
        } else {
            // A range per head of the view says nothing about heads of the root, so callers that
            // test for overlap must assume any element.
            (root, 0..usize::MAX)
        }
    }

    /// Adds a value and returns its id.
    pub fn add_value(&mut self, value: Value) -> ValueId {
        self.values.push(value);
        ValueId(self.values.len() - 1)
    }

    /// Indices of the nodes that read `id`, in order.
    pub fn readers(&self, id: ValueId) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&n| self.nodes[n].inputs.contains(&id)).collect()
    }

    /// Index of the first node that produces `id`. With `MlaChoice::Auto` a value can have two: one
    /// per attention path.
    pub fn maker(&self, id: ValueId) -> Option<usize> {
        self.nodes.iter().position(|node| node.outputs.contains(&id))
    }
}
