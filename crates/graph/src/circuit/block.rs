//! Blocks of a circuit file: operations with their weights, values and cache streams. Data only.

use crate::ops::{NodeMaker, Op};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// A named part of a circuit. Its operations read its inputs and each other's results. Only its
/// outputs are visible outside.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// Where it may be used.
    pub kind: BlockKind,
    /// What it computes, in a phrase.
    pub about: String,
    /// Values read, by the names that the stage or earlier blocks gave them.
    #[serde(rename = "in")]
    pub inputs: Vec<String>,
    /// Values that later layers of the same stage see too. A layer that does not produce one reads
    /// that of the nearest earlier layer. Sparse attention shares token selections this way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub carried: Vec<String>,
    /// Values produced for later blocks or the stage.
    #[serde(rename = "out")]
    pub outputs: Vec<String>,
    /// Streams that its layers store in the cache, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cache: BTreeMap<String, StreamSpec>,
    /// Its weight slots. In a block of layers, names in files contain `{layer}`.
    pub weights: BTreeMap<String, SlotSpec>,
    /// The operations, in order.
    pub ops: Vec<OpSpec>,
}

/// The place of a block in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockKind {
    /// Inputs of a stage to the residual stream.
    Embed,
    /// The first half of a layer: the only kind that may have a cache.
    Attention,
    /// The second half of a layer.
    FeedForward,
    /// Residual stream to the outputs of a stage.
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

    /// Whether every layer has one, with its own weights.
    pub fn of_layer(self) -> bool {
        matches!(self, BlockKind::Attention | BlockKind::FeedForward)
    }
}

/// A weight slot: its name in each kind of file, its shape, and when it exists.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SlotSpec {
    /// Name in GGUF; `None` if GGUF files never contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gguf: Option<String>,
    /// Name in safetensors. With `{expert}`, each expert has a tensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hf: Option<String>,
    /// Name in safetensors of one tensor for all experts, in files that have it instead of `hf`
    /// (Mistral Small 4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hf_stacked: Option<String>,
    /// Shape as expressions such as `heads*(nope+rope)`, outermost dimension first.
    pub shape: Vec<String>,
    /// Its shape in files, if files have additional dimensions of size 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stored: Vec<String>,
    /// Config variables that must all hold; `!` negates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<String>,
    /// Whether a file may omit it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
    /// If the file omits an optional slot, the first existing slot of these takes its place.
    #[serde(default, rename = "else", skip_serializing_if = "Vec::is_empty")]
    pub instead: Vec<String>,
}

/// One operation of a circuit. A later `out` hides an earlier value of the same name.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OpSpec {
    /// The operation, one of [`OP_WORDS`].
    pub op: String,
    /// Values read.
    #[serde(rename = "in")]
    pub inputs: Vec<String>,
    /// Weight slots used. Slots whose `when` does not hold are omitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<String>,
    /// Values produced.
    #[serde(rename = "out")]
    pub outputs: Vec<String>,
    /// For `embed`, `add` and `scale`: the name of the factor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// For `split`: number of heads of the value, an expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<String>,
    /// For `split`: widths of the parts of each head, expressions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<String>,
    /// Config variables that must all hold; `!` negates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<String>,
}

/// The operations that a circuit may name: those made by circuits, and `mlp`, which stands for
/// several.
pub static OP_WORDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let made = Op::ALL.iter().filter(|op| op.spec().made_by == NodeMaker::Circuit).map(Op::word);
    made.chain(["mlp"]).collect()
});

/// A cache stream: what every layer with this block stores, and which operations write and read it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// Its purpose, in a phrase.
    pub about: String,
    /// Whether it grows with the sequence.
    pub kind: CacheKind,
    /// Parts of the row of a per-token stream, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub row: Vec<RowPartSpec>,
    /// Shape of a recurrent state, as expressions: heads, then rows and columns of each head's
    /// matrix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shape: Vec<String>,
    /// The operation that writes it.
    pub written_by: String,
    /// The operations that read it.
    pub read_by: Vec<String>,
    /// Which earlier positions are read.
    #[serde(default)]
    pub range: ReadRange,
    /// Tokens per row, an expression; 1 if every token has a row.
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
    /// One state of a fixed shape, which every token updates.
    Recurrent,
}

/// A part of a cached row.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RowPartSpec {
    /// The stored value, an input of the writing operation.
    pub value: String,
    /// Elements, an expression. A part without elements is omitted if the writing operation does
    /// not take it.
    pub width: String,
    /// Whether it is rotated by position. A context shift must then rotate it again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rotated: bool,
}

/// The positions at which a token reads a stream, up to its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadRange {
    #[default]
    All,
    /// The last N rows, with N an expression: a sliding window.
    Last(String),
}
