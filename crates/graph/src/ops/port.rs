//! Ports and weight slots: the inputs, outputs and weights of operations.

use latent_types::ValueType;
use serde::Serialize;

/// A named input or output of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: &'static str,
    /// The type of its elements.
    pub dtype: ValueType,
    /// Its shape: `rows × width` or `rows × heads × width`, each dimension an expression of the
    /// names in the reference. The audit checks values against the dimensions that a config
    /// determines. Every other name must have one value per node.
    pub shape: &'static str,
    /// A note for the reference.
    pub note: &'static str,
    /// Whether nodes omit this input if the config gives it no elements. They then omit all
    /// optional ports of the operation.
    pub optional: bool,
}

impl Port {
    /// A port of f32 elements.
    pub const fn f32(name: &'static str, shape: &'static str) -> Port {
        Port { name, dtype: ValueType::F32, shape, note: "", optional: false }
    }

    /// A port of ids.
    pub const fn u32(name: &'static str, shape: &'static str) -> Port {
        Port { name, dtype: ValueType::U32, shape, note: "", optional: false }
    }

    /// The same with a note.
    #[must_use]
    pub const fn with_note(self, note: &'static str) -> Port {
        Port { note, ..self }
    }

    /// The same port, omitted if the config gives it no elements.
    #[must_use]
    pub const fn or_none(self) -> Port {
        Port { optional: true, ..self }
    }
}

/// A weight that an operation may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightSlot {
    /// The slot's name in circuits; `any` if the operation accepts weights of any slot.
    pub name: &'static str,
    /// Its shape, outermost dimension first, as of a [`Port`].
    pub shape: &'static str,
    /// A note for the reference.
    pub note: &'static str,
}

impl WeightSlot {
    /// A slot without a note.
    pub const fn new(name: &'static str, shape: &'static str) -> WeightSlot {
        WeightSlot { name, shape, note: "" }
    }

    /// The same with a note.
    #[must_use]
    pub const fn with_note(self, note: &'static str) -> WeightSlot {
        WeightSlot { note, ..self }
    }
}

/// The slot of the experts' weight that an adapter matrix in this slot changes; `None` for other
/// slots.
pub fn adapted_slot(slot: &str) -> Option<&str> {
    slot.strip_suffix("_lora_a").or_else(|| slot.strip_suffix("_lora_b"))
}

/// The number of rows of a value, as a function of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowCount {
    /// One per row of the batch.
    Rows,
    /// This many per row of the batch: one per expert that the row is routed to.
    Times(usize),
    /// One per row, for batches of at most this many rows. Larger batches do not use the value.
    AtMost(usize),
}

impl RowCount {
    /// Rows for a batch of `rows`.
    pub fn of(self, rows: usize) -> usize {
        match self {
            RowCount::Rows => rows,
            RowCount::Times(n) => rows * n,
            RowCount::AtMost(n) => rows.min(n),
        }
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
    /// The key of an indexer, the same for all of its heads: its first elements rotated.
    Index,
    /// The past inputs of short convolutions, a recurrent state.
    ConvInputs,
    /// The matrix of each head that the delta rule updates, a recurrent state.
    DeltaState,
}

impl KvLayerKind {
    /// All kinds.
    pub const ALL: [KvLayerKind; 5] = [
        KvLayerKind::Latent,
        KvLayerKind::Expanded,
        KvLayerKind::Index,
        KvLayerKind::ConvInputs,
        KvLayerKind::DeltaState,
    ];

    /// Whether it is one state per sequence instead of a row per token.
    pub fn is_recurrent(self) -> bool {
        matches!(self, KvLayerKind::ConvInputs | KvLayerKind::DeltaState)
    }

    /// Its name in texts.
    pub fn name(self) -> &'static str {
        match self {
            KvLayerKind::Latent => "latent",
            KvLayerKind::Expanded => "expanded",
            KvLayerKind::Index => "index",
            KvLayerKind::ConvInputs => "conv inputs",
            KvLayerKind::DeltaState => "delta state",
        }
    }
}

/// An operation on a node's results before they are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Epilogue {
    #[default]
    None,
    /// silu(first) · second: two weights, one output.
    SiluMul,
    /// max(x, 0)².
    Relu2,
    /// Multiplied by the factor and added to the last input, in place.
    AddTo(f64),
    /// The partial results of each KV split are stored in an additional output, for a reader that
    /// combines them (attention only).
    KvSplits,
}
