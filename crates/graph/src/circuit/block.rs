//! Blocks of a circuit file: operations with the weights, values and cache that belong to them. Data only.

use crate::ops::{NodeMaker, Op};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// A named part of a circuit. Its operations see its inputs and what they make themselves; nothing else leaves it than its outputs.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// Where it may stand.
    pub kind: BlockKind,
    /// What it computes, in a phrase.
    pub about: String,
    /// Values read, under the names that the stage or earlier blocks gave them.
    #[serde(rename = "in")]
    pub inputs: Vec<String>,
    /// Values that reach the next layers of the same stage too: a layer that does not make one has that of the nearest layer before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub carried: Vec<String>,
    /// Values made that later blocks or the stage read.
    #[serde(rename = "out")]
    pub outputs: Vec<String>,
    /// What its layers keep between steps, by stream.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cache: BTreeMap<String, StreamSpec>,
    /// Its weight slots; in a block of layers their names in files hold `{layer}`.
    pub weights: BTreeMap<String, SlotSpec>,
    /// The operations, in order.
    pub ops: Vec<OpSpec>,
}

/// What a block is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockKind {
    /// From the inputs of a stage to the residual stream.
    Embed,
    /// The first half of a layer: the only kind that may have a cache.
    Attention,
    /// The second half of a layer.
    FeedForward,
    /// From the residual stream to the outputs of a stage.
    Head,
}

impl BlockKind {
    /// Its word in circuit files.
    pub fn name(self) -> &'static str {
        match self {
            BlockKind::Embed => "embed",
            BlockKind::Attention => "attention",
            BlockKind::FeedForward => "feed_forward",
            BlockKind::Head => "head",
        }
    }

    /// Whether every layer has one, with weights of its own.
    pub fn of_layer(self) -> bool {
        matches!(self, BlockKind::Attention | BlockKind::FeedForward)
    }
}

/// A weight slot: what it is called in each kind of file, its shape, and when it exists.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SlotSpec {
    /// Name in GGUF; none where GGUF files never hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gguf: Option<String>,
    /// Name in safetensors; `{expert}` in it means one tensor for each expert.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hf: Option<String>,
    /// Name in safetensors of one tensor for all experts, in files that have that in the place of `hf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hf_stacked: Option<String>,
    /// Shape, outermost dimension first, each an expression such as `heads*(nope+rope)`.
    pub shape: Vec<String>,
    /// Its shape in files, where they have dimensions of size 1 that it does not need.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stored: Vec<String>,
    /// Config variables that must all hold; `!` negates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<String>,
    /// Whether a file may leave it out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
    /// Of an optional one: the slots of which the first that is there takes its place where the file leaves it out.
    #[serde(default, rename = "else", skip_serializing_if = "Vec::is_empty")]
    pub instead: Vec<String>,
}

/// One operation of a circuit. Names of values are bound in order: a later `out` hides an earlier one.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OpSpec {
    /// The operation, one of [`OP_WORDS`].
    pub op: String,
    /// Values read.
    #[serde(rename = "in")]
    pub inputs: Vec<String>,
    /// Weight slots used; slots whose `when` does not hold are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<String>,
    /// Values made.
    #[serde(rename = "out")]
    pub outputs: Vec<String>,
    /// For `embed`, `add` and `scale`: the name of the factor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// For `split`: how many heads the value has, an expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<String>,
    /// For `split`: widths of the parts of each head, expressions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<String>,
    /// Config variables that must all hold; `!` negates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<String>,
}

/// The operations that a circuit may name: those that circuits make, and `mlp`, which stands for several.
pub static OP_WORDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let made = Op::ALL.iter().filter(|op| op.spec().made_by == NodeMaker::Circuit).map(Op::word);
    made.chain(["mlp"]).collect()
});

/// A stream of the cache: what every layer with this block keeps, which operations write and read it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// What it is for, in a phrase.
    pub about: String,
    /// Whether it grows with the sequence.
    pub kind: CacheKind,
    /// Of a stream per token: the parts of its row, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub row: Vec<RowPartSpec>,
    /// Of a recurrent one: the shape of its state, expressions, such as heads, rows and columns of a matrix for each head.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shape: Vec<String>,
    /// The operation that writes it.
    pub written_by: String,
    /// The operations that read it.
    pub read_by: Vec<String>,
    /// Which earlier positions are read.
    #[serde(default)]
    pub range: ReadRange,
    /// Tokens per row, an expression: 1 where every token has one.
    #[serde(default = "every_token")]
    pub stride: String,
    /// Config variables that must all hold for a layer to have it; `!` negates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<String>,
}

fn every_token() -> String {
    "1".into()
}

/// How a stream grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheKind {
    /// Rows of one layout, one for every `stride` tokens.
    PerToken,
    /// One state of a fixed shape, which every token replaces.
    Recurrent,
}

/// A part of a cached row.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RowPartSpec {
    /// The value that is stored: an input of the operation that writes.
    pub value: String,
    /// Elements, an expression. A part of no elements is left out, where the operation that writes does not take it.
    pub width: String,
    /// Whether it is rotated by position, so that it must be rotated again when tokens move: in models that rotate at all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rotated: bool,
}

/// Which positions up to a token's own a stream is read at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadRange {
    #[default]
    All,
    /// The last rows, as many as the expression says: a sliding window.
    Last(String),
}
