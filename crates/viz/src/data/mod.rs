//! The data of a drawing, whose JSON `docs/graph.schema.json` describes.

mod file_info;
mod operation;
mod view;
mod weight;

pub use file_info::{FileInfo, SpecialToken};
pub use operation::{
    DrawingBlock, DrawingOperation, KvAccess, OperationCost, OperationPort, OperationRun, OperationWeight,
};
pub use view::{ArenaChart, Buffer, DrawingView, PlacedBlock};
pub use weight::{FormatInfo, KernelBinding, RejectedKernel, WeightInfo};

use latent_graph::config::ModelConfig;
use serde::Serialize;
use std::collections::BTreeMap;

/// The `format` of the JSON.
pub const FORMAT: &str = "latent-drawing";

/// The version of the JSON, raised by changes that could break a reader.
pub const VERSION: u32 = 2;

/// One model: every stage, formulation and batch bucket, with costs.
#[derive(Clone, Debug, Serialize)]
pub struct Drawing {
    /// [`FORMAT`].
    pub format: &'static str,
    /// [`VERSION`].
    pub version: u32,
    pub model: ModelSummary,
    /// The target that kernels were selected for.
    pub machine: TargetInfo,
    /// The formulations of MLA, with a plan each.
    pub formulations: Vec<FormulationInfo>,
    /// The batch buckets, with a plan each.
    pub buckets: Vec<BucketInfo>,
    /// The passes, in the order in which they run.
    pub passes: Vec<PassInfo>,
    /// The formula of each operation, by its word.
    pub operations: BTreeMap<&'static str, Formula>,
    /// Weights, each with the formats that its layers store it in.
    pub weights: Vec<WeightInfo>,
    /// Which kernel was selected for each request, and why.
    pub bindings: Vec<KernelBinding>,
    /// Blocks: a run of layers of one structure, or what stands before and after them.
    pub blocks: Vec<DrawingBlock>,
    /// The views: circuit and IR; per formulation and bucket the IR after each pass, and the plan.
    pub views: Vec<DrawingView>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ModelSummary {
    /// The file or folder.
    pub file: String,
    /// Its name in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The description in the circuit file.
    pub about: String,
    /// The assumed weight format, if no file has weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assumed: Option<&'static str>,
    /// Elements of all weights that a plan uses.
    pub parameters: u64,
    pub weight_bytes: u64,
    /// New rows per sequence from which `auto` takes the naive path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossover: Option<usize>,
    /// The hyper-parameters.
    pub config: ModelConfig,
}

/// The target that kernels were selected for.
#[derive(Clone, Debug, Serialize)]
pub struct TargetInfo {
    /// The highest ISA allowed.
    pub tier: &'static str,
    /// `exact` or `default`.
    pub precision: &'static str,
    /// The element type of the KV cache.
    pub cache: &'static str,
    /// The device whose calls operations become, if it is not the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// A formulation of MLA.
#[derive(Clone, Debug, Serialize)]
pub struct FormulationInfo {
    /// The key that views use.
    pub key: &'static str,
    /// The display name.
    pub name: &'static str,
    /// A one-sentence description.
    pub about: &'static str,
}

/// A pass from IR to IR.
#[derive(Clone, Debug, Serialize)]
pub struct PassInfo {
    /// The key that views use.
    pub key: &'static str,
    /// The display name.
    pub name: &'static str,
    /// A one-sentence description.
    pub about: &'static str,
}

/// A batch bucket.
#[derive(Clone, Debug, Serialize)]
pub struct BucketInfo {
    /// The key that views use.
    pub key: &'static str,
    /// The display name.
    pub name: &'static str,
    /// New rows of the step that costs are for: the maximum of the bucket.
    pub rows: usize,
}

/// The formula of an operation.
#[derive(Clone, Debug, Serialize)]
pub struct Formula {
    /// A one-sentence description.
    pub about: &'static str,
    pub formula: &'static str,
    /// The values of its symbols in this model.
    #[serde(rename = "where")]
    pub symbols: Vec<String>,
    /// The publication that defines it.
    pub source: &'static str,
}
