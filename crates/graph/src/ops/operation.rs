//! The description of an operation.

use super::{Epilogue, KvLayerKind, NodeShapes, Port, RowCount, ShapeRule, WeightSlot};
use latent_types::OpKind;
use serde::Serialize;

/// Everything that this crate knows about one operation. [`Op::spec`](super::Op::spec) finds it.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Its name in circuits, IR texts, plans and drawings.
    pub name: &'static str,
    pub made_by: NodeMaker,
    pub built: NodeConstruction,
    /// The pass that replaces it, for operations that no backend runs.
    pub lowered_by: Option<&'static str>,
    /// Inputs in order, without the residual of [`Epilogue::AddTo`].
    pub inputs: &'static [Port],
    pub outputs: Outputs,
    /// Weights that it may have.
    pub slots: &'static [WeightSlot],
    /// Whether a node may have these weights; if not, what is expected.
    pub weights_fit: fn(&NodeWeights) -> Result<(), &'static str>,
    pub kv: KvUse,
    pub kernels: RequiredKernels,
    pub kernel_rows: KernelRows,
    /// Whether each thread computes whole heads of all rows, the same heads in all such operations.
    /// One of them may then read another's result in the same phase.
    pub by_heads: bool,
    pub folds: Folds,
    /// Whether its outputs are views of its input. It then touches no memory.
    pub is_view: bool,
    /// The rule that is broken if a value or weight differs from the shapes of ports and slots.
    pub shape_rule: ShapeRule,
    /// Additional checks of shapes. Only called with the right number of inputs and outputs.
    pub check: fn(&mut NodeShapes<'_>),
    /// Memory traffic and arithmetic of a node.
    pub cost: fn(&CostInput<'_>) -> NodeCost,
    pub reference: OpReference,
}

impl Operation {
    /// An operation without weights, kernels and folds. Its cost is zero: it only passes over rows,
    /// whose values stay in caches.
    pub const DEFAULT: Operation = Operation {
        name: "",
        made_by: NodeMaker::Circuit,
        built: NodeConstruction::ByRule,
        lowered_by: None,
        inputs: &[],
        outputs: Outputs::Ports(&[]),
        slots: &[],
        weights_fit: |weights| if weights.count == 0 { Ok(()) } else { Err("none") },
        kv: KvUse::NONE,
        kernels: RequiredKernels::None,
        kernel_rows: KernelRows::Any,
        by_heads: false,
        folds: Folds::NONE,
        is_view: false,
        shape_rule: ShapeRule::Kept,
        check: |_| {},
        cost: |_| NodeCost { weight_bytes: 0.0, cache_bytes: 0.0, flops: 0.0, link_bytes: 0.0 },
        reference: OpReference::new("", "", ""),
    };
}

/// The origin of an operation's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeMaker {
    /// A circuit names it.
    Circuit,
    /// It is a part of a circuit's `mlp`.
    CircuitMlp,
    /// The pass of this name.
    Pass(&'static str),
}

/// How an operation of a circuit becomes a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeConstruction {
    /// By a specific rule in `ir/build.rs`.
    ByRule,
    /// One node with a result of the shape of its first input.
    LikeFirst,
    /// One node that overwrites its first input.
    InPlace,
}

/// The outputs of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    Ports(&'static [Port]),
    /// One of this kind per weight, or one for all with [`Epilogue::SiluMul`].
    PerWeight(Port),
    /// One of this kind per part; at least one.
    PerPart(Port),
}

/// The weights of a node, for [`Operation::weights_fit`](Operation).
#[derive(Clone, Copy, Debug)]
pub struct NodeWeights {
    /// Number of weights, without adapter matrices that are added within the operation.
    pub count: usize,
    /// Epilogue of the node.
    pub epilogue: Epilogue,
    /// Kind of its KV layer.
    pub kv: Option<KvLayerKind>,
}

/// How an operation uses the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvUse {
    /// It stores the step's rows.
    pub stores: bool,
    /// It attends to cached rows.
    pub attends: bool,
    /// Kinds of KV layers that its nodes may use; empty for operations without the cache.
    pub layers: &'static [KvLayerKind],
    /// Elements of a cached row, for the reference.
    pub row: &'static str,
}

impl KvUse {
    pub const NONE: KvUse = KvUse { stores: false, attends: false, layers: &[], row: "" };

    /// Whether it stores one state per sequence instead of rows.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|kind| kind.is_recurrent())
    }
}

/// The kernels that a node requires.
#[derive(Clone, Copy, Debug)]
pub enum RequiredKernels {
    /// No kernel: the operation computes nothing, or is lowered first.
    None,
    /// One for the operation.
    Own(OpKind),
    /// One per weight, by its slot, and these in addition.
    PerWeight(fn(&str) -> OpKind, &'static [OpKind]),
}

/// The number of rows for which a node's kernels are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelRows {
    /// Any number. A step may have few rows for it (per-head projections of one sequence), or its
    /// kernels have no minimum.
    Any,
    /// The rows of the step's batch bucket.
    Bucket,
    /// The rows of the bucket or any part of them, such as an expert's share.
    PartOfBucket,
}

/// The operations that may be folded into this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folds {
    /// An RMSNorm of the first input.
    pub norm: NormFold,
    /// A rotation of the last input.
    pub rope: bool,
    /// An activation of the results.
    pub activation: bool,
    /// An addition of the result to the residual stream.
    pub sum: bool,
    /// Its role in `share_kv_splits`.
    pub kv_splits: SplitFold,
}

impl Folds {
    pub const NONE: Folds =
        Folds { norm: NormFold::No, rope: false, activation: false, sum: false, kv_splits: SplitFold::No };
}

/// The role of an operation in KV splits (flash decoding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitFold {
    No,
    /// It can store the partial results of the splits.
    Leaves,
    /// It can combine them when it reads them.
    Combines,
}

/// Whether an RMSNorm of the first input may be folded, and which threads compute it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormFold {
    No,
    /// Every thread normalizes all rows for itself.
    EachThread,
    /// Each thread normalizes the rows that it owns.
    OwnRows,
}

/// Memory traffic and arithmetic of a node in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct NodeCost {
    /// Bytes of weights read, each once for all rows. Of experts, those that the rows can reach.
    pub weight_bytes: f64,
    /// Bytes of the KV cache read or written.
    pub cache_bytes: f64,
    /// Floating-point operations; a multiplication and an addition count as two.
    pub flops: f64,
    /// Bytes sent to each other rank.
    pub link_bytes: f64,
}

impl std::ops::AddAssign for NodeCost {
    fn add_assign(&mut self, other: NodeCost) {
        self.weight_bytes += other.weight_bytes;
        self.cache_bytes += other.cache_bytes;
        self.flops += other.flops;
        self.link_bytes += other.link_bytes;
    }
}

/// The sizes of a node in one step, for [`Operation::cost`](Operation).
#[derive(Clone, Debug)]
pub struct CostInput<'a> {
    /// Rows of the step, all sequences.
    pub rows: f64,
    /// Sequences of the step.
    pub sequences: f64,
    /// Rows that attention reads: cached rows of all sequences, and the step's.
    pub kv_len: f64,
    /// Query-key pairs: row r of a sequence sees its cached rows and r + 1 of the step's.
    pub pairs: f64,
    /// Heads of the first input.
    pub heads: f64,
    /// Elements per head of each input.
    pub widths: Vec<f64>,
    /// Elements per head of the first output.
    pub out_width: f64,
    /// Bytes of a cached row.
    pub kv_row_bytes: f64,
    /// Kind of the KV layer.
    pub kv: Option<KvLayerKind>,
    /// Weights in order.
    pub weights: Vec<WeightCost<'a>>,
}

/// The size of one weight.
#[derive(Clone, Copy, Debug)]
pub struct WeightCost<'a> {
    pub slot: &'a str,
    pub elements: f64,
    /// Bytes, as stored.
    pub bytes: f64,
    /// Bytes of one row, as stored.
    pub row_bytes: f64,
    /// Matrices that are stacked in it.
    pub matrices: f64,
}

impl CostInput<'_> {
    /// Elements per head of input `i`.
    pub fn width(&self, i: usize) -> f64 {
        self.widths.get(i).copied().unwrap_or(0.0)
    }

    /// Bytes of all weights, times `share`.
    pub fn weight_bytes(&self, share: f64) -> f64 {
        self.weights.iter().map(|w| w.bytes * share).sum()
    }

    /// Floating-point operations of multiplying `rows` rows with every weight.
    pub fn matmul_flops(&self, rows: f64) -> f64 {
        self.weights.iter().map(|w| 2.0 * w.elements * rows).sum()
    }
}

/// The description of an operation in `docs/ir.md`. Costs are expressions of the names listed
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpReference {
    /// What it does, in one or two sentences.
    pub what: &'static str,
    /// Its formula.
    pub formula: &'static str,
    /// Its source, such as a paper.
    pub source: &'static str,
    /// Bytes of weights read in a step.
    pub weight_bytes: &'static str,
    /// Bytes of the KV cache read or written.
    pub cache_bytes: &'static str,
    /// Floating-point operations; a multiplication and an addition count as two.
    pub flops: &'static str,
    /// Bytes sent to each other rank.
    pub link_bytes: &'static str,
}

impl OpReference {
    /// A description of an operation without cost.
    pub const fn new(what: &'static str, formula: &'static str, source: &'static str) -> OpReference {
        OpReference {
            what,
            formula,
            source,
            weight_bytes: "0",
            cache_bytes: "0",
            flops: "0",
            link_bytes: "0",
        }
    }
}

impl Port {
    /// The rows of a value at this port if a row is routed to `experts` experts; `None` if the
    /// target decides.
    pub fn rows(&self, experts: usize) -> Option<RowCount> {
        match self.shape.split(" × ").next() {
            Some("rows") => Some(RowCount::Rows),
            Some("split rows") => None,
            // The only other first dimension of a port is `rows·num_experts_per_tok`.
            _ => Some(RowCount::Times(experts)),
        }
    }
}
