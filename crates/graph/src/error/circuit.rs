//! Errors of a circuit, by itself or with a config.

/// An error in a circuit. Places are named as in its file: `block mla`, `stage lm_head`, `block
/// mla, cache latent`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CircuitError {
    /// A circuit in the old form, with one list of operations for every layer.
    #[error(
        "it has {key:?}, a key of the old form: \"embed\", \"layer\" and \"head\", \"model_weights\" and \"layer_weights\" have \
         become \"blocks\" (named lists of operations with their weights), \"layers\" (which attention and which feed-forward \
         block a layer has) and \"stages\"; `latent graph circuit` prints a model's circuit in the new form"
    )]
    OldForm { key: &'static str },
    /// Invalid JSON, or JSON that is not a circuit.
    #[error("{0}")]
    Json(String),
    /// An unknown block name.
    #[error("{place}: unknown block {block:?}; the circuit has {}", known.join(", "))]
    UnknownBlock {
        /// The place that names it.
        place: String,
        block: String,
        /// The blocks that exist.
        known: Vec<String>,
    },
    /// A block in a place for another kind of block.
    #[error("{place}: block {block} is of kind {kind}, expected {expected}")]
    BlockKind {
        /// The place that names it.
        place: String,
        block: String,
        kind: &'static str,
        /// The kind that the place requires.
        expected: &'static str,
    },
    /// A block that neither a stage nor a layer rule names.
    #[error("block {block}: neither a stage nor a rule of `layers` names it")]
    UnusedBlock { block: String },
    /// An input of a block that no earlier block produces.
    #[error(
        "block {block}: its input {value:?} is neither an input of the stage nor made by an earlier block"
    )]
    MissingInput { block: String, value: String },
    /// An output that no operation of the block produces.
    #[error("block {block}: no operation makes its output {value:?}")]
    MissingOutput { block: String, value: String },
    /// An operation that reads an unknown value.
    #[error(
        "block {block}: {op} reads {value:?}, which is neither an input of the block nor an output of an earlier operation"
    )]
    UnknownValue { block: String, op: String, value: String },
    /// An unknown operation name.
    #[error("block {block}: operation {op:?} is not one of {}", known.join(", "))]
    UnknownOperation {
        block: String,
        op: String,
        /// The operations of circuits.
        known: Vec<&'static str>,
    },
    /// A weight slot that the block does not have.
    #[error(
        "block {block}: {op} uses weight slot {slot:?}, which neither this block nor a model-wide block \
         declares"
    )]
    UnknownSlot { block: String, op: String, slot: String },
    /// One slot name in two blocks that can belong to one layer or to the model.
    #[error(
        "weight slot {slot:?} is declared by blocks {first} and {second}, which one layer or the model can \
         both contain"
    )]
    SlotTwice { slot: String, first: String, second: String },
    /// A layer without an applicable rule.
    #[error("layers: no rule under {part:?} applies to layer {layer}")]
    NoLayerRule {
        /// `attention` or `feed_forward`.
        part: &'static str,
        layer: usize,
    },
    /// Two applicable rules for one layer.
    #[error(
        "layers: two rules under {part:?} apply to layer {layer}, those of block {first} and of block \
         {second}"
    )]
    TwoLayerRules {
        /// `attention` or `feed_forward`.
        part: &'static str,
        layer: usize,
        /// The block of the first rule.
        first: String,
        /// The block of the second.
        second: String,
    },
    /// A stage with inputs, blocks or outputs that it must not have.
    #[error("stage {stage}: {problem}")]
    Stage {
        stage: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A stage that the form allows and no engine runs yet.
    #[error(
        "stage {stage} is not supported; a model has two stages, from tokens to hidden and from hidden to \
         logits"
    )]
    StageNotRun { stage: String },
    /// The `else` of an optional weight slot names an unknown slot.
    #[error("weight slot {slot} of {block}: `else` names the unknown weight slot {other:?}")]
    UnknownStandIn {
        /// The block, or `mtp_weights`.
        block: String,
        slot: String,
        /// What `else` names.
        other: String,
    },
    /// An invalid cache stream.
    #[error("block {block}, cache {stream}: {problem}")]
    Cache {
        block: String,
        stream: String,
        /// What is wrong with the stream.
        problem: CacheError,
    },
    /// An operation that uses the cache without a declared stream.
    #[error("block {block}: {op} {does} the cache, but no stream under `cache` declares it")]
    NoStream {
        block: String,
        op: String,
        /// `writes` or `reads`.
        does: &'static str,
    },
    /// An invalid size expression.
    #[error("{place}: {problem}, in {text:?}")]
    Expression {
        place: String,
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A condition with an unknown config variable.
    #[error("unknown config variable {word:?}")]
    Condition { word: String },
    /// An unknown factor.
    #[error("unknown factor {name:?}")]
    Factor { name: String },
    /// Operations, weights and sizes that contradict each other.
    #[error("{0}")]
    Contradiction(String),
}

/// An error in one cache stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// A stream of a block that is not an attention block.
    #[error("a block of kind {kind} cannot have a cache; only attention blocks can")]
    NotAttention {
        /// The kind of the block.
        kind: &'static str,
    },
    /// Its writer is not in the block, or does not write to the cache.
    #[error(
        "no operation writes it: `written_by` is {op:?}, but the block has no such operation that stores rows"
    )]
    NeverWritten {
        /// What `written_by` says.
        op: String,
    },
    /// It has no readers.
    #[error("no operation reads it: `read_by` is empty")]
    NoReader,
    /// A reader is not in the block, or does not read the cache.
    #[error(
        "no operation reads it: `read_by` names {op:?}, but the block has no such operation that reads the \
         cache"
    )]
    NeverRead {
        /// What `read_by` says.
        op: String,
    },
    /// Several operations of the block match `written_by`.
    #[error("{count} operations {op} could write it, expected one")]
    WrittenTwice {
        op: String,
        /// Number of such operations.
        count: usize,
    },
    /// A part of the row that is not an input of its writer.
    #[error("its row has {value:?}, which is not an input of {op}")]
    RowValue { value: String, op: String },
    /// A per-token stream without a row, a recurrent one without a shape, or one with both.
    #[error("a stream of kind {kind} must have {needs}, and not the layout of the other kind")]
    Layout {
        /// `per_token` or `recurrent`.
        kind: &'static str,
        /// The layout that this kind requires.
        needs: &'static str,
    },
    /// A state without exactly three dimensions.
    #[error("its `shape` has {dimensions} dimensions, expected three: heads, rows and columns of a head")]
    StateShape { dimensions: usize },
    /// A stream whose kind differs from what its writer stores.
    #[error("it is a stream of kind {kind}, but {op} stores the other kind")]
    KindOfWriter {
        /// `per_token` or `recurrent`.
        kind: &'static str,
        op: String,
    },
    /// A row without elements, or with too many.
    #[error("its row has {elements} elements, expected 1 to {most}")]
    RowWidth {
        /// Elements per row, saturated.
        elements: usize,
        most: usize,
    },
    /// A feature that the form allows and no operation supports.
    #[error("{what} is not supported")]
    NotRun {
        /// The requested feature.
        what: String,
    },
}
