//! The IR: a circuit instantiated for one config, in dataflow form.
//!
//! A [`Node`] reads and makes [`Value`]s, uses [`Weight`]s, and reads or writes [`KvLayer`]s of the KV cache. The number of rows is symbolic.
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

/// The operations of a span of layers. Every value is made before it is read.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Ir {
    pub values: Vec<Value>,
    /// All weights used.
    pub weights: Vec<Weight>,
    /// The streams of the KV cache that the circuit states for these layers.
    pub streams: Vec<CacheStream>,
    /// The KV cache's layers: what lowering makes of each stream.
    pub kv_layers: Vec<KvLayer>,
    /// The operations.
    pub nodes: Vec<Node>,
    /// Named results: `hidden`, `logits`.
    pub outputs: Vec<(String, ValueId)>,
}

/// A matrix that some node makes: rows × heads × width elements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Value {
    /// Its name in the circuit.
    pub name: String,
    /// The layer that makes it.
    pub layer: Option<usize>,
    /// The type of its elements.
    #[serde(serialize_with = "dtype_name")]
    pub dtype: ValueType,
    pub rows: RowCount,
    /// Heads in a row (1: not cut into heads).
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
    /// A buffer of its own in the arena, placed by lifetime.
    Own,
    /// A part of another value, or the whole of it overwritten in place.
    View {
        /// The value that it is a part of.
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
    /// Elements per row, or of the state.
    pub width: usize,
    /// How many of them, at the end of a latent row, are the key that all heads share: the part that a rotation turns.
    pub rope: usize,
    /// Of a recurrent state: its shape, which has `width` elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<StateShape>,
}

impl KvLayer {
    /// A layer of cached rows.
    pub fn of_rows(kind: KvLayerKind, layer: usize, width: usize, rope: usize) -> KvLayer {
        KvLayer { kind, layer, width, rope, state: None }
    }

    /// Bytes of a row in a cache of this type, or of the state, which is f32.
    pub fn bytes(&self, ty: CacheType) -> usize {
        self.state
            .map_or_else(|| self.row(ty).bytes(), |state| size_of::<f32>().saturating_mul(state.elements()))
    }

    pub fn row(&self, ty: CacheType) -> CacheRow {
        CacheRow { ty, content: self.width - self.rope, rope: self.rope }
    }
}

/// Which rows of the batch a node works on: those of sequence spans that take this attention path.
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
    /// Whether some row can take both.
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
    /// Values read, in the operation's order.
    pub inputs: Vec<ValueId>,
    /// Values made.
    pub outputs: Vec<ValueId>,
    /// Weights used, under their slot names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<(String, WeightId)>,
    /// The KV layer read or written.
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
    /// How it reads its input.
    pub activation: String,
    /// The kernel for calls with fewer rows than this one's minimum, where the node may see such calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub small_batch: Option<Box<BoundKernel>>,
    /// The measured times that decided between kernels; none if no times are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
}

/// What happens to a node's first input before the operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Prologue {
    /// RMSNorm with this weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm: Option<WeightId>,
    /// Rotation by position: of the last input.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rope: bool,
    /// Partial results of KV splits, the last input, are combined, for the rows whose attention left them there.
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

    /// The value in whose buffer `id` is stored, through all views.
    pub fn root(&self, id: ValueId) -> ValueId {
        match self.value(id).storage {
            ValueStorage::View { of, .. } => self.root(of),
            _ => id,
        }
    }

    /// Where a value is stored: in which root value, and at which elements of each head (all of them, where
    /// root and view are cut into different heads).
    pub fn place(&self, id: ValueId) -> (ValueId, Range<usize>) {
        let value = self.value(id);
        let ValueStorage::View { of, offset } = value.storage else { return (id, 0..value.width) };
        let (root, within) = self.place(of);
        if value.heads == self.value(root).heads {
            let from = within.start + offset;
            (root, from..from + value.width)
        } else {
            (root, 0..usize::MAX)
        }
    }

    /// Adds a value and returns its id.
    pub fn add_value(&mut self, value: Value) -> ValueId {
        self.values.push(value);
        ValueId(self.values.len() - 1)
    }

    /// Indices of the nodes that read `id`.
    pub fn readers(&self, id: ValueId) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&n| self.nodes[n].inputs.contains(&id)).collect()
    }

    /// Index of the node that makes `id`.
    pub fn maker(&self, id: ValueId) -> Option<usize> {
        self.nodes.iter().position(|node| node.outputs.contains(&id))
    }
}
