//! Bytes and operations of a node, for plans, drawings and the profiler.

use super::{AttentionPath, Ir, KvLayerKind, Node, Op};
use latent_types::CacheType;
use serde::Serialize;

/// What a node moves and computes in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Bytes of weights read (each once, whatever the number of rows; of experts, those that the rows can reach).
    pub weight_bytes: f64,
    /// Bytes of cache read or written.
    pub cache_bytes: f64,
    /// Floating-point operations, a multiplication and an addition counted as two.
    pub flops: f64,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.weight_bytes += other.weight_bytes;
        self.cache_bytes += other.cache_bytes;
        self.flops += other.flops;
    }
}

/// The step that costs are counted for.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// New rows of all sequences.
    pub rows: usize,
    /// Sequences, each with an equal share of the rows.
    pub sequences: usize,
    /// Rows already in the cache of each sequence.
    pub cached: usize,
    /// How the cache stores numbers.
    pub cache: CacheType,
    /// The formulation that its rows take.
    pub path: AttentionPath,
}

impl Node {
    /// What the node moves and computes in `step`: nothing where the rows take another lane.
    pub fn cost(&self, ir: &Ir, step: Step) -> Cost {
        if !self.path.meets(step.path) {
            return Cost::default();
        }
        let weights = |reach: f64| -> f64 {
            self.weights.iter().map(|(_, id)| ir.weight(*id).bytes() as f64 * reach).sum()
        };
        let rows = step.rows as f64;
        let sequences = step.sequences.max(1) as f64;
        // causal: row r of a sequence sees the cached rows and r + 1 of its own
        let pairs = rows * step.cached as f64 + rows * (rows / sequences + 1.0) / 2.0;
        let seen = sequences * step.cached as f64 + rows;
        let heads = self.inputs.first().map_or(1, |id| ir.value(*id).heads) as f64;
        let width = |i: usize| self.inputs.get(i).map_or(0, |id| ir.value(*id).width) as f64;
        let out_width = self.outputs.first().map_or(0, |id| ir.value(*id).width) as f64;
        let matrix_flops = |rows: f64| -> f64 {
            self.weights.iter().map(|(_, id)| 2.0 * ir.weight(*id).elements() as f64 * rows).sum()
        };
        let stream_row = self.kv_layer.map_or(0, |id| ir.kv_layers[id.0].row(step.cache).bytes()) as f64;
        match self.op {
            Op::Embed { .. } => {
                let row: f64 = self.weights.iter().map(|(_, id)| row_bytes(ir, *id)).sum();
                Cost { weight_bytes: row * rows, cache_bytes: 0.0, flops: 0.0 }
            }
            Op::Linear | Op::AbsorbK | Op::AbsorbV => {
                let mut share = 1.0;
                if self.op != Op::Linear && self.weight("kv_b").is_some() {
                    // half of kv_b: the key's rows or the value's; the rope part of a query is copied
                    let kv: f64 = self.weights.iter().map(|(_, id)| ir.weight(*id).elements() as f64).sum();
                    share = (heads * width(0) * (out_width - width(1)) / kv).min(1.0);
                }
                Cost { weight_bytes: weights(share), cache_bytes: 0.0, flops: matrix_flops(rows) * share }
            }
            Op::ExpertGateUp | Op::ExpertDown => self.expert_cost(ir, rows),
            Op::AttendLatent | Op::AttendSeparate => {
                let flops = 2.0 * pairs * heads * (width(0) + out_width);
                Cost { weight_bytes: 0.0, cache_bytes: seen * stream_row, flops }
            }
            Op::AttendExpanded => {
                let on_the_fly =
                    self.kv_layer.is_some_and(|id| ir.kv_layers[id.0].kind == KvLayerKind::Latent);
                let attend = 2.0 * pairs * heads * (width(0) + width(1) + out_width);
                let expand = if on_the_fly { matrix_flops(seen) } else { 0.0 };
                Cost { weight_bytes: weights(1.0), cache_bytes: seen * stream_row, flops: attend + expand }
            }
            Op::LatentStore | Op::ExpandedStore => {
                Cost { weight_bytes: weights(1.0), cache_bytes: rows * stream_row, flops: matrix_flops(rows) }
            }
            _ => Cost::default(),
        }
    }

    /// Experts: those that `rows` rows reach if routing is uniform.
    fn expert_cost(&self, ir: &Ir, rows: f64) -> Cost {
        let mut cost = Cost::default();
        let used = self.inputs.get(1).map_or(1, |id| ir.value(*id).width) as f64;
        for (_, id) in &self.weights {
            let weight = ir.weight(*id);
            let experts = weight.stacked().max(1) as f64;
            let reached = experts * (1.0 - (1.0 - (used / experts).min(1.0)).powf(rows));
            cost.weight_bytes += weight.bytes() as f64 * reached / experts;
            cost.flops += 2.0 * weight.elements() as f64 / experts * used * rows;
        }
        cost
    }
}

fn row_bytes(ir: &Ir, id: super::WeightId) -> f64 {
    let weight = ir.weight(id);
    weight.ty.row_bytes(weight.inputs()).unwrap_or(0) as f64
}
