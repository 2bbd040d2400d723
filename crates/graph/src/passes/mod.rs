//! Passes: small pure functions IR → IR, each with a name and a snapshot test. `schedule` and
//! `plan_memory` turn the last IR into a plan.

mod collectives;
mod epilogues;
mod expand_stores;
mod experts;
mod kv_splits;
mod lower_mla;
mod memory_plan;
mod norms;
mod pipeline;
mod projections;
mod ropes;
mod schedule;
mod select_kernels;
#[cfg(test)]
pub(crate) mod snapshots;
mod split_kv_b;

pub use collectives::insert_collectives;
pub use epilogues::fold_epilogues;
pub use expand_stores::expand_stores;
pub use experts::group_experts;
pub use kv_splits::share_kv_splits;
pub use lower_mla::{CacheForm, FORMS, MlaChoice, crossover, lower_mla};
pub use memory_plan::{Arena, BufferLifetime, lifetimes, plan_memory};
pub use norms::fold_norms;
pub(crate) use pipeline::lowered;
pub use pipeline::{OPTIONAL, Pass, PassInput, after, optional, pipeline};
pub use projections::fuse_projections;
pub use ropes::fold_ropes;
pub use schedule::schedule;
pub(crate) use schedule::{heads_of_each_thread, routed_by_each_thread};
pub use select_kernels::{
    BindOptions, KernelRequest, MeasuredProduct, Precision, binding_bucket, choose, measured_product,
    required_kernels, select_kernels,
};
pub use split_kv_b::split_kv_b;

use crate::ir::{Ir, Node, ValueId};
use std::ops::Range;

/// The number of rows that a plan is made for. A plan also runs steps with fewer rows than its
/// bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchBucket {
    /// One row: a single sequence decoding.
    Decode,
    /// 2 to 16 rows: several sequences, or drafts to verify.
    SmallBatch,
    /// More: prefill.
    Prefill,
}

impl BatchBucket {
    /// Smallest first.
    pub const ALL: [BatchBucket; 3] = [BatchBucket::Decode, BatchBucket::SmallBatch, BatchBucket::Prefill];

    /// Maximum rows of [`BatchBucket::SmallBatch`].
    pub const SMALL_BATCH: usize = 16;

    /// The bucket of a step with `rows` rows.
    pub fn of(rows: usize) -> BatchBucket {
        match rows {
            0 | 1 => BatchBucket::Decode,
            2..=Self::SMALL_BATCH => BatchBucket::SmallBatch,
            _ => BatchBucket::Prefill,
        }
    }

    /// What its steps do, as a word for display.
    pub fn purpose(self) -> &'static str {
        match self {
            BatchBucket::Decode => "decode",
            BatchBucket::SmallBatch => "small batch",
            BatchBucket::Prefill => "prefill",
        }
    }

    /// Minimum rows of a step in this bucket. Kernels with a higher minimum are not selected.
    pub fn min_rows(self) -> usize {
        match self {
            BatchBucket::Decode => 1,
            BatchBucket::SmallBatch => 2,
            BatchBucket::Prefill => Self::SMALL_BATCH + 1,
        }
    }

    /// Maximum rows of its plan, if no step has more than `max_batch_tokens`.
    pub fn max_rows(self, max_batch_tokens: usize) -> usize {
        match self {
            BatchBucket::Decode => 1,
            BatchBucket::SmallBatch => Self::SMALL_BATCH.min(max_batch_tokens),
            BatchBucket::Prefill => max_batch_tokens,
        }
    }
}

/// Whether one of these nodes overwrites memory of `value`, as in-place sums do. Splits only create
/// views.
fn overwritten(ir: &Ir, value: ValueId, mut nodes: Range<usize>) -> bool {
    let (root, place) = ir.place(value);
    nodes.any(|n| {
        let over = |id: &ValueId| {
            let (of, other) = ir.place(*id);
            // Half-open ranges within a head.
            of == root && other.start < place.end && place.start < other.end
        };
        !ir.nodes[n].op.spec().is_view && ir.nodes[n].outputs.iter().any(over)
    })
}

/// Removes and returns the node at `index`.
fn remove(ir: &mut Ir, index: usize) -> Node {
    ir.nodes.remove(index)
}
