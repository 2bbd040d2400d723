//! The operations of the IR: one file each, with everything that this crate knows about it.
//!
//! [`Operation`] is what a file states: ports with dtypes and shapes, weight slots, kernels, what may be folded into the operation,
//! its cost, and its words for `docs/ir.md` and drawings. Lists of operations elsewhere ([`Op::ALL`], signatures, costs, the audit's
//! tables, what kernel selection requires) are derived from it. Nothing here knows the IR, a circuit or a config: an operation sees
//! shapes and sizes of one node only (`NodeShapes`, `CostInput`).
//!
//! To add an operation: its file, its line in [`operations!`](self) below, and its lowering: if circuits name it, what it states as
//! [`NodeConstruction`] or a rule in `ir/build.rs`, else the pass that makes it. `docs/adding-an-operation.md` walks along one.

mod absorb_k;
mod absorb_v;
mod add;
mod all_reduce;
mod attend_expanded;
mod attend_latent;
mod attend_separate;
mod bias;
mod concat;
mod decay;
mod delta_rule;
mod embed;
mod expanded_store;
mod expert_down;
mod expert_gate_up;
mod expert_mlp;
mod gated_norm;
mod gather_rows;
mod index_select;
mod index_store;
mod key_value_store;
mod kv_lora_decompress;
mod l2_norm;
mod latent_store;
mod linear;
mod lora_absorb;
mod lora_add;
mod mla_attention;
mod operation;
mod partial_rope_concat;
mod port;
mod receive_rows;
mod reference;
mod relu2;
mod rms_norm;
mod rope;
mod route;
mod scale;
mod send_rows;
mod shapes;
mod shared;
mod short_conv;
mod sigmoid_mul;
mod silu;
mod silu_mul;
mod split;

pub use operation::{
    CostInput, Folds, KernelRows, KvUse, NodeConstruction, NodeCost, NodeMaker, NodeWeights, NormFold,
    OpReference, Operation, Outputs, RequiredKernels, SplitFold, WeightCost,
};
pub use port::{Epilogue, KvLayerKind, Port, RowCount, WeightSlot};
pub use reference::reference_markdown;
pub(crate) use shapes::{NodeShapes, ShapeRule, ValueShape, WeightShape};
pub(crate) use shared::{K_ROPE, PARTIALS, SOFTMAX_STATE};

use serde::Serialize;

/// Makes [`Op`] of the list of operations: variant, its factor if it has one, and where it is specified.
macro_rules! operations {
    ($($(#[doc = $doc:literal])* $name:ident $({ $(#[doc = $about:literal])* $factor:ident })? in $spec:path;)*) => {
        /// An operation, with its factor if it has one.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Op {
            $($(#[doc = $doc])* $name $({ $(#[doc = $about])* $factor: f64 })?,)*
        }

        impl Op {
            /// Every operation, factors set to 1, in the order of the reference.
            pub const ALL: &'static [Op] = &[$(Op::$name $({ $factor: 1.0 })?,)*];

            /// What its file says about it.
            pub fn spec(&self) -> &'static dyn Operation {
                match self {
                    $(Op::$name $({ $factor: _ })? => &$spec,)*
                }
            }

            /// The same with this factor, for operations that have one.
            pub(crate) fn with_factor(self, factor: f64) -> Op {
                match self {
                    $(Op::$name $({ $factor: _ })? => Op::$name $({ $factor: factor })?,)*
                }
            }

            /// The factor that it multiplies by; none for operations without one.
            pub fn factor(&self) -> Option<f64> {
                match self {
                    $(Op::$name $({ $factor })? => {
                        let factor: &[f64] = &[$(*$factor)?];
                        factor.first().copied()
                    })*
                }
            }
        }
    };
}

operations! {
    /// tokens → rows of the embedding, times a factor.
    Embed {
        /// Factor on the rows.
        scale
    } in embed::Embed;
    /// x → x / √(mean x² + ε) · w.
    RmsNorm in rms_norm::RmsNorm;
    /// x → x·Wᵀ, one output per weight.
    Linear in linear::Linear;
    /// x → x + b, in place.
    Bias in bias::Bias;
    /// x → views of parts of each head.
    Split in split::Split;
    /// a, b → [a | b].
    Concat in concat::Concat;
    /// Rotates pairs of elements by position.
    Rope in rope::Rope;
    /// Multi-head latent attention before lowering.
    MlaAttention in mla_attention::MlaAttention;
    /// index_k → cache rows of an indexer's keys, normalized and rotated.
    IndexStore in index_store::IndexStore;
    /// index_q, index_weights → the positions of the top-k cached tokens.
    IndexSelect in index_select::IndexSelect;
    /// Router logits → ids and weights of the top-k experts.
    Route in route::Route;
    /// Σ topk_weights · expert(x), before grouping.
    ExpertMlp in expert_mlp::ExpertMlp;
    /// x → silu(x), in place.
    Silu in silu::Silu;
    /// gate, up → silu(gate) · up.
    SiluMul in silu_mul::SiluMul;
    /// x → sigmoid(gate) · x, in place.
    SigmoidMul in sigmoid_mul::SigmoidMul;
    /// q, k, v → causal convolutions over the last tokens, with SiLU.
    ShortConv in short_conv::ShortConv;
    /// x → factor · x / √(Σ x² + ε) of each head, in place.
    L2Norm {
        /// Factor on the heads.
        scale
    } in l2_norm::L2Norm;
    /// z → −rate · softplus(z + bias).
    SoftplusDecay in decay::SOFTPLUS_DECAY;
    /// z → bound · σ(rate · (z + bias)).
    BoundedDecay {
        /// The lower bound of the log decay.
        bound
    } in decay::BOUNDED_DECAY;
    /// q, k, v, log decay, β → reads of the state of each head, which every row changes.
    DeltaRule in delta_rule::DeltaRule;
    /// x → RMSNorm of each head · sigmoid(gate), in place.
    GatedNorm in gated_norm::GatedNorm;
    /// x → max(x, 0)².
    Relu2 in relu2::Relu2;
    /// a + factor · b, in place of a.
    Add {
        /// Factor on b.
        scale
    } in add::Add;
    /// factor · x, in place.
    Scale {
        /// The factor.
        by
    } in scale::Scale;
    /// base, A x → base + s · B A x, in place.
    LoraAdd in lora_add::LoraAdd;
    /// Queries in latent space + s · Aᵀ Bᵀ q_nope, in place.
    LoraAbsorbK in lora_absorb::LORA_ABSORB_K;
    /// Attention result + s · B A latent_mix, in place.
    LoraAbsorbV in lora_absorb::LORA_ABSORB_V;
    /// Rows of the residual stream whose logits are wanted.
    GatherRows in gather_rows::GatherRows;
    /// latent, k_rope → cache rows [latent | k_rope].
    LatentStore in latent_store::LatentStore;
    /// latent, k_rope → cache rows of expanded keys and values.
    ExpandedStore in expanded_store::ExpandedStore;
    /// latent → keys without position and values of every head.
    KvLoraDecompress in kv_lora_decompress::KvLoraDecompress;
    /// k_nope, k_rope → keys of every head.
    PartialRopeConcat in partial_rope_concat::PartialRopeConcat;
    /// key, value → cache rows of expanded keys and values.
    KeyValueStore in key_value_store::KeyValueStore;
    /// q_nope, q_rope → queries in latent space.
    AbsorbK in absorb_k::AbsorbK;
    /// Attention in latent space over the cached rows.
    AttendLatent in attend_latent::AttendLatent;
    /// The same with content and rope scores computed separately.
    AttendSeparate in attend_separate::AttendSeparate;
    /// Attention result in latent space → the values' space of each head.
    AbsorbV in absorb_v::AbsorbV;
    /// Attention over keys and values expanded from the cached latents, or stored expanded.
    AttendExpanded in attend_expanded::AttendExpanded;
    /// x → silu(gate)·up per (row, expert), rows sorted by expert.
    ExpertGateUp in expert_gate_up::ExpertGateUp;
    /// Activated rows of experts → Σ topk_weights · down.
    ExpertDown in expert_down::ExpertDown;
    /// x → the sum of what x is on each rank that shares the layer, in place.
    AllReduce in all_reduce::AllReduce;
    /// Rows of the residual stream → the rank that continues with them.
    SendRows in send_rows::SendRows;
    /// Rows of the residual stream ← the rank that made them, in place.
    ReceiveRows in receive_rows::ReceiveRows;
}

impl Op {
    /// Its name in IR texts, plans and drawings.
    pub fn word(&self) -> &'static str {
        self.spec().name()
    }

    /// The operation that circuits call so; none for `mlp`, which is several.
    pub(crate) fn of_circuits(word: &str) -> Option<Op> {
        let named = |op: &&Op| op.word() == word && op.spec().made_by() == NodeMaker::Circuit;
        Op::ALL.iter().find(named).copied()
    }

    /// Inputs in order, without the residual of [`Epilogue::AddTo`].
    pub fn inputs(&self) -> &'static [Port] {
        self.spec().inputs()
    }

    /// The ports of a use with `count` inputs. Optional ports are omitted together, or those of selected tokens alone; if `count` fits neither,
    /// none is omitted.
    pub(crate) fn inputs_of(&self, count: usize) -> impl Iterator<Item = Port> + use<> {
        let ports = self.inputs();
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
        self.spec().reference()
    }
}

#[cfg(test)]
mod tests;
