//! The IR: a circuit instantiated for one config, in dataflow form.
//!
//! A [`Node`] reads and makes [`Value`]s, uses [`Weight`]s, and reads or writes [`KvLayer`]s of the KV cache. The number of rows is symbolic.
//! Passes rewrite an [`Ir`] into another; the last form is what a plan executes.

mod build;
mod cost;
mod dot;
mod reference;
mod signature;
mod text;

pub use build::Span;
pub use cost::{Cost, Step};
pub use reference::{OpReference, reference};
pub use signature::{Carries, Edge, Port};

use crate::circuit::Weight;
use latent_types::{CacheRow, CacheType};
use serde::Serialize;
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
    /// All values.
    pub values: Vec<Value>,
    /// All weights used.
    pub weights: Vec<Weight>,
    /// The KV cache's layers: one for each layer with attention.
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
    /// How many rows it has.
    pub rows: RowCount,
    /// Heads in a row (1: not cut into heads).
    pub heads: usize,
    /// Elements per head.
    pub width: usize,
    /// Where it is stored.
    pub storage: Storage,
}

/// How many rows a value has, as a function of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowCount {
    /// One per row of the batch.
    Rows,
    /// This many per row of the batch: one per expert that the row is routed to.
    Times(usize),
}

impl RowCount {
    /// Rows for a batch of `rows`.
    pub fn of(self, rows: usize) -> usize {
        match self {
            RowCount::Rows => rows,
            RowCount::Times(n) => rows * n,
        }
    }
}

/// Where a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
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

/// What one layer stores in the KV cache per token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KvLayer {
    /// What it holds.
    pub kind: KvLayerKind,
    /// The layer that owns it.
    pub layer: usize,
    /// Elements per row.
    pub width: usize,
    /// How many of them, at the end of a latent row, are rotated by position.
    pub rope: usize,
}

impl KvLayer {
    /// A row in a cache of this type.
    pub fn row(&self, ty: CacheType) -> CacheRow {
        CacheRow { ty, content: self.width - self.rope, rope: self.rope }
    }
}

/// What a KV layer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KvLayerKind {
    /// `[latent | rope key]`: kv_lora + rope elements, shared by all heads.
    Latent,
    /// `[key nope | key rope | value]` per head: what attention without a latent cache stores.
    Expanded,
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
    /// The kernel's name.
    pub name: String,
    /// How it reads its input.
    pub activation: String,
    /// The kernel for calls with fewer rows than this one's minimum, where the node may see such calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub small_batch: Option<Box<BoundKernel>>,
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
}

/// What happens to a node's results before they are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Epilogue {
    /// Nothing.
    #[default]
    None,
    /// silu(first) · second: two weights, one output.
    SiluMul,
    /// max(x, 0)².
    Relu2,
    /// Added to the last input, in place, after multiplying by the factor.
    AddTo(f64),
}

/// The operations. A circuit names the first group; passes make the second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// tokens → rows of the embedding, times a factor. Weights: the embedding.
    Embed {
        /// Factor on the rows.
        scale: f64,
    },
    /// x → x / √(mean x² + eps) · w.
    RmsNorm,
    /// x → one output for each weight: x·Wᵀ.
    Linear,
    /// x → views of parts of each head.
    Split,
    /// Rotates pairs by position. Keeps the shape.
    Rope,
    /// q_nope, q_rope, latent, k_rope → attention output: lowered by the choice of formulations.
    MlaAttention,
    /// router logits → chosen experts, their weights. Optional weight: the bias.
    Route,
    /// x, chosen, mix → Σ mix · expert(x): lowered by the grouping of experts.
    ExpertMlp,
    /// gate, up → silu(gate) · up.
    SiluMul,
    /// x → max(x, 0)².
    Relu2,
    /// a, b → a + factor · b, in place of a.
    Add {
        /// Factor on b.
        scale: f64,
    },
    /// x → factor · x, in place.
    Scale {
        /// The factor.
        by: f64,
    },
    /// Rows of the residual stream whose logits are wanted.
    GatherRows,
    /// latent, k_rope → cache rows [latent | rope].
    LatentStore,
    /// latent, k_rope → cache rows of expanded keys and values. Weights: k_b and v_b, or kv_b.
    ExpandedStore,
    /// q_nope, q_rope → queries in latent space [W_UKᵀ q_nope | q_rope].
    AbsorbK,
    /// queries in latent space → Σ softmax · latent, over the cached rows.
    AttendLatent,
    /// The same with content and rope scores computed apart and added.
    AttendSeparate,
    /// attention result in latent space → each head's value space, through W_UV.
    AbsorbV,
    /// q_nope, q_rope → attention over keys and values expanded from the cached latents, on the fly or as stored.
    AttendExpanded,
    /// x, chosen → silu(gate)·up of each (row, expert), rows sorted by expert.
    ExpertGateUp,
    /// expert activations, chosen, mix → Σ mix · down.
    ExpertDown,
}

impl Op {
    /// The word for it in texts and drawings.
    pub fn word(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::RmsNorm => "rms_norm",
            Op::Linear => "linear",
            Op::Split => "split",
            Op::Rope => "rope",
            Op::MlaAttention => "mla_attention",
            Op::Route => "route",
            Op::ExpertMlp => "expert_mlp",
            Op::SiluMul => "silu_mul",
            Op::Relu2 => "relu2",
            Op::Add { .. } => "add",
            Op::Scale { .. } => "scale",
            Op::GatherRows => "gather_rows",
            Op::LatentStore => "latent_store",
            Op::ExpandedStore => "expanded_store",
            Op::AbsorbK => "absorb_k",
            Op::AttendLatent => "attend_latent",
            Op::AttendSeparate => "attend_split",
            Op::AbsorbV => "absorb_v",
            Op::AttendExpanded => "attend_expanded",
            Op::ExpertGateUp => "expert_gate_up",
            Op::ExpertDown => "expert_down",
        }
    }
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

    /// The weight in this slot.
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
    /// The value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    /// The weight.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0]
    }

    /// The value in whose buffer `id` is stored, through all views.
    pub fn root(&self, id: ValueId) -> ValueId {
        match self.value(id).storage {
            Storage::View { of, .. } => self.root(of),
            _ => id,
        }
    }

    /// Where a value is stored: in which root value, and at which elements of each head (all of them, where
    /// root and view are cut into different heads).
    pub fn place(&self, id: ValueId) -> (ValueId, Range<usize>) {
        let value = self.value(id);
        let Storage::View { of, offset } = value.storage else { return (id, 0..value.width) };
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
