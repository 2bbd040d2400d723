//! Views: the positions of blocks, and the arena of a plan.

use crate::scene::Primitive;
use serde::Serialize;

/// One stage of the model, and for a plan of one formulation and batch bucket.
#[derive(Clone, Debug, Serialize)]
pub struct DrawingView {
    /// `circuit`, `ir` or `plan`.
    pub stage: &'static str,
    /// The last pass that ran; `None` for a circuit, an IR before all passes, and a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass: Option<&'static str>,
    /// The formulation of a plan, or of an IR after passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub formulation: Option<&'static str>,
    /// The batch bucket, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket: Option<&'static str>,
    /// Width in drawing units.
    pub width: f64,
    pub height: f64,
    /// Its blocks, in order.
    pub blocks: Vec<PlacedBlock>,
    /// The rendered residual stream between blocks.
    pub scene: Vec<Primitive>,
    /// Phases of the whole plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<usize>,
    /// The arena of a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ArenaChart>,
}

/// A block with its position.
#[derive(Clone, Debug, Serialize)]
pub struct PlacedBlock {
    /// Index into the drawing's blocks.
    pub block: usize,
    /// Left.
    pub x: f64,
    /// Top.
    pub y: f64,
    /// Its first phase in the plan.
    pub first_phase: usize,
    /// Operations of the block that the pass added or rewrote.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<usize>,
    /// Lines of the first layer that the pass removed or rewrote.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
}

/// The arena of a plan, for the first layer of each block.
#[derive(Clone, Debug, Serialize)]
pub struct ArenaChart {
    /// Bytes of the whole arena.
    pub arena_bytes: usize,
    /// The maximum number of rows.
    pub max_rows: usize,
    /// Columns of the chart: the phases of each block in turn.
    pub columns: usize,
    /// Whether all layers of a block use the same offsets.
    pub repeats: bool,
    pub buffers: Vec<Buffer>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Buffer {
    /// The value.
    pub name: String,
    /// `rows × 1536`.
    pub shape: String,
    /// Index into the view's blocks.
    pub block: usize,
    /// First column of its lifetime.
    pub first: usize,
    /// Last column of its lifetime.
    pub last: usize,
    /// Offset in the arena, in bytes.
    pub offset: usize,
    pub bytes: usize,
}
