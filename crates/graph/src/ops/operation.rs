//! What an operation states about itself.

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
    /// Whether each thread computes whole heads of all rows, the same heads in all such operations. One may then read in the same phase what
    /// another has made.
    pub by_heads: bool,
    pub folds: Folds,
    /// Whether its outputs are views of its input, so that nothing is read or written.
    pub is_view: bool,
    /// The rule that a value or weight of another shape than the ports and slots state breaks.
    pub shape_rule: ShapeRule,
    /// Checks what the shapes of ports and slots cannot say. Only called with as many inputs and outputs as there should be.
    pub check: fn(&mut NodeShapes<'_>),
    /// What a node moves and computes.
    pub cost: fn(&CostInput<'_>) -> NodeCost,
    pub reference: OpReference,
}

impl Operation {
    /// An operation without weights, kernels and folds, which is free: it only passes over rows, whose values stay in caches.
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

/// Who makes nodes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeMaker {
    /// A circuit names it.
    Circuit,
    /// It is a part of a circuit's `mlp`.
    CircuitMlp,
    /// The pass of this name.
    Pass(&'static str),
}

/// How a circuit's use of an operation becomes a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeConstruction {
    /// By a rule of its own in `ir/build.rs`.
    ByRule,
    /// One node that makes a value of the shape of its first input.
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
    /// How many it has, without matrices of adapters that are added within the operation.
    pub count: usize,
    /// What happens to its results.
    pub epilogue: Epilogue,
    /// What its KV layer holds.
    pub kv: Option<KvLayerKind>,
}

/// How an operation uses the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvUse {
    /// It stores the step's rows.
    pub stores: bool,
    /// It attends to cached rows.
    pub attends: bool,
    /// Kinds of KV layers that its nodes may name; none for operations that name none.
    pub layers: &'static [KvLayerKind],
    /// Elements of a cached row, for the reference.
    pub row: &'static str,
}

impl KvUse {
    pub const NONE: KvUse = KvUse { stores: false, attends: false, layers: &[], row: "" };

    /// Whether it keeps one state of a sequence, not rows.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|kind| kind.is_recurrent())
    }
}

/// The kernels that a node requires.
#[derive(Clone, Copy, Debug)]
pub enum RequiredKernels {
    /// None: nothing is computed, or it is lowered first.
    None,
    /// One for the operation.
    Own(OpKind),
    /// One per weight, by its slot, and these in addition.
    PerWeight(fn(&str) -> OpKind, &'static [OpKind]),
}

/// Which steps the kernels of a node are selected for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelRows {
    /// Any number of rows: in any step it may see few (per-head products of one sequence), or its kernels have no minimum.
    Any,
    /// The rows of the step's batch bucket.
    Bucket,
    /// The rows of the bucket, or any smaller part of them: an expert's share.
    PartOfBucket,
}

/// What other operations may be folded into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folds {
    /// An RMSNorm of the first input.
    pub norm: NormFold,
    /// A rotation of the last input.
    pub rope: bool,
    /// An activation of the results.
    pub activation: bool,
    /// A sum of the result into the residual stream.
    pub sum: bool,
    /// What `share_kv_splits` does with it.
    pub kv_splits: SplitFold,
}

impl Folds {
    pub const NONE: Folds =
        Folds { norm: NormFold::No, rope: false, activation: false, sum: false, kv_splits: SplitFold::No };
}

/// The part that an operation has in KV splits (flash decoding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitFold {
    No,
    /// It can leave the partial results of the splits.
    Leaves,
    /// It can combine them where it reads them.
    Combines,
}

/// Whether an RMSNorm of the first input may be folded, and who then computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormFold {
    No,
    /// Every thread normalizes all rows for itself.
    EachThread,
    /// Each thread normalizes the rows that it owns.
    OwnRows,
}

/// What a node moves and computes in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct NodeCost {
    /// Bytes of weights read (each once, whatever the number of rows; of experts, the ones that the rows can reach).
    pub weight_bytes: f64,
    /// Bytes of the KV cache read or written.
    pub cache_bytes: f64,
    /// Floating-point operations; a multiplication and an addition count as two.
    pub flops: f64,
    /// Bytes that cross to each other rank that the operation speaks to.
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
    /// Rows that attention reads: the cached ones of all sequences, and the step's.
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
    /// What the KV layer holds.
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

    /// Operations of multiplying `rows` rows with every weight.
    pub fn matmul_flops(&self, rows: f64) -> f64 {
        self.weights.iter().map(|w| 2.0 * w.elements * rows).sum()
    }
}

/// What an operation is, for people. Costs are expressions of the names in the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpReference {
    /// What it does, in a sentence or two.
    pub what: &'static str,
    /// What it computes.
    pub formula: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// Bytes of weights read in a step.
    pub weight_bytes: &'static str,
    /// Bytes of the KV cache read or written.
    pub cache_bytes: &'static str,
    /// Floating-point operations; a multiplication and an addition count as two.
    pub flops: &'static str,
    /// Bytes that cross to each other rank that it speaks to.
    pub link_bytes: &'static str,
}

impl OpReference {
    /// An entry of an operation that is free.
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
    /// The rows that a value at this port has, where a row is routed to `experts` experts; none where the target decides.
    pub fn rows(&self, experts: usize) -> Option<RowCount> {
        match self.shape.split(" × ").next() {
            Some("rows") => Some(RowCount::Rows),
            Some("split rows") => None,
            _ => Some(RowCount::Times(experts)),
        }
    }
}
