//! The audit's rules: code, family, statement and hint.

use serde::{Serialize, Serializer};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AuditRule {
    /// Its code: `A42`.
    pub code: &'static str,
    /// Group of rules that it belongs to.
    pub family: &'static str,
    /// What must hold.
    pub holds: &'static str,
    /// What to look at if it is broken.
    pub hint: &'static str,
}

impl Code {
    /// Whether a backend relies on the rule. A plan that breaks such a rule must not run. The other
    /// rules are about a model's meaning: a circuit that breaks one computes something else than
    /// its author wants, but can be run and compared.
    pub fn protects(self) -> bool {
        use Code::*;
        // A02 and A15 are about values that nothing reads; A06, A30, A33 and A38 about weights that
        // nothing uses. A40 to A43 are the norms and rotations of MLA: kernels also run without
        // them.
        !matches!(self, A02 | A06 | A09 | A15 | A30 | A33 | A38 | A40 | A41 | A42 | A43)
    }
}

macro_rules! rules {
    ($($family:literal { $($code:ident $holds:literal, $hint:literal;)* })*) => {
        /// The code of a rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $($(#[doc = $holds] $code,)*)*
        }

        impl Code {
            /// Every code, in order.
            pub const ALL: &[Code] = &[$($(Code::$code,)*)*];

            pub fn rule(self) -> AuditRule {
                match self {
                    $($(Code::$code => AuditRule { code: stringify!($code), family: $family, holds: $holds, hint: $hint },)*)*
                }
            }
        }
    };
}

rules! {
    "circuit" {
        A01 "An operation of a circuit reads only what an earlier one has made.", "order of operations and spelling of `in` in the circuit file";
        A02 "Everything that a circuit makes is read.", "an `out` that nothing reads, or a reader that names another value";
        A03 "A circuit names only operations that exist.", "the word after `op`; the words are OP_WORDS";
        A04 "An operation of a circuit has as many inputs and outputs as its kind.", "`in` and `out` of the operation";
        A05 "An operation of a circuit uses only declared weight slots.", "`weights` of the operation against those of its block";
        A06 "Every weight slot of a circuit is used where its conditions hold.", "a slot that no operation names, or conditions that disagree";
        A07 "No two weight slots of one layer share a name in a file.", "`gguf` and `hf` of the two slots";
        A08 "Sizes, conditions and factors of a circuit have values.", "the expression or word named";
        A09 "A circuit ends in the residual stream after each layer, and in logits; a block makes its outputs.", "the `out` of its last operations: `h`, `logits`";
    }
    "edges" {
        A10 "Every index of an edge exists.", "the pass that made the node";
        A11 "A value is made before it is read.", "order of the nodes";
        A12 "A value has one maker for each row.", "two nodes that make the same value on attention paths that share rows";
        A13 "The makers of a value cover every row that its reader works on.", "the attention paths of maker and reader";
        A14 "A value is not read after it was overwritten in place.", "order of the nodes, and the storage of the overwriting value";
        A15 "Everything that is made is read or is a result.", "a node left behind by a pass";
        A16 "A node has the inputs, outputs and weights of its operation, each in a named slot.", "the pass that rewired the node";
        A17 "Only the residual stream crosses from layer to layer.", "the layers of maker and reader";
        A18 "An edge carries the dtype that its port takes: u32 ids or f32.", "the order of the node's inputs";
        A19 "A node has a prologue or epilogue only if its operation supports it.", "the folding pass";
    }
    "shapes" {
        A20 "A matmul reads rows as wide as its weight takes.", "the input's width against the weight's innermost dimension";
        A21 "A matmul makes rows as wide as its weight gives.", "the output's width against the weight's outputs";
        A22 "Operations that preserve a shape have inputs and outputs of that shape.", "widths and heads of the operands";
        A23 "A norm's weight is as wide as what it scales.", "the norm's weight slot";
        A24 "A view is inside the value that it is a view of.", "offset, width and heads of the view";
        A25 "The rows of an edge agree on both sides.", "row counts: one per row of the batch, or one per expert of a row";
        A26 "Queries, latents and values of attention have the widths of the config.", "kv_lora, nope, rope and v";
        A27 "A cache row or state has the size of its kind.", "kv_lora + rope for latents, as the circuit's `cache` states it; heads · (nope + rope + v) for expanded ones; heads, width and taps of the recurrent layers for states";
        A28 "Router, routing and experts agree on counts.", "experts, num_experts_per_tok and the stacked matrices";
        A29 "A span has its result under its name, with the width of the config.", "`hidden` or `logits` among the outputs";
    }
    "tensors" {
        A30 "Every tensor of the file is used, or declared unused by the circuit.", "the tensor's name: no supported architecture has such a tensor, and the model may compute something else with it. A file with added or renamed tensors needs its original names; `latent check` lists all of them. A custom circuit (option `circuit`) can read it or list it under `unused`";
        A31 "No tensor is used by two weight slots.", "the two slots' names in the circuit";
        A32 "A node uses weights of its own layer.", "the layer of node and weight";
        A33 "Every weight is used.", "a pass that dropped a node or a weight";
        A34 "A node uses a weight in the slot that it was filled for.", "slot names of the node's weights";
        A35 "Weights of a node are in the circuit's order.", "a pass that swapped them: gate before up";
        A36 "A weight's tensors are in the file, with its type and shape.", "the weight's parts against the file's header";
        A37 "A weight is one tensor, or one for each of its matrices.", "the parts of a stacked weight";
        A38 "Every slot whose conditions hold is filled where a layer of that kind runs.", "a layer that lost an operation";
        A39 "A slot is filled once.", "two weights of one slot and layer";
    }
    "mla" {
        A40 "A latent is normed before it is cached, expanded or absorbed.", "the norm between the projection and the store";
        A41 "The latent norm is applied once.", "a norm node in addition to a norm prologue";
        A42 "The rope part comes from the raw projection, not from the normed latent.", "the input of the key's (or query's) rotation";
        A43 "Each rope part is rotated once, or never in a model without rotation.", "a rope node in addition to a rope prologue, or neither";
        A44 "Each layer stores once and attends once for each row.", "stores and attentions of the layer, and their attention paths";
        A45 "A layer's store comes before the attention that reads it.", "order and phases of store and attention";
        A46 "Each KV layer belongs to one layer, which has at most one of a kind.", "the KV layer's layer against the node's";
        A47 "What prefill writes is what decode reads: KV layers, stores and cache type agree in all plans.", "plans of different batch buckets";
        A48 "An operation uses a KV layer of its own kind.", "latent or expanded";
        A49 "Absorption and expansion have W_UK and W_UV where they belong.", "k_b and v_b, or kv_b, of the attention's nodes";
    }
    "phases" {
        A50 "A plan holds only operations that a backend runs.", "mla_attention and expert_mlp must have been lowered";
        A51 "A node's phase is not before the phase of what it depends on.", "the cut into phases";
        A52 "Two nodes of one phase do not touch the same elements, unless each thread owns the same columns in both, or reads its own routing.", "a barrier is missing between them";
        A53 "Every node has a phase, and phases have no gaps.", "the list of phases";
    }
    "memory" {
        A60 "A value with its own buffer has an offset.", "the memory plan";
        A61 "A buffer is inside the arena.", "its offset and size against the arena's";
        A62 "Buffers that live at the same time do not overlap.", "offsets against first and last phases";
        A63 "A buffer begins at a cache line.", "offsets that are multiples of 64 bytes";
        A64 "A value that is stored elsewhere has no buffer.", "storage against the memory plan";
    }
    "kernels" {
        A70 "Every node that computes has its kernels, one for each weight or one for itself.", "select_kernels";
        A71 "A bound kernel is in the table under its name.", "index and name of the kernel";
        A72 "A bound kernel does the node's operation on the weight's format.", "the kernel's contract against the node";
        A73 "A bound kernel needs no higher ISA than the limit, and no more rows than there may be.", "the kernel's ISA and min_rows";
        A74 "A weight is read in one layout by all products of a session.", "rows or tiles, in every plan";
        A75 "A matmul reads its input with one activation type in every batch bucket, except by prefill-only kernels.", "the kernel's activation in each plan";
    }
    "blocks and cache" {
        A80 "Blocks, layers and stages of a circuit fit together: the blocks that they name exist and are of the right kind, and each layer has one attention and one feed-forward block.", "`blocks`, `layers` and `stages` of the circuit";
        A81 "Each cache stream is written by one operation of its block and read by those that it names; no other operation uses the cache.", "`cache` of the attention block against its operations";
        A82 "A layer has a KV layer for each cache stream of its attention block, as wide as stated, with the stated shared key after the latent.", "`row` of the stream, and the pass that made the KV layer";
        A83 "A store gets the parts of the stated row in order; those that are stated as rotated by position are, and no others.", "`row` of the stream against the inputs of the store";
        A84 "A recurrent layer has its states, and each is read and replaced once in a step, for every row, by one operation.", "the operations of the attention block that have a `recurrent` stream";
    }
    "ranks" {
        A90 "A partial sum is summed over the ranks before any node reads it, except additions of other partial sums.", "where insert_collectives put all_reduce, and the passes that moved or folded what reads the value";
        A91 "Only partial sums are summed over the ranks, and each of them once.", "a redundant all_reduce, or one after a value that is complete on every rank";
        A92 "Rows of the residual stream are received before a rank's layers and sent after them, where other ranks have layers before and after, and nowhere else.", "receive_rows and send_rows against the rank's part";
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.rule().code)
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.rule().code)
    }
}
