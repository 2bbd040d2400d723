//! The operations of the IR: one constant each, with everything that this crate knows about it.
//!
//! [`Operation`] is the type of these constants: ports with dtypes and shapes, weight slots,
//! kernels, foldable neighbours, cost, and the text for `docs/ir.md` and drawings. Lists of
//! operations elsewhere ([`Op::ALL`], signatures, costs, the audit's tables, requirements of kernel
//! selection) are derived from them. Nothing here depends on the IR, a circuit or a config: an
//! operation sees shapes and sizes of one node only (`NodeShapes`, `CostInput`).
//!
//! To add an operation, add its constant to the file of its family, a line to [`operations!`](self)
//! below, and its lowering. If circuits name it, the lowering is its [`NodeConstruction`] or a rule
//! in `ir/build.rs`; otherwise it is the pass that creates it. `docs/adding-an-operation.md` walks
//! through an example.

mod attention;
mod collectives;
mod elementwise;
mod experts;
mod indexer;
mod linear;
mod operation;
mod port;
mod recurrent;
mod reference;
mod rows;
mod shapes;
mod shared;
mod store;

pub use operation::{
    CostInput, Folds, KernelRows, KvUse, NodeConstruction, NodeCost, NodeMaker, NodeWeights, NormFold,
    OpReference, Operation, Outputs, RequiredKernels, SplitFold, WeightCost,
};
pub use port::{Epilogue, KvLayerKind, Port, RowCount, WeightSlot, adapted_slot};
pub use reference::reference_markdown;
pub(crate) use shapes::{NodeShapes, ShapeRule, ValueShape, WeightShape};
pub(crate) use shared::{K_ROPE, PARTIALS, SOFTMAX_STATE};

use serde::Serialize;

/// Makes [`Op`] from the list of operations: variant, its factor if it has one, and its
/// specification.
macro_rules! operations {
    ($($name:ident $({ $factor:ident })? in $spec:path;)*) => {
        /// An operation, with its factor if it has one.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Op {
            $($name $({ $factor: f64 })?,)*
        }

        impl Op {
            /// Every operation, factors set to 1, in the order of the reference.
            pub const ALL: &'static [Op] = &[$(Op::$name $({ $factor: 1.0 })?,)*];

            pub fn spec(&self) -> &'static Operation {
                match self {
                    $(Op::$name $({ $factor: _ })? => &$spec,)*
                }
            }

            /// The same operation with this factor, if it has one.
            pub(crate) fn with_factor(self, factor: f64) -> Op {
                match self {
                    $(Op::$name $({ $factor: _ })? => Op::$name $({ $factor: factor })?,)*
                }
            }

            /// Its factor; `None` for operations without one.
            pub fn factor(&self) -> Option<f64> {
                match self {
                    $(Op::$name $({ $factor })? => {
                        // A list, because the optional fragment expands to one element or to
                        // nothing.
                        let factor: &[f64] = &[$(*$factor)?];
                        factor.first().copied()
                    })*
                }
            }
        }
    };
}

operations! {
    Embed { scale } in rows::EMBED;
    RmsNorm in elementwise::RMS_NORM;
    Linear in linear::LINEAR;
    Bias in elementwise::BIAS;
    Split in rows::SPLIT;
    Concat in rows::CONCAT;
    Rope in rows::ROPE;
    MlaAttention in attention::MLA_ATTENTION;
    IndexStore in indexer::INDEX_STORE;
    IndexSelect in indexer::INDEX_SELECT;
    Route in experts::ROUTE;
    ExpertMlp in experts::EXPERT_MLP;
    Silu in elementwise::SILU;
    SiluMul in elementwise::SILU_MUL;
    SigmoidMul in elementwise::SIGMOID_MUL;
    ShortConv in recurrent::SHORT_CONV;
    L2Norm { scale } in elementwise::L2_NORM;
    SoftplusDecay in recurrent::SOFTPLUS_DECAY;
    BoundedDecay { bound } in recurrent::BOUNDED_DECAY;
    DeltaRule in recurrent::DELTA_RULE;
    GatedNorm in elementwise::GATED_NORM;
    Relu2 in elementwise::RELU2;
    Add { scale } in elementwise::ADD;
    Scale { by } in elementwise::SCALE;
    LoraAdd in linear::LORA_ADD;
    LoraAbsorbK in linear::LORA_ABSORB_K;
    LoraAbsorbV in linear::LORA_ABSORB_V;
    GatherRows in rows::GATHER_ROWS;
    LatentStore in store::LATENT_STORE;
    ExpandedStore in store::EXPANDED_STORE;
    KvLoraDecompress in attention::KV_LORA_DECOMPRESS;
    PartialRopeConcat in rows::PARTIAL_ROPE_CONCAT;
    KeyValueStore in store::KEY_VALUE_STORE;
    AbsorbK in attention::ABSORB_K;
    AttendLatent in attention::ATTEND_LATENT;
    AttendSeparate in attention::ATTEND_SEPARATE;
    AbsorbV in attention::ABSORB_V;
    AttendExpanded in attention::ATTEND_EXPANDED;
    ExpertGateUp in experts::EXPERT_GATE_UP;
    ExpertDown in experts::EXPERT_DOWN;
    AllReduce in collectives::ALL_REDUCE;
    SendRows in collectives::SEND_ROWS;
    ReceiveRows in collectives::RECEIVE_ROWS;
}

impl Op {
    /// Its name in circuits, IR texts, plans and drawings.
    pub fn word(&self) -> &'static str {
        self.spec().name
    }

    /// The operation of this name in circuits; `None` for `mlp`, which is several.
    pub(crate) fn of_circuits(word: &str) -> Option<Op> {
        let named = |op: &&Op| op.word() == word && op.spec().made_by == NodeMaker::Circuit;
        Op::ALL.iter().find(named).copied()
    }

    /// Inputs in order, without the residual of [`Epilogue::AddTo`].
    pub fn inputs(&self) -> &'static [Port] {
        self.spec().inputs
    }

    /// The ports of a node with `count` inputs. A node omits all optional ports, or only the
    /// selected tokens. If `count` fits neither, no port is omitted.
    pub(crate) fn inputs_of(&self, count: usize) -> impl Iterator<Item = Port> + use<> {
        let ports = self.inputs();
        // `count` alone identifies the ports, so a selection without rope parts cannot be
        // expressed.
        let selects = |port: &Port| port.name == shared::SELECTED.name;
        let required = ports.iter().filter(|port| !port.optional).count();
        let dense = ports.iter().filter(|port| !selects(port)).count();
        let kept = move |port: &Port| match count {
            _ if !port.optional => true,
            _ if count == required => false,
            _ if count == dense => !selects(port),
            _ => true,
        };
        ports.iter().copied().filter(kept)
    }

    /// Its entry in the reference.
    pub fn reference(&self) -> OpReference {
        self.spec().reference
    }
}

#[cfg(test)]
mod tests;
