//! What a drawing says: the data of the page, and the JSON that `docs/graph.schema.json` describes.

use crate::scene::Mark;
use latent_graph::config::ModelConfig;
use serde::Serialize;
use std::collections::BTreeMap;

/// The word that names the format of the JSON.
pub const FORMAT: &str = "latent-drawing";

/// The version of the JSON: it grows when a reader of an older version could go wrong.
pub const VERSION: u32 = 1;

/// Every stage, formulation and class of rows of one model, drawn and counted.
#[derive(Clone, Debug, Serialize)]
pub struct Drawing {
    /// [`FORMAT`].
    pub format: &'static str,
    /// [`VERSION`].
    pub version: u32,
    /// The model.
    pub model: ModelCard,
    /// What kernels were bound for.
    pub machine: MachineCard,
    /// The formulations of MLA that plans were made for.
    pub formulations: Vec<Card>,
    /// The classes of rows that plans were made for.
    pub classes: Vec<ClassCard>,
    /// What each kind of operation computes, by its word.
    pub operations: BTreeMap<&'static str, Formula>,
    /// Weights, each with the formats that its layers store it in.
    pub weights: Vec<WeightCard>,
    /// What was asked of the kernels, what was bound, and why.
    pub bindings: Vec<Binding>,
    /// Blocks: a run of layers of one structure, or what stands before and after them.
    pub blocks: Vec<Block>,
    /// The drawings: circuit, IR, and a plan for each formulation and class.
    pub views: Vec<View>,
}

/// The model that is drawn.
#[derive(Clone, Debug, Serialize)]
pub struct ModelCard {
    /// The file or folder.
    pub file: String,
    /// What the file calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the circuit says about itself.
    pub about: String,
    /// A format that weights were assumed in, where there is no file with weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assumed: Option<&'static str>,
    /// Numbers in the weights that a plan uses.
    pub parameters: u64,
    /// Bytes of these weights.
    pub weight_bytes: u64,
    /// New rows of a segment from which `auto` takes the naive formulation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossover: Option<usize>,
    /// The hyper-parameters.
    pub config: ModelConfig,
}

/// What kernels were bound for.
#[derive(Clone, Debug, Serialize)]
pub struct MachineCard {
    /// The highest instruction set allowed.
    pub tier: &'static str,
    /// `exact` or `default`.
    pub precision: &'static str,
    /// The type of the cache.
    pub cache: &'static str,
}

/// A word with what it means.
#[derive(Clone, Debug, Serialize)]
pub struct Card {
    /// The word, as views name it.
    pub key: &'static str,
    /// What a reader calls it.
    pub name: &'static str,
    /// What it means, in a sentence.
    pub about: &'static str,
}

/// A class of rows.
#[derive(Clone, Debug, Serialize)]
pub struct ClassCard {
    /// The word, as views name it.
    pub key: &'static str,
    /// What a reader calls it.
    pub name: &'static str,
    /// New rows of the step that costs are counted for: the most that the class takes.
    pub rows: usize,
}

/// What a kind of operation computes.
#[derive(Clone, Debug, Serialize)]
pub struct Formula {
    /// In a sentence.
    pub about: &'static str,
    /// In symbols.
    pub formula: &'static str,
    /// What the symbols are in this model.
    #[serde(rename = "where")]
    pub symbols: Vec<String>,
    /// Where it was published, or defined.
    pub source: &'static str,
}

/// A weight of a block: one matrix a layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WeightCard {
    /// The slot of the circuit.
    pub slot: String,
    /// The tensor's name in the file, `{layer}` (and `{expert}`) in place of numbers.
    pub tensor: String,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// How it is stored.
    pub formats: Vec<FormatCard>,
}

/// The layers that store a weight in one format.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FormatCard {
    /// The format.
    pub format: &'static str,
    /// Which layers: `3–12, 15`; empty for what stands outside of layers.
    pub layers: String,
    /// How many.
    pub count: usize,
    /// Bytes of it in one layer.
    pub bytes: usize,
}

/// One kind of request to the kernels, and its answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Binding {
    /// The operation asked for.
    pub operation: &'static str,
    /// The format of the weight, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<&'static str>,
    /// The kernel bound.
    pub kernel: &'static str,
    /// Its instruction set.
    pub tier: &'static str,
    /// How it reads its input.
    pub activation: &'static str,
    /// How it reads the weight, where it reads one as it lies in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<&'static str>,
    /// Why this one: a sentence each for input, layout and tier.
    pub why: Vec<String>,
    /// The other kernels of the operation that read this format or any, and why not they.
    pub others: Vec<Other>,
}

/// A kernel that was not bound.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Other {
    /// Its name.
    pub kernel: &'static str,
    /// Why it was not bound.
    pub why: String,
    /// Whether it does what is asked, and only lost to a better one.
    pub matches: bool,
}

/// A run of layers of one structure, or what stands before and after them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Block {
    /// `Layers 3–60`.
    pub title: String,
    /// `mixture of experts`.
    pub subtitle: String,
    /// First and last layer of each run of layers that it stands for.
    pub layers: Vec<(usize, usize)>,
    /// How often it is repeated.
    pub count: usize,
    /// Phases of one repetition (0 where the stage has none).
    pub phases: usize,
    /// Width in the drawing's units.
    pub width: f64,
    /// Height.
    pub height: f64,
    /// Its operations, in order.
    pub operations: Vec<Operation>,
    /// What is drawn.
    pub scene: Vec<Mark>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Operation {
    /// The word of its kind.
    pub op: &'static str,
    /// The word with the slots of its weights: `linear q_a + kv_a`.
    pub title: String,
    /// Which colour it has: `io`, `norm`, `linear`, `position`, `attention`, `cache`, `experts` or `sum`.
    pub family: &'static str,
    /// Its line in `latent graph`, for the first layer of the block.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub line: String,
    /// The phase within the block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<usize>,
    /// `absorbed` or `naive`, where it works on the rows of one formulation only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane: Option<&'static str>,
    /// Whether the step that costs are counted for takes this lane, or the model this branch of the circuit.
    pub taken: bool,
    /// Conditions in the circuit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<String>,
    /// Values read.
    pub inputs: Vec<Port>,
    /// Values made.
    pub outputs: Vec<Port>,
    /// What happens to the first input before, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    /// What happens to the result after, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Weights.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<WeightUse>,
    /// Bindings that read no weight.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<usize>,
    /// The cache stream that it touches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheUse>,
    /// What it moves and computes, on average over the block's layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostCard>,
}

/// A value at an operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// `rows × 128 × 192`.
    pub shape: String,
    /// Where it lies: `residual stream`, `arena`, `q_a + 0`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub place: String,
}

/// A weight at an operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WeightUse {
    /// Index in the drawing's weights.
    pub weight: usize,
    /// Index in the drawing's bindings, one for each of the weight's formats; empty where nothing is bound.
    pub kernels: Vec<usize>,
}

/// A cache stream at an operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CacheUse {
    /// `latent` or `expanded`.
    pub kind: &'static str,
    /// Whether it writes; else it reads.
    pub writes: bool,
    /// Numbers of a row.
    pub width: usize,
    /// Its bytes.
    pub row_bytes: usize,
}

/// Costs of one operation in one layer: with n rows in the cache before, `a + n · a_per_cached`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CostCard {
    /// Bytes of weights read.
    pub weight_bytes: f64,
    /// Bytes of cache read or written with an empty cache before.
    pub cache_bytes: f64,
    /// Further bytes for each row in the cache before.
    pub cache_bytes_per_cached: f64,
    /// Floating-point operations with an empty cache before.
    pub flops: f64,
    /// Further operations for each row in the cache before.
    pub flops_per_cached: f64,
}

/// One drawing.
#[derive(Clone, Debug, Serialize)]
pub struct View {
    /// `circuit`, `ir` or `plan`.
    pub stage: &'static str,
    /// The formulation of a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub formulation: Option<&'static str>,
    /// The class of rows of a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<&'static str>,
    /// Width in the drawing's units.
    pub width: f64,
    /// Height.
    pub height: f64,
    /// Its blocks, in order.
    pub blocks: Vec<Placed>,
    /// The residual stream between blocks.
    pub scene: Vec<Mark>,
    /// Phases of the whole plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<usize>,
    /// The arena of a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

/// A block in a view.
#[derive(Clone, Debug, Serialize)]
pub struct Placed {
    /// Index in the drawing's blocks.
    pub block: usize,
    /// Left.
    pub x: f64,
    /// Top.
    pub y: f64,
    /// Its first phase in the plan.
    pub first_phase: usize,
}

/// The arena of a plan, for the first layer of each block.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// Bytes of the whole arena.
    pub arena_bytes: usize,
    /// The most rows that fit.
    pub max_rows: usize,
    /// Columns of the picture: the phases of each block in turn.
    pub columns: usize,
    /// Whether every repetition of every block lies where its first one does.
    pub repeats: bool,
    /// The buffers.
    pub buffers: Vec<Buffer>,
}

/// A buffer of the arena.
#[derive(Clone, Debug, Serialize)]
pub struct Buffer {
    /// The value.
    pub name: String,
    /// `rows × 1536`.
    pub shape: String,
    /// The block of the view that it belongs to.
    pub block: usize,
    /// First column in which it is alive.
    pub first: usize,
    /// Last column.
    pub last: usize,
    /// Where it begins, in bytes.
    pub offset: usize,
    /// Its bytes.
    pub bytes: usize,
}
